"""System checks of lease stores: what would make a store forget leases, or be refused, is said before it happens.

``fencing.checks`` registers them; each id is explained in ``docs/checks.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.apps import apps
from django.conf import settings
from django.core.cache import DEFAULT_CACHE_ALIAS, caches
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, router

from fencing import conf
from fencing.backends import LeaseBackend
from fencing.backends.base import Place
from fencing.backends.database import DatabaseBackend
from fencing.backends.redis import RedisBackend
from fencing.backends.redis_client import SOCKET_TIMEOUT, RedisClient
from fencing.conf import BackendConfig
from fencing.exceptions import LeaseBackendError
from fencing.models import FencedModel

# Seconds; below it the heartbeat, which renews every third of a ttl, has no time left for a slow moment.
SHORTEST = 0.1
REPLID = re.compile(r"[0-9a-f]{40}")


def configured(config: BackendConfig, backend: LeaseBackend) -> Iterator[CheckMessage]:
    """What the settings alone tell of one alias."""
    where = f'FENCING["BACKENDS"][{config.alias!r}]'
    slow = _slowest_call(config) if isinstance(backend, RedisBackend) else 0.0
    if config.ttl < SHORTEST or config.ttl * 2 / 3 <= slow:
        why = f"the heartbeat keeps no lease shorter than {SHORTEST} s"
        if config.ttl >= SHORTEST:
            why = f"one renewal may take {slow:g} s (SOCKET_TIMEOUT), which leaves no time for a second try"
        hint = 'Raise "TTL", or lower the SOCKET_TIMEOUT of the cache.'
        yield Warning(f'{where}["TTL"] is {config.ttl:g} s: {why}.', hint=hint, id="fencing.W012")
    if isinstance(backend, RedisBackend) and config.cache in settings.CACHES:
        for reason in _sharing(config.cache):
            hint = "Give the leases a Redis database of their own: clearing a cache, or its eviction, ends leases."
            yield Warning(f'{where}["CACHE"] is {config.cache!r}, {reason}.', hint=hint, id="fencing.W011")
    if isinstance(backend, DatabaseBackend) and (sharing := _fenced_in_sqlite(config)):
        hint = "Give the leases an SQLite database of their own: a transaction that writes keeps them from its file."
        message = f"{where} keeps leases in the SQLite database {config.database!r}, which has {sharing}, too."
        yield Warning(message, hint=hint, id="fencing.W013")


def running(config: BackendConfig, backend: LeaseBackend) -> Iterator[CheckMessage]:
    """What the store itself tells of one alias: whether it answers, is fit to count, and keeps what it has."""
    store = f"The lease store of {config.alias!r}"
    if not backend.is_shared:
        hint = "It is for tests. Keep leases in a Redis, or in the database: fencing.backends.database.DatabaseBackend."
        message = f"{store} is the memory of one process: several workers hold the same lease at a time."
        yield Warning(message, hint=hint, id="fencing.W015")
        return
    try:
        backend.peek(Place(space="check", partition=0, resource="check"))
    except LeaseBackendError as error:
        yield _silent(store, error)
        return
    if isinstance(backend, RedisBackend):
        for name, node in _primaries(config):
            yield from _fit(f"{store} at {name}" if name else store, node)


def _fit(store: str, node: Any) -> Iterator[CheckMessage]:
    """What one server tells, by a client of its own."""
    try:
        replication, memory = node.info("replication"), node.info("memory")
    except RedisClient.refused as error:
        yield _uncounting(store, f"refuses INFO: {error}")
        return
    except Exception as error:  # each client has errors of its own
        yield _silent(store, error)
        return
    replid, policy = str(replication.get("master_replid", "")), str(memory.get("maxmemory_policy", "noeviction"))
    if not REPLID.fullmatch(replid):
        yield _uncounting(store, f"reports the master_replid {replid!r}, not 40 hexadecimal digits")
    if policy != "noeviction" and memory.get("maxmemory") not in (0, "0"):
        hint = "Set maxmemory-policy to noeviction, or give the leases a server of their own."
        yield Warning(
            f"{store} has the maxmemory-policy {policy!r}, which evicts leases.", hint=hint, id="fencing.W010"
        )


def _silent(store: str, error: Exception) -> Error:
    hint = "Start the lease store, or correct its address; without it no lease is granted and no fenced row is written."
    return Error(f"{store} does not answer: {error}", hint=hint, id="fencing.E011")


def _uncounting(store: str, what: str) -> Error:
    hint = (
        "Give its user +info, and use a Redis or Valkey that reports its own master_replid; no number is issued else."
    )
    return Error(f"{store} {what}.", hint=hint, id="fencing.E012")


def _primaries(config: BackendConfig) -> Iterator[tuple[str, Any]]:
    """Each server that issues numbers, by its address where the settings do not name it."""
    client = caches[config.cache].client.get_client(write=True)  # type: ignore[attr-defined]
    if hasattr(client, "get_primaries"):
        for node in client.get_primaries():
            yield node.name, client.get_redis_connection(node)
        return
    find = getattr(client.connection_pool, "get_master_address", None)
    yield ":".join(map(str, find())) if find else "", client


def _slowest_call(config: BackendConfig) -> float:
    """Seconds that one call may take: redis-py's and django-redis' names for it, and what holds where neither is set."""
    options = settings.CACHES.get(config.cache, {}).get("OPTIONS", {})
    if isinstance(options, Mapping):
        for found in (
            options.get("SOCKET_TIMEOUT"),
            *(
                options.get(name, {}).get("socket_timeout")
                for name in ("CONNECTION_POOL_KWARGS", "REDIS_CLIENT_KWARGS")
            ),
        ):
            if isinstance(found, (int, float)):
                return float(found)
    return SOCKET_TIMEOUT


def _sharing(cache: str) -> Iterator[str]:
    """Who else uses the Redis database of this cache alias, other aliases of leases apart."""
    used_by = {
        DEFAULT_CACHE_ALIAS: "Django's default cache",
        settings.SESSION_CACHE_ALIAS: "the cache of sessions",
        settings.CACHE_MIDDLEWARE_ALIAS: "the cache of pages",
    }
    if cache in used_by:
        yield f"which is {used_by[cache]} as well"
    leases = {config.cache for config in conf.sound_backends()}
    mine = _address(settings.CACHES[cache].get("LOCATION"))
    for other, entry in settings.CACHES.items():
        if (
            other not in leases
            and "redis" in entry.get("BACKEND", "").lower()
            and mine == _address(entry.get("LOCATION"))
        ):
            yield f"which is in the same Redis database as the cache {other!r}"


def _address(location: Any) -> tuple[Any, ...]:
    """Server and database of a LOCATION, whatever its user, password and options."""
    first = location[0] if isinstance(location, (list, tuple)) and location else location
    if not isinstance(first, str):
        return (first,)
    # The first of several is the primary.
    first = first.partition(",")[0]
    try:
        parts = urlsplit(first)
        database = parse_qs(parts.query).get("db", [""])[0]
        if parts.scheme == "unix":
            return "unix", parts.path, database or "0"
        return parts.hostname or "localhost", parts.port or 6379, database or parts.path.strip("/") or "0"
    except ValueError:
        return (first,)


def _fenced_in_sqlite(config: BackendConfig) -> str:
    """Some fenced model in the SQLite database of the leases, or ""."""
    if config.database not in settings.DATABASES or connections[config.database].vendor != "sqlite":
        return ""
    for model in apps.get_models():
        if issubclass(model, FencedModel) and router.db_for_write(model) == config.database:
            return str(model._meta.label)
    return ""
