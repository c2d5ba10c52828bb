"""The story: a worker's process is stopped between read and write, overtaken, and woken up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, sleep, time
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
# What each of the two takes from the stock: A is the sleeper, B overtakes it.
DELTAS = {"A": FIRST, "B": SECOND}
# Seconds for a step that the worker takes; the longest waits for a lease to expire.
PATIENCE = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the story.

    Attributes:
        at: seconds since the story began.
        process: "A" for the sleeper, "B" for the one that overtakes it, with the process id where it is the one that
            acts; "" for what neither of the two does.
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
    """One telling. `play` tells all of it; the steps are there to be taken one by one, too.

    Attributes:
        fenced: with a fenced model and task, or with plain ones under the same lease.
        tell: called with each event as it happens.
        sku: the article; a new one for each telling, so that tellings side by side do not meet.
        pace: seconds that `play` leaves people to look at the sleeper before it is stopped, and before it is woken.
        tasks: the letter of each task that was sent, by its id.
        reports: what the worker reported, and what was done to it, in that order.
    """

    fenced: bool
    tell: Callable[[Event], None]
    sku: str = field(default_factory=lambda: f"story-{uuid4().hex[:8]}")
    pace: float = 0.0
    began: float = 0.0
    tasks: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    pause: Pause | None = None
    _stopped: float = 0.0

    @property
    def resource(self) -> str:
        """What the lease is of."""
        return f"stock:{self.sku}"

    @property
    def row(self) -> list[int]:
        """The row that the database has now: its quantity, and its last token where it has one. Empty without a row."""
        model, names = (Stock, ["quantity", "last_token"]) if self.fenced else (PlainStock, ["quantity"])
        rows = model._default_manager.filter(sku=self.sku).values_list(*names)
        return [*(rows.first() or ())]

    @property
    def final(self) -> int:
        """The quantity that the database has now."""
        return self.row[0]

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
        try:
            self.begin()
            self.start("A", worker, gate)
            sleeper = self._until("A", "waits", worker, gate)["pid"]
            sleep(self.pace)
            self.stop(sleeper, worker, gate)
            self.start("B", worker, gate)
            self._until("B", "ended", worker, gate)
            if not processes.is_stopped(sleeper):
                raise GateError(f"Process {sleeper} did not stay stopped.")
            sleep(self.pace)
            self.wake(sleeper, worker)
            self._until("A", "ended", worker, gate)
        except Exception as error:
            raise GateError(f"{error}\n{worker.log()}") from error

    def begin(self) -> None:
        """Put the article into stock."""
        (StockFactory if self.fenced else PlainStockFactory).create(sku=self.sku, quantity=INITIAL)
        self.began = time()

    def start(self, letter: str, worker: Worker, gate: Gate) -> None:
        """Send the task of A, who waits at the gate between read and write, or that of B, who does not."""
        task, reason = (apply_delta, ["story"]) if self.fenced else (apply_delta_unfenced, [])
        task_id = str(uuid4())
        self.tasks[task_id] = letter
        self.note("sent", task=task_id)
        if letter == "A":
            gate.expect(task_id)
        worker.send(task, self.sku, DELTAS[letter], *reason, task_id=task_id)

    def stop(self, sleeper: int, worker: Worker, gate: Gate) -> None:
        """Stop the process of A, and open the gate while it sleeps: awake, it goes straight on to its write."""
        processes.stop(sleeper, group=worker.pid)
        self._stopped = monotonic()
        self.pause = Pause(pid=sleeper, state=processes.STOPPED)
        self.note("stopped", pid=sleeper)
        gate.open()

    def wake(self, sleeper: int, worker: Worker) -> None:
        """Let the process of A go on."""
        if self.pause:
            self.pause.seconds = round(monotonic() - self._stopped, 3)
        processes.wake(sleeper, group=worker.pid)
        self.note("continued", pid=sleeper)

    def kill(self, sleeper: int, worker: Worker) -> None:
        """Kill the process of A."""
        processes.kill(sleeper, group=worker.pid)
        self.note("killed", pid=sleeper)

    def note(self, event: str, **facts: Any) -> None:
        """Keep and tell what this side did or saw, beside the worker's reports."""
        report = {"at": time(), **facts, "event": event}
        self.reports.append(report)
        self._tell_note(report)

    def follow(self, report: dict[str, Any]) -> bool:
        """Tell what a report of the worker says; False if it is of another story."""
        if report["task"] not in self.tasks:
            return False
        self.reports.append(report)
        self._tell(self.tasks[report["task"]], report)
        return True

    def _until(self, letter: str, event: str, worker: Worker, gate: Gate) -> dict[str, Any]:
        """Follow the worker's reports up to this one."""
        deadline = monotonic() + PATIENCE
        while monotonic() < deadline:
            report = gate.report_now(block=500)
            if report is None:
                if worker.has_ended():
                    raise GateError("The worker has ended.")
            elif self.follow(report) and self.tasks[report["task"]] == letter and report["event"] == event:
                if event != "ended" or report["state"] == "SUCCESS":
                    return report
                if report["state"] != "RETRY":
                    raise GateError(f"The task of {letter} ended as {report['state']}.")
        raise GateError(f"Nothing happened in the worker within {PATIENCE:g} s.")

    def _tell(self, letter: str, report: dict[str, Any]) -> None:
        match report["event"]:
            case "granted":
                self._happens(letter, report["pid"], "is granted the lease", token=report["token"], at=report["at"])
            case "waits":
                what = f"has read {report['before'][0]}, will write {report['value']}"
                self._happens(
                    letter, report["pid"], what, token=report["token"], before=report["before"], at=report["at"]
                )
            case "wrote":
                self._answered(letter, report, "accepted: B's change is lost" if self.loses(report) else "accepted")
            case "refused":
                self._answered(letter, report, f"refused: {report['token']} is not above {report['seen']}")
            case "lost":
                who = "(heartbeat) " if report["heartbeat"] else ""
                what = f"{who}finds that its lease is lost: {report['reason']}"
                self._happens(letter, report["pid"], what, token=report["token"], at=report["at"])

    def _tell_note(self, report: dict[str, Any]) -> None:
        at = report["at"]
        match report["event"]:
            case "stopped":
                self._happens("A", report["pid"], "is stopped by SIGSTOP", at=at)
            case "continued":
                self._happens("A", report["pid"], "goes on after SIGCONT", at=at)
            case "killed":
                self._happens("A", report["pid"], "is killed by SIGKILL", at=at)
            case "expired" | "revoked" | "gone":
                what = f"no longer holds the lease: {report['why']}"
                self._happens(self.tasks[report["task"]], "", what, token=report["token"], at=at)
            case "flushed":
                self._happens("", "", "The lease store is flushed", at=at)
            case "changed":
                self._happens(
                    "", "", f"Somebody else {report['what']}", token=report["token"], after=report["row"], at=at
                )

    def _answered(self, letter: str, report: dict[str, Any], verdict: str) -> None:
        """Tell of a write and of what became of it."""
        asked = self.asked(report)
        self._happens(
            letter, report["pid"], f"writes {asked['value']}", token=report["token"], before=asked["before"],
            after=report["after"], verdict=verdict, at=report["at"],
        )  # fmt: skip

    def asked(self, report: dict[str, Any]) -> dict[str, Any]:
        """The report of the write that this one is the answer to: the newest before it."""
        writes = (one for one in self.reports if one["event"] == "writes" and one["task"] == report["task"])
        return next(one for one in reversed([*writes]) if one["at"] <= report["at"])

    def loses(self, report: dict[str, Any]) -> bool:
        """Whether the write that is reported as accepted went over what another had written."""
        asked = self.asked(report)
        delta = DELTAS[self.tasks[report["task"]]]
        return bool(asked["before"][0] != asked["value"] - delta)

    def _happens(self, letter: str, pid: int | str, what: str, *, at: float, **facts: Any) -> None:
        event = Event(at=at - self.began, process=f"{letter} {pid}".strip(), what=what, **facts)
        self.events.append(event)
        self.tell(event)
