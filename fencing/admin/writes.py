"""The list of attempted writes."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from fencing.admin import cells
from fencing.admin.filters import OutcomeFilter, WriteWindowFilter
from fencing.admin.readonly import HistoryAdmin

AT = cells.column("at", _("time"), cells.moment)


@admin.display(description=_("object"), empty_value="-")
def written(row: Any) -> str:
    """The row that was to be written, as its model and key."""
    return f"{row.model} {row.object_pk}".strip()


class FencedWriteAdmin(HistoryAdmin):
    """Every attempt on a fenced row, with what the database decided and which token it had seen."""

    list_display = (
        cells.OUTCOME, cells.TOKEN, cells.SEEN, "resource", written, "action", "operation", AT,
    )  # fmt: skip
    list_filter = (OutcomeFilter, WriteWindowFilter)
    ordering = ("-at", "-id")
    exact_texts = ("resource",)
    exact_numbers = ("grant_token",)
    search_help_text = _("The whole name of a resource, or the token of a grant.")
    detail = (
        cells.OUTCOME, cells.TOKEN, cells.GRANT_TOKEN, cells.SEEN, "namespace", "resource", written, "action",
        "operation", "note", AT,
    )  # fmt: skip
