"""The pages of the admin, asked for as a browser does, through Django's test client in this process."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from statistics import median
from typing import Any

# At most so many milliseconds.
GOAL = 150.0
# Characters of a statement.
SHOWN = 1000
OLDER = re.compile(r'<a href="([^"]*)" rel="next"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page took.

    Attributes:
        name: which page.
        ms: the median of its times.
        queries: statements that it sent, those of the session and the user among them.
        database_ms: what they took together, once.
        slowest: the one that took longest, with its seconds.
    """

    name: str
    ms: float
    queries: int
    database_ms: float
    slowest: str

    @property
    def met(self) -> bool:
        """Whether it was as fast as it has to be."""
        return self.ms <= GOAL


def ask_for_all(rows: int, *, times: int) -> Iterator[Page]:
    """Ask for every page as a superuser."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client(headers={"host": "localhost"})
    client.force_login(get_user_model().objects.create_superuser("benchmark"))
    for name, url in addresses(client, rows):
        yield ask(client, name, url, times=times)


def ask(client: Any, name: str, url: str, *, times: int) -> Page:
    """Ask for one page, after a first time that counts its statements."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as sent:
        get(client, name, url)
    statements = list(sent)  # the next request empties the log
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        get(client, name, url)
        taken.append((time.perf_counter() - begun) * 1000)
    slowest = max(statements, key=lambda query: float(query["time"]))
    return Page(
        name=name, ms=median(taken), queries=len(statements),
        database_ms=sum(float(query["time"]) for query in statements) * 1000,
        slowest=f"{slowest['time']} s: {slowest['sql'][:SHOWN]}",
    )  # fmt: skip


def get(client: Any, name: str, url: str) -> str:
    """A page's text.

    Raises:
        RuntimeError: it is no page: an error, or a way to somewhere else.
    """
    answer = client.get(url)
    if answer.status_code != 200:
        raise RuntimeError(f"Page {name} ({url}) answered with status {answer.status_code}, not 200.")
    text: str = answer.content.decode()
    return text


def addresses(client: Any, rows: int) -> Iterator[tuple[str, str]]:
    """Each page's name and address; of the resources one with very many grants, and the hardest of the filters."""
    from django.urls import reverse

    from fencing.admin.links import live_url, timeline_url
    from fencing.models import FencedWrite, TokenGrant

    grants = reverse("admin:fencing_tokengrant_changelist")
    writes = reverse("admin:fencing_fencedwrite_changelist")
    grant = TokenGrant.objects.get(token=max(1, rows // 2))
    write = FencedWrite.objects.filter(outcome="stale").order_by("at", "id")[0]
    yield "list", grants
    yield "list_older", older(client, grants)
    yield "list_any_time", f"{grants}?window=any"
    yield "filter_hour", f"{grants}?window=hour"
    yield "filter_refused", f"{grants}?outcome=refused"
    yield "filter_refused_any_time", f"{grants}?outcome=refused&window=any"
    yield "filter_refused_older", older(client, f"{grants}?outcome=refused&window=any")
    yield "filter_missing_any_time", f"{grants}?outcome=missing&window=any"
    yield "filter_ended", f"{grants}?ended=lost&window=any"
    yield "filter_released", f"{grants}?ended=released&window=any"
    yield "filter_open", f"{grants}?ended=open&window=any"
    yield "filter_task", f"{grants}?task=inventory.tasks.recount&window=any"
    yield "filter_unknown_task", f"{grants}?task=nobody.knows&window=any"
    yield "filter_task_refused", f"{grants}?task=inventory.tasks.recount&outcome=refused&window=any"
    yield "filter_task_lost", f"{grants}?task=inventory.tasks.recount&ended=lost&window=any"
    yield "search_resource", f"{grants}?q=hot:3"
    yield "search_resource_older", older(client, f"{grants}?q=hot:3")
    yield "search_resource_refused", f"{grants}?q=hot:3&outcome=refused"
    yield "search_token", f"{grants}?q={grant.token}"
    yield "search_task", f"{grants}?q={grant.task_id}"
    yield "search_nothing", f"{grants}?q=nobody-has-this"
    yield "detail", reverse("admin:fencing_tokengrant_change", args=[grant.pk])
    yield "timeline", timeline_url("admin", grant.namespace, "hot:3")
    yield "timeline_older", timeline_url("admin", grant.namespace, "hot:3", before=max(2, rows // 2))
    yield "timeline_token", timeline_url("admin", grant.namespace, grant.resource, token=grant.token)
    yield "live", live_url("admin")
    yield "writes_list", writes
    yield "writes_older", older(client, writes)
    yield "writes_any_time", f"{writes}?window=any"
    yield "writes_refused", f"{writes}?outcome=refused&window=any"
    yield "writes_missing", f"{writes}?outcome=missing&window=any"
    yield "writes_unfenced", f"{writes}?outcome=unfenced&window=any"
    yield "writes_search_resource", f"{writes}?q=hot:3"
    yield "writes_search_resource_refused", f"{writes}?q=hot:3&outcome=refused"
    yield "writes_search_token", f"{writes}?q={grant.token}"
    yield "writes_search_nothing", f"{writes}?q=nobody-has-this"
    yield "write_detail", reverse("admin:fencing_fencedwrite_change", args=[write.pk])
    yield "resources", reverse("admin:fencing_fencedresource_changelist")
    yield "resources_search", reverse("admin:fencing_fencedresource_changelist", query={"q": "hot:3"})
    for name in ("operation", "reign", "tokenrange"):
        yield f"{name}s", reverse(f"admin:fencing_{name}_changelist")


def older(client: Any, url: str) -> str:
    """The address behind a list's link to what is older; the list's own where all of it is on one page."""
    found = OLDER.search(get(client, "before the older one", url))
    return url.partition("?")[0] + unescape(found[1]) if found else url
