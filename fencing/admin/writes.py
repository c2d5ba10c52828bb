"""The list of attempted writes, and one of them with its grant and the one that overtook it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import F, Q
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from fencing.admin import cells
from fencing.admin.filters import OutcomeFilter
from fencing.admin.historylist import HistoryListMixin, grant_above
from fencing.admin.readonly import BaseAdmin, number_in
from fencing.admin.windows import WriteWindowFilter
from fencing.historyreads import OVERTAKEN
from fencing.models import TokenGrant

AT = cells.column("at", _("time"), cells.moment)

# Word for word the conditions of the partial indexes.
ADVANCED = ~Q(token=F("grant_token"))
OF_OBJECT = ~Q(object_pk="")


@admin.display(description=_("object"))
def written(row: Any) -> str:
    """The row that was to be written, as its model and key."""
    return f"{row.model} {row.object_pk}".strip() or "-"


@admin.display(description=_("token after"))
def after(row: Any) -> str:
    """What the row's last token was then: the attempt's where it took effect, else what it was before."""
    return cells.digits(row.token if row.outcome in ("accepted", "unfenced") else row.seen) or "-"


@admin.display(description=_("grant"))
def grant(row: Any) -> str:
    """The grant under which it was tried, as the page has found it."""
    return cells.link(row.grant_url, cells.digits(row.grant_token))


@admin.display(description=_("overtaken by"))
def overtaken_by(row: Any) -> str:
    """The grant that overtook it, as the page has found it."""
    return cells.named(row.overtaker_url, row.overtaker) or "-"


def with_key(term: str) -> Q:
    """The condition of the writes of one object: "42", or "shop.stock 42" for those of this model only."""
    model, _space, key = term.rpartition(" ")
    if "." not in model:
        return OF_OBJECT & Q(object_pk=term)
    return OF_OBJECT & (Q(object_pk=term) | Q(model=model.strip().lower(), object_pk=key))


class FencedWriteAdminMixin(HistoryListMixin):
    """Every attempt on a fenced row, with what the database decided and which token it had seen."""

    list_display = (
        cells.OUTCOME, cells.TOKEN, cells.BEFORE, cells.resource, AT, written, "action", "operation",
    )  # fmt: skip
    list_filter = (WriteWindowFilter, OutcomeFilter)
    time_column = "at"
    linked = ("namespace", "grant_token")
    exact_texts = ("resource",)
    exact_numbers = ("grant_token",)
    search_note = _(
        "A whole name of a resource, a token, or an object: its key, or its model and key (“shop.stock 42”)."
    )
    detail = (
        cells.OUTCOME, cells.TOKEN, cells.BEFORE, after, grant, overtaken_by, "namespace", cells.resource, written,
        "action", "operation", "note", AT,
    )  # fmt: skip
    exported = (
        "id", "at", "outcome", "token", "grant_token", "seen", "namespace", "resource", "model", "object_pk", "action",
        "operation", "note",
    )  # fmt: skip

    def meant(self, term: str) -> Q:
        """Those of an object, too, and a number that a lease took besides its grant's."""
        condition = super().meant(term) | with_key(term)
        if (number := number_in(term)) is not None:
            condition |= ADVANCED & Q(token=number)
        return condition

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """One attempt with its grant and the one that overtook it."""
        write: Any = kwargs["obj"]
        self.prepare(request, [write])
        of_grant = {"namespace": write.namespace, "token": write.grant_token}
        write.grant_url = self.grant_url(request, TokenGrant.objects.filter(**of_grant).first())
        write.overtaker = None
        if write.outcome in OVERTAKEN:
            write.overtaker = grant_above(write.namespace, write.resource, write.grant_token)
        write.overtaker_url = self.grant_url(request, write.overtaker)
        return super().render_change_form(request, context, *args, **kwargs)


class FencedWriteAdmin(FencedWriteAdminMixin, BaseAdmin):
    """The same for the plain admin."""
