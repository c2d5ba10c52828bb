"""Leases in this process's memory: for tests, and for programs with a single process."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from django.utils import timezone

from fencing.backends.base import (
    POLL,
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
from fencing.conf import BackendConfig

NOBODY = HolderInfo()


@dataclass(slots=True, kw_only=True)
class _Kept:
    lease: LiveLease
    reign: str
    deadline: float


@dataclass(slots=True)
class _Counter:
    """One partition: what the hash, the stream and the lease keys are in a Redis."""

    reign: str = field(default_factory=lambda: uuid.uuid4().hex)
    next: int = 1
    ceiling: int = 0
    dropped: int = 0
    leases: dict[str, _Kept] = field(default_factory=dict)
    queues: dict[str, list[MemoryWaiter]] = field(default_factory=dict)
    events: dict[str, GrantEvent] = field(default_factory=dict)


class MemoryBackend(LeaseBackend):
    """The contract without a store. A forked child starts empty, as a store that forgot: with reigns of its own.

    ``OPTIONS["CLOCK"]`` is a callable that returns seconds, by default ``time.monotonic``; tests may also set the
    attribute ``clock``.
    """

    # Lines that the outbox keeps when nobody collects them.
    events_cap = 100_000

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        self.clock: Callable[[], float] = config.options.get("CLOCK", time.monotonic)
        self._start()
        _instances.add(self)

    def _start(self) -> None:
        """Begin empty, in new reigns."""
        self._turn = threading.RLock()
        self._counters: dict[tuple[str, int], _Counter] = {}
        self._ids = itertools.count(1)
        self._server = uuid.uuid4().hex

    def acquire(self, place: Place, holder: str, ttl: float, info: HolderInfo) -> Granted | Held | NeedsRange:
        """See the contract."""
        with self._turn:
            counter = self._counter(place.space, place.partition)
            if self._kept(counter, place.resource) is None:
                # The last holder's time ended: nobody overtakes those who wait.
                self._hand_over(counter, place.resource)
            kept = self._kept(counter, place.resource)
            if kept is not None and kept.lease.holder == holder:
                remaining = kept.deadline - self.clock()
                return Granted(token=kept.lease.token, reign=kept.reign, remaining=remaining)
            if kept is not None:
                return self._held(kept)
            return self._grant(counter, place.resource, holder, ttl, info)

    def waiter(self, holder: str, ttl: float, info: HolderInfo) -> Waiter:
        """See the contract: first come, first served."""
        return MemoryWaiter(self, holder, ttl, info)

    def acquire_or_join(self, place: Place, waiter: MemoryWaiter) -> Granted | Held | NeedsRange:
        """Acquire; where the lease is held, take the last place of the queue, or keep the one that ``waiter`` has."""
        with self._turn:
            answer = self.acquire(place, waiter.holder, waiter.ttl, waiter.info)
            if isinstance(answer, Held):
                queue = self._counter(place.space, place.partition).queues.setdefault(place.resource, [])
                if waiter not in queue:
                    queue.append(waiter)
            return answer

    def give_up(self, place: Place, holder: str) -> None:
        """See the contract."""
        with self._turn:
            counter = self._counter(place.space, place.partition)
            others = [one for one in counter.queues.pop(place.resource, []) if one.holder != holder]
            if others:
                counter.queues[place.resource] = others
            super().give_up(place, holder)

    def renew(self, place: Place, holder: str, ttl: float) -> bool:
        """See the contract."""
        with self._turn:
            kept = self._kept(self._counter(place.space, place.partition), place.resource)
            if kept is None or kept.lease.holder != holder:
                return False
            kept.deadline = self.clock() + ttl
            return True

    def advance(self, place: Place, holder: str) -> Granted | NeedsRange | Lost:
        """See the contract."""
        with self._turn:
            counter = self._counter(place.space, place.partition)
            kept = self._kept(counter, place.resource)
            if kept is None or kept.lease.holder != holder or kept.reign != counter.reign:
                return Lost()
            return self._issue(counter)

    def release(self, place: Place, holder: str, token: int) -> bool:
        """See the contract."""
        with self._turn:
            counter = self._counter(place.space, place.partition)
            kept = self._kept(counter, place.resource)
            if kept is not None and kept.lease.holder == holder:
                del counter.leases[place.resource]
                self._note(counter, "released", kept.lease.token, place.resource, holder)
                self._hand_over(counter, place.resource)
                return True
            self._note(counter, "lost", token, place.resource, holder)
            return False

    def revoke(self, place: Place, token: int) -> bool:
        """See the contract."""
        with self._turn:
            counter = self._counter(place.space, place.partition)
            kept = self._kept(counter, place.resource)
            if kept is None or kept.lease.token != token:
                return False
            del counter.leases[place.resource]
            self._note(counter, "revoked", token, place.resource, kept.lease.holder)
            self._hand_over(counter, place.resource)
            return True

    def draw(self, place: Place) -> Granted | NeedsRange:
        """See the contract."""
        with self._turn:
            return self._issue(self._counter(place.space, place.partition))

    def install(self, place: Place, reign: str, first: int, last: int) -> bool:
        """See the contract."""
        with self._turn:
            counter = self._counter(place.space, place.partition)
            if counter.reign != reign or first < counter.next:
                return False
            counter.next, counter.ceiling = first, last
            return True

    def close_reign(self, place: Place) -> NeedsRange:
        """See the contract."""
        with self._turn:
            counter = self._counter(place.space, place.partition)
            counter.reign, counter.ceiling = uuid.uuid4().hex, 0
            return NeedsRange(reign=counter.reign, server=self._server, next=counter.next)

    def live(self, space: str, partition: int, limit: int) -> Iterator[LiveLease]:
        """See the contract."""
        with self._turn:
            counter = self._counter(space, partition)
            kept = filter(None, (self._kept(counter, resource) for resource in list(counter.leases)))
            found = [self._now(one) for one in itertools.islice(kept, limit)]
        yield from found

    def peek(self, place: Place) -> LiveLease | None:
        """See the contract."""
        with self._turn:
            kept = self._kept(self._counter(place.space, place.partition), place.resource)
            return None if kept is None else self._now(kept)

    def read_events(self, space: str, partition: int, count: int) -> Sequence[GrantEvent]:
        """See the contract."""
        with self._turn:
            return list(itertools.islice(self._counter(space, partition).events.values(), count))

    def forget_events(self, space: str, partition: int, ids: Iterable[str]) -> None:
        """See the contract."""
        with self._turn:
            events = self._counter(space, partition).events
            for each in ids:
                events.pop(each, None)

    def dropped_events(self, space: str, partition: int) -> int:
        """See the contract."""
        with self._turn:
            return self._counter(space, partition).dropped

    def _counter(self, space: str, partition: int) -> _Counter:
        return self._counters.setdefault((space, partition), _Counter())

    def _issue(self, counter: _Counter) -> Granted | NeedsRange:
        if counter.next > counter.ceiling:
            return NeedsRange(reign=counter.reign, server=self._server, next=counter.next)
        counter.next += 1
        return Granted(token=counter.next - 1, reign=counter.reign)

    def _grant(
        self, counter: _Counter, resource: str, holder: str, ttl: float, info: HolderInfo
    ) -> Granted | NeedsRange:
        issued = self._issue(counter)
        if isinstance(issued, Granted):
            lease = LiveLease(
                resource=resource,
                holder=holder,
                token=issued.token,
                remaining=ttl,
                granted_at=timezone.now(),
                info=info,
            )
            counter.leases[resource] = _Kept(lease=lease, reign=counter.reign, deadline=self.clock() + ttl)
            self._note(counter, "granted", lease.token, resource, holder, ttl, info)
        return issued

    def _hand_over(self, counter: _Counter, resource: str) -> None:
        """Give the free lease to the first waiter; without a number, wake it, so that it asks and gets a range."""
        if queue := counter.queues.get(resource):
            first = queue[0]
            issued = self._grant(counter, resource, first.holder, first.ttl, first.info)
            if isinstance(issued, Granted):
                queue.pop(0)
                if not queue:
                    del counter.queues[resource]
            first.tell(issued)

    def _kept(self, counter: _Counter, resource: str) -> _Kept | None:
        kept = counter.leases.get(resource)
        if kept is not None and kept.deadline <= self.clock():
            del counter.leases[resource]
            return None
        return kept

    def _now(self, kept: _Kept) -> LiveLease:
        return replace(kept.lease, remaining=kept.deadline - self.clock())

    def _held(self, kept: _Kept) -> Held:
        now = self._now(kept)
        return Held(holder=now.holder, token=now.token, remaining=now.remaining, task_id=now.info.task_id)

    def _note(
        self,
        counter: _Counter,
        kind: Literal["granted", "released", "lost", "revoked"],
        token: int,
        resource: str,
        holder: str,
        ttl: float = 0.0,
        info: HolderInfo = NOBODY,
    ) -> None:
        line = str(next(self._ids))
        counter.events[line] = GrantEvent(
            id=line, kind=kind, token=token, resource=resource, holder=holder, at=timezone.now(), ttl=ttl, info=info
        )
        if len(counter.events) > self.events_cap:
            del counter.events[next(iter(counter.events))]
            counter.dropped += 1


class MemoryWaiter(Waiter):
    """One wait of a thread of this process."""

    backend: MemoryBackend

    def __init__(self, backend: MemoryBackend, holder: str, ttl: float, info: HolderInfo) -> None:
        super().__init__(backend, holder, ttl, info)
        self._told = threading.Event()
        self._granted: Granted | None = None

    def ask(self, place: Place) -> Granted | Held | NeedsRange:
        """See the base class."""
        self._told.clear()
        return self.backend.acquire_or_join(place, self)

    def tell(self, issued: Granted | NeedsRange) -> None:
        """Wake the thread that sleeps."""
        self._granted = issued if isinstance(issued, Granted) else None
        self._told.set()

    def sleep(self, held: Held, patience: float) -> Granted | None:
        """See the base class. The clock may be one that is moved by hand, so this looks at it every now and then."""
        self._told.wait(max(0.001, min(held.remaining, POLL, patience)))
        return self._granted


_instances: weakref.WeakSet[MemoryBackend] = weakref.WeakSet()


def _start_in_child() -> None:
    """The parent's leases are not the child's, and one of its threads may have had its turn at the fork."""
    for backend in list(_instances):
        backend._start()


os.register_at_fork(after_in_child=_start_in_child)
