"""The list of grants with what was written under each, and one grant with its writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.translation import gettext_lazy as _

from fencing import conf
from fencing.admin import cells
from fencing.admin.filters import EndedFilter, GrantWindowFilter
from fencing.admin.newest import collect_newest
from fencing.admin.readonly import HistoryAdmin
from fencing.admin.writes import written
from fencing.models import FencedWrite

MAX_WRITES = 50

GRANTED = cells.column("granted_at", _("granted"), cells.moment)
ENDED_AT = cells.column("ended_at", _("ended"), cells.moment)


@admin.display(description=_("task"), empty_value="-")
def task(grant: Any) -> str:
    """The Celery task that held the lease."""
    return f"{grant.task_name} {grant.task_id}".strip()


@admin.display(description=_("held for"), empty_value="-")
def held_for(grant: Any) -> str:
    """Seconds from the grant to its end; nothing while the end, or the grant, has not been told."""
    if grant.granted_at is None or grant.ended_at is None:
        return ""
    return f"{(grant.ended_at - grant.granted_at).total_seconds():.3f} s"


@admin.display(description=_("writes"), empty_value="-")
def writes(grant: Any) -> str:
    """How many writes of the grant had each outcome, as its page counted them."""
    return format_html_join(", ", "{}", ((cells.outcome(kind, count),) for kind, count in grant.outcomes))


def count_outcomes(grants: Iterable[Any]) -> None:
    """Give each grant its ``outcomes``, a list of (outcome, count), by one query for all of them."""
    found: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    grants = list(grants)
    rows = FencedWrite.objects.order_by().filter(
        namespace__in={grant.namespace for grant in grants}, grant_token__in={grant.token for grant in grants}
    )
    for namespace, token, kind, count in rows.values_list("namespace", "grant_token", "outcome").annotate(Count("pk")):
        found[namespace, token][kind] = count
    for grant in grants:
        counts = found[grant.namespace, grant.token]
        grant.outcomes = [(kind, counts[kind]) for kind in FencedWrite.Outcome.values if kind in counts]


class GrantChangeList(ChangeList):
    """Django's, with the outcomes of the page's grants."""

    def get_results(self, request: HttpRequest) -> None:
        """Count for the grants of the page only."""
        super().get_results(request)
        self.result_list = list(self.result_list)
        count_outcomes(self.result_list)


class TokenGrantAdmin(HistoryAdmin):
    """Every lease that was granted: to whom, for how long, how it ended, and what was written under it."""

    list_display = (
        cells.TOKEN, "resource", "holder", task, GRANTED, held_for, "ended", writes,
    )  # fmt: skip
    list_filter = (EndedFilter, GrantWindowFilter)
    ordering = ("-granted_at", "-id")
    exact_texts = ("resource", "task_id")
    exact_numbers = ("token",)
    search_help_text = _("The whole name of a resource, a token, or the whole id of a task.")
    detail = (
        cells.TOKEN, "namespace", "resource", "holder", task, "ttl", GRANTED, ENDED_AT, held_for, "ended",
    )  # fmt: skip

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """The list that counts outcomes."""
        return GrantChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Collect the newest grants from the stores, then list."""
        collect_newest(request, *conf.backend_aliases())
        return super().changelist_view(request, extra_context)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """One grant with its newest writes."""
        grant: Any = kwargs["obj"]
        of_grant = {"namespace": grant.namespace, "grant_token": grant.token}
        newest = list(FencedWrite.objects.filter(**of_grant).order_by("-id")[: MAX_WRITES + 1])
        context["writes"] = [_cells_of(write) for write in newest[:MAX_WRITES]]
        context["has_more_writes"] = len(newest) > MAX_WRITES
        all_writes = reverse(f"{self.admin_site.name}:fencing_fencedwrite_changelist")
        context["writes_url"] = f"{all_writes}?{urlencode(of_grant)}"
        return super().render_change_form(request, context, *args, **kwargs)


def _cells_of(write: FencedWrite) -> dict[str, str]:
    """A row of the table below a grant; a template would group the digits of a number."""
    return {
        "outcome": cells.outcome(write.outcome),
        "token": cells.digits(write.token),
        "seen": cells.digits(write.seen) or "-",
        "written": written(write) or "-",
        "action": write.action,
        "operation": write.operation or "-",
        "at": cells.moment(write.at),
    }
