"""The page of one grant: its writes page by page, the grants before and after it, and the one that overtook it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from fencing.admin import cells, links
from fencing.admin.historylist import HistoryListMixin, grant_above, grant_below
from fencing.admin.keyset import CURSOR, Cursor, Page, read_page
from fencing.admin.rights import may_view
from fencing.admin.writes import after, written
from fencing.historyreads import OVERTAKEN, was_overtaken
from fencing.models import FencedWrite, TokenGrant

WRITES_PER_PAGE = 50


class GrantPageMixin(HistoryListMixin):
    """What the page of a grant shows besides its fields."""

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """The writes, and the neighbours among the resource's grants."""
        grant: Any = kwargs["obj"]
        self.prepare(request, [grant])
        of_grant = {"namespace": grant.namespace, "grant_token": grant.token}
        page, salt = self._writes(request, grant, FencedWrite.objects.filter(**of_grant))
        above = grant_above(grant.namespace, grant.resource, grant.token)
        context["neighbours"] = {
            "previous": self._named(request, grant_below(grant.namespace, grant.resource, grant.token)),
            "next": self._named(request, above),
            "is_overtaken": above and was_overtaken(grant.ended, (kind for kind, _count in grant.outcomes)),
        }
        context["timeline_url"] = grant.timeline_url
        context["writes"] = [self._cells(request, write, above) for write in page.rows]
        context["writes_pager"] = _pager(page, salt)
        list_of_writes = links.url_if_there(self.admin_site.name, "fencing_fencedwrite_changelist")
        if list_of_writes and may_view(self.admin_site, request, FencedWrite):
            context["writes_url"] = f"{list_of_writes}?{urlencode({**of_grant, 'window': 'any'})}"
        return super().render_change_form(request, context, *args, **kwargs)

    def task_url(self, grant: TokenGrant) -> str:
        """The list of the grants of the same task."""
        name = self.admin_site.name
        return links.url_if_there(name, "fencing_tokengrant_changelist", task=grant.task_name, window="any")

    def _writes(self, request: HttpRequest, grant: TokenGrant, writes: QuerySet[FencedWrite]) -> tuple[Page, str]:
        salt = f"fencing.admin.grantpage:{grant.pk}"
        signed = request.GET.get(CURSOR, "")
        cursor = Cursor.read(signed, salt) if signed else None
        if signed and cursor is None:
            messages.warning(request, _("That address of a page is not valid (any more). These are the newest writes."))
        return read_page(writes, "at", cursor, WRITES_PER_PAGE), salt

    def _named(self, request: HttpRequest, grant: TokenGrant | None) -> str:
        return cells.named(self.grant_url(request, grant), grant)

    def _cells(self, request: HttpRequest, write: FencedWrite, above: TokenGrant | None) -> dict[str, str]:
        """A row of the table below a grant; a template would group the digits of a number."""
        url = ""
        if may_view(self.admin_site, request, FencedWrite):
            url = links.url_if_there(self.admin_site.name, "fencing_fencedwrite_change", write.pk)
        return {
            "outcome": cells.outcome(write.outcome),
            "token": cells.link(url, cells.digits(write.token)),
            "before": cells.digits(write.seen) or "-",
            "after": after(write),
            "overtaken_by": self._named(request, above if write.outcome in OVERTAKEN else None) or "-",
            "written": written(write),
            "action": write.action,
            "operation": write.operation or "-",
            "at": cells.moment(write.at),
        }


def _pager(page: Page, salt: str) -> dict[str, str]:
    """The links below the table, for ``pager.html``."""

    def url(write: FencedWrite, *, newer: bool) -> str:
        return f"?{urlencode({CURSOR: Cursor(newer, write.at, write.pk).signed(salt)})}#fencing-writes"

    return {
        "newest_url": "?#fencing-writes" if page.has_newer else "",
        "newer_url": url(page.rows[0], newer=True) if page.has_newer and page.rows else "",
        "older_url": url(page.rows[-1], newer=False) if page.has_older and page.rows else "",
    }
