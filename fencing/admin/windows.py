"""The filter by time: the last day unless something else is asked for, because what happened last is what people look for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

WINDOW, SINCE, UNTIL = "window", "since", "until"
DEFAULT = "day"
HOURS = {"hour": 1, "day": 24, "week": 168}
LABELS = {
    "hour": _("Last hour"),
    "day": _("Last 24 hours"),
    "week": _("Last 7 days"),
    "any": _("Any time"),
    "unknown": _("Time unknown"),
}
PHRASES = {
    "hour": _("in the last hour"),
    "day": _("in the last 24 hours"),
    "week": _("in the last 7 days"),
    "any": "",
    "unknown": _("whose time is unknown"),
    "custom": _("between these times"),
}
# Years whose every moment is a date in every time zone.
YEARS = range(2, 9999)


class WindowFilter(admin.SimpleListFilter):
    """The last hour, day or week, any time, or from one time to another, by one column of times.

    A search, or a link to what belongs to one grant, looks at all times unless the address names a window: what is older
    must not be hidden silently.
    """

    title = _("time")
    parameter_name = WINDOW
    template = "admin/fencing/window_filter.html"
    parameters = (WINDOW, SINCE, UNTIL)
    column: ClassVar[str]
    offered: ClassVar[tuple[str, ...]] = (*HOURS, "any")

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Model], model_admin: Any) -> None:
        """Take two more parameters than other filters."""
        narrowed = any(name in request.GET for name in model_admin.linked)
        self.default = "any" if narrowed or request.GET.get(SEARCH_VAR, "").strip() else DEFAULT
        texts = {name: str(params.pop(name, [""])[-1]).strip() for name in (SINCE, UNTIL)}
        self.bounds = {name: self._time(request, text) for name, text in texts.items()}
        super().__init__(request, params, model, model_admin)

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        """The windows."""
        return [(name, LABELS[name]) for name in self.offered]

    def expected_parameters(self) -> list[str | None]:
        """Three."""
        return list(self.parameters)

    def value(self) -> str:
        """The window in force."""
        if any(self.bounds.values()):
            return "custom"
        given = super().value()
        if given in self.offered:
            return str(given)
        return self.default

    @property
    def phrase(self) -> Any:
        """The window as a part of a sentence."""
        return PHRASES[self.value()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows in the window."""
        value = self.value()
        if value == "unknown":
            return queryset.filter(**{f"{self.column}__isnull": True})
        if value in HOURS:
            return queryset.filter(**{f"{self.column}__gte": timezone.now() - timedelta(hours=HOURS[value])})
        if since := self.bounds[SINCE]:
            queryset = queryset.filter(**{f"{self.column}__gte": since})
        if until := self.bounds[UNTIL]:
            queryset = queryset.filter(**{f"{self.column}__lt": until})
        return queryset

    def choices(self, changelist: Any) -> Iterator[Any]:
        """The windows; for the form of the template also what else the address says."""
        own = self.expected_parameters()
        others = changelist.filter_params.items()
        self.others = [(name, value) for name, values in others if name not in own for value in values]
        self.inputs = [
            (SINCE, _("From"), self._text(SINCE)),
            (UNTIL, _("Until"), self._text(UNTIL)),
        ]
        self.zone = timezone.get_current_timezone_name()
        for name, label in self.lookup_choices:
            yield {
                "selected": name == self.value(),
                "query_string": changelist.get_query_string({WINDOW: name}, [SINCE, UNTIL]),
                "display": label,
            }

    def _text(self, name: str) -> str:
        """A bound as an input of HTML takes it."""
        time = self.bounds[name]
        if time is None:
            return ""
        return (timezone.make_naive(time) if timezone.is_aware(time) else time).isoformat(timespec="minutes")

    def _time(self, request: HttpRequest, text: str) -> datetime | None:
        """A bound in the current time zone; one that is no time is named and left out."""
        if not text:
            return None
        try:
            time = parse_datetime(text)
        except ValueError:  # well formed, like the 31st of February
            time = None
        if time is None or time.year not in YEARS:
            text = gettext("“%(text)s” is not a time like 2026-01-31T12:30, so it was left out.") % {"text": text}
            messages.warning(request, text)
            return None
        return _as_stored(time)


class GrantWindowFilter(WindowFilter):
    """By the time of the grant, which is unknown where the store dropped the news of it."""

    column = "granted_at"
    offered = (*WindowFilter.offered, "unknown")


class WriteWindowFilter(WindowFilter):
    """By the time of the attempt."""

    column = "at"


def _as_stored(time: datetime) -> datetime:
    """With a time zone or without one, as the project's times are."""
    zone = timezone.get_current_timezone()
    if not settings.USE_TZ:
        return timezone.make_naive(time, zone) if timezone.is_aware(time) else time
    return time if timezone.is_aware(time) else timezone.make_aware(time, zone)
