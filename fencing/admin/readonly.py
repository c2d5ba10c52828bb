"""What all lists share: nobody changes anything, and nothing on a page grows with the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from fencing.models import TokenRange

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Model]
    BasePaginator = Paginator[Model]
else:
    BaseAdmin = admin.ModelAdmin
    BasePaginator = Paginator

MAX_COUNTED = 10_000
MAX_NUMBER = 2**63 - 1  # more does not fit into a column, and PostgreSQL would call it an error


class CappedPaginator(BasePaginator):
    """Counts no further than 10 000: a filter leads to what is older, and no page waits for a count of everything."""

    @cached_property
    def count(self) -> int:
        """The number of rows, or the cap."""
        rows: Any = self.object_list
        return int(rows[:MAX_COUNTED].count())


class ReadOnlyAdmin(BaseAdmin):
    """A list to look at: nobody may add, change or delete, superusers included. For models of your own, too.

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


class HistoryAdmin(ReadOnlyAdmin):
    """A list of one of this app's tables, searched for whole texts and numbers.

    Attributes:
        exact_texts: the columns that a search compares with the whole input; each should lead an index, apart from
            ``namespace``.
        exact_numbers: the same for an input that is a number.
    """

    exact_texts: ClassVar[tuple[str, ...]] = ()
    exact_numbers: ClassVar[tuple[str, ...]] = ()

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
        found = Q.create([(name, term) for name in self.exact_texts], Q.OR)
        if term.isdecimal() and int(term) <= MAX_NUMBER:
            found |= Q.create([(name, int(term)) for name in self.exact_numbers], Q.OR)
        # The indexes begin with the namespace, and there are few.
        namespaces = list(TokenRange.objects.values_list("namespace", flat=True))
        return queryset.filter(found, namespace__in=namespaces), False
