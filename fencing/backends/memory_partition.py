"""One partition of the memory backend: its counter, its leases, its queues and its outbox.

What the hash, the keys, the lists and the stream are in a Redis. Nothing here takes turns; that is ``memory``'s.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from django.utils import timezone

from fencing.backends.base import Granted, GrantEvent, HolderInfo, LiveLease, NeedsRange

NOBODY = HolderInfo()


class Waiting(Protocol):
    """Somebody in a queue."""

    holder: str
    ttl: float
    info: HolderInfo

    def tell(self, issued: Granted | NeedsRange) -> None:
        """Let it know that it was granted the lease, or that it is its turn to ask for a range."""


@dataclass(slots=True, kw_only=True)
class Kept:
    """A lease, with the reign of its grant and the moment at which it ends."""

    lease: LiveLease
    reign: str
    deadline: float

    def at(self, now: float) -> LiveLease:
        """The lease with what is left of its time."""
        return replace(self.lease, remaining=self.deadline - now)


@dataclass(slots=True)
class Partition:
    """The state of one partition, and what changes it.

    Attributes:
        server: the id of what stands for the server.
        now: the clock by which leases end, in seconds.
        cap: tells how many lines the outbox keeps.
    """

    server: str
    now: Callable[[], float]
    cap: Callable[[], int]
    reign: str = field(default_factory=lambda: uuid.uuid4().hex)
    next: int = 1
    ceiling: int = 0
    dropped: int = 0
    leases: dict[str, Kept] = field(default_factory=dict)
    queues: dict[str, list[Waiting]] = field(default_factory=dict)
    events: dict[str, GrantEvent] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def install(self, first: int, last: int) -> bool:
        """Count from ``first`` to ``last``, unless ``first`` is below what comes next."""
        if first < self.next:
            return False
        self.next, self.ceiling = first, last
        return True

    def close_reign(self) -> NeedsRange:
        """Begin a new reign, without numbers."""
        self.reign, self.ceiling = uuid.uuid4().hex, 0
        return self.needed()

    def needed(self) -> NeedsRange:
        """What the reign asks for."""
        return NeedsRange(reign=self.reign, server=self.server, next=self.next)

    def issue(self) -> Granted | NeedsRange:
        """The next number."""
        if self.next > self.ceiling:
            return self.needed()
        self.next += 1
        return Granted(token=self.next - 1, reign=self.reign)

    def kept(self, resource: str) -> Kept | None:
        """The lease of ``resource``, if its time is not over."""
        kept = self.leases.get(resource)
        if kept is not None and kept.deadline <= self.now():
            del self.leases[resource]
            return None
        return kept

    def held_by(self, resource: str, holder: str) -> Kept | None:
        """The lease of ``resource``, if it is ``holder``'s."""
        kept = self.kept(resource)
        return kept if kept is not None and kept.lease.holder == holder else None

    def grant(self, resource: str, holder: str, ttl: float, info: HolderInfo) -> Granted | NeedsRange:
        """Give a free lease to ``holder``, with the next number."""
        issued = self.issue()
        if isinstance(issued, Granted):
            lease = LiveLease(
                resource=resource,
                holder=holder,
                token=issued.token,
                remaining=ttl,
                granted_at=timezone.now(),
                info=info,
            )
            self.leases[resource] = Kept(lease=lease, reign=self.reign, deadline=self.now() + ttl)
            self.note("granted", lease.token, resource, holder, ttl, info)
        return issued

    def end(self, kept: Kept, kind: Literal["released", "revoked"]) -> None:
        """End a lease, and hand it over."""
        lease = kept.lease
        del self.leases[lease.resource]
        self.note(kind, lease.token, lease.resource, lease.holder)
        self.hand_over(lease.resource)

    def join(self, resource: str, waiter: Waiting) -> None:
        """Take the last place in the queue, or keep the one that ``waiter`` has."""
        queue = self.queues.setdefault(resource, [])
        if waiter not in queue:
            queue.append(waiter)

    def leave(self, resource: str, holder: str) -> None:
        """Give up the place that ``holder`` has in the queue, if any."""
        others = [one for one in self.queues.pop(resource, []) if one.holder != holder]
        if others:
            self.queues[resource] = others

    def hand_over(self, resource: str) -> None:
        """Give the free lease to the first waiter; without a number, wake it, so that it asks and gets a range."""
        if queue := self.queues.get(resource):
            first = queue[0]
            issued = self.grant(resource, first.holder, first.ttl, first.info)
            if isinstance(issued, Granted):
                queue.pop(0)
                if not queue:
                    del self.queues[resource]
            first.tell(issued)

    def note(
        self,
        kind: Literal["granted", "released", "lost", "revoked"],
        token: int,
        resource: str,
        holder: str,
        ttl: float = 0.0,
        info: HolderInfo = NOBODY,
    ) -> None:
        """Append a line to the outbox; above its cap the oldest is dropped, and counted."""
        line = str(next(self.ids))
        self.events[line] = GrantEvent(
            id=line, kind=kind, token=token, resource=resource, holder=holder, at=timezone.now(), ttl=ttl, info=info
        )
        if len(self.events) > self.cap():
            del self.events[next(iter(self.events))]
            self.dropped += 1
