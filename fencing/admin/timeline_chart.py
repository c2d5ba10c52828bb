"""The geometry of a timeline: where in the picture each bar, mark and line is. Nothing here asks a database."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from django.utils import timezone

WIDTH = 960
# From where to where times are drawn: tokens stand on the left, how a grant ended on the right.
LEFT, RIGHT = 136, 800
HEAD, BAND, ROW, FOOT = 34, 20, 28, 8
BAR = 12
SHORTEST = 3.0
MOST_TICKS = 7
MILLISECOND, MINUTE, HOUR, DAY = 0.001, 60.0, 3600.0, 86400.0
STEPS = (
    *(MILLISECOND * each for each in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(MINUTE * each for each in (1, 2, 5, 10, 15, 30)),
    *(HOUR * each for each in (1, 2, 3, 6, 12)),
    *(DAY * each for each in (1, 2, 7, 14, 30, 91, 182, 365, 730, 1825, 3650, 36500)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A lease. ``path`` is its outline, whose end tells how it ended."""

    path: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A write; ``shape`` is dot, ring, cross or triangle. A refused one has the ``line`` to the row that beat it."""

    shape: str
    path: str
    text: str
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One token: its number on the left, its bar and marks, its end in words on the right."""

    y: float
    token: str
    end: str
    is_marked: bool = False
    bar: Bar | None = None
    marks: list[Mark] = field(default_factory=list)

    @property
    def top(self) -> float:
        """The upper edge."""
        return self.y - ROW / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A reign, behind the tokens that it issued."""

    y: float
    height: float
    label: str
    is_odd: bool

    @property
    def text_y(self) -> float:
        """The baseline of its label."""
        return self.y + BAND - 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A time on the axis, with the date above it where that is new."""

    x: float
    time: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Times to places."""

    begin: datetime
    end: datetime

    @classmethod
    def over(cls, times: list[datetime]) -> Scale:
        """From the first to the last of ``times``, with a little room at both sides."""
        first, last = min(times), max(times)
        room = max((last - first) * 0.02, timedelta(milliseconds=5))
        return cls(begin=first - room, end=last + room)

    def x(self, moment: datetime) -> float:
        """Where ``moment`` is."""
        part = (moment - self.begin) / (self.end - self.begin)
        return round(LEFT + max(0.0, min(1.0, part)) * (RIGHT - LEFT), 1)

    def ticks(self) -> list[Tick]:
        """A few round times of the current zone."""
        span = (self.end - self.begin).total_seconds()
        step = next((each for each in STEPS if span / each <= MOST_TICKS), STEPS[-1])
        found, day = [], ""
        for moment in self._round_times(step):
            date = moment.date().isoformat()
            time = "" if step >= DAY else moment.strftime("%H:%M" if step >= MINUTE else "%H:%M:%S")
            if step < 1:
                time += f".{moment.microsecond // 1000:03}"
            found.append(Tick(x=self.x(moment), time=time, date="" if date == day else date))
            day = date
        return found

    def _round_times(self, step: float) -> Iterator[datetime]:
        """Multiples of ``step`` seconds since midnight; days begin at midnight also where one has 23 hours."""
        begin = localized(self.begin)
        midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
        if step >= DAY:
            # Arithmetic within one zone is that of its clocks on the wall.
            moments = (midnight + timedelta(days=number * round(step / DAY)) for number in range(MOST_TICKS + 2))
        else:
            first = math.ceil((self.begin - midnight).total_seconds() / step)
            moments = (
                localized(in_utc(midnight) + timedelta(seconds=(first + number) * step))
                for number in range(MOST_TICKS + 2)
            )
        return (moment for moment in moments if self.begin <= moment <= self.end)


def localized(moment: datetime) -> datetime:
    """``moment`` in the current zone, where times have zones at all."""
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment


def in_utc(moment: datetime) -> datetime:
    """``moment`` where a second is a second."""
    return timezone.localtime(moment, timezone.get_fixed_timezone(0)) if timezone.is_aware(moment) else moment


def outline(kind: str, begin: float, end: float, y: float) -> str:
    """The outline of a bar: an arrow for one that is open, square, slanted or notched for the others."""
    end = max(end, begin + SHORTEST)
    top, bottom, point = y - BAR / 2, y + BAR / 2, min(BAR / 2, end - begin)
    right = {
        "open": f"L{end - point:.1f} {top} L{end} {y} L{end - point:.1f} {bottom}",
        "lost": f"L{end} {top} L{end - point:.1f} {bottom}",
        "revoked": f"L{end} {top} L{end - point:.1f} {y} L{end} {bottom}",
    }.get(kind, f"L{end} {top} L{end} {bottom}")
    return f"M{begin} {top} {right} L{begin} {bottom} Z"


def shape(kind: str, x: float, y: float) -> str:
    """The outline of a mark, a circle for dots and rings."""
    if kind == "cross":
        return f"M{x - 5} {y - 5} L{x + 5} {y + 5} M{x - 5} {y + 5} L{x + 5} {y - 5}"
    if kind == "triangle":
        return f"M{x} {y - 6} L{x + 6} {y + 5} L{x - 6} {y + 5} Z"
    return f"M{x - 4.5} {y} A4.5 4.5 0 1 0 {x + 4.5} {y} A4.5 4.5 0 1 0 {x - 4.5} {y} Z"


def heights(labels: list[str | None]) -> tuple[list[float], list[Band], float]:
    """Where the middle of each row is, the bands of the labels that it stands under, and where all ends.

    Args:
        labels: of each row the label of its reign, None for an unknown one.
    """
    places: list[float] = []
    starts: list[tuple[float, str | None]] = []
    y = float(HEAD)
    for number, label in enumerate(labels):
        if number == 0 or label != labels[number - 1]:
            starts.append((y, label))
            y += BAND if label else 0
        places.append(y + ROW / 2)
        y += ROW
    edges = pairwise([*starts, (y, None)])
    bands = [
        Band(y=top, height=bottom - top, label=label, is_odd=bool(number % 2))
        for number, ((top, label), (bottom, _after)) in enumerate(edges)
        if label
    ]
    return places, bands, y + FOOT
