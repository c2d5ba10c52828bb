"""The ``FENCING`` setting: one small function per value, unknown keys refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

DEFAULT_ALIAS = "default"
MAX_TOKEN = 2**53 - 1
MAX_RESOURCE_LENGTH = 200
MAX_OPERATION_LENGTH = 200
MAX_NAMESPACE_LENGTH = 100
# Seconds. What the stores count in milliseconds ends somewhere.
LONGEST = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """One entry of ``FENCING["BACKENDS"]``.

    Attributes:
        alias: its name there.
        backend: dotted path of the class.
        cache: alias in ``CACHES`` whose connection is used.
        database: alias of the database that owns the numbers.
        namespace: one counter, one database, one alias.
        ttl: default ttl of a lease, in seconds.
        block: how many numbers the database reserves at a time.
        partitions: over how many counters resources are spread.
        options: for the backend itself.
    """

    alias: str
    backend: str
    cache: str = "default"
    database: str = "default"
    namespace: str = "default"
    ttl: float = 30.0
    block: int = 10_000
    partitions: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


def setting() -> Mapping[str, Any]:
    """The whole ``FENCING`` dictionary, with unknown keys refused."""
    value = _dictionary(getattr(settings, "FENCING", {}), "FENCING")
    _refuse_unknown("FENCING", value, TOP_KEYS)
    _dictionary(value.get("BACKENDS", {}), 'FENCING["BACKENDS"]')
    return value


def problems() -> Iterator[str]:
    """All that is wrong with ``FENCING``, a sentence for each. Whoever reads a value raises the first that it meets."""
    value = getattr(settings, "FENCING", {})
    if not isinstance(value, Mapping):
        value = {}
        yield from _objections(setting)
    backends = value.get("BACKENDS", {})
    yield from _objections(
        partial(_refuse_unknown, "FENCING", value, TOP_KEYS),
        partial(_dictionary, backends, 'FENCING["BACKENDS"]'),
        *(partial(read, value.get(key, default), f'FENCING["{key}"]') for key, (default, read) in READERS.items()),
    )
    for alias, entry in backends.items() if isinstance(backends, Mapping) else ():
        if isinstance(entry, Mapping):
            unknown = partial(_refuse_unknown, _where(alias), entry, BACKEND_KEYS)
            yield from _objections(unknown, *_readers_of(alias, entry).values())
        else:
            yield from _objections(partial(_dictionary, entry, _where(alias)))


def _objections(*readers: Callable[[], Any]) -> Iterator[str]:
    for read in readers:
        try:
            read()
        except ImproperlyConfigured as error:
            yield str(error)


def backend_aliases() -> list[str]:
    """The aliases in ``FENCING["BACKENDS"]``."""
    return list(setting().get("BACKENDS", {}))


def sound_backends() -> list[BackendConfig]:
    """The configuration of each alias that can be read: what is wrong with the others is among ``problems``."""
    sound: list[BackendConfig] = []
    with suppress(ImproperlyConfigured):
        for alias in backend_aliases():
            with suppress(ImproperlyConfigured):
                sound.append(backend_config(alias))
    return sound


@cache
def backend_config(alias: str) -> BackendConfig:
    """The configuration of one alias; raises ImproperlyConfigured for an unknown alias or a bad value."""
    backends = setting().get("BACKENDS", {})
    if alias not in backends:
        known = ", ".join(backends) or "none"
        raise ImproperlyConfigured(f'FENCING["BACKENDS"] has no alias {alias!r}; it has: {known}.')
    entry = _dictionary(backends[alias], _where(alias))
    _refuse_unknown(_where(alias), entry, BACKEND_KEYS)
    return BackendConfig(alias=alias, **{name: read() for name, read in _readers_of(alias, entry).items()})


def _where(alias: str) -> str:
    return f'FENCING["BACKENDS"][{alias!r}]'


def _readers_of(alias: str, entry: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """What reads each attribute of an alias' ``BackendConfig``, of those that its entry gives."""

    def backend() -> str:
        if "BACKEND" not in entry:
            raise ImproperlyConfigured(f'{_where(alias)} needs "BACKEND", a dotted path.')
        return _text(entry["BACKEND"], f'{_where(alias)}["BACKEND"]')

    given = {key: read for key, read in BACKEND_READERS.items() if key in entry}
    others = {key.lower(): partial(read, entry[key], f'{_where(alias)}["{key}"]') for key, read in given.items()}
    return {"backend": backend, **others}


def _refuse_unknown(where: str, value: Mapping[str, Any], known: Collection[str]) -> None:
    """A typing error in a key that nobody reads would else be silent."""
    unknown = sorted(map(str, value.keys() - known))
    if unknown:
        raise ImproperlyConfigured(
            f"{where} has unknown keys: {', '.join(unknown)}. Known: {', '.join(sorted(known))}."
        )


