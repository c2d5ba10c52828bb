"""From what was noted to what was wrong: pure functions, which trust the processes' clocks, and no lease store.

Each event of an attempt was noted before or after what it tells of, never in the middle. So of two attempts it is
known that one came first only if the other had not begun; whatever may have been at the same time is let pass.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from fencing.drill.attempts import REFUSED, Attempt, settle
from fencing.drill.chain import duplicates, lost_updates, out_of_order, two_holders
from fencing.drill.histories import Histories, Violation, forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the checker says.

    Attributes:
        attempted: stale writes that reached the database.
        refused: those of them that it refused.
        ways: how many were attempted by each kind of work.
        operations: attempts whose write the database decided on.
        accepted: those of them that took effect.
        failed: attempts that a database or a store failed, apart from all fencing.
        longest_wait: seconds between asking for a lease and knowing of it, at most.
        violations: everything that must not be.
    """

    attempted: int
    refused: int
    ways: Mapping[str, int]
    operations: int
    accepted: int
    failed: int
    longest_wait: float
    violations: tuple[Violation, ...]

    def count(self, kind: str) -> int:
        """How many violations of a kind there are."""
        return sum(one.kind == kind for one in self.violations)


def check(found: Histories) -> Findings:
    """Judge a drill. Attempts whose outcome their process did not know are settled, in place."""
    unrecorded = tuple(_not_on_record(found))  # settling trusts the record
    settle(found.attempts, found.history, found.final)
    landings = _Landings(found.attempts)
    stale = [(one, newer) for one in found.attempts if (newer := landings.superseding(one)) is not None]
    reached = [one for one, _ in stale if one.accepted or one.outcome in REFUSED]
    wrongs = (
        _wrongly_accepted(stale), _wrongly_refused(found), out_of_order(found), lost_updates(found),
        duplicates(found.attempts), two_holders(found), _odd(found.attempts), unrecorded,
    )  # fmt: skip
    return Findings(
        attempted=len(reached),
        refused=sum(not one.accepted for one in reached),
        ways=Counter(one.kind for one in reached),
        operations=sum(one.outcome not in ("", "held", "failed") for one in found.attempts),
        accepted=sum(one.accepted for one in found.attempts),
        failed=sum(one.outcome == "failed" for one in found.attempts),
        longest_wait=max((one.granted - one.asked for one in found.attempts if one.token), default=0.0),
        violations=tuple(violation for wrong in wrongs for violation in wrong),
    )


class _Landings:
    """Who had surely written, or begun, by when: on each resource by way of the ORM, and on each row in whatever way."""

    def __init__(self, attempts: Iterable[Attempt]) -> None:
        landed: defaultdict[str | int, list[tuple[float, Attempt]]] = defaultdict(list)
        for one in attempts:
            if one.kind != "raw" and one.landed() < math.inf:
                landed[one.resource].append((one.landed(), one))
            if one.accepted and one.ended < math.inf:
                landed[one.row].append((one.ended, one))
        self._times: dict[str | int, list[float]] = {}
        self._newest: dict[str | int, list[Attempt]] = {}
        for where, found in landed.items():
            found.sort(key=lambda each: each[0])
            self._times[where] = [at for at, _ in found]
            by_time = (one for _, one in found)
            self._newest[where] = list(accumulate(by_time, _newer))

    def superseding(self, one: Attempt) -> Attempt | None:
        """A newer holder that was there before the last step of ``one`` was sent. Raw SQL is judged by its row only."""
        if not one.sent:
            return None
        places: list[str | int] = [one.row] if one.kind == "raw" else [one.row, one.resource]
        for where in places:
            at = bisect_left(self._times.get(where, []), one.last_sent)
            if at and (newest := self._newest[where][at - 1]).token > one.token:
                return newest
        return None


def _wrongly_accepted(stale: Iterable[tuple[Attempt, Attempt]]) -> Iterator[Violation]:
    for one, newer in stale:
        if one.accepted:
            text = f"token {one.token} was accepted on {one.resource} after {newer.token} had been there"
            yield Violation(kind="wrongly accepted", text=text, attempts=(newer, one))


def _wrongly_refused(found: Histories) -> Iterator[Violation]:
    """Refusals for which there is no reason, not even one that may have come at the same time."""
    reasons: dict[str, Callable[[Attempt], bool]] = {
        "stale": lambda one: any(_may_supersede(other, one) for other in found.attempts),
        "guard": lambda one: any(_may_supersede(other, one) for other in found.attempts),
        "stale-read": lambda one: any(_may_have_moved(other, one) for other in found.attempts),
        "duplicate": lambda one: any(_may_be_first(other, one) for other in found.attempts),
        "lost": lambda one: _may_have_lost(one, found),
    }
    for one in found.attempts:
        reason = reasons.get(one.outcome)
        if reason is not None and not reason(one):
            text = f"token {one.token} was refused on {one.resource} ({one.outcome}) without a reason: {one.error}"
            yield Violation(kind="wrongly refused", text=text, attempts=(one,))


def _newer(one: Attempt, other: Attempt) -> Attempt:
    return one if one.token > other.token else other


def _is_newer(other: Attempt, one: Attempt) -> bool:
    return other.resource == one.resource and other.token > one.token


def _may_supersede(other: Attempt, one: Attempt) -> bool:
    meet = other.row == one.row or "raw" not in (other.kind, one.kind)
    return meet and _is_newer(other, one) and other.first_sent < one.ended


def _may_have_moved(other: Attempt, one: Attempt) -> bool:
    """Whether ``other`` may have written the row since ``one`` read it."""
    read_at = one.read.at if one.read is not None else one.asked
    may_write = other.accepted or other.outcome in ("", "failed")
    return (
        other is not one
        and other.row == one.row
        and may_write
        and other.first_sent < one.ended
        and other.ended > read_at
    )


def _may_be_first(other: Attempt, one: Attempt) -> bool:
    may_write = other.accepted or other.outcome in ("", "failed")
    return other is not one and other.key == one.key and may_write and other.first_sent < one.ended


def _may_have_lost(one: Attempt, found: Histories) -> bool:
    """Whether a lease may have ended: by its time, by a newer grant, or because the store forgot."""
    if one.ended - one.asked >= found.ttl or forgotten(found, one.asked, one.ended):
        return True
    return any(_is_newer(other, one) and other.asked < one.ended for other in found.attempts)


def _odd(attempts: Iterable[Attempt]) -> Iterator[Violation]:
    for one in attempts:
        if one.outcome == "odd":
            text = f"token {one.token} was refused on {one.resource}, but not by the fence: {one.error}"
            yield Violation(kind="odd", text=text, attempts=(one,))


def _not_on_record(found: Histories) -> Iterator[Violation]:
    """Outcomes that a process was told, and the history does not tell. Raw SQL leaves no line."""
    for one in found.attempts:
        if one.kind == "raw" or one.outcome not in found.recorded:
            continue
        outcome, _number = found.history.get(one.token, ("", 0))
        if not outcome or (one.accepted and outcome != "accepted"):
            text = f"what token {one.token} was told on {one.resource} ({one.outcome}) is not in the history"
            yield Violation(kind="not on record", text=text, attempts=(one,))
