"""Filters whose choices are fixed: none of them asks the table which values it holds."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from fencing.models import FencedWrite, TokenGrant

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Model]
else:
    BaseAdmin = admin.ModelAdmin

Choices = list[tuple[str, str | Promise]]


class WindowFilter(admin.SimpleListFilter):
    """The last hour, day or week by one column of times."""

    title = _("time")
    parameter_name = "window"
    column: ClassVar[str]
    hours: ClassVar[dict[str, int]] = {"hour": 1, "day": 24, "week": 168}

    def lookups(self, request: HttpRequest, model_admin: BaseAdmin) -> Any:
        """Three windows."""
        return [("hour", _("last hour")), ("day", _("last 24 hours")), ("week", _("last 7 days"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows since the window's begin."""
        if (hours := self.hours.get(self.value() or "")) is None:
            return queryset
        return queryset.filter(**{f"{self.column}__gte": timezone.now() - timedelta(hours=hours)})


class GrantWindowFilter(WindowFilter):
    """By the time of the grant."""

    column = "granted_at"


class WriteWindowFilter(WindowFilter):
    """By the time of the attempt."""

    column = "at"


class EndedFilter(admin.SimpleListFilter):
    """How a grant ended; "open" stands for the empty text, which an address could not carry."""

    title = _("how it ended")
    parameter_name = "ended"

    def lookups(self, request: HttpRequest, model_admin: BaseAdmin) -> Any:
        """Every way to end, and none yet."""
        return [(value or "open", label) for value, label in TokenGrant.Ended.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The grants that ended so."""
        value = self.value()
        return queryset if value is None else queryset.filter(ended="" if value == "open" else value)


class OutcomeFilter(admin.SimpleListFilter):
    """What the database decided, one outcome or every refusal."""

    title = _("outcome")
    parameter_name = "outcome"
    refused = ~Q(outcome__in=("accepted", "unfenced"))  # word for word the condition of the partial index

    def lookups(self, request: HttpRequest, model_admin: BaseAdmin) -> Any:
        """All refusals together, and each outcome."""
        return [("refused", _("refused (all)")), *FencedWrite.Outcome.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The attempts that ended so; a rare outcome is found through the index of refusals."""
        value = self.value()
        if value is None:
            return queryset
        if value in ("accepted", "unfenced"):
            return queryset.filter(outcome=value)
        return queryset.filter(self.refused) if value == "refused" else queryset.filter(self.refused, outcome=value)