def _dictionary(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(f"{what} must be a dictionary, not {value!r}.")
    return value


def _text(value: Any, what: str, *, at_most: int | None = None) -> str:
    if isinstance(value, str) and 0 < len(value) <= (at_most or len(value)):
        return value
    bound = "that is not empty" if at_most is None else f"of 1 to {at_most} characters"
    raise ImproperlyConfigured(f"{what} must be a string {bound}, not {value!r}.")


def _seconds(value: Any, what: str) -> float:
    return seconds(value, what, error=ImproperlyConfigured)


def _record(value: Any, what: str) -> str:
    if value in ("all", "refused", "none"):
        return str(value)
    raise ImproperlyConfigured(f'{what} is {value!r}; it must be "all", "refused" or "none".')


def _kept_for(value: Any, what: str) -> float | None:
    return None if value is None else _seconds_or(value, what, "None, the default, keeps everything for ever.")


def _bound(value: Any, what: str) -> float | None:
    """Seconds; 0.0 for no bound, None for the default."""
    if value is None:
        return None
    if value in (False, 0):
        return 0.0
    return _seconds_or(value, what, "0 or False sets no bound; without it the default holds.")


def _seconds_or(value: Any, what: str, otherwise: str) -> float:
    """``value`` as seconds; what else it may be is said with what it must be."""
    try:
        return _seconds(value, what)
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(f"{error} {otherwise}") from None


@receiver(setting_changed)
def _forget(*, setting: str, **_kwargs: Any) -> None:
    """Tests override settings."""
    if setting == "FENCING":
        backend_config.cache_clear()
        record.cache_clear()


def _read(key: str) -> Any:
    default, read = READERS[key]
    return read(setting().get(key, default), f'FENCING["{key}"]')


@cache
def record() -> str:
    """Which writes go to the history: "all" (default), "refused" or "none"."""
    return str(_read("RECORD"))


def retention() -> float | None:
    """Seconds that the history is kept; None (default) means for ever."""
    kept: float | None = _read("RETENTION")
    return kept


def operation_retention() -> float | None:
    """Seconds that results of operations, and resources that nobody uses, are kept; None (default) means for ever."""
    kept: float | None = _read("OPERATION_RETENTION")
    return kept


def admin_timeout() -> float:
    """Seconds that one statement of a page in the admin may take; 0 means no bound. Default: 3."""
    bound = _read("ADMIN_TIMEOUT")
    return 3.0 if bound is None else float(bound)


def idle_in_transaction(ttl: float) -> float:
    """Seconds that a transaction which holds fenced rows may idle; 0 means no bound. Default: the lease's ttl."""
    bound = _read("IDLE_IN_TRANSACTION")
    return ttl if bound is None else float(bound)


def seconds(value: float | timedelta, what: str, *, error: type[Exception] = ValueError) -> float:
    """``value`` as a finite number of seconds above 0, at most ``LONGEST``.

    Args:
        value: seconds, or a timedelta.
        what: how to name it in the error.
        error: what to raise for a bad one; TypeError is raised for a value that is no number when this is ValueError.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        kind = TypeError if error is ValueError else error
        raise kind(f"{what} must be a number of seconds or a timedelta, not {value!r}.")
    if not (0 < number < math.inf):
        raise error(f"{what} must be a finite number of seconds above 0, not {value!r}.")
    if number > LONGEST:
        raise error(f"{what} must be at most {LONGEST} seconds, not {value!r}.")
    return float(number)


def patience(value: float | timedelta, what: str) -> float:
    """``value`` as a finite number of seconds, 0 or more; raises TypeError or ValueError."""
    return 0.0 if value == 0 and not isinstance(value, bool) else seconds(value, what)


def whole(value: Any, what: str, *, at_least: int) -> int:
    """``value`` as an integer, at least ``at_least``; raises ImproperlyConfigured."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ImproperlyConfigured(f"{what} must be an integer of at least {at_least}, not {value!r}.")
    return value


# What each value is where none is given, and what reads one: it gets the value, and what to call it in an error.
READERS: dict[str, tuple[Any, Callable[[Any, str], Any]]] = {
    "RECORD": ("all", _record),
    "RETENTION": (None, _kept_for),
    "OPERATION_RETENTION": (None, _kept_for),
    "IDLE_IN_TRANSACTION": (None, _bound),
    "ADMIN_TIMEOUT": (None, _bound),
}
TOP_KEYS = frozenset({"BACKENDS", *READERS})
# What reads those of a backend, but for "BACKEND", the only one that must be there; BackendConfig has the defaults.
BACKEND_READERS: dict[str, Callable[[Any, str], Any]] = {
    "CACHE": _text,
    "DATABASE": _text,
    "NAMESPACE": partial(_text, at_most=MAX_NAMESPACE_LENGTH),
    "TTL": _seconds,
    "BLOCK": partial(whole, at_least=1),
    "PARTITIONS": partial(whole, at_least=1),
    "OPTIONS": _dictionary,
}
BACKEND_KEYS = frozenset({"BACKEND", *BACKEND_READERS})
