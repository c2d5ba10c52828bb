"""Leases in this process's memory: for tests, and for programs with a single process."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

from fencing.backends.base import (
    POLL,
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
from fencing.backends.memory_partition import Partition
from fencing.conf import BackendConfig


class MemoryBackend(LeaseBackend):
    """The contract without a store. A forked child starts empty, as a store that forgot: with reigns of its own.

    ``OPTIONS["CLOCK"]`` is a callable that returns seconds, by default ``time.monotonic``; tests may also set the
    attribute ``clock``.
    """

    is_shared = False

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
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._server = uuid.uuid4().hex

    def acquire(self, place: Place, holder: str, ttl: float, info: HolderInfo) -> Granted | Held | NeedsRange:
        """See the contract."""
        with self._turn:
            partition = self._partition(place.space, place.partition)
            if partition.kept(place.resource) is None:
                # The last holder's time ended: nobody overtakes those who wait.
                partition.hand_over(place.resource)
            kept = partition.kept(place.resource)
            if kept is None:
                return partition.grant(place.resource, holder, ttl, info)
            live = kept.at(self.clock())
            if live.holder == holder:
                return Granted(token=live.token, reign=kept.reign, remaining=live.remaining)
            return Held(holder=live.holder, token=live.token, remaining=live.remaining, task_id=live.info.task_id)

    def waiter(self, holder: str, ttl: float, info: HolderInfo) -> Waiter:
        """See the contract: first come, first served."""
        return MemoryWaiter(self, holder, ttl, info)

    def acquire_or_join(self, place: Place, waiter: MemoryWaiter) -> Granted | Held | NeedsRange:
        """Acquire; where the lease is held, take the last place of the queue, or keep the one that ``waiter`` has."""
        with self._turn:
            answer = self.acquire(place, waiter.holder, waiter.ttl, waiter.info)
            if isinstance(answer, Held):
                self._partition(place.space, place.partition).join(place.resource, waiter)
            return answer

    def give_up(self, place: Place, holder: str) -> None:
        """See the contract."""
        with self._turn:
            self._partition(place.space, place.partition).leave(place.resource, holder)
            super().give_up(place, holder)

    def renew(self, place: Place, holder: str, ttl: float) -> bool:
        """See the contract."""
        with self._turn:
            kept = self._partition(place.space, place.partition).held_by(place.resource, holder)
            if kept is not None:
                kept.deadline = self.clock() + ttl
            return kept is not None

    def advance(self, place: Place, holder: str) -> Granted | NeedsRange | Lost:
        """See the contract."""
        with self._turn:
            partition = self._partition(place.space, place.partition)
            kept = partition.held_by(place.resource, holder)
            return Lost() if kept is None or kept.reign != partition.reign else partition.issue()

    def release(self, place: Place, holder: str, token: int) -> bool:
        """See the contract."""
        with self._turn:
            partition = self._partition(place.space, place.partition)
            kept = partition.held_by(place.resource, holder)
            if kept is None:
                partition.note("lost", token, place.resource, holder)
            else:
                partition.end(kept, "released")
            return kept is not None

    def revoke(self, place: Place, token: int) -> bool:
        """See the contract."""
        with self._turn:
            partition = self._partition(place.space, place.partition)
            kept = partition.kept(place.resource)
            if kept is None or kept.lease.token != token:
                return False
            partition.end(kept, "revoked")
            return True

    def draw(self, place: Place) -> Granted | NeedsRange:
        """See the contract."""
        with self._turn:
            return self._partition(place.space, place.partition).issue()

    def install(self, place: Place, reign: str, first: int, last: int) -> bool:
        """See the contract."""
        with self._turn:
            partition = self._partition(place.space, place.partition)
            return partition.reign == reign and partition.install(first, last)

    def close_reign(self, place: Place) -> NeedsRange:
        """See the contract."""
        with self._turn:
            return self._partition(place.space, place.partition).close_reign()

    def live(self, space: str, partition: int, limit: int) -> Iterator[LiveLease]:
        """See the contract."""
        with self._turn:
            found = self._partition(space, partition)
            kept = filter(None, (found.kept(resource) for resource in list(found.leases)))
            leases = [one.at(self.clock()) for one in itertools.islice(kept, limit)]
        yield from leases

    def peek(self, place: Place) -> LiveLease | None:
        """See the contract."""
        with self._turn:
            kept = self._partition(place.space, place.partition).kept(place.resource)
            return None if kept is None else kept.at(self.clock())

    def waiters(self, space: str, partition: int, resources: Sequence[str]) -> Sequence[int | None]:
        """See the contract."""
        with self._turn:
            queues = self._partition(space, partition).queues
            return [len(queues.get(resource, ())) for resource in resources]

    def counting(self, space: str, partition: int) -> Counting | None:
        """See the contract."""
        with self._turn:
            found = self._partitions.get((space, partition))
            if found is None:
                return None
            return Counting(reign=found.reign, server=found.server, next=found.next, ceiling=found.ceiling)

    def read_events(self, space: str, partition: int, count: int) -> Sequence[GrantEvent]:
        """See the contract."""
        with self._turn:
            return list(itertools.islice(self._partition(space, partition).events.values(), count))

    def forget_events(self, space: str, partition: int, ids: Iterable[str]) -> None:
        """See the contract."""
        with self._turn:
            events = self._partition(space, partition).events
            for each in ids:
                events.pop(each, None)

    def dropped_events(self, space: str, partition: int) -> int:
        """See the contract."""
        with self._turn:
            return self._partition(space, partition).dropped

    def forget(self, space: str) -> None:
        """See the contract."""
        with self._turn:
            for key in [key for key in self._partitions if key[0] == space]:
                del self._partitions[key]

    def _partition(self, space: str, partition: int) -> Partition:
        key = (space, partition)
        if key not in self._partitions:
            self._partitions[key] = Partition(self._server, lambda: self.clock(), lambda: self.events_cap)
        return self._partitions[key]


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
        # What was heard of before may have ended: the answer tells what is left of it.
        self._granted = None
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
