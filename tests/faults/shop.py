"""One namespace whose lease store is moved, flushed and replaced, and every token that it ever issued."""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

from fencing import WriteRejectedError, lease, tokens
from fencing.backends import LeaseBackend, get_backend
from fencing.backends.base import Granted, HolderInfo, Lost, Place
from fencing.models import FencedWrite
from inventory_demo.models import Stock
from tests.concurrency import BOUND

# Small, so that ranges are reserved while the faults happen.
BLOCK = 10
# Tries that a task has by default: the first, and max_stale_retries.
TRIES = 4


class Sleeper(NamedTuple):
    """A holder who does nothing, as after SIGSTOP."""

    place: Place
    holder: str
    token: int


class Shop:
    """Clients of one namespace. ``issued`` holds every token, in the order in which they came."""

    def __init__(self, settings: Any) -> None:
        self.namespace = f"n-{secrets.token_hex(6)}"
        self.issued: list[int] = []
        self.sold = 0
        self.stock = Stock.objects.create(sku=secrets.token_hex(4), quantity=1000)
        self.resource = self.stock.fence_name()
        self._settings = settings

    def at(self, url: str, *, cache: dict[str, Any] | None = None, **backend: Any) -> LeaseBackend:
        """Let every later call go to the store at ``url``, as a client does that was configured so."""
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, **(cache or {})}
        self._settings.CACHES = {**self._settings.CACHES, "store": entry}
        alias = {
            "BACKEND": "fencing.backends.redis.RedisBackend",
            "CACHE": "store",
            "NAMESPACE": self.namespace,
            "BLOCK": BLOCK,
            **backend,
        }
        self._settings.FENCING = {"BACKENDS": {"default": alias}}
        return get_backend()

    def note(self, token: int, *, rising: bool = True) -> int:
        """I1: never issued before, and above everything issued before (but for two servers that issue at once)."""
        assert token not in self.issued, f"{token} was issued twice: {self.issued}"
        assert not rising or token > max(self.issued, default=0), f"{token} is not above {max(self.issued)}"
        self.issued.append(token)
        return token

    def sleeper(self, resource: str = "", ttl: float = 30.0, *, rising: bool = True) -> Sleeper:
        """A grant whose holder goes to sleep at once."""
        holder = secrets.token_hex(8)
        place, answer = tokens.acquire(get_backend(), resource or secrets.token_hex(6), holder, ttl, HolderInfo())
        assert isinstance(answer, Granted), answer
        return Sleeper(place, holder, self.note(answer.token, rising=rising))

    def grants(self, count: int, *, rising: bool = True) -> list[int]:
        """So many grants, each of a resource of its own."""
        return [self.sleeper(rising=rising).token for _ in range(count)]

    def advance(self, sleeper: Sleeper) -> Granted | Lost:
        """The sleeper wakes up and asks for a further number."""
        return tokens.advance(get_backend(), sleeper.place, sleeper.holder)

    def sell(self, *, rising: bool = True, tries: int = TRIES) -> int:
        """Sell one piece as a task does, with its repeats; the token with which that was accepted in the end.

        Nobody is stuck: it fails when all repeats are refused, or when the lease cannot be had within a bound.
        """
        for _ in range(tries):
            try:
                with lease(self.resource, ttl=10, wait=BOUND) as held:
                    self.note(held.token, rising=rising)
                    stock = Stock.objects.get(pk=self.stock.pk)
                    stock.quantity -= 1
                    try:
                        stock.save()
                    finally:
                        for token in sorted(held._issued - {held.token}):
                            self.note(token, rising=rising)
            except WriteRejectedError:
                continue
            self.sold += 1
            stock.refresh_from_db()
            assert stock.quantity == 1000 - self.sold, "an update was lost"
            return int(stock.last_token)
        raise AssertionError(f"stuck: {tries} writes in a row were refused")

    def refused(self) -> int:
        """How many writes the database refused."""
        return FencedWrite.objects.filter(resource=self.resource, outcome="stale").count()
