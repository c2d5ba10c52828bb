"""The contract between leases and the stores that keep them.

A backend has a handful of primitive operations, each atomic in its store and each compared on the *holder*. It
counts inside ranges that the database reserved (``fencing.tokens``) and answers :class:`NeedsRange` when it has
none; it never reaches for a database to get one. Durations are seconds here; a store's own unit stays inside it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import ClassVar, Literal, Self

from django.core.checks import CheckMessage

from fencing.conf import BackendConfig

# Seconds between two tries for a lease in a store that has no queue, at most.
POLL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a resource lives: the namespace's random id, the partition, and the resource's name."""

    space: str
    partition: int
    resource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderInfo:
    """What a grant remembers of its holder for people to read; nothing is decided by it."""

    task_id: str = ""
    task_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A number was issued: by a new grant, again to the same holder, or by an advance.

    ``remaining`` says how long the lease of an earlier grant lives; None: as long as it was just asked for.
    """

    token: int
    reign: str
    remaining: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Somebody else holds the lease, for ``remaining`` more seconds unless it is renewed.

    A waiter may sleep for ``unchanged`` seconds: until then no time is over, also if the lease is handed on meanwhile.
    """

    holder: str
    token: int
    remaining: float
    task_id: str = ""
    unchanged: float = field(default=math.inf, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsRange:
    """The reign has no number left. ``next`` is the lowest number that the store has not issued."""

    reign: str
    server: str
    next: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How far a partition has counted: ``next`` is the lowest number not issued, ``ceiling`` the last that may be."""

    reign: str
    server: str
    next: int
    ceiling: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The lease is not, or no longer, this holder's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLease:
    """A lease as the store has it now."""

    resource: str
    holder: str
    token: int
    remaining: float
    granted_at: datetime
    info: HolderInfo = field(default_factory=HolderInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantEvent:
    """A line of the store's outbox: a grant, or the end of one. ``id`` is the store's own, for ``forget_events``."""

    id: str
    kind: Literal["granted", "released", "lost", "revoked"]
    token: int
    resource: str
    holder: str
    at: datetime
    ttl: float = 0.0
    info: HolderInfo = field(default_factory=HolderInfo)


class LeaseBackend(ABC):
    """A lease store. One instance per alias and process; safe for threads, and to be used again after a fork.

    Every method raises ``LeaseBackendError`` when the store does not answer as it should.

    Attributes:
        is_shared: whether it knows the leases of other processes, too.
    """

    is_shared: ClassVar[bool] = True

    def __init__(self, config: BackendConfig) -> None:
        self.config = config

    @abstractmethod
    def acquire(self, place: Place, holder: str, ttl: float, info: HolderInfo) -> Granted | Held | NeedsRange:
        """Give the lease to ``holder`` if it is free, with the next number, and note the grant in the outbox.

        A lease that ``holder`` has already is answered with its own token again (a re-sent request).
        """

    @abstractmethod
    def renew(self, place: Place, holder: str, ttl: float) -> bool:
        """Set the lease's remaining time to ``ttl`` if it is ``holder``'s; say whether it is."""

    @abstractmethod
    def advance(self, place: Place, holder: str) -> Granted | NeedsRange | Lost:
        """Issue the next number to the holder of a live lease of the present reign; lost otherwise."""

    @abstractmethod
    def release(self, place: Place, holder: str, token: int) -> bool:
        """End the lease if it is ``holder``'s and say whether it was; the end (or loss) goes to the outbox."""

    @abstractmethod
    def revoke(self, place: Place, token: int) -> bool:
        """End the lease whose grant has ``token``, whoever holds it; False if it is gone or another one."""

    @abstractmethod
    def draw(self, place: Place) -> Granted | NeedsRange:
        """Issue the next number to nobody: for revocations and for ``unfenced()``."""

    @abstractmethod
    def install(self, place: Place, reign: str, first: int, last: int) -> bool:
        """Let ``reign`` count from ``first`` to ``last``, if it still reigns here and ``first`` is not below its next."""

    @abstractmethod
    def close_reign(self, place: Place) -> NeedsRange:
        """Let a new reign begin, without a range: no number of the one before is issued any more.

        A range that was reserved for the one before is refused from now on, and leases of it never advance; they live on
        otherwise. A request that is sent again closes once more.
        """

    def waiter(self, holder: str, ttl: float, info: HolderInfo) -> Waiter:
        """How ``holder`` waits for a lease that it wants for ``ttl`` seconds. This default asks every now and then."""
        return Waiter(self, holder, ttl, info)

    def give_up(self, place: Place, holder: str) -> None:
        """Leave nothing of ``holder`` at ``place``: no place in the queue, and no grant that it has not heard of."""
        live = self.peek(place)
        if live is not None and live.holder == holder:
            self.release(place, holder, live.token)

    @abstractmethod
    def live(self, space: str, partition: int, limit: int) -> Iterator[LiveLease]:
        """The leases that exist now, at most ``limit`` of them."""

    @abstractmethod
    def peek(self, place: Place) -> LiveLease | None:
        """The lease of one resource, or None."""

    def waiters(self, space: str, partition: int, resources: Sequence[str]) -> Sequence[int | None]:
        """How many wait for each of the leases; None where the store keeps no queue. Dead ones count until their turn."""
        return [None] * len(resources)

    @abstractmethod
    def counting(self, space: str, partition: int) -> Counting | None:
        """How far the partition has counted, as the store has it; None where it has nothing. Nothing is issued by that."""

    @abstractmethod
    def read_events(self, space: str, partition: int, count: int) -> Sequence[GrantEvent]:
        """The oldest ``count`` lines of the outbox, left there until ``forget_events``."""

    @abstractmethod
    def forget_events(self, space: str, partition: int, ids: Iterable[str]) -> None:
        """Remove lines that are in the database now."""

    @abstractmethod
    def dropped_events(self, space: str, partition: int) -> int:
        """How many lines the outbox's cap has dropped since the store began to count."""

    @abstractmethod
    def forget(self, space: str) -> None:
        """Lose everything of a namespace and nothing else, as a store that came back empty: leases, counters, events.

        Whoever waits notices when it asks again. What is written meanwhile may stay.
        """

    def check(self) -> list[CheckMessage]:
        """System checks of this alias that need no connection."""
        return []


class Waiter:
    """One wait of a holder, for a store without a queue; other stores have their own.

    A context: left without an exception after a grant only. Before that, whoever waits must call ``give_up``.
    """

    def __init__(self, backend: LeaseBackend, holder: str, ttl: float, info: HolderInfo) -> None:
        self.backend = backend
        self.holder = holder
        self.ttl = ttl
        self.info = info

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the wait."""

    def ask(self, place: Place) -> Granted | Held | NeedsRange:
        """Acquire, or take a place in the queue, or keep the one that the holder has."""
        return self.backend.acquire(place, self.holder, self.ttl, self.info)

    def sleep(self, held: Held, patience: float) -> Granted | None:
        """Sleep until it is worth asking again, at most ``patience`` seconds and never past the end of ``held``.

        A grant that was heard of meanwhile is returned; it began after the last ``ask``, nobody knows when.
        """
        time.sleep(max(0.001, min(held.remaining, POLL, patience)))
        return None
