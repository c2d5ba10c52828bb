"""The log of reigns, and ranges that an operator opens: above every number that a database or a store has seen."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, router
from django.db import Error as DatabaseProblem
from django.db.models import Max, Model

from fencing import conf
from fencing.backends import LeaseBackend, get_backend
from fencing.backends.base import NeedsRange, Place
from fencing.conf import BackendConfig
from fencing.exceptions import InvalidTokenError, LeaseBackendError
from fencing.naming import owns_token
from fencing.ranges import MAX_RAISE, reserve
from fencing.tables import table
from fencing.tokens import open_reign, place_of

# A database that was restored does not know what was issued after its backup: more than this it cannot have been.
MARGIN = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedReign:
    """A line of the log. Where several partitions count, others have numbers between ``first`` and ``last``, too."""

    partition: int
    reign: str
    server: str
    first: int
    last: int
    opened_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reigns:
    """What the database says of a namespace."""

    namespace: str
    partitions: int
    ceiling: int
    log: tuple[LoggedReign, ...]


def logged_reigns(using: str = conf.DEFAULT_ALIAS) -> Reigns:
    """The log of the reigns of a backend's namespace, the oldest first. A database that cannot be used raises its error."""
    config = get_backend(using).config
    row = table("TokenRange")._base_manager.using(config.database).filter(namespace=config.namespace).values().first()
    if row is None:
        return Reigns(namespace=config.namespace, partitions=config.partitions, ceiling=0, log=())
    rows = table("Reign")._base_manager.using(config.database).filter(namespace=config.namespace)
    log: list[LoggedReign] = []
    ends: dict[int, int] = {}
    for one in rows.order_by("-first_token", "-id").values():
        last = ends.get(one["partition"], row["ceiling"])
        ends[one["partition"]] = one["first_token"] - 1
        log.append(
            LoggedReign(
                partition=one["partition"],
                reign=one["reign"],
                server=one["server"],
                first=one["first_token"],
                last=last,
                opened_at=one["opened_at"],
            )
        )
    return Reigns(
        namespace=config.namespace, partitions=row["partitions"], ceiling=row["ceiling"], log=tuple(reversed(log))
    )


def open_reigns(using: str = conf.DEFAULT_ALIAS, *, by: str) -> dict[int, int]:
    """Let every partition count on far above everything that any database knows: after a database was restored.

    The database goes first: a store whose reign is closed after that gets no range below, whoever reserves it.

    Args:
        using: alias of the lease backend.
        by: who does it, for the log.

    Returns:
        For each partition a number that is nobody's: every grant from now on has a higher one.

    Raises:
        InvalidTokenError: a row holds a number that nobody can have issued; then nothing is opened.
        LeaseBackendError: a store or a database did not answer as it should. It names the partitions that may go on as
            before; to open them again is safe.
        TokensExhaustedError: no number is left.
    """
    backend = get_backend(using)
    places = _counters(backend)
    for place in places:
        # A store that does not answer shall cost no numbers, and be told before anything has changed.
        backend.peek(place)
    _raise_ceiling(backend.config, places, by)
    opened: dict[int, int] = {}
    failed: dict[int, LeaseBackendError] = {}
    for place in places:
        try:
            opened[place.partition] = open_reign(backend, place)
        except LeaseBackendError as error:
            failed[place.partition] = error
    if failed:
        named, first = ", ".join(map(str, failed)), next(iter(failed.values()))
        detail = f"of {len(places)} partitions, these may count on as before: {named}. Open again. {first}"
        raise LeaseBackendError(backend.config.alias, detail) from first
    return opened


def _counters(backend: LeaseBackend) -> list[Place]:
    """Where the store counts: a place in each partition."""
    first = place_of(backend, "reigns")
    return [replace(first, partition=partition) for partition in range(backend.config.partitions)]


def _raise_ceiling(config: BackendConfig, places: list[Place], by: str) -> None:
    """Let every range that is reserved from now on lie far above everything, and log who wanted that."""
    try:
        above = _highest(config) + MARGIN
    except DatabaseProblem as error:
        detail = f"the highest number cannot be read: {type(error).__name__}: {error}"
        raise LeaseBackendError(config.alias, detail) from error
    opening = NeedsRange(reign=f"opening:{secrets.token_hex(8)}", server=f"opened by {by}"[:80], next=above + 1)
    for place in places:
        reserve(config, place, 1, seen=above, reign=opening)


def databases_of(using: str) -> list[str]:
    """The databases in which rows under leases of backend ``using`` are written, Django's default one among them."""
    written = {DEFAULT_DB_ALIAS, *(router.db_for_write(model) for model in _fenced_models(using))}
    return sorted(alias for alias in written if router.allow_migrate_model(alias, table("FencedResource")))


def _highest(config: BackendConfig) -> int:
    ceiling = logged_reigns(config.alias).ceiling
    highest = ceiling
    for number, where in _numbers(config):
        if number > ceiling + MAX_RAISE - MARGIN:
            raise InvalidTokenError(number, f"{where} has it, far above {ceiling}, the highest that was reserved")
        highest = max(highest, number)
    return highest


def _numbers(config: BackendConfig) -> Iterator[tuple[int, str]]:
    """The highest number in each table that holds some, and the table."""
    grants = table("TokenGrant")._base_manager.using(config.database).filter(namespace=config.namespace)
    yield grants.aggregate(highest=Max("token"))["highest"] or 0, "a grant"
    for alias in databases_of(config.alias):
        resources = table("FencedResource")._base_manager.using(alias).filter(namespace=config.namespace)
        yield resources.aggregate(highest=Max("last_token"))["highest"] or 0, f"a resource in database {alias!r}"
        floors = table("ResourceFloor")._base_manager.using(alias).filter(namespace=config.namespace)
        yield floors.aggregate(highest=Max("token"))["highest"] or 0, f"the floor of resources in database {alias!r}"
    for model in _fenced_models(config.alias):
        alias = router.db_for_write(model)
        rows = model._base_manager.using(alias)
        where = f"a row of {model._meta.label} in database {alias!r}"
        yield rows.aggregate(highest=Max("last_token"))["highest"] or 0, where


def _fenced_models(using: str) -> Iterator[type[Model]]:
    """The models whose own tables have ``last_token``, under leases of this backend."""
    for model in apps.get_models():
        if getattr(model, "fence_using", None) == using and not model._meta.proxy and owns_token(model):
            yield model
