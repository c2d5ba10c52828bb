"""Filters whose choices are fixed: none of them asks the table which values it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db import router
from django.db.models import Exists, Model, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from fencing.historyreads import ended_as
from fencing.models import FencedWrite, TokenGrant
from fencing.taskchecks import fenced_tasks

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Model]
else:
    BaseAdmin = admin.ModelAdmin

Choice = tuple[str, str | Promise]
Outcome = FencedWrite.Outcome

# Word for word the condition of the partial index: else a database does not find it.
UNUSUAL_END = ~Q(ended__in=("", "released"))

REFUSALS = [choice for choice in Outcome.choices if choice[0] not in ("accepted", "unfenced")]


class ChoiceFilter(admin.SimpleListFilter):
    """One of a few values; anything else in an address filters nothing."""

    fixed: ClassVar[list[Choice]]

    def lookups(self, request: HttpRequest, model_admin: BaseAdmin) -> Any:
        """The choices."""
        return self.fixed

    def value(self) -> str | None:
        """The chosen one."""
        value = super().value()
        return value if value in {choice for choice, _label in self.lookup_choices} else None


class EndedFilter(ChoiceFilter):
    """How a grant ended; "open" stands for the empty text, which an address could not carry."""

    title = _("how it ended")
    parameter_name = "ended"
    fixed = [(value or "open", label) for value, label in TokenGrant.Ended.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The grants that ended so; an unusual end is found through the index of those."""
        value = self.value()
        if value is None:
            return queryset
        if value in ("open", "released"):
            return queryset.filter(ended="" if value == "open" else value)
        return queryset.filter(UNUSUAL_END, ended=value)


class OutcomeFilter(ChoiceFilter):
    """What the database decided, one outcome or every refusal."""

    title = _("outcome")
    parameter_name = "outcome"
    fixed = [("refused", _("refused (all)")), *Outcome.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The attempts that ended so; a rare outcome is found through the index of refusals."""
        value = self.value()
        return queryset if value is None else queryset.filter(ended_as(value))


class GrantOutcomeFilter(ChoiceFilter):
    """What became of any write under a grant. Where another database has the writes, there is no such choice."""

    title = _("outcome of a write")
    parameter_name = "outcome"
    fixed = [("refused", _("refused (all)")), *REFUSALS]

    @property
    def counts(self) -> bool:
        """Whether a list may be counted: with this filter it would join a grant for each of up to 10 000 writes."""
        return self.value() is None

    def lookups(self, request: HttpRequest, model_admin: BaseAdmin) -> Any:
        """Refusals and duplicates, which have an index of their own."""
        return self.fixed if router.db_for_read(FencedWrite) == router.db_for_read(TokenGrant) else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The grants that have such a write."""
        value = self.value()
        if value is None:
            return queryset
        # With the resource, which the token implies: of one resource a database then finds the refusals first.
        under_it = FencedWrite.objects.filter(
            namespace=OuterRef("namespace"), resource=OuterRef("resource"), grant_token=OuterRef("token")
        )
        return queryset.filter(Exists(under_it.filter(ended_as(value))))


class TaskFilter(admin.SimpleListFilter):
    """The name of a Celery task: those that this process knows, and the one in the address, wherever it is from."""

    title = _("task")
    parameter_name = "task"

    def lookups(self, request: HttpRequest, model_admin: BaseAdmin) -> Any:
        """The fenced and leased tasks that were imported; the web process may not know all."""
        # No grant has another name, and not each of those fits into an address.
        names = {task.name for task in fenced_tasks() if task.name.isprintable()}
        if chosen := self.value():
            names.add(chosen)
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The grants of this task."""
        value = self.value()
        return queryset.filter(task_name=value) if value else queryset
