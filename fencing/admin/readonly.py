"""What all lists share: nobody changes anything, and nothing on a page grows with the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property

from fencing.admin.keyset import MAX_COUNTED
from fencing.admin.limits import time_limited
from fencing.models import FencedResource, FencedWrite, TokenGrant, TokenRange

# Mixins inherit nothing, so that they can be put before the ModelAdmin of any theme.
if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Model]
    BaseMixin = admin.ModelAdmin[Model]
    BasePaginator = Paginator[Model]
else:
    BaseAdmin = admin.ModelAdmin
    BaseMixin = object
    BasePaginator = Paginator

MAX_NUMBER = 2**63 - 1  # more does not fit into a column, and PostgreSQL would call it an error


class CappedPaginator(BasePaginator):
    """Counts no further than 10 000: a filter leads to what is older, and no page waits for a count of everything."""

    @cached_property
    def count(self) -> int:
        """The number of rows, or the cap."""
        rows: Any = self.object_list
        return int(rows[:MAX_COUNTED].count())


class ReadOnlyAdminMixin(BaseMixin):
    """A list to look at: nobody may add, change or delete, superusers included.

    Attributes:
        detail: what the page of one row shows: names of fields, and functions of the row; default: all fields.
    """

    detail: ClassVar[tuple[Any, ...]] = ()

    actions = None
    list_per_page = 100
    list_max_show_all = 100
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds rows here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody changes rows here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes rows here."""
        return False

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """What the page of one row shows."""
        return self.detail or super().get_fields(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """All of ``detail``, because a function cannot be a field of a form."""
        return self.detail or super().get_readonly_fields(request, obj)


class ReadOnlyAdmin(ReadOnlyAdminMixin, BaseAdmin):
    """The same for the plain admin, and for models of your own."""


class HistoryAdminMixin(ReadOnlyAdminMixin):
    """A list of one of this app's tables, searched for whole texts and numbers, within ``ADMIN_TIMEOUT``.

    Attributes:
        exact_texts: the columns that a search compares with the whole input; each should lead an index, apart from
            ``namespace``.
        exact_numbers: the same for an input that is a number.
        search_note: what a search finds. Not ``search_help_text``: Django's field with it counts as one without a label.
        reads: what its pages read; their databases are asked for no longer than ``ADMIN_TIMEOUT``.
    """

    exact_texts: ClassVar[tuple[str, ...]] = ()
    exact_numbers: ClassVar[tuple[str, ...]] = ()
    search_note: ClassVar[Any] = ""
    reads: ClassVar[tuple[type[Model], ...]] = (TokenGrant, FencedWrite, FencedResource)

    change_list_template = "admin/fencing/exact_list.html"

    class Media:
        css = {"all": ("fencing/history.css",)}

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """The names of what is searched; a list without any shows no search box."""
        return (*self.exact_texts, *self.exact_numbers)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """The rows with exactly this text or number: a part of a text could only be found by reading all rows."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return self.found(queryset, term), False

    def found(self, queryset: QuerySet[Any], term: str) -> QuerySet[Any]:
        """The rows that are meant by ``term``, which is not empty."""
        # The indexes begin with the namespace, and there are few.
        namespaces = list(TokenRange.objects.values_list("namespace", flat=True))
        return queryset.filter(self.meant(term), namespace__in=namespaces)

    def meant(self, term: str) -> Q:
        """The condition of the rows with exactly this text or number in one of the columns."""
        condition = Q.create([(name, term) for name in self.exact_texts], Q.OR)
        if (number := number_in(term)) is not None:
            condition |= Q.create([(name, number) for name in self.exact_numbers], Q.OR)
        return condition

    @time_limited()
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list."""
        return super().changelist_view(request, extra_context)

    @time_limited()
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """One row."""
        return super().changeform_view(request, *args, **kwargs)


def number_in(term: str) -> int | None:
    """``term`` as a number that a column can hold, or None."""
    return int(term) if term.isdecimal() and len(term) < 20 and int(term) <= MAX_NUMBER else None
