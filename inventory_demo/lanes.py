"""Where things stand in the picture of a story: two lanes over one axis of time, in units of the SVG's view box.

Coordinates are texts, so that no locale puts its own decimal sign into them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from django.utils.translation import gettext as _

from inventory_demo.actors import Grant, actor, grants, is_active, letter_of
from inventory_demo.story import Story

WIDTH, HEIGHT = 420, 232
LEFT, RIGHT = 10, 410
BAR, HALF = 26, 13
# The top of each lane's bar, and of the row below that shows the pause.
TOPS = {"A": 26, "B": 140}
PAUSE_TOP, PAUSE_BAR = 57, 20
# The baselines of the captions below each lane's bar: two, so that neighbours do not run into each other.
CAPTIONS = {"A": (92, 106), "B": (181, 195)}
AXIS = 206
# The axis begins with so many seconds, and has at most so many steps.
SHORTEST, MOST_TICKS = 7.0, 8
STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
# About the widths of a letter in a dashed bar and in every bolder text, to tell whether it fits.
LETTER, BOLD = 6.6, 7.4
# How far a mark on a bar covers it to either side.
REACH = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A span of time: a lease, a pause, a wait, or the time in which a holder is none any more.

    Its label is in it or above it, as `place` says, and nowhere that a mark would cover it.
    """

    kind: str
    x: str
    y: str
    width: str
    height: str
    middle: str
    baseline: str
    label: str
    place: str = "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment: a read, a write with its answer, a kill, or a flush; with its caption."""

    kind: str
    x: str
    y: str
    caption: str
    caption_y: str
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """A line from a refused write to the write that overtook it."""

    x1: str
    y1: str
    x2: str
    y2: str


@dataclass(slots=True, kw_only=True)
class Picture:
    """Everything that is drawn."""

    ticks: list[tuple[str, str]]
    names: dict[str, str]
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    beams: list[Beam] = field(default_factory=list)
    now: str = ""


