"""The page of one resource: its grants and writes over time, as a picture and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, router
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from fencing import conf
from fencing.admin import cells, links
from fencing.admin.limits import time_limit, too_slow
from fencing.admin.named import ResourceField
from fencing.admin.newest import UNREACHABLE, collect_newest
from fencing.admin.readonly import MAX_NUMBER
from fencing.admin.rights import may_view, may_view_timelines
from fencing.admin.timeline_picture import drawn
from fencing.admin.timeline_rows import Row, Timeline, Wanted, read
from fencing.admin.timeline_story import beaten_by, held, overtaken
from fencing.admin.writes import written
from fencing.backends import get_backend
from fencing.backends.base import LiveLease
from fencing.databases import is_cancelled
from fencing.models import FencedResource, FencedWrite, HeldLease, TokenGrant
from fencing.reigns import databases_of
from fencing.tokens import place_of


def _number() -> forms.IntegerField:
    return forms.IntegerField(min_value=0, max_value=MAX_NUMBER, required=False, widget=forms.HiddenInput)


class Asked(forms.Form):
    """What an address asks for."""

    resource = ResourceField(required=False)
    namespace = forms.CharField(label=gettext_lazy("Namespace"), max_length=100, strip=False, required=False)
    token = _number()
    before = _number()
    after = _number()


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """What a lease store says of a resource: whether it could be asked, its lease, or what went wrong."""

    alias: str = ""
    asked: bool = False
    live: LiveLease | None = None
    partition: int = 0
    problem: str = ""


def timeline_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """One resource's timeline, for who may see both grants and write attempts."""
    if not may_view_timelines(site, request):
        raise PermissionDenied
    form = Asked(request.GET)
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": _("Timeline"),
        "app_name": HeldLease._meta.app_config.verbose_name,
        "form": form,
    }
    request.current_app = site.name
    if form.is_valid() and form.cleaned_data["resource"]:
        alias, namespace = _backend_of(form.cleaned_data["namespace"])
        store = _ask_store(request, alias, form.cleaned_data["resource"])
        wanted = _wanted(store, namespace, form.cleaned_data)
        try:
            with time_limit(*{wanted.database, *wanted.written}):
                timeline = read(wanted, store.live)
        except DatabaseError as error:
            if is_cancelled(error):
                return too_slow(request, site)
            messages.error(request, _("The history cannot be read: %(error)s") % {"error": error})
        else:
            context |= _shown(site, request, wanted, timeline, store)
    return TemplateResponse(request, "admin/fencing/timeline.html", context)


def _backend_of(namespace: str) -> tuple[str, str]:
    """The lease backend with this namespace, "" where none has it; without a namespace the first backend, with its own."""
    namespaces = {conf.backend_config(alias).namespace: alias for alias in reversed(conf.backend_aliases())}
    namespace = namespace or next(reversed(namespaces), "")
    return namespaces.get(namespace, ""), namespace


def _wanted(store: Store, namespace: str, asked: dict[str, Any]) -> Wanted:
    """What is asked for, in the databases of the lease backend; without one in those of the tables themselves."""
    alias = store.alias
    return Wanted(
        namespace=namespace,
        resource=asked["resource"],
        database=conf.backend_config(alias).database if alias else router.db_for_read(TokenGrant),
        written=tuple(databases_of(alias)) if alias else (router.db_for_read(FencedWrite),),
        partition=store.partition,
        token=asked["token"],
        before=asked["before"],
        after=asked["after"],
    )


def _ask_store(request: HttpRequest, alias: str, resource: str) -> Store:
    """Collect the newest grants, and see who holds the lease now."""
    if not alias:
        return Store()
    collect_newest(request, alias)
    try:
        backend = get_backend(alias)
        place = place_of(backend, resource)
        return Store(alias=alias, asked=True, live=backend.peek(place), partition=place.partition)
    except UNREACHABLE as error:
        return Store(alias=alias, problem=str(error))


def _shown(site: AdminSite, request: HttpRequest, wanted: Wanted, timeline: Timeline, store: Store) -> dict[str, Any]:
    """What the template shows."""
    rows, here = timeline.rows, (site.name, wanted.namespace, wanted.resource)
    older = links.timeline_url(*here, before=rows[-1].token) if rows and timeline.has_older else ""
    newer = links.timeline_url(*here, after=rows[0].token) if rows and timeline.has_newer else ""
    return {
        "title": _("Timeline of %(resource)s") % {"resource": wanted.resource},
        "namespace": wanted.namespace,
        "resource": wanted.resource,
        "store": store,
        "live": store.live and {
            "token": cells.digits(store.live.token),
            "holder": store.live.holder,
            "task": f"{store.live.info.task_name} {store.live.info.task_id}".strip(),
            "left": f"{store.live.remaining:.1f} s",
            "url": links.url_if_there(site.name, links.HELD_LEASES, resource=wanted.resource)
            if may_view(site, request, HeldLease) else "",
        },
        "stored": [_stored(row) for row in timeline.stored],
        "picture": drawn(timeline, asked=store.asked, marked=wanted.token),
        "rows": [_cells_of(site, wanted, timeline, row, store.asked) for row in rows],
        "newer_url": newer,
        "newest_url": "" if wanted.is_newest else links.timeline_url(*here),
        "older_url": older,
    }  # fmt: skip


def _stored(row: FencedResource) -> dict[str, str]:
    return {"database": str(row._state.db), "last_token": cells.digits(row.last_token), "holder": row.holder}


def _cells_of(site: AdminSite, wanted: Wanted, timeline: Timeline, row: Row, asked: bool) -> dict[str, Any]:
    """A row of the table."""
    lease, grant, live = held(row, timeline.now, asked=asked), row.grant, row.live
    info = live.info if live else grant
    return {
        "token": cells.digits(row.token),
        "is_marked": row.token == wanted.token,
        "url": links.url_if_there(site.name, "fencing_tokengrant_change", grant.pk) if grant else "",
        "holder": grant.holder if grant else live.holder if live else "",
        "task": f"{info.task_name} {info.task_id}".strip() if info else "",
        "granted": cells.moment(row.granted_at),
        "ended": cells.moment(lease.end) if lease.kind not in ("open", "unknown") else "",
        "held_for": lease.seconds,
        "word": lease.word,
        "writes": [
            {
                "outcome": cells.outcome(write.outcome),
                "token": cells.digits(write.token),
                "seen": cells.digits(write.seen),
                "by": overtaken(beaten_by(timeline.rows, row, write)),
                "written": written(write),
                "action": write.action,
                "note": write.note,
                "at": cells.moment(write.at),
            }
            for write in row.writes
        ],
        "more_url": links.url_if_there(
            site.name, "fencing_fencedwrite_changelist", namespace=wanted.namespace, grant_token=row.token
        ),
        "has_more": row.has_more,
    }
