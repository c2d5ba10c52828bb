"""The smaller tables: what the fence compares with, and where the numbers come from."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.translation import gettext_lazy as _

from fencing.admin import cells, links
from fencing.admin.readonly import BaseAdmin, HistoryAdminMixin
from fencing.admin.rights import may_view_timelines
from fencing.admin.timeline import timeline_view

APPLIED = cells.column("applied_at", _("applied"), cells.moment)
OPENED = cells.column("opened_at", _("opened"), cells.moment)
CEILING = cells.column("ceiling", _("highest reserved token"), cells.digits)
FIRST = cells.column("first_token", _("first token"), cells.digits)
BEGINS = cells.column("begins", _("transactions begun"), cells.digits)


@admin.display(description=_("resource"), empty_value="-")
def name(row: Any) -> str:
    """The resource's name, with a link to its timeline where the page has found one."""
    return cells.link(row.timeline_url, row.name)


class FencedResourceAdminMixin(HistoryAdminMixin):
    """The highest token that each resource has seen."""

    list_display = (name, cells.LAST_TOKEN, "holder", BEGINS, "namespace")
    # As in the history: a name leads to its timeline, a token to its row.
    list_display_links = (cells.LAST_TOKEN,)
    ordering = ("namespace", "name")
    exact_texts = ("name",)
    search_note = _("The whole name of a resource.")
    detail = ("namespace", name, cells.LAST_TOKEN, "holder", BEGINS)

    def get_urls(self) -> list[Any]:
        """The timeline of a resource, too."""

        def timeline(request: HttpRequest) -> HttpResponse:
            return timeline_view(request, self.admin_site)

        return [path("timeline/", self.admin_site.admin_view(timeline), name=links.TIMELINE), *super().get_urls()]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """With the way from each row to its timeline."""
        found = super().get_changelist_instance(request)
        self._lead_to_timelines(request, found.result_list)
        return found

    def get_object(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Model | None:
        """With the way to its timeline."""
        row = super().get_object(request, *args, **kwargs)
        if row is not None:
            self._lead_to_timelines(request, [row])
        return row

    def _lead_to_timelines(self, request: HttpRequest, rows: Any) -> None:
        may_see = may_view_timelines(self.admin_site, request)
        for row in rows:
            row.timeline_url = links.timeline_url(self.admin_site.name, row.namespace, row.name) if may_see else ""


class OperationAdminMixin(HistoryAdminMixin):
    """Operations that took effect, with their results."""

    list_display = ("key", "resource", "task", cells.TOKEN, APPLIED, "namespace")
    ordering = ("-id",)
    exact_texts = ("resource",)
    search_note = _("The whole name of a resource.")
    detail = ("namespace", "resource", "task", "key", "digest", cells.TOKEN, "result", APPLIED)


class ReignAdminMixin(HistoryAdminMixin):
    """The log of reigns: a second one of a partition tells that its store forgot, moved or was replaced."""

    list_display = (FIRST, "namespace", "partition", "server", "reign", OPENED)
    ordering = ("-id",)
    detail = ("namespace", "partition", FIRST, "server", "reign", OPENED)


class TokenRangeAdminMixin(HistoryAdminMixin):
    """How far the numbers of each namespace are reserved."""

    list_display = ("namespace", CEILING, "partitions", "space")
    ordering = ("namespace",)
    detail = ("namespace", CEILING, "partitions", "space")


class FencedResourceAdmin(FencedResourceAdminMixin, BaseAdmin):
    """The same for the plain admin."""


class OperationAdmin(OperationAdminMixin, BaseAdmin):
    """The same for the plain admin."""


class ReignAdmin(ReignAdminMixin, BaseAdmin):
    """The same for the plain admin."""


class TokenRangeAdmin(TokenRangeAdminMixin, BaseAdmin):
    """The same for the plain admin."""
