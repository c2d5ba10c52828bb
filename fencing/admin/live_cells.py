"""Cells of the page of live leases: numbers digit by digit, times with their offset, durations in seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.admin import AdminSite
from django.utils import timezone

from fencing.admin import cells, links
from fencing.admin.drift import Drift
from fencing.admin.live_stores import Counter, Lease, Store
from fencing.backends.base import LiveLease

# Of the log of reigns the newest; the list of reigns has all.
REIGNS = 10


def store_cells(site: AdminSite, store: Store) -> dict[str, Any]:
    """One store as the template shows it."""
    reigns, has_timelines = store.reigns, bool(links.url_if_there(site.name, links.TIMELINE))
    return {
        "alias": store.alias,
        "namespace": store.namespace,
        "leases": [_lease(site, store, lease, has_timelines=has_timelines) for lease in store.leases],
        "count": len(store.leases),
        "is_truncated": store.is_truncated,
        "problems": store.problems,
        "dropped": cells.digits(store.dropped) if store.dropped else "",
        "ceiling": cells.digits(reigns.ceiling) if reigns else "",
        "counters": [_counter(counter) for counter in store.counters],
        "reigns": [
            {
                "partition": cells.digits(one.partition),
                "first": cells.digits(one.first),
                "last": cells.digits(one.last),
                "server": one.server,
                "reign": one.reign,
                "opened": cells.moment(one.opened_at),
            }
            for one in reversed(reigns.log[-REIGNS:] if reigns else ())
        ],
        "reigns_url": links.url_if_there(site.name, "fencing_reign_changelist"),
    }


def _lease(site: AdminSite, store: Store, lease: Lease, *, has_timelines: bool) -> dict[str, Any]:
    live = lease.live
    return {
        **lease_cells(live),
        "waiters": "" if lease.waiters is None else cells.digits(lease.waiters),
        "stored": cells.digits(lease.stored.last_token) if lease.stored else "",
        "drift": _drift(lease.drift),
        "timeline_url": links.timeline_url(site.name, store.namespace, live.resource) if has_timelines else "",
        "revoke_url": links.revoke_url(site.name, store.alias, live.resource),
    }


def lease_cells(live: LiveLease) -> dict[str, str]:
    """A lease in words."""
    # The store's clock and this machine's may differ.
    age = max(timedelta(), timezone.now() - live.granted_at)
    return {
        "resource": live.resource,
        "token": cells.digits(live.token),
        "holder": live.holder,
        "task_name": live.info.task_name,
        "task_id": live.info.task_id,
        "granted": cells.moment(live.granted_at),
        "age": f"{age.total_seconds():.1f} s",
        "left": f"{live.remaining:.1f} s",
    }


def _drift(drift: Drift | None) -> dict[str, Any] | None:
    return (
        None if drift is None else {"icon": drift.icon, "word": drift.word, "meaning": drift.meaning, "bad": drift.bad}
    )


def _counter(counter: Counter) -> dict[str, Any]:
    counting = counter.counting
    return {
        "partition": cells.digits(counter.partition),
        "next": cells.digits(counting.next) if counting else "",
        "ceiling": cells.digits(counting.ceiling) if counting else "",
        "server": counting.server if counting else "",
        "reign": counting.reign if counting else "",
        "dropped": cells.digits(counter.dropped),
        "drift": _drift(counter.drift),
    }
