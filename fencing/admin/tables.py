"""The smaller tables: what the fence compares with, and where the numbers come from."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.translation import gettext_lazy as _

from fencing.admin import cells, links
from fencing.admin.readonly import BaseAdmin, HistoryAdminMixin
from fencing.admin.timeline import timeline_view

APPLIED = cells.column("applied_at", _("applied"), cells.moment)
OPENED = cells.column("opened_at", _("opened"), cells.moment)
CEILING = cells.column("ceiling", _("highest reserved token"), cells.digits)
FIRST = cells.column("first_token", _("first token"), cells.digits)
BEGINS = cells.column("begins", _("transactions begun"), cells.digits)


class FencedResourceAdminMixin(HistoryAdminMixin):
    """The highest token that each resource has seen."""

    list_display = ("name", cells.LAST_TOKEN, "holder", BEGINS, "namespace")
    ordering = ("namespace", "name")
    exact_texts = ("name",)
    search_note = _("The whole name of a resource.")
    detail = ("namespace", "name", cells.LAST_TOKEN, "holder", BEGINS)

    def get_urls(self) -> list[Any]:
        """The timeline of a resource, too."""

        def timeline(request: HttpRequest) -> HttpResponse:
            return timeline_view(request, self.admin_site)

        return [path("timeline/", self.admin_site.admin_view(timeline), name=links.TIMELINE), *super().get_urls()]


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