class Scale:
    """Turns times of day into places on the axis."""

    def __init__(self, began: float, end: float) -> None:
        self.began = began
        seconds = max(SHORTEST, (end - began) * 1.04)
        hours = ceil(seconds / MOST_TICKS / STEPS[-1])
        self.step = next((step for step in STEPS if seconds / step <= MOST_TICKS), hours * STEPS[-1])
        self.seconds = seconds

    def x(self, at: float) -> float:
        """The place of a time of day."""
        passed = min(max(at - self.began, 0.0), self.seconds)
        return LEFT + (RIGHT - LEFT) * passed / self.seconds

    @property
    def ticks(self) -> list[tuple[str, str]]:
        """Places on the axis and their seconds."""
        count = int(self.seconds // self.step)
        return [(places(self.x(self.began + tick * self.step)), f"{tick * self.step} s") for tick in range(count + 1)]


def places(number: float) -> str:
    """A coordinate as SVG takes it."""
    return f"{number:.1f}"


def picture(story: Story | None, now: float) -> Picture:
    """Draw a story as it is at a time of day; without one, the empty stage."""
    if story is None or not story.began:
        return Picture(ticks=Scale(0.0, 0.0).ticks, names=_names(story))
    reports = [*story.reports]
    active = is_active(story)
    # What others write later does not stretch it.
    end = now if active else max(report["at"] for report in reports if report["event"] != "changed")
    scale = Scale(story.began, end)
    held = grants(story)
    drawn = Picture(ticks=scale.ticks, names=_names(story), now=places(scale.x(now)) if active else "")
    drawn.marks += _marks(scale, story, reports)
    for letter, top in TOPS.items():
        covered = [float(mark.x) for mark in drawn.marks if mark.y == places(top + HALF)]
        own = [grant for grant in held if grant.letter == letter]
        drawn.bars += [_lease(scale, grant, end, covered, drawn.names[letter]) for grant in own]
        drawn.bars += _waits(scale, story, letter, end)
        drawn.bars += [bar for grant in own if (bar := _belief(scale, story, grant, end, covered))]
    drawn.bars += _pauses(scale, reports, end)
    drawn.beams += _beams(scale, story, reports)
    return drawn


def _names(story: Story | None) -> dict[str, str]:
    """The lanes' names, with the processes as far as they are known."""
    found = [actor(story, letter) for letter in TOPS]
    text = _("Worker %(letter)s · process %(pid)s")
    return {
        one.letter: text % {"letter": one.letter, "pid": one.pid} if one.pid else _("Worker %s") % one.letter
        for one in found
    }


def _bar(
    scale: Scale, kind: str, top: float, height: float, start: float, end: float, *labels: str,
    covered: Iterable[float] = (),
) -> Bar:  # fmt: skip
    """A bar with the first of the labels that fits into what the marks at these places leave of it."""
    x, width = scale.x(start), max(scale.x(end) - scale.x(start), 3.0)
    left, right = _free(x, x + width, covered)
    letter = LETTER if kind in ("waits", "belief") else BOLD
    return Bar(
        kind=kind, x=places(x), y=places(top), width=places(width), height=places(height),
        middle=places((left + right) / 2), baseline=places(top + height / 2 + 4.5),
        label=next((label for label in labels if len(label) * letter + 6 <= right - left), ""),
    )  # fmt: skip


def _free(left: float, right: float, covered: Iterable[float]) -> tuple[float, float]:
    """The widest part of a bar that no mark covers."""
    near = [at for at in sorted(covered) if left < at + REACH and at - REACH < right]
    begins, ends = [left, *(at + REACH for at in near)], [*(at - REACH for at in near), right]
    return max(zip(begins, ends, strict=True), key=lambda part: part[1] - part[0])


def _lease(scale: Scale, grant: Grant, end: float, covered: Iterable[float], name: str) -> Bar:
    """The bar of a lease. Where it is too short for its number, that is above it, unless the lane's name is there."""
    token = str(grant.token)
    texts = [_("lease · token %(token)s"), _("token %(token)s"), "%(token)s"]
    labels = [text % {"token": token} for text in texts]
    top, until = TOPS[grant.letter], grant.end or end
    bar = _bar(scale, f"lease {grant.letter}", top, BAR, grant.start, until, *labels, covered=covered)
    half = len(token) * BOLD / 2
    middle = min(float(bar.x) + float(bar.width) / 2, RIGHT - half)
    if bar.label or middle - half < LEFT + (len(name) + 1) * BOLD:
        return bar
    return replace(bar, label=token, place="above", middle=places(middle), baseline=places(top - 5))


def _waits(scale: Scale, story: Story, letter: str, end: float) -> Iterable[Bar]:
    """From when a task was sent to its first grant, or to its end."""
    own = [report for report in [*story.reports] if letter_of(story, report) == letter]
    sent = next((report["at"] for report in own if report["event"] == "sent"), None)
    if sent is None:
        return
    over = [one["at"] for one in own if one["event"] in ("granted", "killed") or one.get("state") == "FAILURE"]
    until = min(over, default=end)
    if until - sent > 0.2:
        yield _bar(scale, "waits", TOPS[letter] + HALF - 9, 18, sent, until, _("waits for the lease"), _("waits"))


def _pauses(scale: Scale, reports: list[dict[str, Any]], end: float) -> Iterable[Bar]:
    start: float | None = None
    for report in reports:
        if report["event"] == "stopped":
            start = report["at"]
        elif report["event"] in ("continued", "killed") and start is not None:
            yield _pause(scale, start, report["at"])
            start = None
    if start is not None:
        yield _pause(scale, start, end)


def _pause(scale: Scale, start: float, end: float) -> Bar:
    labels = (
        _("paused (SIGSTOP) %(seconds)s s") % {"seconds": f"{end - start:.1f}"},
        _("paused (SIGSTOP)"),
        _("paused"),
    )
    return _bar(scale, "pause", PAUSE_TOP, PAUSE_BAR, start, end, *labels)


def _belief(scale: Scale, story: Story, grant: Grant, end: float, covered: Iterable[float]) -> Bar | None:
    """From the end of a lease to when its holder wrote, or ended: it knows nothing of it."""
    if grant.end is None or grant.how == "released":
        return None
    answers = ("wrote", "refused", "ended", "killed", "lost")
    later = [
        report["at"]
        for report in [*story.reports]
        if report["event"] in answers and letter_of(story, report) == grant.letter and report["at"] >= grant.start
    ]
    until = min(later, default=end)
    if until <= grant.end:
        return None
    labels = (_("still believes in token %(token)s") % {"token": grant.token}, _("believes"))
    return _bar(scale, "belief", TOPS[grant.letter], BAR, grant.end, until, *labels, covered=covered)


def _marks(scale: Scale, story: Story, reports: list[dict[str, Any]]) -> list[Mark]:
    found: list[Mark] = []
    taken: dict[float, float] = {}  # how far to the right each line of captions is full
    for report in sorted(reports, key=lambda one: float(one["at"])):
        said = _caption(story, report)
        if said is None:
            continue
        kind, caption = said
        letter = letter_of(story, report) or "A"
        x, width = scale.x(report["at"]), len(caption) * BOLD
        start = min(max(x - 8, LEFT), RIGHT - width)
        first, second = CAPTIONS[letter]
        line = first if taken.get(first, 0.0) <= start else second
        taken[line] = start + width + 8
        top = {"flush": AXIS, "read": TOPS[letter] + BAR}.get(kind, TOPS[letter] + HALF)
        found.append(
            Mark(
                kind=kind,
                x=places(x),
                y=places(top),
                caption=caption,
                caption_y=places(line),
                anchor=places(start),
            )
        )
    return found


def _caption(story: Story, report: dict[str, Any]) -> tuple[str, str] | None:
    """The kind of a mark and what stands below it; None for what is no mark."""
    match report["event"]:
        case "waits":
            return "read", _("read %(quantity)s") % {"quantity": report["before"][0]}
        case "wrote":
            before, after = story.asked(report)["before"][0], report["after"][0]
            lost = story.loses(report)
            text = _("⚠ %(before)s → %(after)s, lost update") if lost else "✓ %(before)s → %(after)s"
            said = ("✓ %(token)s: %(before)s → %(after)s" if story.fenced else text) % {
                "token": report["token"],
                "before": before,
                "after": after,
            }
            return ("lost" if lost else "accepted"), said
        case "refused":
            text = _("✕ token %(token)s < %(seen)s → refused")
            return "refused", text % {"token": report["token"], "seen": report["seen"]}
        case "killed":
            return "killed", _("✕ killed (SIGKILL)")
        case "revoked":
            return "revoked", _("lease revoked")
        case "flushed":
            return "flush", _("store flushed")
    return None


def _beams(scale: Scale, story: Story, reports: list[dict[str, Any]]) -> Iterable[Beam]:
    wrote = {report["token"]: report for report in reports if report["event"] == "wrote"}
    for report in reports:
        if report["event"] == "refused" and (newer := wrote.get(report["seen"])):
            ends = [(scale.x(one["at"]), TOPS[letter_of(story, one)] + HALF) for one in (report, newer)]
            (x1, y1), (x2, y2) = ends
            yield Beam(x1=places(x1), y1=places(y1), x2=places(x2), y2=places(y2))
