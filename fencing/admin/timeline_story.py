"""What became of a grant and of its writes, for the picture and the table alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.translation import gettext as _

from fencing.admin import cells
from fencing.admin.timeline_rows import Row
from fencing.models import FencedWrite

SHAPES = {"accepted": "dot", "duplicate": "ring", "unfenced": "triangle"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """From when to when a lease was held, as far as anybody knows.

    Attributes:
        kind: how it ended: a value of ``TokenGrant.Ended``, "open" for one that is held, "unknown" where nobody told,
            "none" where there is no grant.
        end: for one that is held, now.
        word: what the kind is called.
    """

    kind: str
    begin: datetime | None
    end: datetime | None
    word: str

    @property
    def seconds(self) -> str:
        """How long."""
        if self.begin is None or self.end is None or self.kind == "unknown":
            return ""
        return f"{(self.end - self.begin).total_seconds():.3f} s"


def held(row: Row, now: datetime, *, asked: bool) -> Held:
    """The lease of ``row``; ``asked`` says whether its store could be asked who holds it now."""
    grant, begin = row.grant, row.begin
    if row.live is not None:
        return Held(kind="open", begin=begin, end=max(now, begin or now), word=_("held now"))
    if grant is None:
        return Held(kind="none", begin=None, end=None, word=_("no grant on record"))
    if grant.ended:
        end = grant.ended_at or (None if begin is None else begin + timedelta(seconds=grant.ttl))
        return Held(kind=grant.ended, begin=begin, end=end, word=str(grant.get_ended_display()))
    if not asked:
        end = None if begin is None else max(now, begin)
        return Held(kind="open", begin=begin, end=end, word=str(grant.get_ended_display()))
    if begin is None:
        return Held(kind="unknown", begin=None, end=None, word=_("no longer held"))
    # It was renewed while it was written under, and at most its ttl longer; nobody has told more.
    last = max([begin, *(write.at for write in row.writes)]) + timedelta(seconds=grant.ttl)
    return Held(kind="unknown", begin=begin, end=min(now, last), word=_("no longer held"))


def beaten_by(rows: Sequence[Row], row: Row, write: FencedWrite) -> Row | None:
    """The newer grant among ``rows``, newest first, for which a write of ``row`` was refused."""
    if shape_of(write) != "cross":
        return None
    newer = [one for one in rows if one.token > row.token]
    if write.seen is not None:
        # A holder may have drawn further numbers after its grant's own.
        return next((one for one in newer if one.token <= write.seen), None)
    return next((one for one in reversed(newer) if one.begin is not None and one.begin <= write.at), None)


def shape_of(write: FencedWrite) -> str:
    """The shape of a write's mark; whatever is no effect and no duplicate is a cross."""
    return SHAPES.get(write.outcome, "cross")


def overtaken(by: Row | None) -> str:
    """What is said of a write that ``by`` overtook; "" for any other."""
    return "" if by is None else _("overtaken by %(token)s") % {"token": by.token}


def told(write: FencedWrite, by: Row | None) -> str:
    """A write in one line of plain text."""
    kind = FencedWrite.Outcome(write.outcome)
    parts = [f"{kind.label}: {write.action}, {_('token')} {write.token}"]
    if write.seen is not None:
        parts.append(f"{_('last token seen')} {write.seen}")
    if by is not None:
        parts.append(overtaken(by))
    return f"{', '.join(parts)}, {cells.moment(write.at)}"
