"""From what was noted to what was wrong: pure functions, which trust the processes' clocks, and no lease store.

Each event of an attempt was noted before or after what it tells of, never in the middle. So of two attempts it is
known that one came first only if the other had not begun; whatever may have been at the same time is let pass.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from fencing.drill.attempts import FROM_A_READ, REFUSED, Attempt, Version, settle


@dataclass(frozen=True, slots=True, kw_only=True)
class Histories:
    """What a drill left.

    Attributes:
        attempts: what its processes noted.
        final: its rows, after all processes had ended.
        history: outcome and number of what is on record in ``FencedWrite``, by the token of the grant.
        forgets: from when to when the store forgot, each time.
        ttl: seconds that a lease lives without renewal.
    """

    attempts: Sequence[Attempt]
    final: Sequence[Version]
    history: dict[int, tuple[str, int]]
    forgets: Sequence[tuple[float, float]] = ()
    ttl: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Something that must not be.

    Attributes:
        kind: "wrongly accepted", "wrongly refused", "out of order", "lost update", "duplicate", "two holders" or "odd".
        text: what is wrong.
        attempts: those that show it.
    """

    kind: str
    text: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the checker says.

    Attributes:
        attempted: stale writes that reached the database.
        refused: those of them that it refused.
        operations: attempts whose write the database decided on.
        accepted: those of them that took effect.
        failed: attempts that a database or a store failed, apart from all fencing.
        longest_wait: seconds between asking for a lease and knowing of it, at most.
        violations: everything that must not be.
    """

    attempted: int
    refused: int
    operations: int
    accepted: int
    failed: int
    longest_wait: float
    violations: tuple[Violation, ...]

    def count(self, kind: str) -> int:
        """How many violations of a kind there are."""
        return sum(one.kind == kind for one in self.violations)


def check(found: Histories) -> Findings:
    """Judge a drill. Attempts whose outcome their process did not know are settled first, in place."""
    settle(found.attempts, found.history, found.final)
    landings = _Landings(found.attempts)
    stale = [(one, newer) for one in found.attempts if (newer := landings.superseding(one)) is not None]
    reached = [one for one, _ in stale if one.accepted or one.outcome in REFUSED]
    wrongs = (
        _wrongly_accepted(stale), _wrongly_refused(found), _out_of_order(found), _lost_updates(found),
        _duplicates(found.attempts), _two_holders(found), _odd(found.attempts),
    )  # fmt: skip
    return Findings(
        attempted=len(reached),
        refused=sum(not one.accepted for one in reached),
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
    if one.ended - one.asked >= found.ttl or _forgotten(found, one.asked, one.ended):
        return True
    return any(_is_newer(other, one) and other.asked < one.ended for other in found.attempts)


def _forgotten(found: Histories, begin: float, end: float) -> bool:
    return any(began <= end and ended >= begin for began, ended in found.forgets)


def _out_of_order(found: Histories) -> Iterator[Violation]:
    """Grants are unique, and rise from one that is known to the next that is asked for; so do a row's versions."""
    granted = sorted((one for one in found.attempts if one.token), key=lambda one: one.token)
    for one, next_one in pairwise(granted):
        if one.token == next_one.token:
            text = f"token {one.token} was granted twice"
            yield Violation(kind="out of order", text=text, attempts=(one, next_one))
    for group in _grouped(granted, lambda one: one.resource):
        known = sorted(group, key=lambda one: one.granted)
        highest: Attempt | None = None
        at = 0
        for one in sorted(group, key=lambda one: one.asked):
            while known[at].granted < one.asked:
                highest = max(filter(None, (highest, known[at])), key=lambda each: each.token)
                at += 1
            if highest is not None and highest.token > one.token:
                text = f"{one.resource}: token {one.token} was granted after {highest.token}"
                yield Violation(kind="out of order", text=text, attempts=(highest, one))
    for one, before in _chain(found):
        if before.number >= one.number:
            text = f"row {one.row}: number {one.number} was written over {before.number}"
            yield Violation(kind="out of order", text=text, attempts=(before, one))


