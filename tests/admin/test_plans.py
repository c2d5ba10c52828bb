"""No page of the history reads a whole table: every statement of each page is explained at 200 000 rows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from fencing.models import FencedWrite, TokenGrant
from tests.admin.rows import MANY, explained, list_url
from tests.admin.rows import many_rows as many_rows
from tests.admin.test_keyset import links_of

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

GRANTS: list[dict[str, str]] = [
    {},
    {"window": "hour"},
    {"window": "week"},
    {"window": "any"},
    {"window": "unknown"},
    {"since": "2001-01-01T00:00", "until": "2001-01-02T00:00"},
    {"outcome": "refused"},
    {"outcome": "refused", "window": "any"},
    {"outcome": "missing", "window": "any"},
    {"outcome": "duplicate", "window": "any"},
    {"ended": "lost"},
    {"ended": "lost", "window": "any"},
    {"ended": "revoked", "window": "any"},
    {"ended": "open", "window": "any"},
    {"ended": "released", "window": "any"},
    {"task": "shop.task_7"},
    {"task": "shop.task_7", "window": "any"},
    {"task": "shop.nobody", "window": "any"},
    {"task": "shop.task_7", "outcome": "refused", "ended": "lost"},
    {"q": "stock:77"},
    {"q": "stock:77", "outcome": "refused"},
    {"q": "777"},
    {"q": "777", "outcome": "refused", "ended": "lost"},
    {"q": "task-77"},
    {"q": "shop.stock 77"},
    {"q": "nothing"},
    {"namespace": "default", "token": "777"},
]
WRITES: list[dict[str, str]] = [
    {},
    {"window": "week"},
    {"window": "any"},
    {"outcome": "refused"},
    {"outcome": "stale", "window": "any"},
    {"outcome": "missing", "window": "any"},
    {"outcome": "lost", "window": "any"},
    {"outcome": "unfenced", "window": "any"},
    {"outcome": "accepted", "window": "any"},
    {"q": "stock:77"},
    {"q": "777"},
    {"q": str(1_000_100)},
    {"q": "shop.stock 77"},
    {"q": "nothing"},
    {"namespace": "default", "grant_token": "777"},
]
PAGES: list[tuple[Any, dict[str, str]]] = [
    *((TokenGrant, query) for query in GRANTS),
    *((FencedWrite, query) for query in WRITES),
]


def bad_plans(client: Any, url: str) -> tuple[list[str], str]:
    """The plans with which ``url`` would read one of the big tables from its beginning to its end, and the page."""
    with CaptureQueriesContext(connection) as found:
        response = client.get(url)
    assert response.status_code == 200
    asked = [query["sql"] for query in found if re.search('FROM "fencing_(tokengrant|fencedwrite)', query["sql"])]
    assert asked
    assert not any("COUNT(" in sql and "LIMIT" not in sql and "GROUP BY" not in sql for sql in asked)
    assert not any("OFFSET" in sql or "DISTINCT" in sql for sql in asked)
    plans = [f"{sql}\n{explained(sql)}" for sql in asked]
    return [
        plan for plan in plans if re.search("Seq Scan on fencing_(tokengrant|fencedwrite)", plan)
    ], response.content.decode()


def test_no_list_reads_a_whole_table(admin_client: Any, many_rows: None) -> None:
    for model, query in PAGES:
        bad, html = bad_plans(admin_client, list_url(model, **query))
        assert not bad, f"{query}: {bad[0]}"
        if older := links_of(html).get("Older"):
            bad, html = bad_plans(admin_client, list_url(model) + older)
            assert not bad, f"older of {query}: {bad[0]}"
            bad, html = bad_plans(admin_client, list_url(model) + links_of(html)["Newer"])
            assert not bad, f"newer of {query}: {bad[0]}"


def test_refusals_of_one_resource_are_found_first(admin_client: Any, many_rows: None) -> None:
    """Else its list is walked by time, until a page of refusals is full."""
    with CaptureQueriesContext(connection) as found:
        admin_client.get(list_url(TokenGrant, q="stock:500", outcome="refused"))
    (page,) = (query["sql"] for query in found if 'FROM "fencing_tokengrant" WHERE' in query["sql"])
    assert "fencing_write_refusals_of" in explained(page), explained(page)


def test_no_page_of_a_row_reads_a_whole_table(admin_client: Any, many_rows: None) -> None:
    for token in (1, 500, MANY):
        grant, write = TokenGrant.objects.get(token=token), FencedWrite.objects.get(grant_token=token)
        for name, row in (("tokengrant", grant), ("fencedwrite", write)):
            bad, _html = bad_plans(admin_client, reverse(f"admin:fencing_{name}_change", args=[row.pk]))
            assert not bad, bad[0]
