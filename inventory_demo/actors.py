"""What the reports of a story amount to: what A and B are at, and who held the lease from when to when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from inventory_demo.story import Story

# What is done to the process of A, and reported by nobody.
DONE_TO_A = ("stopped", "continued", "killed")


class State(Enum):
    """What one of the two is at."""

    IDLE = auto()  # no task was sent
    ASKS = auto()  # sent, and no lease yet
    HOLDS = auto()  # has the lease, or believes so
    PAUSED = auto()
    DONE = auto()
    FAILED = auto()
    KILLED = auto()

    @property
    def is_active(self) -> bool:
        """Whether there is more to come."""
        return self in (State.ASKS, State.HOLDS, State.PAUSED)


@dataclass(slots=True, kw_only=True)
class Actor:
    """A or B in one story, with the process that runs its task; `wrote` is whether its newest write was accepted."""

    letter: str
    state: State = State.IDLE
    pid: int | None = None
    wrote: bool = False


@dataclass(slots=True, kw_only=True)
class Grant:
    """One grant: from when to when it was in force, as times of day.

    Attributes:
        letter: whose.
        task: the id of the task that holds it.
        token: its number.
        start: when it was granted.
        end: when the lease ended; None while it lasts.
        how: "released", "expired", "revoked", "flushed" or "gone"; "" until that is known, though another may have it.
    """

    letter: str
    task: str
    token: int
    start: float
    end: float | None = None
    how: str = ""

    def close(self, at: float, how: str = "") -> None:
        """End it, unless it has ended before."""
        if self.end is None:
            self.end, self.how = at, how

    def settle(self, at: float, how: str) -> None:
        """Say how and when it has ended, unless that is known; that it has may have been clear before."""
        if not self.how:
            self.end, self.how = at, how


def letter_of(story: Story, report: dict[str, Any]) -> str:
    """Who a report is about; "" if it is about the lease store."""
    if report["event"] in DONE_TO_A:
        return "A"
    return story.tasks.get(report.get("task", ""), "")


def actor(story: Story | None, letter: str) -> Actor:
    """What A or B is at by now."""
    found = Actor(letter=letter)
    for report in [*story.reports] if story else []:
        if story and letter_of(story, report) == letter:
            _follow(found, report)
    return found


def _follow(found: Actor, report: dict[str, Any]) -> None:
    found.pid = report.get("pid", found.pid)
    match report["event"]:
        case "sent":
            found.state = State.ASKS
        case "granted" | "continued":
            found.state = State.HOLDS
        case "stopped":
            found.state = State.PAUSED
        case "killed":
            found.state = State.KILLED
        case "wrote" | "refused":
            found.wrote = report["event"] == "wrote"
        case "ended":
            found.state = {"RETRY": State.ASKS, "SUCCESS": State.DONE}.get(report["state"], State.FAILED)


def is_active(story: Story | None) -> bool:
    """Whether A or B is at work."""
    return any(actor(story, letter).state.is_active for letter in "AB")


def grants(story: Story) -> list[Grant]:
    """All grants of a story, in order."""
    found: list[Grant] = []
    for report in [*story.reports]:
        at = report["at"]
        match report["event"]:
            case "granted":
                # Nobody is granted what another still holds.
                for one in found:
                    one.close(at)
                found.append(
                    Grant(letter=letter_of(story, report), task=report["task"], token=report["token"], start=at)
                )
            case "lost":
                for one in found:
                    if one.token == report["token"]:
                        one.close(at)
            case "expired" | "revoked" | "gone":
                for one in found:
                    if one.token == report["token"]:
                        one.settle(at, report["event"])
            case "flushed":
                for one in found:
                    one.close(at, "flushed")
            case "ended":
                for one in found:
                    if one.letter == letter_of(story, report):
                        one.close(at, "released")
    return found
