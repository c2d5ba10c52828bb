"""Leases in a Redis or Valkey, through a django-redis cache alias; each operation is one script in ``scripts/``.

Keys of a namespace's partition share the hash tag ``{<space>:<partition>}``, so a cluster keeps them in one slot:
``<KEY_PREFIX>fencing:{…}:counter``, ``…:events``, one ``…:lease:<resource>`` for each lease that exists now, and one
``…:queue:<resource>`` while somebody waits for it. Each waiter is told on a channel, ``…:waiter:<id>``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.checks import CheckMessage, Error

from fencing.backends.base import (
    Counting,
    Granted,
    GrantEvent,
    Held,
    HolderInfo,
    LeaseBackend,
    LiveLease,
    Lost,
    NeedsRange,
    Place,
    Waiter,
)
from fencing.backends.redis_client import RedisClient
from fencing.backends.scripts import ACQUIRE, ADVANCE, CLOSE, DRAW, GIVE_UP, INSTALL, RELEASE, RENEW, REVOKE, Script
from fencing.backends.waiting import Listener, Listeners, QueueWaiter
from fencing.backends.wire import escaped, event, milliseconds, moment, packed, text, unpacked
from fencing.conf import BackendConfig
from fencing.exceptions import LeaseBackendError

# The keys of a grant, and those of them that each resource has for itself.
LEASE_KEYS = (b"lease:", b"counter", b"events", b"queue:")
OF_RESOURCE = (b"lease:", b"queue:")
# How many keys one SCAN step looks at, and how many leases one round trip reads.
BATCH = 500


class RedisBackend(LeaseBackend):
    """The lease store of ``FENCING["BACKENDS"][alias]["CACHE"]``. Holders are ids without white space."""

    # Lines that the outbox keeps when nobody collects them, about 100 bytes each.
    events_cap = 100_000

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        self._client = RedisClient(config.alias, config.cache)
        self._listeners = Listeners(lambda: Listener(RedisClient.connect_to_listen, RedisClient.broken))

    def acquire(self, place: Place, holder: str, ttl: float, info: HolderInfo) -> Granted | Held | NeedsRange:
        """See the contract: one script, one round trip."""
        return self._acquire(place, holder, ttl, info, listener="")

    def waiter(self, holder: str, ttl: float, info: HolderInfo) -> Waiter:
        """See the contract: first come, first served."""
        return QueueWaiter(self, holder, ttl, info, listeners=self._listeners, ask=self._ask_or_queue)

    def give_up(self, place: Place, holder: str) -> None:
        """See the contract: one script."""
        self._run(GIVE_UP, self._keys(place, *LEASE_KEYS), holder, place.resource, self.events_cap)

    def _ask_or_queue(
        self, place: Place, holder: str, ttl: float, info: HolderInfo, listener: Listener
    ) -> Granted | Held | NeedsRange:
        channel = f"{self._prefix(place.space, place.partition)}waiter:{listener.name}".encode()
        with self._client.errors():
            key = self._keys(place, b"counter")[0]
            listener.listen(channel, self._client.pool_of(key))
            answer = self._acquire(place, holder, ttl, info, listener.name)
            if (pool := self._client.pool_of(key)) is not listener.pool:
                # The slot has moved, as the client heard just now.
                listener.listen(channel, pool)
        return answer

    def _acquire(
        self, place: Place, holder: str, ttl: float, info: HolderInfo, listener: str
    ) -> Granted | Held | NeedsRange:
        """Acquire; with a ``listener`` also queue, and be told on its channel."""
        keys = self._keys(place, *LEASE_KEYS)
        reply = text(
            self._run(
                ACQUIRE,
                keys,
                holder,
                milliseconds(ttl),
                packed(info),
                place.resource,
                self.events_cap,
                listener,
            )
        )
        if not reply.startswith("held "):
            return self._issued(reply)
        _, remaining, unchanged, value = reply.split(" ", 3)
        lease = self._lease(place.resource, value, int(remaining))
        return Held(
            holder=lease.holder,
            token=lease.token,
            remaining=lease.remaining,
            task_id=lease.info.task_id,
            unchanged=int(unchanged) / 1000,
        )

    def renew(self, place: Place, holder: str, ttl: float) -> bool:
        """See the contract."""
        return bool(self._run(RENEW, self._keys(place, b"lease:"), holder, milliseconds(ttl)))

    def advance(self, place: Place, holder: str) -> Granted | NeedsRange | Lost:
        """See the contract. A lease of another reign is lost, also when its key came back with a lagging replica."""
        reply = text(self._run(ADVANCE, self._keys(place, b"lease:", b"counter", b"events"), holder, self.events_cap))
        return Lost() if reply == "lost" else self._issued(reply)

    def release(self, place: Place, holder: str, token: int) -> bool:
        """See the contract. Works when the server is out of memory; then the end may be missing in the outbox."""
        keys = self._keys(place, *LEASE_KEYS)
        reply, repeated = self._send(RELEASE, keys, holder, token, place.resource, self.events_cap)
        # Where the first reply was lost it may have been that request which ended the lease.
        return bool(reply) or repeated

    def revoke(self, place: Place, token: int) -> bool:
        """See the contract."""
        keys = self._keys(place, *LEASE_KEYS)
        return bool(self._run(REVOKE, keys, token, place.resource, self.events_cap))

    def draw(self, place: Place) -> Granted | NeedsRange:
        """See the contract."""
        keys = self._keys(place, b"counter", b"events")
        return self._issued(text(self._run(DRAW, keys, os.urandom(8).hex(), self.events_cap)))

    def install(self, place: Place, reign: str, first: int, last: int) -> bool:
        """See the contract."""
        return bool(self._run(INSTALL, self._keys(place, b"counter"), reign, first, last))

    def close_reign(self, place: Place) -> NeedsRange:
        """See the contract."""
        reply = text(self._run(CLOSE, self._keys(place, b"counter"), os.urandom(8).hex()))
        return self._issued(reply)  # type: ignore[return-value]  # this script issues nothing

    def live(self, space: str, partition: int, limit: int) -> Iterator[LiveLease]:
        """See the contract. No index is kept for this: it scans the keys of the whole Redis database, by cursor."""
        prefix = self._prefix(space, partition) + "lease:"
        seen: set[bytes] = set()
        batch: list[bytes] = []
        with self._client.errors():
            for key in self._scan(prefix):
                if key in seen:
                    continue
                seen.add(key)
                batch.append(key)
                if len(seen) >= limit or len(batch) >= BATCH:
                    yield from self._leases(prefix, batch)
                    batch = []
                if len(seen) >= limit:
                    return
            yield from self._leases(prefix, batch)

    def peek(self, place: Place) -> LiveLease | None:
        """See the contract."""
        prefix = self._prefix(place.space, place.partition) + "lease:"
        with self._client.errors():
            return next(self._leases(prefix, self._keys(place, b"lease:")), None)

    def waiters(self, space: str, partition: int, resources: Sequence[str]) -> Sequence[int | None]:
        """See the contract: the lengths of the queues, in one round trip."""
        if not resources:
            return []
        with self._client.errors():
            pipeline = self._client.redis.pipeline(transaction=False)
            for resource in resources:
                pipeline.llen(self._keys(Place(space=space, partition=partition, resource=resource), b"queue:")[0])
            return [int(length) for length in pipeline.execute()]

    def counting(self, space: str, partition: int) -> Counting | None:
        """See the contract."""
        key = (self._prefix(space, partition) + "counter").encode()
        with self._client.errors():
            found = self._client.redis.hmget(key, "reign", "replid", "next", "ceiling")
        if None in found:
            return None
        reign, server, following, ceiling = map(text, found)
        return Counting(reign=reign, server=server, next=int(following), ceiling=int(ceiling))

    def read_events(self, space: str, partition: int, count: int) -> Sequence[GrantEvent]:
        """See the contract."""
        key = (self._prefix(space, partition) + "events").encode()
        with self._client.errors():
            lines = self._client.redis.xrange(key, count=count)
        return [event(text(line), {text(name): text(value) for name, value in found.items()}) for line, found in lines]

    def forget_events(self, space: str, partition: int, ids: Iterable[str]) -> None:
        """See the contract."""
        given = list(ids)
        if given:
            with self._client.errors():
                self._client.redis.xdel((self._prefix(space, partition) + "events").encode(), *given)

    def dropped_events(self, space: str, partition: int) -> int:
        """See the contract."""
        with self._client.errors():
            return int(self._client.redis.hget((self._prefix(space, partition) + "counter").encode(), "dropped") or 0)

    def forget(self, space: str) -> None:
        """See the contract. Like ``live`` it scans the keys of the whole Redis database, by cursor."""
        with self._client.errors():
            for partition in range(self.config.partitions):
                keys = self._scan(self._prefix(space, partition))
                while batch := list(islice(keys, BATCH)):
                    self._client.redis.unlink(*batch)

    def check(self) -> list[CheckMessage]:
        """See the contract."""
        cache = self.config.cache
        where = f'FENCING["BACKENDS"][{self.config.alias!r}]["CACHE"] is {cache!r}'
        if cache not in settings.CACHES:
            known = ", ".join(map(repr, settings.CACHES))
            return [Error(f"{where}, which CACHES does not have.", hint=f"It has: {known}.", id="fencing.E020")]
        if not hasattr(caches[cache], "client"):
            hint = 'Use "BACKEND": "django_redis.cache.RedisCache" for it.'
            return [Error(f"{where}, which is not a django-redis cache.", hint=hint, id="fencing.E021")]
        if set("{}") & set(caches[cache].key_prefix):
            hint = "Braces mark the part of a key that decides where a cluster keeps it."
            return [Error(f"{where}, whose KEY_PREFIX has braces.", hint=hint, id="fencing.E022")]
        return []

    def _scan(self, prefix: str) -> Iterator[bytes]:
        """The keys that begin with ``prefix``; one may come twice."""
        for key in self._client.redis.scan_iter(match=escaped(prefix) + "*", count=BATCH):
            yield text(key).encode()

    def _prefix(self, space: str, partition: int) -> str:
        return f"{self._client.key_prefix}fencing:{{{space}:{partition}}}:"

    def _keys(self, place: Place, *kinds: bytes) -> list[bytes]:
        prefix, resource = self._prefix(place.space, place.partition).encode(), place.resource.encode()
        return [prefix + kind + resource if kind in OF_RESOURCE else prefix + kind for kind in kinds]

    def _run(self, script: Script, keys: Sequence[bytes], *args: str | int) -> Any:
        return self._send(script, keys, *args)[0]

    def _send(self, script: Script, keys: Sequence[bytes], *args: str | int) -> tuple[Any, bool]:
        return self._client.run(script, keys, *[b"%d" % arg if isinstance(arg, int) else arg.encode() for arg in args])

    def _issued(self, reply: str) -> Granted | NeedsRange:
        kind, *rest = reply.split(" ")
        if kind == "granted":
            remaining = int(rest[2]) / 1000 if len(rest) > 2 else None
            return Granted(token=int(rest[0]), reign=rest[1], remaining=remaining)
        if kind == "needs":
            return NeedsRange(reign=rest[0], server=rest[1], next=int(rest[2]))
        raise LeaseBackendError(
            self.config.alias,
            f"`INFO replication` reports the master_replid {' '.join(rest)!r} instead of 40 hexadecimal digits, so a server "
            "that forgot could not be noticed. Use a Redis or Valkey that reports its own, without a proxy in between.",
        )

    def _leases(self, prefix: str, keys: Sequence[bytes]) -> Iterator[LiveLease]:
        if not keys:
            return
        pipeline = self._client.redis.pipeline(transaction=False)
        for key in keys:
            pipeline.get(key)
            pipeline.pttl(key)
        replies = pipeline.execute()
        for key, value, remaining in zip(keys, replies[::2], replies[1::2], strict=True):
            if value is not None:
                yield self._lease(key.decode().removeprefix(prefix), value, remaining)

    def _lease(self, resource: str, value: bytes | str, remaining: int) -> LiveLease:
        parts = text(value).split(" ", 4)
        if len(parts) != 5 or not (parts[0].isdigit() and parts[3].isdigit()):
            raise LeaseBackendError(self.config.alias, f"the key of the lease of {resource!r} holds something else.")
        token, holder, _reign, granted, info = parts
        return LiveLease(
            resource=resource,
            holder=holder,
            token=int(token),
            remaining=max(remaining, 0) / 1000,
            granted_at=moment(granted),
            info=unpacked(info),
        )
