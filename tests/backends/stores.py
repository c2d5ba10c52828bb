"""Lease stores for the tests of the backends: in memory, on Valkey, on Redis, in a database."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass, field
from typing import Any

from fencing.backends.base import Granted, HolderInfo, LeaseBackend, NeedsRange, Place
from fencing.backends.database import DatabaseBackend
from fencing.backends.memory import MemoryBackend
from fencing.backends.redis import RedisBackend
from fencing.conf import BackendConfig
from inventory_demo.server_support import wait_for
from tests.services import PrivateValkey, missing

NOBODY = HolderInfo()


class PrivateRedis(PrivateValkey):
    """The same with the machine's own redis-server."""

    def __enter__(self) -> PrivateRedis:
        binary = shutil.which("redis-server")
        if binary is None:
            missing("redis-server is not installed")
        valkey = self._server.command
        self._server.command = lambda **options: [binary, *valkey(**options)[1:]]  # type: ignore[method-assign]
        super().__enter__()
        return self


class HandClock:
    """Seconds that pass only when told so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Store:
    """A backend, with a namespace of its own and a range of numbers from 1."""

    backend: LeaseBackend
    space: str = field(default_factory=lambda: secrets.token_hex(8))
    partition: int = 0

    def place(self, resource: str = "stock:42") -> Place:
        return Place(space=self.space, partition=self.partition, resource=resource)

    def needs_range(self) -> NeedsRange:
        """What an empty store answers."""
        answer = self.backend.draw(self.place())
        assert isinstance(answer, NeedsRange)
        return answer

    def needs_reign(self) -> str:
        """The reign that counts, as a request that was granted tells it."""
        answer = self.backend.draw(self.place())
        assert isinstance(answer, Granted)
        return answer.reign

    def open(self, first: int = 1, last: int = 1000) -> str:
        """Give the store a range, and return its reign."""
        reign = self.needs_range().reign
        assert self.backend.install(self.place(), reign, first, last)
        return reign

    def grant(self, holder: str, resource: str = "stock:42", ttl: float = 30.0, info: HolderInfo = NOBODY) -> int:
        """Acquire, and return the token."""
        answer = self.backend.acquire(self.place(resource), holder, ttl, info)
        assert isinstance(answer, Granted), answer
        return answer.token

    def expire(self, resource: str = "stock:42", ttl: float = 0.05) -> None:
        """Let a lease that was taken for ``ttl`` end by itself."""
        if isinstance(self.backend, MemoryBackend):
            self.backend.clock.now += ttl  # type: ignore[attr-defined]
        assert wait_for(lambda: self.backend.peek(self.place(resource)) is None, seconds=10)

    def events(self) -> list[tuple[str, int, str, str]]:
        """What the outbox holds, oldest first: kind, token, resource, holder."""
        found = self.backend.read_events(self.space, self.partition, 10_000)
        return [(one.kind, one.token, one.resource, one.holder) for one in found]


def memory_store() -> Store:
    """A store in memory with a clock that is moved by hand."""
    return Store(MemoryBackend(config("fencing.backends.memory.MemoryBackend", options={"CLOCK": HandClock()})))


def redis_store(settings: Any, url: str, **cache: Any) -> Store:
    """A store on the server at ``url``; ``cache`` is merged into its entry in CACHES."""
    if cache:
        # django-redis keeps one pool for each address, with the options that came first.
        url += f"&client_name={secrets.token_hex(4)}"
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, **cache}
    settings.CACHES = {**settings.CACHES, "leases": entry}
    return Store(RedisBackend(config("fencing.backends.redis.RedisBackend", cache="leases")))


def database_store(database: str) -> Store:
    """A store in the tables of database ``database``."""
    return Store(DatabaseBackend(config("fencing.backends.database.DatabaseBackend", database=database)))


def config(backend: str, **values: Any) -> BackendConfig:
    """The configuration of an alias."""
    return BackendConfig(alias="default", backend=backend, **values)
