"""What happens to a process in the middle of an attempt: it is stopped, it dies, or its work takes long."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from multiprocessing.connection import Connection

from fencing.drill.journal import Journal
from fencing.drill.plan import Fault, Job, Plan

CAN_STOP = hasattr(signal, "SIGSTOP")
# Points of an attempt at which its process stops, the most telling ones more often.
STOPS = ("granted", "read", "read", "read", "written")
DEATHS = ("read", "sent", "sent", "written")
# Most statements take less than this many seconds, so that a death comes before, during or after one.
SOON = 0.004


class Chances:
    """When a process meets which fault: drawn ahead, so that one seed gives the same ones in the same order.

    Args:
        plan: the drill.
        worker: the process; the first one begins with a pause, so that no drill is without one.
    """

    def __init__(self, plan: Plan, worker: str) -> None:
        self._plan = plan
        self._draw = random.Random(f"{plan.seed} {worker} faults")  # noqa: S311
        self._rates = {"pause": plan.pause_rate, "kill": plan.kill_rate}
        self._due = {what: self._next(what) for what in self._rates if what in plan.faults}
        self._met: str | None = None
        if worker == "1" and "pause" in self._due:
            self._due["pause"] = 0.0

    def next(self) -> Fault | None:
        """The fault of the attempt that begins now, or None. After each there is an attempt without one."""
        if self._met is not None:
            # Counted from its end: who sleeps shall not meet the next one at once.
            self._due[self._met], self._met = self._next(self._met), None
            return None
        for what, due in self._due.items():
            if time.monotonic() >= due:
                self._met = what
                return self._pause() if what == "pause" else self._kill()
        return None

    def dawdle(self) -> Fault | None:
        """Who takes over from a sleeper may be slow: then the sleeper wakes up in the middle of it."""
        seconds = self._plan.ttl * self._draw.uniform(0.4, 1.4)
        return Fault(what="dawdle", at="read", seconds=seconds) if self._draw.random() < self._plan.dawdles else None

    def _pause(self) -> Fault:
        return Fault(what="pause", at=self._draw.choice(STOPS), seconds=self._plan.ttl * self._draw.uniform(1.2, 2.2))

    def _kill(self) -> Fault:
        return Fault(what="kill", at=self._draw.choice(DEATHS), seconds=self._draw.uniform(0, SOON))

    def _next(self, what: str) -> float:
        return time.monotonic() + self._draw.expovariate(self._rates[what])


class Faults:
    """Lets the fault of an attempt happen.

    Args:
        plan: the drill.
        journal: where it is noted.
        line: to the conductor, who wakes a process that has stopped.
    """

    def __init__(self, plan: Plan, journal: Journal, line: Connection) -> None:
        self._plan = plan
        self._journal = journal
        self._line = line

    def at(self, point: str, attempt: str, job: Job) -> None:
        """An attempt has reached ``point``."""
        fault = job.fault
        if fault is None or fault.at != point:
            return
        if fault.what == "kill":
            self._die(attempt, fault)
        elif fault.what == "dawdle":
            self._journal.note("dawdles", attempt, seconds=fault.seconds)
            time.sleep(fault.seconds)
        else:
            self._stop(attempt, job, fault)

    def _die(self, attempt: str, fault: Fault) -> None:
        self._journal.note("dies", attempt, where=fault.at)
        if fault.at == "sent":
            threading.Timer(fault.seconds, _kill).start()
        else:
            _kill()

    def _stop(self, attempt: str, job: Job, fault: Fault) -> None:
        self._journal.note("stops", attempt, where=fault.at)
        self._line.send(("stops", fault.seconds, job))
        if self._plan.cooperative:
            time.sleep(fault.seconds)
        else:
            # Every thread of the process, the heartbeat too, until the conductor wakes it.
            os.kill(os.getpid(), signal.SIGSTOP)
        self._line.send(("wakes",))
        self._journal.note("wakes", attempt)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
