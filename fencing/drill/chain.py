"""Grants in their order, and the versions of each row, each made from the one before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from fencing.drill.attempts import FROM_A_READ, Attempt, Version
from fencing.drill.histories import Histories, Violation, forgotten, grouped


def out_of_order(found: Histories) -> Iterator[Violation]:
    """Grants are unique, and rise from one that is known to the next that is asked for; so do a row's versions."""
    granted = sorted((one for one in found.attempts if one.token), key=lambda one: one.token)
    for one, next_one in pairwise(granted):
        if one.token == next_one.token:
            text = f"token {one.token} was granted twice"
            yield Violation(kind="out of order", text=text, attempts=(one, next_one))
    for group in grouped(granted, lambda one: one.resource):
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


def lost_updates(found: Histories) -> Iterator[Violation]:
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


def duplicates(attempts: Iterable[Attempt]) -> Iterator[Violation]:
    """Operations that took effect more than once."""
    effects = (one for one in attempts if one.key and one.accepted)
    for group in grouped(effects, lambda one: one.key):
        for first, again in pairwise(group):
            text = f"operation {first.key} took effect under token {first.token} and under {again.token}"
            yield Violation(kind="duplicate", text=text, attempts=(first, again))


def two_holders(found: Histories) -> Iterator[Violation]:
    """A grant while the one before had neither been given back nor come to its time: the store let go of a lease."""
    granted = sorted((one for one in found.attempts if one.token), key=lambda one: one.token)
    for group in grouped(granted, lambda one: one.resource):
        for one, other in pairwise(group):
            if one.granted < other.granted < min(one.until, one.released) and not forgotten(
                found, one.asked, other.granted
            ):
                text = f"{one.resource} was granted to token {other.token} while {one.token} still held it"
                yield Violation(kind="two holders", text=text, attempts=(one, other))
