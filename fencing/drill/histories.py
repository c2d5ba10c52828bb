"""What a drill left, and what may be wrong with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from fencing.drill.attempts import Attempt, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Histories:
    """What a drill left.

    Attributes:
        attempts: what its processes noted.
        final: its rows, after all processes had ended.
        history: outcome and number of what is on record in ``FencedWrite``, by the token of the grant.
        forgets: from when to when the store forgot, each time.
        ttl: seconds that a lease lives without renewal.
        recorded: outcomes of which there must be a line in ``history``.
    """

    attempts: Sequence[Attempt]
    final: Sequence[Version]
    history: dict[int, tuple[str, int]]
    forgets: Sequence[tuple[float, float]] = ()
    ttl: float = 0.5
    recorded: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Something that must not be.

    Attributes:
        kind: "wrongly accepted", "wrongly refused", "out of order", "lost update", "duplicate", "two holders",
            "odd" or "not on record".
        text: what is wrong.
        attempts: those that show it.
    """

    kind: str
    text: str
    attempts: tuple[Attempt, ...]


def forgotten(found: Histories, begin: float, end: float) -> bool:
    """Whether the store may have forgotten between two moments."""
    return any(began <= end and ended >= begin for began, ended in found.forgets)


def grouped(attempts: Iterable[Attempt], key: Callable[[Attempt], str]) -> list[list[Attempt]]:
    """Attempts by what ``key`` says of them, in their order."""
    groups: defaultdict[str, list[Attempt]] = defaultdict(list)
    for one in attempts:
        groups[key(one)].append(one)
    return list(groups.values())
