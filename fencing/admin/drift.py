"""Where a lease store and a database differ: in who may write a resource, and in how far tokens are counted."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from fencing.backends.base import Counting, LiveLease
from fencing.models import FencedResource


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A difference in a word and a sentence. One that is ``bad`` needs somebody to look at it."""

    icon: str
    word: str | Promise
    meaning: str | Promise
    bad: bool = False


IN_STEP = Drift(icon="=", word=_("in step"), meaning=_("the holder is the last one that wrote"))
NOT_WRITTEN = Drift(
    icon="…", word=_("has not written yet"), meaning=_("the database will take the holder's next write")
)
SUPERSEDED = Drift(
    icon="✕",
    word=_("superseded"),
    meaning=_("the database has seen a newer token than the holder's: its next write is refused"),
    bad=True,
)

COUNTS = Drift(icon="=", word=_("in step"), meaning=_("the store counts inside the range that the database reserved"))
NO_RANGE = Drift(icon="…", word=_("no range"), meaning=_("the next grant gets it one"))
EMPTY = Drift(
    icon="∅", word=_("empty"), meaning=_("the store knows no number: the next grant begins a reign above all others")
)
AHEAD = Drift(
    icon="⚠",
    word=_("ahead of the database"),
    meaning=_(
        "the store counts above what the database has reserved, which was perhaps restored from a backup: "
        "run “manage.py fencing reigns --open”"
    ),
    bad=True,
)


def of_lease(lease: LiveLease, stored: FencedResource | None) -> Drift:
    """What the database's row of the resource says of the lease that the store has."""
    if stored is None or stored.last_token < lease.token:
        return NOT_WRITTEN
    return IN_STEP if stored.last_token == lease.token else SUPERSEDED


def of_counter(counting: Counting | None, ceiling: int) -> Drift:
    """What the database's ``ceiling`` says of a partition's counter."""
    if counting is None:
        return EMPTY
    if counting.next > ceiling + 1 or counting.ceiling > ceiling:
        return AHEAD
    return NO_RANGE if counting.next > counting.ceiling else COUNTS
