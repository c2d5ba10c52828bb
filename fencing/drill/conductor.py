"""Starts a drill's processes, wakes those that stopped, replaces those that died, and lets the store forget."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fencing.drill.attempts import unfinished
from fencing.drill.journal import events_of
from fencing.drill.plan import Job, Plan
from fencing.drill.worker import run
from fencing.exceptions import LeaseBackendError

logger = logging.getLogger("fencing")

# Seconds that a process has for its start, and for the job at hand when the time is over.
START, END = 60.0, 15.0
TICK = 0.05


class CrashError(Exception):
    """A process of the drill ended as it should not; the text is what it left."""


@dataclass(kw_only=True)
class _Player:
    """One process, as the conductor sees it."""

    name: str
    process: BaseProcess
    line: Connection
    journal: Path
    ready: bool = False
    wake_at: float | None = None
    counts: dict[str, int] = field(default_factory=dict)


class Conductor:
    """One run of a drill's processes.

    Attributes:
        forgets: from when to when the store forgot, each time.
        begun: when the processes began to work.
    """

    def __init__(self, plan: Plan, forget: Callable[[], None], ended: Callable[[], bool]) -> None:
        """Make one.

        Args:
            plan: the drill.
            forget: lets the store forget the drill's namespace.
            ended: says whether somebody wants the drill to end at once.
        """
        self.forgets: list[tuple[float, float]] = []
        self.begun = 0.0
        self._plan = plan
        self._forget = forget
        self._ended = ended
        self._draw = random.Random(f"{plan.seed} conductor")  # noqa: S311
        self._players: list[_Player] = []
        self._gone: dict[str, int] = {}
        self._until = float("inf")
        self._forget_at = float("inf")
        self._started = 0

    def play(self, progress: Callable[[float, dict[str, int]], None]) -> None:
        """Let the processes work for the drill's time, and end them however this ends.

        Args:
            progress: is told every now and then how many seconds have passed, and how many writes there were.

        Raises:
            CrashError: a process failed.
        """
        try:
            for number in range(self._plan.workers):
                if self._ended():
                    return
                self._start(str(number + 1))
            self._until_all_are_ready(time.monotonic() + START)
            if self._ended():
                return
            self.begun = time.monotonic()
            self._until = self.begun + self._plan.seconds
            self._plan_forgetting()
            for one in self._players:
                one.line.send(self._until)
            while time.monotonic() < self._until and not self._ended():
                self._turn()
                progress(time.monotonic() - self.begun, self._counted())
            self._until = min(self._until, time.monotonic())
            self._dismiss()
        finally:
            self._kill()

    def _start(self, name: str, *first: Job) -> None:
        context = _context()
        ours, theirs = context.Pipe()
        journal = Path(self._plan.folder) / f"{name}.jsonl"
        process = context.Process(
            target=run, args=(self._plan, name, str(journal), theirs, first), name=f"drill {name}", daemon=True
        )
        process.start()
        theirs.close()
        self._players.append(_Player(name=name, process=process, line=ours, journal=journal))

    def _turn(self) -> None:
        """Look after everybody once, at most for a tick."""
        for line in wait([one.line for one in self._players], timeout=TICK):
            player = next(one for one in self._players if one.line is line)
            try:
                self._hear(player, player.line.recv())
            except (EOFError, OSError):
                self._bury(player)
        self._wake()
        if time.monotonic() >= self._forget_at:
            self._let_forget()

    def _let_forget(self) -> None:
        began = time.monotonic()
        self._plan_forgetting()
        try:
            self._forget()
        except LeaseBackendError as error:
            # A store that is busy forgets another time; half of it may have been forgotten.
            logger.warning("The store could not be made to forget now: %s", error)
        self.forgets.append((began, time.monotonic()))

    def _hear(self, player: _Player, message: tuple[object, ...]) -> None:
        match message:
            case ("ready",):
                player.ready = True
                if self.begun:
                    player.line.send(self._until)
            case ("stops", float(seconds), Job() as job):
                player.wake_at = time.monotonic() + seconds
                self._send_again(player, job)
            case ("wakes",):
                player.wake_at = None
            case ("counts", dict(counts)):
                player.counts = counts

    def _wake(self) -> None:
        """Wake whose pause is over: again and again, because a signal may have come before its process had stopped."""
        if not self._plan.cooperative:
            for one in self._players:
                if one.wake_at is not None and time.monotonic() >= one.wake_at:
                    with suppress(ProcessLookupError):
                        os.kill(one.process.pid or 0, signal.SIGCONT)

    def _send_again(self, sleeper: _Player, job: Job) -> None:
        """Hand a sleeper's operation to another process, as a broker does that has heard nothing for too long."""
        others = [one for one in self._players if one is not sleeper and one.ready and one.wake_at is None]
        if job.key and others:
            with suppress(OSError):
                self._draw.choice(others).line.send(
                    Job(kind=job.kind, group=job.group, row=job.row, delta=job.delta, key=job.key, again=True)
                )

    def _bury(self, player: _Player) -> None:
        """A process is gone: replace the one that was to die, unless the time is over anyway."""
        player.process.join(END)
        self._remove(player)
        events = list(events_of(player.journal))
        crash = next((event["error"] for event in events if event["what"] == "crashed"), None)
        killed = player.process.exitcode == -getattr(signal, "SIGKILL", 9)
        if crash or not (killed or player.process.exitcode == 0):
            raise CrashError(crash or f"Process {player.name} ended with status {player.process.exitcode}.")
        if killed and time.monotonic() < self._until:
            lost = unfinished(events)
            self._start(f"{player.name.partition('.')[0]}.{self._next()}", *([lost] if lost else []))

    def _next(self) -> int:
        self._started += 1
        return self._started

    def _remove(self, player: _Player) -> None:
        for what, number in player.counts.items():
            self._gone[what] = self._gone.get(what, 0) + number
        self._players.remove(player)
        player.line.close()

    def _counted(self) -> dict[str, int]:
        found = dict(self._gone)
        for one in self._players:
            for what, number in one.counts.items():
                found[what] = found.get(what, 0) + number
        return found

    def _plan_forgetting(self) -> None:
        if "forget" in self._plan.faults:
            self._forget_at = time.monotonic() + self._plan.seconds * self._draw.uniform(0.1, 0.25)

    def _until_all_are_ready(self, deadline: float) -> None:
        while not all(one.ready for one in self._players) and not self._ended():
            if time.monotonic() > deadline:
                raise CrashError(f"A process did not start within {START:g} s.")
            self._turn()

    def _dismiss(self) -> None:
        """Let everybody finish the job at hand, those who sleep too."""
        self._forget_at = float("inf")
        for one in self._players:
            with suppress(OSError):
                one.line.send(None)
        deadline = time.monotonic() + END
        while any(one.ready for one in self._players) and time.monotonic() < deadline:
            self._turn()

    def _kill(self) -> None:
        """End whoever is left; a process that has stopped dies as well."""
        for one in list(self._players):
            one.process.kill()
            one.process.join()
            self._remove(one)


def _context() -> Any:
    """How processes are made: fresh ones, or on Linux forks of one that has done Django's set-up and nothing else."""
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fencing.drill.warm"])
    return context
