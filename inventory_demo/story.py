"""The story: a worker's process is stopped between read and write, overtaken, and woken up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any
from uuid import uuid4

from fencing.models import FencedWrite
from inventory_demo import processes
from inventory_demo.factories import PlainStockFactory, StockFactory
from inventory_demo.gate import Gate, GateError
from inventory_demo.models import PlainStock, Stock
from inventory_demo.tasks import apply_delta, apply_delta_unfenced
from inventory_demo.worker import Worker

INITIAL, FIRST, SECOND = 10, -3, -5
EXPECTED = INITIAL + FIRST + SECOND
# Seconds for a step that the worker takes; the longest waits for a lease to expire.
PATIENCE = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the story.

    Attributes:
        at: seconds since the story began.
        process: "A" for the sleeper, "B" for the one that overtakes it, with the process id.
        what: what happened.
        token: the token under which it happened, or None.
        before: the row before a write: its quantity and, where it has one, its last token.
        after: the row after a write.
        verdict: what the database made of a write.
    """

    at: float
    process: str
    what: str
    token: int | None = None
    before: list[int] | None = None
    after: list[int] | None = None
    verdict: str = ""


@dataclass(slots=True, kw_only=True)
class Pause:
    """The sleeper: which process, the state that all of its threads had, and for how long."""

    pid: int
    state: str
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Story:
    """One telling. `play` fills it.

    Attributes:
        fenced: with a fenced model and task, or with plain ones under the same lease.
        tell: called with each event as it happens.
        sku: the article; a new one for each telling, so that tellings side by side do not meet.
    """

    fenced: bool
    tell: Callable[[Event], None]
    sku: str = field(default_factory=lambda: f"story-{uuid4().hex[:8]}")
    began: float = 0.0
    events: list[Event] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    pause: Pause | None = None

    @property
    def resource(self) -> str:
        """What the lease is of."""
        return f"stock:{self.sku}"

    @property
    def final(self) -> int:
        """The quantity that the database has now."""
        rows = (Stock if self.fenced else PlainStock)._default_manager.filter(sku=self.sku)
        return int(rows.values_list("quantity", flat=True).get())

    @property
    def tokens(self) -> list[int]:
        """The tokens that were granted, in order."""
        return [report["token"] for report in self.reports if report["event"] == "granted"]

    @property
    def writes(self) -> list[dict[str, Any]]:
        """What the history says about this story's writes."""
        rows = FencedWrite._default_manager.filter(resource=self.resource).order_by("id")
        return [dict(row) for row in rows.values("token", "outcome", "seen")]

    def play(self, worker: Worker, gate: Gate) -> None:
        """Play the story in the processes of `worker`, which reports to `gate`.

        Raises:
            GateError: a step did not happen in time.
        """
        self.began = time()
        task, reason = (apply_delta, ["story"]) if self.fenced else (apply_delta_unfenced, [])
        (StockFactory if self.fenced else PlainStockFactory).create(sku=self.sku, quantity=INITIAL)
        gate.expect(self.resource)
        try:
            first = worker.send(task, self.sku, FIRST, *reason)
            sleeper = self._until(gate, "waits")["pid"]
            processes.stop(sleeper, group=worker.pid)
            stopped = monotonic()
            self.pause = Pause(pid=sleeper, state=processes.STOPPED)
            self._happens("A", sleeper, "is stopped by SIGSTOP")
            # Open while it sleeps: it goes straight on to its write when it is awake.
            gate.open()
            worker.send(task, self.sku, SECOND, *reason).get(timeout=PATIENCE)
            self._until(gate, "wrote")
            if not processes.is_stopped(sleeper):
                raise GateError(f"Process {sleeper} did not stay stopped.")
            self.pause.seconds = round(monotonic() - stopped, 3)
            processes.wake(sleeper)
            self._happens("A", sleeper, "goes on after SIGCONT")
            first.get(timeout=PATIENCE)
            self._until(gate, "wrote")
        except Exception as error:
            raise GateError(f"{error}\n{worker.log()}") from error

    def _until(self, gate: Gate, event: str) -> dict[str, Any]:
        """Follow the worker's reports up to this one."""
        while True:
            report = gate.next_report(PATIENCE)
            if report.get("resource") != self.resource:
                continue
            self.reports.append(report)
            self._follow(report)
            if report["event"] == event:
                return report

    def _follow(self, report: dict[str, Any]) -> None:
        sleeper = self.pause.pid if self.pause else report["pid"]
        letter = "A" if report["pid"] == sleeper else "B"
        token = report["token"]
        match report["event"]:
            case "granted":
                self._happens(letter, report["pid"], "is granted the lease", token=token, at=report["at"])
            case "waits":
                what = f"has read {report['before'][0]}, will write {report['value']}"
                self._happens(letter, report["pid"], what, token=token, before=report["before"], at=report["at"])
            case "wrote":
                asked = self._asked(report)
                self._happens(
                    letter, report["pid"], f"writes {asked['value']}", token=token, before=asked["before"],
                    after=report["after"], verdict=self._verdict(letter, asked), at=report["at"],
                )  # fmt: skip
            case "refused":
                asked = self._asked(report)
                self._happens(
                    letter, report["pid"], f"writes {asked['value']}", token=token, before=asked["before"],
                    after=report["after"], verdict=f"refused: {token} is not above {report['seen']}", at=report["at"],
                )  # fmt: skip

    def _asked(self, report: dict[str, Any]) -> dict[str, Any]:
        """The report of the write that this one is the answer to."""
        return next(one for one in reversed(self.reports) if one["event"] == "writes" and one["pid"] == report["pid"])

    def _verdict(self, letter: str, asked: dict[str, Any]) -> str:
        """What an accepted write was: right, or one that lost what another had written."""
        lost = not self.fenced and letter == "A" and asked["before"][0] != asked["value"] - FIRST
        return "accepted: B's change is lost" if lost else "accepted"

    def _happens(self, letter: str, pid: int, what: str, *, at: float | None = None, **facts: Any) -> None:
        event = Event(at=(at or time()) - self.began, process=f"{letter} {pid}", what=what, **facts)
        self.events.append(event)
        self.tell(event)
