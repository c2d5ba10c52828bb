"""Cells of the lists and forms: numbers digit by digit, times with their offset, outcomes as an icon and a word."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from fencing.models import FencedWrite, TokenGrant

Cell = Callable[[Any], str]
Outcome = FencedWrite.Outcome

# Never told by colour alone, and never by the icon alone: screen readers skip it, and the word says the same.
ICONS = {
    Outcome.ACCEPTED: "✓",
    Outcome.STALE: "✕",
    Outcome.STALE_READ: "↺",
    Outcome.MISSING: "∅",
    Outcome.LOST: "⌛",
    Outcome.DUPLICATE: "=",
    Outcome.UNFENCED: "⚠",
}

COUNTS = {
    Outcome.ACCEPTED: ngettext_lazy("%(count)s accepted", "%(count)s accepted", "count"),
    Outcome.STALE: ngettext_lazy("%(count)s stale write", "%(count)s stale writes", "count"),
    Outcome.STALE_READ: ngettext_lazy("%(count)s stale read", "%(count)s stale reads", "count"),
    Outcome.MISSING: ngettext_lazy("%(count)s row missing", "%(count)s rows missing", "count"),
    Outcome.LOST: ngettext_lazy("%(count)s lease lost", "%(count)s leases lost", "count"),
    Outcome.DUPLICATE: ngettext_lazy("%(count)s duplicate", "%(count)s duplicates", "count"),
    Outcome.UNFENCED: ngettext_lazy("%(count)s unfenced", "%(count)s unfenced", "count"),
}

REFUSED = frozenset({Outcome.STALE, Outcome.STALE_READ, Outcome.MISSING, Outcome.LOST})


def digits(value: int | None) -> str:
    """A number exactly as it is stored: no setting may group or round what people compare. "" for None."""
    return "" if value is None else str(value)


def moment(value: datetime | None) -> str:
    """A time in the current zone with its offset, to the millisecond. "" for None."""
    if value is None:
        return ""
    return (timezone.localtime(value) if timezone.is_aware(value) else value).isoformat(" ", "milliseconds")


def outcome(value: str, count: int | None = None) -> SafeString:
    """An outcome as an icon and a word, after ``count`` if there is one."""
    kind = Outcome(value)
    word = kind.label if count is None else COUNTS[kind] % {"count": count}
    style = "fencing-refused" if kind in REFUSED else "fencing-outcome"
    return format_html('<span class="{}"><span aria-hidden="true">{}</span> {}</span>', style, ICONS[kind], word)


def link(url: str, text: str) -> SafeString:
    """``text``, as a link where there is an address."""
    return format_html('<a href="{}">{}</a>', url, text) if url else format_html("{}", text)


def named(url: str, grant: TokenGrant | None) -> str:
    """A grant by its token and task or holder, as a link where there is an address. "" for None."""
    return (
        "" if grant is None else format_html("{} {}", link(url, digits(grant.token)), grant.task_name or grant.holder)
    )


@admin.display(description=_("resource"), empty_value="-")
def resource(row: Any) -> str:
    """The resource, with a link to its timeline where the page has found one."""
    return link(getattr(row, "timeline_url", ""), row.resource)


def column(name: str, label: Any, show: Callable[[Any], str]) -> Cell:
    """A cell for ``list_display`` and ``readonly_fields`` that shows the attribute ``name`` by ``show``."""

    @admin.display(description=label)
    def cell(row: Any) -> str:
        # Not by empty_value, which the page of one row takes no notice of.
        return show(getattr(row, name)) or "-"

    cell.__name__ = name  # the admin makes the cell's CSS class of it
    return cell


TOKEN = column("token", _("token"), digits)
SEEN = column("seen", _("last token seen"), digits)
BEFORE = column("seen", _("token before"), digits)
LAST_TOKEN = column("last_token", _("last token"), digits)
OUTCOME = column("outcome", _("outcome"), outcome)
