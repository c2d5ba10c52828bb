"""Pages of a long list by the place of a row: as fast at the end as at the beginning, and no row twice or never.

The order is (time, key), newest first, and rows without a time come last on every database.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.signing import BadSignature, Signer
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.text import capfirst
from django.utils.translation import gettext as _

CURSOR = "cursor"
MAX_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the order, which a row had, and which way to read from there.

    Attributes:
        newer: towards the newer rows.
        time: the row's time; None comes after all times.
        pk: its key.
        counted: how many rows the first page had counted.
    """

    newer: bool
    time: datetime | None
    pk: int
    counted: int = 0

    def signed(self, salt: str) -> str:
        """As a part of an address; ``salt`` names the list."""
        time = self.time and self.time.isoformat()
        return Signer(salt=salt).sign_object([int(self.newer), time, self.pk, self.counted])

    @classmethod
    def read(cls, text: str, salt: str) -> Cursor | None:
        """What ``signed`` made with this salt, and None for everything else."""
        try:
            newer, time, pk, counted = Signer(salt=salt).unsign_object(text)
        except BadSignature:
            return None
        return cls(bool(newer), time and datetime.fromisoformat(time), pk, counted)


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows, newest first.

    Attributes:
        rows: the rows.
        has_newer: whether there may be newer ones.
        has_older: whether there may be older ones.
    """

    rows: list[Any]
    has_newer: bool
    has_older: bool


def read_page(rows: QuerySet[Any], column: str, cursor: Cursor | None, size: int) -> Page:
    """The ``size`` rows that come next from the cursor, or the newest."""
    if cursor is None:
        found = list(rows.order_by(f"-{column}", "-pk")[: size + 1])
        # Mostly this is all: rows without a time are either among these few, or this database has them at its other end.
        if len(found) <= size or getattr(found[0], column) is not None:
            found.sort(key=lambda row: getattr(row, column) is None)
            return Page(found[:size], False, len(found) > size)
    newer = cursor is not None and cursor.newer
    found = []
    for part in _parts(rows, column, cursor):
        found += part[: size + 1 - len(found)]
        if len(found) > size:
            break
    more, found = len(found) > size, found[:size]
    if newer:
        return Page(found[::-1], more, True)
    return Page(found, cursor is not None, more)


def _parts(rows: QuerySet[Any], column: str, cursor: Cursor | None) -> list[QuerySet[Any]]:
    """What follows the cursor, in reading order: rows with a time and rows without one are apart.

    Each part is a stretch of an index on (column, pk). A database would put NULL at the end that it likes.
    """
    newer = cursor is not None and cursor.newer
    order = (column, "pk") if newer else (f"-{column}", "-pk")
    timed, untimed = (rows.order_by(*order).filter(**{f"{column}__isnull": null}) for null in (False, True))
    beyond = "gt" if newer else "lt"
    if cursor is not None and cursor.time is None:
        untimed = untimed.filter(**{f"pk__{beyond}": cursor.pk})
        return [untimed, timed] if newer else [untimed]
    if cursor is not None:
        # The first condition is where the index begins to be read, the second leaves out rows of the same time.
        not_before = Q(**{f"{column}__{beyond}e": cursor.time})
        timed = timed.filter(not_before, Q(**{f"{column}__{beyond}": cursor.time}) | Q(**{f"pk__{beyond}": cursor.pk}))
    nullable = rows.model._meta.get_field(column).null
    return [timed] if newer or not nullable else [timed, untimed]


def count_up_to_cap(rows: QuerySet[Any], column: str) -> int:
    """How many rows there are, or one more than ``MAX_COUNTED``."""
    # In the order of the index: a database that may take any rows reads the table from its oldest end.
    return rows.order_by(f"-{column}", "-pk")[: MAX_COUNTED + 1].count()


class KeysetChangeList(ChangeList):
    """Django's list with *newer* and *older* instead of numbers of pages, for a ``HistoryListMixin``."""

    model_admin: Any
    cursor: Cursor | None = None

    def __init__(self, *args: Any) -> None:
        """Nobody selects anything here, so the title does not say so."""
        super().__init__(*args)
        self.title = capfirst(str(self.opts.verbose_name_plural))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """The filtered rows; the cursor is taken out of the parameters, each of which would be a filter."""
        self.salt = f"fencing.admin.keyset:{self.opts.label}"
        signed = self.params.pop(CURSOR, "")
        self.filter_params.pop(CURSOR, None)
        if signed:
            self.cursor = Cursor.read(signed, self.salt)
            if self.cursor is None:
                messages.warning(
                    request, _("That address of a page is not valid (any more). These are the newest rows.")
                )
        # Of the search Django's form says so.
        if any("\0" in value for name, value in self.params.items() if name != SEARCH_VAR):
            raise IncorrectLookupParameters("no text in a database holds a NUL")
        return super().get_queryset(request, exclude_parameters)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """The one order that has an index."""
        return [f"-{self.model_admin.time_column}", "-pk"]

    def get_results(self, request: HttpRequest) -> None:
        """Read one row more than the page shows, and count only where there is a second page, and only once."""
        page = read_page(self.queryset, self.model_admin.time_column, self.cursor, self.list_per_page)
        # Who searches wants to see what was found; how often that is in ten million rows, nobody waits for.
        # Nor how often two things come together, of which each is frequent and has an index of its own.
        chosen = [spec for spec in self.filter_specs if spec is not self.window and spec.used_parameters]
        counts = not self.query and len(chosen) < 2 and all(getattr(spec, "counts", True) for spec in chosen)
        self.cap = MAX_COUNTED if counts else self.list_per_page
        if self.cursor is not None:
            self.result_count = self.cursor.counted
        elif page.has_older and counts:
            self.result_count = count_up_to_cap(self.queryset, self.model_admin.time_column)
        else:
            self.result_count = len(page.rows) + page.has_older
        self.result_list = page.rows
        self.model_admin.prepare(request, page.rows)
        export = self.model_admin.export_url(request)
        self.export_url = export and export + self.get_query_string()
        first_url = self.get_query_string()
        self.newest_url = first_url if self.cursor is not None else ""
        self.newer_url = self._url(page.rows[0], newer=True) if page.has_newer and page.rows else ""
        self.older_url = self._url(page.rows[-1], newer=False) if page.has_older and page.rows else ""
        # What Django's templates ask for: there is no other count, no *show all* and nothing to select.
        self.full_result_count = self.result_count
        self.show_full_result_count = self.show_admin_actions = self.can_show_all = self.multi_page = False
        self.paginator = None

    @property
    def count_label(self) -> str:
        """Such as "10,000+ grants in the last 24 hours"."""
        count = number_format(min(self.result_count, self.cap), force_grouping=True)
        count += "+" * (self.result_count > self.cap)
        noun = self.opts.verbose_name if self.result_count == 1 else self.opts.verbose_name_plural
        when = self.window.phrase if self.window else ""
        return (_("%(count)s %(rows)s %(when)s") % {"count": count, "rows": noun, "when": when}).strip()

    @property
    def window(self) -> Any:
        """The filter by time, if there is one."""
        return next((spec for spec in self.filter_specs if hasattr(spec, "phrase")), None)

    @property
    def any_time_url(self) -> str:
        """The same without the window, or "" where none is in force."""
        if self.window is None or self.window.value() == "any":
            return ""
        return self.get_query_string({self.window.parameter_name: "any"}, ["since", "until"])

    def _url(self, row: Any, *, newer: bool) -> str:
        time = getattr(row, self.model_admin.time_column)
        cursor = Cursor(newer, time, row.pk, self.result_count)
        return self.get_query_string({CURSOR: cursor.signed(self.salt)})


class FilteredList(KeysetChangeList):
    """The filters and the search alone; nothing is read."""

    def get_results(self, request: HttpRequest) -> None:
        """No page."""
        self.result_list = []
