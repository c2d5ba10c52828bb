"""The current filter and search as a CSV file: streamed batch by batch, capped, and harmless to spreadsheets."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar

from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, router
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect, StreamingHttpResponse
from django.urls import path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.http import content_disposition_header
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from fencing.admin import cells, links
from fencing.admin.keyset import Cursor, FilteredList, read_page
from fencing.admin.limits import time_limit
from fencing.admin.readonly import HistoryAdminMixin
from fencing.databases import is_cancelled

MAX_ROWS = 100_000
BATCH = 2_000

# A spreadsheet takes a text that begins so for a formula, some also after white space or written in full width. Where
# the comma is the decimal sign a file's cells end at semicolons and new lines, between quotes or not; and LibreOffice
# offers to end them at tabs, too.
FORMULA = re.compile('(^|[;\t\r\n])(?=[\\s"]*[-=+@\uff1d\uff0b\uff0d\uff20])|^(?=\\s)')
BOM = "\N{BYTE ORDER MARK}"  # spreadsheets take a file without it for one of Windows' old encodings


class ExportMixin(HistoryAdminMixin):
    """A list that can be exported by who has the right ``export_<model>`` besides that to view.

    Attributes:
        exported: the columns, by the names of fields; subclasses add more in ``exported_rows``.
    """

    exported: ClassVar[tuple[str, ...]]
    time_column: ClassVar[str]

    def has_export_permission(self, request: HttpRequest) -> bool:
        """Whether the user may export."""
        right = f"{self.opts.app_label}.export_{self.opts.model_name}"
        return self.has_view_permission(request) and request.user.has_perm(right)

    def get_urls(self) -> list[Any]:
        """One more: the export."""
        view = self.admin_site.admin_view(self.export_view)
        return [path("export/", view, name=self._export_name()), *super().get_urls()]

    def export_url(self, request: HttpRequest) -> str:
        """Where the export is, for who may."""
        if not self.has_export_permission(request):
            return ""
        return links.url_if_there(self.admin_site.name, self._export_name())

    @method_decorator(require_safe)
    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """The rows of the list with the same query string, newest first."""
        if not self.has_export_permission(request):
            raise PermissionDenied
        filters, searched = self.get_list_filter(request), self.get_search_fields(request)
        try:
            with time_limit(*self._aliases()):
                found = FilteredList(
                    request, self.model, (), (), filters, None, searched, False, BATCH, BATCH, (), self, (), ""
                )
        except IncorrectLookupParameters:
            return HttpResponseRedirect("../?e=1")
        response = StreamingHttpResponse(self._lines(found.queryset), content_type="text/csv; charset=utf-8")
        name = f"{self.opts.app_label}-{self.opts.model_name}-{cells.moment(timezone.now())[:10]}.csv"
        response["Content-Disposition"] = content_disposition_header(True, name)
        response["Cache-Control"] = "no-store"
        return response

    def export_header(self) -> Sequence[str]:
        """The names of the columns: those of the fields, untranslated, so that programs can rely on them."""
        return self.exported

    def exported_rows(self, rows: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """The values of a batch of rows."""
        return ([getattr(row, name) for name in self.exported] for row in rows)

    def _export_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_export"

    def _aliases(self) -> list[str]:
        return [router.db_for_read(model) for model in self.reads]

    def _lines(self, rows: QuerySet[Any]) -> Iterator[str]:
        """The file. Each batch is asked for by itself: no cursor of a database, no transaction stays open between."""
        yield BOM + line(self.export_header())
        cursor, left = None, MAX_ROWS
        while True:
            try:
                with time_limit(*self._aliases()):
                    page = read_page(rows, self.time_column, cursor, min(BATCH, left))
                    values = list(self.exported_rows(page.rows))
            except DatabaseError as error:
                if not is_cancelled(error):
                    raise
                yield line([_("Not complete: the database took too long. Export a shorter time.")])
                return
            yield "".join(map(line, values))
            left -= len(page.rows)
            if not page.has_older:
                return
            if not left:
                yield line([_("Not complete: an export ends after %(rows)d rows.") % {"rows": MAX_ROWS}])
                return
            last = page.rows[-1]
            cursor = Cursor(False, getattr(last, self.time_column), last.pk)


class _Echo:
    """A file that gives back what is written."""

    def write(self, text: str) -> str:
        return text


_writer: Any = csv.writer(_Echo())


def line(values: Iterable[Any]) -> str:
    """One line of the file."""
    text: str = _writer.writerow(map(plain, values))
    return text


def plain(value: Any) -> Any:
    """A value as a cell: numbers digit by digit, times with their offset, and no text that a spreadsheet would run."""
    if isinstance(value, datetime):
        return (timezone.localtime(value) if timezone.is_aware(value) else value).isoformat()
    return FORMULA.sub(r"\1'", value) if isinstance(value, str) else value
