"""The lists of the history, which has millions of rows: paged by keyset, bounded in time, to be exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest

from fencing.admin import links
from fencing.admin.export import ExportMixin
from fencing.admin.keyset import KeysetChangeList
from fencing.admin.rights import may_view
from fencing.models import FencedWrite, TokenGrant


class HistoryListMixin(ExportMixin):
    """A list by time.

    Attributes:
        time_column: the column of times that, with the key, leads an index.
        linked: the columns that an address may name besides the filters: others have no index.
    """

    time_column: ClassVar[str]
    linked: ClassVar[tuple[str, ...]] = ()
    narrower: ClassVar[str] = "?window=hour"

    change_list_template = "admin/fencing/history_list.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """The list with *newer* and *older*."""
        return KeysetChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """What has an index, compared as a whole; filters and search do not ask here."""
        parameters = {name for kind in self.list_filter for name in _parameters(kind)}
        return lookup in parameters or lookup in self.linked

    def prepare(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Give the rows of a page what its cells show beside the columns."""
        may_see = all(may_view(self.admin_site, request, model) for model in (TokenGrant, FencedWrite))
        for row in rows:
            row.timeline_url = links.url_if_there(
                self.admin_site.name, links.TIMELINE, namespace=row.namespace, resource=row.resource
            ) if may_see else ""  # fmt: skip

    def grant_url(self, request: HttpRequest, grant: TokenGrant | None) -> str:
        """Where a grant is, or "" for who may not see it."""
        if grant is None or not may_view(self.admin_site, request, TokenGrant):
            return ""
        return links.url_if_there(self.admin_site.name, "fencing_tokengrant_change", grant.pk)


def _parameters(kind: Any) -> Sequence[str]:
    own: Sequence[str] = getattr(kind, "parameters", (kind.parameter_name,))
    return own


def grant_below(namespace: str, resource: str, token: int) -> TokenGrant | None:
    """The grant of the resource before this token."""
    return TokenGrant.objects.filter(namespace=namespace, resource=resource, token__lt=token).order_by("-token").first()


def grant_above(namespace: str, resource: str, token: int) -> TokenGrant | None:
    """The grant of the resource after this token: the one that overtook it, if it was overtaken."""
    return TokenGrant.objects.filter(namespace=namespace, resource=resource, token__gt=token).order_by("token").first()
