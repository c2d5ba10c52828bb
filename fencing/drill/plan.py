"""What a drill does, as each of its processes is told. Nothing here touches Django: a process reads it before its set-up."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

# Seconds that a lease of a drill lives without renewal: short, so that many of them end in a few seconds.
TTL = 0.5
# Pauses in a second of each process, on average.
PAUSE_RATE = 1.0
# How many rows belong to each resource: a holder can be superseded on a row that nobody newer has touched.
ROWS = 2
FAULTS = ("pause", "kill", "forget")
# How often each kind of work is chosen.
KINDS = {"save": 4, "expression": 2, "update": 2, "once": 4, "raw": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One drill.

    Attributes:
        name: its namespace and the alias of its lease backend, ``drill-<hex>``.
        settings: the name of Django's settings module.
        fencing: the setting ``FENCING`` of its processes, with that alias.
        names: the name of each database in use, by alias: inside tests it is not the one of the settings.
        database: alias of the database in which its rows are.
        folder: where its processes keep their journals.
        workers: how many processes there are at a time.
        seconds: how long they work.
        pause_rate: how often in a second each process is stopped, on average.
        kill_rate: how often in a second it dies.
        faults: which of ``FAULTS`` there are.
        seed: decides on each process's jobs and faults; their interleaving is the machine's.
        fenced: whether the rows are fenced.
        cooperative: whether a process pauses by sleeping, with a lease that nobody renews, instead of being stopped.
        ttl: seconds that a lease lives without renewal.
        dawdles: the share of those who take over from a sleeper that work slowly.
        rows: how many rows belong to each resource.
        kinds: how often each kind of work is chosen.
        sleepers: the kinds of work in which a process is going to be stopped, in turn.
    """

    name: str
    settings: str
    fencing: Mapping[str, Any]
    names: Mapping[str, str]
    database: str
    folder: str
    workers: int
    seconds: float
    pause_rate: float = PAUSE_RATE
    kill_rate: float = 0.05
    faults: tuple[str, ...] = FAULTS
    seed: int = 0
    fenced: bool = True
    cooperative: bool = False
    ttl: float = TTL
    dawdles: float = 0.5
    rows: int = ROWS
    kinds: Mapping[str, int] = field(default_factory=lambda: KINDS)
    sleepers: Collection[str] = tuple(KINDS)

    @property
    def resources(self) -> int:
        """How many resources there are: few enough for holders to meet."""
        return max(1, self.workers // 3)

    def kinds_at(self, seconds: float) -> dict[str, int]:
        """The kinds of work at a time of the drill: some only, because what one does may hide what another lets pass."""
        draw = random.Random(f"{self.seed} {int(seconds / (2 * self.ttl))}")  # noqa: S311
        chosen = draw.sample(sorted(self.kinds), draw.randint(1, len(self.kinds)))
        return {kind: self.kinds[kind] for kind in chosen}

    @property
    def table(self) -> str:
        """The name of the scratch table."""
        return f"fencing_{self.name.replace('-', '_')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to a process in the middle of an attempt.

    Attributes:
        what: "pause", "kill", or "dawdle": work that takes long under a lease that is renewed.
        at: where: "granted", "read", "sent" (a moment after it was) or "written" (before the end of a transaction).
        seconds: how long; for "sent" how long after.
    """

    what: str
    at: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing to do to one row.

    Attributes:
        kind: one of ``KINDS``.
        group: the number of the resource.
        row: the primary key of the row.
        delta: what is added to its quantity.
        key: the operation's key; "" for work that has none.
        again: whether the key was sent before.
        fault: what happens meanwhile.
    """

    kind: str
    group: int
    row: int
    delta: int
    key: str = ""
    again: bool = False
    fault: Fault | None = None

    @property
    def resource(self) -> str:
        """The name of the resource."""
        return f"drill:{self.group}"
