"""The ``FENCING`` setting: one small function per value, unknown keys refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

DEFAULT_ALIAS = "default"
MAX_TOKEN = 2**53 - 1
MAX_RESOURCE_LENGTH = 200
MAX_OPERATION_LENGTH = 200
# Seconds. What the stores count in milliseconds ends somewhere.
LONGEST = 10**12

TOP_KEYS = frozenset({"BACKENDS", "RECORD", "RETENTION", "OPERATION_RETENTION", "IDLE_IN_TRANSACTION", "ADMIN_TIMEOUT"})
BACKEND_KEYS = frozenset({"BACKEND", "CACHE", "DATABASE", "NAMESPACE", "TTL", "BLOCK", "PARTITIONS", "OPTIONS"})


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
    value = getattr(settings, "FENCING", {})
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(f"FENCING must be a dictionary, not {value!r}.")
    refuse_unknown("FENCING", value, TOP_KEYS)
    return value


def refuse_unknown(where: str, value: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise ImproperlyConfigured for a key that nobody reads: a typing error would else be silent."""
    unknown = sorted(set(value) - known)
    if unknown:
        raise ImproperlyConfigured(
            f"{where} has unknown keys: {', '.join(unknown)}. Known: {', '.join(sorted(known))}."
        )


def backend_aliases() -> list[str]:
    """The aliases in ``FENCING["BACKENDS"]``."""
    return list(setting().get("BACKENDS", {}))


@cache
def backend_config(alias: str) -> BackendConfig:
    """The configuration of one alias; raises ImproperlyConfigured for an unknown alias or a bad value."""
    backends = setting().get("BACKENDS", {})
    if alias not in backends:
        known = ", ".join(backends) or "none"
        raise ImproperlyConfigured(f'FENCING["BACKENDS"] has no alias {alias!r}; it has: {known}.')
    value, where = backends[alias], f'FENCING["BACKENDS"][{alias!r}]'
    refuse_unknown(where, value, BACKEND_KEYS)
    if "BACKEND" not in value:
        raise ImproperlyConfigured(f'{where} needs "BACKEND", a dotted path.')
    return BackendConfig(
        alias=alias,
        backend=value["BACKEND"],
        cache=value.get("CACHE", "default"),
        database=value.get("DATABASE", "default"),
        namespace=value.get("NAMESPACE", "default"),
        ttl=seconds(value.get("TTL", 30), f'{where}["TTL"]', error=ImproperlyConfigured),
        block=whole(value.get("BLOCK", 10_000), f'{where}["BLOCK"]', at_least=1),
        partitions=whole(value.get("PARTITIONS", 1), f'{where}["PARTITIONS"]', at_least=1),
        options=value.get("OPTIONS", {}),
    )


@receiver(setting_changed)
def _forget(*, setting: str, **_kwargs: Any) -> None:
    """Tests override settings."""
    if setting == "FENCING":
        backend_config.cache_clear()
        record.cache_clear()


@cache
def record() -> str:
    """Which writes go to the history: "all" (default), "refused" or "none"."""
    value = setting().get("RECORD", "all")
    if value not in ("all", "refused", "none"):
        raise ImproperlyConfigured(f'FENCING["RECORD"] is {value!r}; it must be "all", "refused" or "none".')
    return str(value)


def retention() -> float | None:
    """Seconds that the history is kept; None (default) means for ever."""
    return _kept_for("RETENTION")


def operation_retention() -> float | None:
    """Seconds that results of operations, and resources that nobody uses, are kept; None (default) means for ever."""
    return _kept_for("OPERATION_RETENTION")


def admin_timeout() -> float:
    """Seconds that one statement of a page in the admin may take; 0 means no bound. Default: 3."""
    value = setting().get("ADMIN_TIMEOUT")
    if value is None:
        return 3.0
    if value in (False, 0):
        return 0.0
    return seconds(value, 'FENCING["ADMIN_TIMEOUT"]', error=ImproperlyConfigured)


def _kept_for(key: str) -> float | None:
    value = setting().get(key)
    return None if value is None else seconds(value, f'FENCING["{key}"]', error=ImproperlyConfigured)


def idle_in_transaction(ttl: float) -> float:
    """Seconds that a transaction which holds fenced rows may idle; 0 means no bound. Default: the lease's ttl."""
    value = setting().get("IDLE_IN_TRANSACTION")
    if value is None:
        return ttl
    if value in (False, 0):
        return 0.0
    return seconds(value, 'FENCING["IDLE_IN_TRANSACTION"]', error=ImproperlyConfigured)


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
