"""The list of grants with what was written under each, and one grant with its writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _

from fencing import conf
from fencing.admin import cells
from fencing.admin.filters import EndedFilter, GrantOutcomeFilter, TaskFilter
from fencing.admin.grantpage import GrantPageMixin
from fencing.admin.historylist import HistoryListMixin
from fencing.admin.keyset import CURSOR
from fencing.admin.newest import collect_newest
from fencing.admin.readonly import BaseAdmin, number_in
from fencing.admin.windows import GrantWindowFilter
from fencing.admin.writes import OF_OBJECT
from fencing.models import FencedWrite, TokenGrant, TokenRange

GRANTED = cells.column("granted_at", _("granted"), cells.moment)
ENDED_AT = cells.column("ended_at", _("ended"), cells.moment)
HOLDER = cells.column("holder", _("holder"), str)


@admin.display(description=_("task"))
def task(grant: Any) -> str:
    """The name of the Celery task that held the lease, leading to the other grants of it, and its id."""
    name = cells.link(grant.task_url, grant.task_name) if grant.task_name else ""
    return format_html_join("", "<div>{}</div>", ((part,) for part in (name, grant.task_id) if part)) or "-"


@admin.display(description=_("held for"))
def held_for(grant: Any) -> str:
    """Seconds from the grant to its end; nothing while the end, or the grant, has not been told."""
    if grant.granted_at is None or grant.ended_at is None:
        return "-"
    return f"{(grant.ended_at - grant.granted_at).total_seconds():.3f} s"


@admin.display(description=_("writes"))
def writes(grant: Any) -> str:
    """How many writes of the grant had each outcome, as its page counted them."""
    counts = format_html_join("", "<li>{}</li>", ((cells.outcome(kind, count),) for kind, count in grant.outcomes))
    return format_html('<ul class="fencing-counts">{}</ul>', counts) if counts else "-"


def count_outcomes(grants: Sequence[Any]) -> None:
    """Give each grant its ``outcomes``, a list of (outcome, count), by one query for all of them."""
    found: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    rows = FencedWrite.objects.order_by().filter(
        namespace__in={grant.namespace for grant in grants}, grant_token__in={grant.token for grant in grants}
    )
    for namespace, token, kind, count in rows.values_list("namespace", "grant_token", "outcome").annotate(Count("pk")):
        found[namespace, token][kind] = count
    for grant in grants:
        counts = found[grant.namespace, grant.token]
        grant.outcomes = [(kind, counts[kind]) for kind in FencedWrite.Outcome.values if kind in counts]


class TokenGrantAdminMixin(GrantPageMixin, HistoryListMixin):
    """Every lease that was granted: to whom, for how long, how it ended, and what was written under it."""

    list_display = (
        cells.TOKEN, writes, cells.resource, GRANTED, held_for, "ended", task, HOLDER,
    )  # fmt: skip
    list_filter = (GrantWindowFilter, GrantOutcomeFilter, EndedFilter, TaskFilter)
    time_column = "granted_at"
    linked = ("namespace", "token")
    exact_texts = ("resource", "task_id")
    exact_numbers = ("token",)
    search_note = _(
        "A whole name of a resource, a token, a whole id of a task, or an object that was written (“shop.stock 42”)."
    )
    detail = (
        cells.TOKEN, "namespace", cells.resource, HOLDER, task, "ttl", GRANTED, ENDED_AT, held_for, "ended", writes,
    )  # fmt: skip
    exported = (
        "token", "namespace", "resource", "holder", "task_name", "task_id", "ttl", "granted_at", "ended_at", "ended",
    )  # fmt: skip

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Collect the newest grants from the stores, then list."""
        if CURSOR not in request.GET:
            collect_newest(request, *conf.backend_aliases())
        return super().changelist_view(request, extra_context)

    def found(self, queryset: QuerySet[Any], term: str) -> QuerySet[Any]:
        """As usual, or for a model and a key the grants under which that object was written."""
        model, _space, key = term.rpartition(" ")
        if "." not in model or queryset.db != FencedWrite.objects.db:
            return self.found_in_columns(queryset, term)
        under_it = FencedWrite.objects.filter(namespace=OuterRef("namespace"), grant_token=OuterRef("token"))
        of_object = under_it.filter(OF_OBJECT, object_pk=key, model=model.strip().lower())
        return queryset.filter(Exists(of_object))

    def found_in_columns(self, queryset: QuerySet[Any], term: str) -> QuerySet[Any]:
        """By the column that holds the term, mostly one: an OR of all would leave the other filters without an index."""
        if TokenRange.objects.db != queryset.db:
            return super().found(queryset, term)
        meant: dict[str, Any] = dict.fromkeys(self.exact_texts, term)
        if (number := number_in(term)) is not None:
            meant |= dict.fromkeys(self.exact_numbers, number)
        of_place = TokenGrant.objects.using(queryset.db).filter(namespace=OuterRef("namespace"))
        holds = {f"holds_{name}": Exists(of_place.filter(**{name: value})) for name, value in meant.items()}
        ranges: QuerySet[Any] = TokenRange.objects.annotate(**holds)
        places = [place for place in ranges.values("namespace", *holds) if any(place[name] for name in holds)]
        held = [(name, value) for name, value in meant.items() if any(place[f"holds_{name}"] for place in places)]
        if not held:
            return queryset.none()
        return queryset.filter(Q(*held, _connector=Q.OR), namespace__in={place["namespace"] for place in places})

    def prepare(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """With the outcomes of the writes under each."""
        super().prepare(request, rows)
        count_outcomes(rows)
        for grant in rows:
            grant.task_url = self.task_url(grant)

    def export_header(self) -> Sequence[str]:
        """With a column for each outcome."""
        return (*self.exported, *FencedWrite.Outcome.values)

    def exported_rows(self, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """With the number of writes that had each outcome."""
        count_outcomes(rows)
        for grant, values in zip(rows, super().exported_rows(rows), strict=True):
            counts = dict(grant.outcomes)
            yield (*values, *(counts.get(kind, 0) for kind in FencedWrite.Outcome.values))


class TokenGrantAdmin(TokenGrantAdminMixin, BaseAdmin):
    """The same for the plain admin."""
