"""Rounds of several variants in turn, and what comes of them."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from unittest.mock import patch

from fencing.conf import backend_aliases

# Of the column with the names.
WIDTH = 72


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, and what it has to be: at most ``goal``, or at least.

    Attributes:
        name: what was measured, and in which unit if that is no ratio.
        ratio: the figure.
        goal: its bound; None for a figure that only stands beside another.
        at_least: the bound is a lower one.
    """

    name: str
    ratio: float
    goal: float | None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is within its bound."""
        if self.goal is None:
            return True
        return self.ratio >= self.goal if self.at_least else self.ratio <= self.goal


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds per call: by the clock, and of all threads of this process."""

    wall: float
    cpu: float


def alternate(
    variants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int,
    before: Callable[[str], object] = lambda _name: None,
) -> dict[str, list[Cost]]:
    """Call each variant ``calls`` times in each round, in an order that changes; the first round only warms up.

    Args:
        before: called with the variant's name before its calls of a round, outside the time.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    order = list(variants)
    shuffle = random.Random(1).shuffle  # noqa: S311
    for number in range(rounds + 1):
        shuffle(order)
        for name in order:
            before(name)
            cost = timed(variants[name], calls)
            if number:
                costs[name].append(cost)
    return costs


def timed(call: Callable[[], object], calls: int) -> Cost:
    """What one call costs, on the average of ``calls``."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return Cost((time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls)


def ratios(costs: Iterable[Cost], floor: Iterable[Cost]) -> tuple[float, float]:
    """The medians of the rounds' ratios, in wall time and CPU: both of one round had the same machine."""
    pairs = list(zip(costs, floor, strict=True))
    return median(c.wall / f.wall for c, f in pairs), median(c.cpu / f.cpu for c, f in pairs)


def report(rows: Iterable[Row], *, as_json: bool) -> None:
    """Print the rows."""
    rows = list(rows)
    if as_json:
        found = [{"name": r.name, "ratio": round(r.ratio, 4), "goal": r.goal, "met": r.met} for r in rows]
        print(json.dumps({"rows": found}))
        return
    for row in rows:
        print(f"{row.name:{WIDTH}} {row.ratio:9.3f}  {verdict(row)}")


def verdict(row: Row) -> str:
    """The goal, and whether it is met."""
    if row.goal is None:
        return "no goal"
    return f"{'>=' if row.at_least else '<='} {row.goal:<6g} {'met' if row.met else 'MISSED'}"


@contextmanager
def no_chores() -> Iterator[None]:
    """For the block, nothing collects grants in the background of this process, as if it were planned already.

    So it mostly is: one lease in a second plans it.
    """
    with patch("fencing.history.chores", new={("collect", alias) for alias in backend_aliases()}):
        yield


def arguments(text: str | None) -> argparse.Namespace:
    """The options that every benchmark has: ``quick`` and ``json``."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller amounts")
    parser.add_argument("--json", action="store_true", help='print {"rows": [{"name", "ratio", "goal", "met"}]}')
    return parser.parse_args()