def _chain(found: Histories) -> Iterator[tuple[Attempt, Attempt]]:
    """Accepted writes, each with the one that it was made from, as far as both are known."""
    writers = {(one.row, one.number): one for one in found.attempts if one.accepted}
    for one, number in _predecessors(found):
        if (before := writers.get((one.row, number))) is not None and before is not one:
            yield one, before


def _predecessors(found: Histories) -> Iterator[tuple[Attempt, int]]:
    """Accepted writes, each with the number of the version that it was made from, as far as that is known."""
    versions = [*found.final, *(version for one in found.attempts for version in one.seen)]
    previous = {(version.row, version.number): version.previous for version in versions}
    for one in found.attempts:
        if not one.accepted:
            continue
        if one.kind in FROM_A_READ:
            if one.read is not None:
                yield one, one.read.number
        elif (one.row, one.number) in previous:
            yield one, previous[one.row, one.number]


def _lost_updates(found: Histories) -> Iterator[Violation]:
    """Two writes of one version: the first of them is gone. And every row holds the sum of what was accepted."""
    made_from: defaultdict[tuple[int, int], list[Attempt]] = defaultdict(list)
    for one, number in _predecessors(found):
        made_from[one.row, number].append(one)
    broken = set()
    for (row, number), writers in made_from.items():
        for lost, by in pairwise(writers):
            broken.add(row)
            text = f"row {row}: tokens {lost.token} and {by.token} both wrote over version {number}, one is lost"
            yield Violation(kind="lost update", text=text, attempts=(lost, by))
    for last in found.final:
        if last.row not in broken and (text := _sum_is_wrong(last, found.attempts)):
            latest = [one for one in found.attempts if one.row == last.row and one.accepted][-3:]
            yield Violation(kind="lost update", text=text, attempts=tuple(latest))


def _sum_is_wrong(row: Version, attempts: Iterable[Attempt]) -> str:
    """What is wrong with a row's quantity, or "". Where an outcome stayed unknown, only what is sure counts."""
    on_row = [one for one in attempts if one.row == row.row]
    deltas = [one.delta for one in on_row if one.accepted]
    unknown = sum(one.outcome in ("", "failed") and bool(one.sent) for one in on_row)
    if len(deltas) > row.count:
        return f"row {row.row}: {len(deltas)} writes were accepted, it has seen {row.count}"
    if row.count > len(deltas) + unknown:
        return f"row {row.row}: {len(deltas)} writes were accepted, it has seen {row.count}: nobody made the others"
    if row.count == len(deltas) and sum(deltas) != row.quantity:
        return f"row {row.row}: its quantity is {row.quantity}, the sum of what was accepted is {sum(deltas)}"
    return ""


def _duplicates(attempts: Iterable[Attempt]) -> Iterator[Violation]:
    effects = (one for one in attempts if one.key and one.accepted)
    for group in _grouped(effects, lambda one: one.key):
        for first, again in pairwise(group):
            text = f"operation {first.key} took effect under token {first.token} and under {again.token}"
            yield Violation(kind="duplicate", text=text, attempts=(first, again))


def _two_holders(found: Histories) -> Iterator[Violation]:
    """A grant while the one before had neither been given back nor come to its time: the store let go of a lease."""
    granted = sorted((one for one in found.attempts if one.token), key=lambda one: one.token)
    for group in _grouped(granted, lambda one: one.resource):
        for one, other in pairwise(group):
            if one.granted < other.granted < min(one.until, one.released) and not _forgotten(
                found, one.asked, other.granted
            ):
                text = f"{one.resource} was granted to token {other.token} while {one.token} still held it"
                yield Violation(kind="two holders", text=text, attempts=(one, other))


def _odd(attempts: Iterable[Attempt]) -> Iterator[Violation]:
    for one in attempts:
        if one.outcome == "odd":
            text = f"token {one.token} was refused on {one.resource}, but not by the fence: {one.error}"
            yield Violation(kind="odd", text=text, attempts=(one,))


def _grouped(attempts: Iterable[Attempt], key: Callable[[Attempt], str]) -> list[list[Attempt]]:
    groups: defaultdict[str, list[Attempt]] = defaultdict(list)
    for one in attempts:
        groups[key(one)].append(one)
    return list(groups.values())
