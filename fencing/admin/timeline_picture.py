"""A timeline as a picture: its rows become lanes, its reigns bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from fencing.admin import cells
from fencing.admin.timeline_chart import (  # fmt: skip
    LEFT,
    RIGHT,
    WIDTH,
    Band,
    Bar,
    Lane,
    Mark,
    Scale,
    Tick,
    heights,
    localized,
    outline,
    shape,
)
from fencing.admin.timeline_rows import Row, Timeline
from fencing.admin.timeline_story import Held, beaten_by, held, shape_of, told
from fencing.models import Reign


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the template draws."""

    height: float
    ticks: list[Tick]
    bands: list[Band]
    lanes: list[Lane]
    zone: str
    summary: str
    width: int = WIDTH
    left: int = LEFT
    right: int = RIGHT


def drawn(timeline: Timeline, *, asked: bool, marked: int | None) -> Picture | None:
    """The picture of a timeline; None where nothing has a time. See ``timeline_story.held`` for ``asked``."""
    rows = timeline.rows
    leases = [held(row, timeline.now, asked=asked) for row in rows]
    times = [write.at for row in rows for write in row.writes]
    times += [one for lease in leases for one in (lease.begin, lease.end) if one is not None]
    if not times:
        return None
    scale = Scale.over(times)
    places, bands, height = heights([_reign_label(timeline.reigns, row.token) for row in rows])
    middle = {row.token: y for row, y in zip(rows, places, strict=True)}
    lanes = [
        Lane(
            y=y,
            token=cells.digits(row.token),
            end=f"{lease.word} {lease.seconds}".strip(),
            is_marked=row.token == marked,
            bar=_bar(row, lease, scale, y),
            marks=_marks(rows, row, scale, middle),
        )
        for row, lease, y in zip(rows, leases, places, strict=True)
    ]
    return Picture(
        height=height,
        ticks=scale.ticks(),
        bands=bands,
        lanes=lanes,
        zone=_zone(scale),
        summary=_summary(rows, min(times), max(times)),
    )


def _bar(row: Row, lease: Held, scale: Scale, y: float) -> Bar | None:
    if lease.begin is None:
        return None
    end = max(lease.begin, lease.end or lease.begin)
    text = _("%(token)s: %(how)s, from %(begin)s to %(end)s") % {
        "token": row.token,
        "how": lease.word,
        "begin": cells.moment(lease.begin),
        "end": cells.moment(end),
    }
    return Bar(path=outline(lease.kind, scale.x(lease.begin), scale.x(end), y), kind=lease.kind, text=text)


def _marks(rows: Sequence[Row], row: Row, scale: Scale, middle: dict[int, float]) -> list[Mark]:
    found = []
    for write in row.writes:
        by, x, y = beaten_by(rows, row, write), scale.x(write.at), middle[row.token]
        line = "" if by is None else f"M{x} {y - 6} L{x} {middle[by.token]}"
        kind = shape_of(write)
        found.append(Mark(shape=kind, path=shape(kind, x, y), text=told(write, by), line=line))
    return found


def _reign_label(reigns: Sequence[Reign], token: int) -> str | None:
    """The reign that issued ``token``; ``reigns`` are the newest first."""
    for reign in reigns:
        if reign.first_token <= token:
            text = _("reign %(reign)s of server %(server)s, tokens from %(first)s on")
            return text % {"reign": _short(reign.reign), "server": _short(reign.server), "first": reign.first_token}
    return None


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:12]}…"


def _zone(scale: Scale) -> str:
    """The zone of the times with its offset, or both where it changes in between."""
    if timezone.is_naive(scale.begin):
        return ""
    offsets = dict.fromkeys(localized(each).isoformat()[-6:] for each in (scale.begin, scale.end))
    return f"{timezone.get_current_timezone_name()} ({', '.join(offsets)})"


def _summary(rows: Sequence[Row], first: datetime, last: datetime) -> str:
    """The picture in a sentence or two."""
    refused = sum(shape_of(write) == "cross" for row in rows for write in row.writes)
    grants = ngettext("%(count)s token", "%(count)s tokens", len(rows)) % {"count": len(rows)}
    writes = ngettext("%(count)s refused write", "%(count)s refused writes", refused) % {"count": refused}
    text = _(
        "%(grants)s, the newest on top, from %(first)s to %(last)s, and %(writes)s. The table below says the same."
    )
    return text % {"grants": grants, "first": cells.moment(first), "last": cells.moment(last), "writes": writes}
