"""What the processes of a drill noted, put together attempt by attempt."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fencing.drill.journal import Event
from fencing.drill.plan import Job

# How an attempt can end, apart from "accepted"; "" is said of one whose process was killed before it knew.
REFUSED = frozenset({"stale", "stale-read", "guard"})
ENDS = frozenset({*REFUSED, "accepted", "duplicate", "lost", "odd", "failed", "held"})
# Kinds of work whose values are worked out from what was read; the others change the row as it is.
FROM_A_READ = frozenset({"save", "once"})
# Nobody knows yet whether these took effect.
IN_DOUBT = frozenset({"", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A row as somebody read it. ``number`` is its ``last_token``, ``previous`` that of the version before.

    ``at`` is when it had been read, which is never before it was there.
    """

    row: int
    number: int
    previous: int
    quantity: int
    count: int
    at: float


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One try to do one job, under one grant.

    Attributes:
        name: unique in the drill.
        worker: the process.
        key: the operation's key, or "".
        kind: what was done.
        resource, row: to what.
        delta: what was to be added.
        asked: when the lease was asked for.
        granted: when it was known to be granted; infinite if it never was.
        token: the grant's number, 0 if there was none.
        until: how long the lease lives at least, if nobody ends it or renews it.
        released: when it was given back; infinite if it never was.
        sent: when each step was sent.
        begun: when the begin of a fenced transaction was known to have passed; infinite if it never was.
        read: what the write was made from; None if it was made from the row as it is.
        ended: when the outcome was known; infinite if it never was.
        outcome: see ``ENDS``.
        number: the number that the write carried.
        seen: versions that were read in it, the one that it was made from included.
        error: how it was refused.
        events: all of the above, as noted.
    """

    name: str
    worker: str = ""
    key: str = ""
    kind: str = ""
    resource: str = ""
    row: int = 0
    delta: int = 0
    asked: float = 0.0
    granted: float = math.inf
    token: int = 0
    until: float = 0.0
    released: float = math.inf
    sent: list[float] = field(default_factory=list)
    begun: float = math.inf
    read: Version | None = None
    ended: float = math.inf
    outcome: str = ""
    number: int = 0
    seen: list[Version] = field(default_factory=list)
    error: str = ""
    events: list[Event] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """Whether it took effect."""
        return self.outcome == "accepted"

    @property
    def last_sent(self) -> float:
        """When the step was sent that its outcome answers."""
        return self.sent[-1] if self.sent else math.inf

    @property
    def first_sent(self) -> float:
        """The first moment at which it may have changed anything."""
        return self.sent[0] if self.sent else math.inf

    def landed(self) -> float:
        """When it had surely superseded every older holder; infinite if it never did, as far as is known."""
        return min(self.begun, self.ended if self.accepted else math.inf)


def attempts_of(events: Iterable[Event]) -> list[Attempt]:
    """All attempts, in the order in which they began. Events of one process come in order."""
    found: dict[str, Attempt] = {}
    for event in events:
        if event["attempt"]:
            _add(found.setdefault(event["attempt"], Attempt(name=event["attempt"])), event)
    return sorted(found.values(), key=lambda one: one.asked)


def unfinished(events: Iterable[Event]) -> Job | None:
    """The operation that a killed process had begun, to be sent again; None if it had begun none, or knew its end."""
    attempts = attempts_of(events)
    last = attempts[-1] if attempts else None
    if last is None or last.outcome or not last.key:
        return None
    group = int(last.resource.rpartition(":")[2])
    return Job(kind=last.kind, group=group, row=last.row, delta=last.delta, key=last.key, again=True)


def settle(attempts: Iterable[Attempt], history: dict[int, tuple[str, int]], final: Iterable[Version]) -> None:
    """Say what came of attempts whose processes could not: the database knows.

    Args:
        attempts: all of them; those in doubt are changed.
        history: outcome and number of what is on record, by the token of the grant.
        final: the rows in the end.
    """
    attempts = list(attempts)
    there = {number for one in attempts for seen in one.seen for number in (seen.number, seen.previous)}
    there |= {number for row in final for number in (row.number, row.previous)}
    for one in attempts:
        if one.outcome not in IN_DOUBT or not one.token or not one.sent:
            continue
        outcome, number = history.get(one.token, ("accepted", one.token) if one.token in there else ("", 0))
        if outcome:
            one.outcome, one.number = outcome, number


def _add(one: Attempt, event: Event) -> None:
    one.events.append(event)
    what, at = event["what"], event["at"]
    if what == "asks":
        one.worker, one.asked = event["worker"], at
        one.key, one.kind = event["key"], event["kind"]
        one.resource, one.row, one.delta = event["resource"], event["row"], event["delta"]
    elif what == "granted":
        one.granted, one.token, one.until = at, event["token"], event["until"]
    elif what == "sends":
        one.sent.append(at)
    elif what == "begun":
        one.begun = at
    elif what == "releases":
        one.released = at
    elif what == "reads":
        _add_version(one, event)
    elif what in ENDS and not one.outcome:
        one.outcome, one.ended = what, at
        one.number, one.error = event.get("number", 0), event.get("error", "")


def _add_version(one: Attempt, event: Event) -> None:
    version = Version(
        row=one.row, number=event["version"], previous=event["previous"], quantity=event["quantity"],
        count=event["count"], at=event["at"],
    )  # fmt: skip
    one.seen.append(version)
    if one.kind in FROM_A_READ and one.read is None and not one.outcome:
        one.read = version
