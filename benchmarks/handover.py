"""Processes that wait for the same lease: how long from a release to the next grant, and who gets it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.measure import no_chores

PROCESSES = 8
HOLD, REST = 0.002, 0.005


@dataclass(frozen=True, slots=True)
class Turn:
    """One grant as its process saw it, in seconds of the machine's monotonic clock."""

    process: int
    token: int
    asked: float
    granted: float
    released: float


def take_turns(seconds: float) -> list[Turn]:
    """Let the processes take the lease in turn for some time; every grant, in the order of the tokens."""
    context = get_context("spawn")
    barrier, found = context.Barrier(PROCESSES), context.Queue()
    processes = [context.Process(target=worker, args=(number, seconds, barrier, found)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    turns = [turn for _ in processes for turn in found.get(timeout=seconds + 60)]
    for process in processes:
        process.join(timeout=60)
    return sorted(turns, key=lambda turn: turn.token)


def worker(number: int, seconds: float, barrier: Barrier, found: Any) -> None:
    """One process."""
    import django

    django.setup()
    with no_chores():
        found.put(turns_of(number, seconds, barrier))


def turns_of(number: int, seconds: float, barrier: Barrier) -> list[Turn]:
    """Wait, hold, release, do something else, until the time is over."""
    from fencing import lease

    with lease(f"warm-up:{number}"):
        pass
    turns = []
    barrier.wait(timeout=60)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked = time.monotonic()
        with lease("stock:42", wait=None) as held:
            granted = time.monotonic()
            time.sleep(HOLD)
            released = time.monotonic()
        turns.append(Turn(number, held.token, asked, granted, released))
        time.sleep(REST)
    return turns


def handoffs(turns: list[Turn]) -> list[float]:
    """Seconds from each release to the next grant, where the next holder was waiting by then."""
    return sorted(after.granted - before.released for before, after in pairwise(turns) if after.asked < before.released)


def evenness(turns: list[Turn]) -> float:
    """Jain's index of the grants per process: 1 if all have the same number."""
    grants = Counter(turn.process for turn in turns)
    return sum(grants.values()) ** 2 / (PROCESSES * sum(count * count for count in grants.values()))
