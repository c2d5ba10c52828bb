"""Queues that are filled, and then drained by a real worker: what that takes for each task."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.measure import Cost
from fencing.backends import get_backend
from fencing.tokens import place_of
from inventory_demo.celery import app
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker

# Seconds within which any queue is drained.
BOUND = 120
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Drain:
    """A context manager around a prefork worker that drains one queue after another.

    Args:
        processes: how many children the worker has.
    """

    def __init__(self, processes: int) -> None:
        self._worker = Worker(
            f"benchmark-{os.getpid()}-{processes}",
            include=["benchmarks.tasks"],
            concurrency=processes,
            options=["--loglevel=WARNING"],
            environment={"DJANGO_SETTINGS_MODULE": "benchmarks.settings"},
        )
        self._drained = 0

    def __enter__(self) -> Self:
        self._worker.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.__exit__(kind, error, trace)

    def alternate(
        self, variants: Mapping[str, Callable[[str], Callable[[], bool]]], *, rounds: int, tasks: int
    ) -> dict[str, list[Cost]]:
        """Drain a queue of each variant in each round, in an order that changes; the first round only warms up.

        Args:
            variants: each fills the queue of this name, and returns what tells that it is drained.
            tasks: how many tasks that is.
        """
        costs: dict[str, list[Cost]] = {name: [] for name in variants}
        order = list(variants)
        shuffle = random.Random(1).shuffle  # noqa: S311
        for number in range(rounds + 1):
            shuffle(order)
            for name in order:
                cost = self._drain(variants[name], tasks)
                if number:
                    costs[name].append(cost)
        return costs

    def _drain(self, fill: Callable[[str], Callable[[], bool]], tasks: int) -> Cost:
        self._drained += 1
        queue = f"{self._worker.queue}-{self._drained}"
        is_drained = fill(queue)
        full, cpu = waiting_in(queue), cpu_of_group(self._worker.pid)
        self._tell("add_consumer", queue)
        # Celery, which waits at its own queue, looks into this one within a second: that is not the tasks' time.
        if not wait_for(lambda: waiting_in(queue) < full, seconds=BOUND):
            raise TimeoutError(f"Nothing was taken from {queue} within {BOUND} s:\n{self._worker.log()}")
        wall = time.perf_counter()
        if not wait_for(is_drained, seconds=BOUND):
            raise TimeoutError(f"{queue} was not drained within {BOUND} s:\n{self._worker.log()}")
        wall = time.perf_counter() - wall
        # The worker collects the grants in batches: else the next queue would pay for this one's.
        if not wait_for(is_collected, seconds=BOUND):
            raise TimeoutError(f"The grants of {queue} were not collected within {BOUND} s:\n{self._worker.log()}")
        cost = Cost(wall / tasks, (cpu_of_group(self._worker.pid) - cpu) / tasks)
        self._tell("cancel_consumer", queue)
        return cost

    def _tell(self, command: str, queue: str) -> None:
        replies = getattr(app.control, command)(queue, destination=[self._worker.name], reply=True, timeout=10)
        if not replies:
            raise TimeoutError(f"The worker did not answer {command}.")


def waiting_in(queue: str) -> int:
    """How many messages nobody has taken yet."""
    with app.connection_for_read() as broker:
        channel: Any = broker.default_channel
        return int(channel.client.llen(queue))


def is_collected() -> bool:
    """Tell whether the store's outbox is empty."""
    backend = get_backend("default")
    place = place_of(backend, "collect")
    return all(not backend.read_events(place.space, one, 1) for one in range(backend.config.partitions))


def cpu_of_group(group: int) -> float:
    """CPU seconds that the live processes of a process group have used by now."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in parentheses before them may hold anything.
            fields: list[Any] = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK
