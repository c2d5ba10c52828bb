"""System checks: what would fail later, or silently protect nothing, is said before anything is written.

Each id is explained in ``docs/checks.md``. Those of lease stores are in
``fencing.storechecks``; backends add their own from ``fencing.E020`` on (``LeaseBackend.check``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseProblem
from django.db import connections, router

from fencing import conf, mariadbchecks, modelchecks, storechecks, taskchecks
from fencing.backends import get_backend
from fencing.databases import kind
from fencing.guards import SUPPORTED_VENDORS
from fencing.models import FencedModel
from fencing.naming import owns_token

if TYPE_CHECKING:
    from django.apps import AppConfig

REMEDIES = {
    "E001": "Correct the value in FENCING.",
    "E002": 'Add to the settings FENCING = {"BACKENDS": {"default": {"BACKEND": "fencing.backends.redis.RedisBackend", '
    '"CACHE": "leases"}}}, where "leases" is an alias of CACHES with django-redis; or, without a Redis, only '
    '"BACKEND": "fencing.backends.database.DatabaseBackend". lease() uses "default" where nothing else is named.',
    "E003": 'Give the dotted path of a LeaseBackend, such as "fencing.backends.redis.RedisBackend".',
    "E004": 'Name an alias of DATABASES in "DATABASE"; that database owns the namespace\'s numbers.',
    "E005": 'Give each alias a "NAMESPACE" of its own; one namespace has one counter, one database and one alias.',
    "E010": "Move these models to a supported database, with a router that answers allow_migrate.",
    "W016": "Start it, create it or correct it in DATABASES; whether its guards stand is not known until then.",
    "W003": 'Set FENCING["RETENTION"], and run `manage.py fencing prune` every day.',
}


def _error(number: str, message: str, obj: Any = None) -> Error:
    return Error(message, hint=REMEDIES[number], obj=obj, id=f"fencing.{number}")


def _warning(number: str, message: str, obj: Any = None) -> Warning:
    return Warning(message, hint=REMEDIES[number], obj=obj, id=f"fencing.{number}")


@register("fencing")
def check_settings(**_kwargs: Any) -> list[CheckMessage]:
    """``FENCING``: its keys and values, its backends, and that no two of them share a namespace."""
    found: list[CheckMessage] = [_error("E001", problem) for problem in conf.problems()]
    try:
        aliases = conf.backend_aliases()
    except ImproperlyConfigured:
        return found
    if conf.DEFAULT_ALIAS not in aliases:
        lacking = f'FENCING["BACKENDS"] has no alias "default"; it has: {_listed(aliases)}.'
        found.append(_error("E002", lacking if conf.setting() else "The setting FENCING is missing, or empty."))
    sharing = defaultdict(list)
    for config in conf.sound_backends():
        sharing[config.namespace].append(config.alias)
        found.extend(_check_backend(config))
    for namespace, aliases in sharing.items():
        if len(aliases) > 1:
            found.append(_error("E005", f"Namespace {namespace!r} is used by several aliases: {_listed(aliases)}."))
    return found


def _check_backend(config: conf.BackendConfig) -> Iterator[CheckMessage]:
    if config.database not in settings.DATABASES:
        where = f'FENCING["BACKENDS"][{config.alias!r}]["DATABASE"]'
        yield _error("E004", f"{where} is {config.database!r}; DATABASES has: {_listed(settings.DATABASES)}.")
    try:
        backend = get_backend(config.alias)
    except ImproperlyConfigured as error:
        yield _error("E003", str(error))
    else:
        yield from backend.check()
        yield from storechecks.configured(config, backend)


@register("fencing", Tags.models)
def check_models(app_configs: Sequence[AppConfig] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """Every model that inherits ``FencedModel``: its guard, its column, its name of a resource, its managers."""
    found: list[CheckMessage] = []
    for model in _fenced_models(app_configs):
        found.extend(modelchecks.of_model(model, _aliases()))
    found.extend(modelchecks.sharing_tables([*_fenced_models(app_configs)]))
    return found


def _fenced_models(app_configs: Sequence[AppConfig] | None = None) -> Iterator[type[FencedModel]]:
    configs: Iterable[AppConfig] = apps.get_app_configs() if app_configs is None else app_configs
    for config in configs:
        for model in config.get_models():
            if issubclass(model, FencedModel):
                yield model


@register("fencing", Tags.database)
def check_databases(databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """Whether the databases that fenced models live in can carry a guard."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        there = [model._meta.label for model in _fenced_models() if router.allow_migrate_model(alias, model)]
        try:
            found.extend(_check_database(alias, there))
        except DatabaseProblem as error:
            if there:  # else nothing is left unknown
                what = f"Database {alias!r} was not asked for guards and columns: {type(error).__name__}: {error}"
                found.append(_warning("W016", what.strip()))
    return found


def _check_database(alias: str, there: Sequence[str]) -> Iterator[CheckMessage]:
    vendor = kind(connections[alias])
    if vendor == "mariadb":
        yield from _check_mariadb(alias)
    if vendor in SUPPORTED_VENDORS:
        yield from modelchecks.in_database(alias)
    elif there:
        what = f"Database {alias!r} is {vendor}, which has no guard (supported: {_listed(SUPPORTED_VENDORS)})"
        yield _error("E010", f"{what}; it would hold {_listed(there)}.")


def _check_mariadb(alias: str) -> Iterator[CheckMessage]:
    for model in _fenced_models():
        if not model._meta.proxy and owns_token(model) and router.allow_migrate_model(alias, model):
            yield from mariadbchecks.past_the_guard(alias, model)
    if any(config.database == alias for config in conf.sound_backends()):
        yield from mariadbchecks.forgets_numbers(alias)


@register("fencing")
def check_tasks(**_kwargs: Any) -> list[CheckMessage]:
    """Celery tasks that this process has imported: ttl, time limits, redelivery, outcomes."""
    return list(taskchecks.of_tasks())


@register("fencing", deploy=True)
def check_eager_mode(**_kwargs: Any) -> list[CheckMessage]:
    """With ``check --deploy``: whether tasks run in a worker."""
    return list(taskchecks.of_eager_mode())


@register("fencing", deploy=True)
def check_stores(**_kwargs: Any) -> list[CheckMessage]:
    """With ``check --deploy``: whether every lease store answers, may count, and keeps what it has."""
    found: list[CheckMessage] = []
    for alias in _aliases():
        try:
            backend = get_backend(alias)
        except ImproperlyConfigured:
            continue  # check_settings says so
        found.extend(storechecks.running(backend.config, backend))
    return found


@register("fencing", deploy=True)
def check_retention(**_kwargs: Any) -> list[CheckMessage]:
    """With ``check --deploy``: whether the history ends somewhere."""
    try:
        endless, kept = conf.retention() is None, "grants" if conf.record() == "none" else "writes and grants"
    except ImproperlyConfigured:
        return []  # check_settings says so
    return [_warning("W003", f"The history of {kept} is kept for ever.")] if endless else []


def _aliases() -> list[str]:
    """The aliases in ``FENCING``; none of a setting that cannot be read, which is the business of check_settings."""
    try:
        return conf.backend_aliases()
    except ImproperlyConfigured:
        return []


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(str, names)) or "none"
