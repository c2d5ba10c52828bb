"""The pager: every row once, also with equal and unknown times, by addresses that cannot be forged."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.core.signing import Signer
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fencing.admin.keyset import Cursor, read_page
from fencing.models import FencedWrite, TokenGrant, TokenRange
from tests.admin.rows import filters_of, grants, list_url, page_of, write, writes

pytestmark = pytest.mark.django_db(databases=["default", "lite"])

NOW = timezone.now().replace(microsecond=0)


def links_of(html: str) -> dict[str, str]:
    """The links of the pager, by the word in them."""
    pager = html.split("fencing-pager")[1].split("</nav>")[0]
    return {
        re.sub(r"\W", "", text): unescape(url) for url, text in re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)<', pager)
    }


def walk(client: Any, model: Any, word: str, url: str, pattern: str) -> list[list[str]]:
    """What the pages show from ``url`` on, as long as there is a link with this word."""
    pages = []
    while True:
        html = client.get(url).content.decode()
        pages.append(re.findall(pattern, html))
        if word not in links_of(html):
            return pages
        url = list_url(model) + links_of(html)[word]


@pytest.fixture
def hostile_times() -> None:
    """250 grants: many at one moment, some at unknown times, in an order of their own."""
    grants(
        TokenGrant(
            namespace="default", token=n, resource="stock:1", holder=f"holder-{n}-",
            granted_at=None if n % 10 == 0 else NOW - timedelta(seconds=n % 3),
        )
        for n in range(1, 251)
    )  # fmt: skip


@pytest.mark.parametrize("query", [{"window": "any"}, {"q": "stock:1"}], ids=["filtered", "searched"])
def test_every_grant_is_shown_once_in_both_directions(admin_client: Any, hostile_times: None, query: Any) -> None:
    older = walk(admin_client, TokenGrant, "Older", list_url(TokenGrant, **query), r"holder-(\d+)-")
    shown = [int(number) for page in older for number in page]
    known = sorted(
        (row for row in TokenGrant.objects.all() if row.granted_at),
        key=lambda row: (row.granted_at, row.pk),
        reverse=True,
    )
    unknown = TokenGrant.objects.filter(granted_at=None).order_by("-pk")
    assert shown == [row.token for row in (*known, *unknown)]
    assert [len(page) for page in older] == [100, 100, 50]

    last = admin_client.get(list_url(TokenGrant, **query)).content.decode()
    while "Older" in links_of(last):
        last = admin_client.get(list_url(TokenGrant) + links_of(last)["Older"]).content.decode()
    newer = walk(admin_client, TokenGrant, "Newer", list_url(TokenGrant) + links_of(last)["Newer"], r"holder-(\d+)-")
    assert [int(number) for page in reversed(newer) for number in page] == shown[:200]


MARIA = [pytest.mark.mariadb, pytest.mark.django_db(databases=["default", "maria"])]


@pytest.fixture(params=["default", "lite", pytest.param("maria", marks=MARIA)])
def using(request: pytest.FixtureRequest) -> str:
    """Each database."""
    return str(request.param)


def test_pages_of_every_size_on_every_database(using: str) -> None:
    rows = TokenGrant.objects.using(using)
    rows.bulk_create(
        TokenGrant(namespace="n", token=n, resource="r", granted_at=None if n % 4 == 0 else NOW - timedelta(seconds=n % 3))
        for n in range(1, 24)
    )  # fmt: skip
    timed = sorted(
        (row for row in rows.all() if row.granted_at), key=lambda row: (row.granted_at, row.pk), reverse=True
    )
    expected = [row.pk for row in (*timed, *rows.filter(granted_at=None).order_by("-pk"))]
    for size in (1, 2, 3, 7, 23, 24):
        cursor, found = None, []
        while True:
            page = read_page(rows.all(), "granted_at", cursor, size)
            found += [row.pk for row in page.rows]
            assert page.has_newer is (cursor is not None)
            last = page.rows[-1]
            cursor = Cursor(False, last.granted_at, last.pk)
            if not page.has_older:
                break
        assert found == expected
        cursor, found = Cursor(True, last.granted_at, last.pk), [last.pk]
        while True:
            page = read_page(rows.all(), "granted_at", cursor, size)
            found[:0] = [row.pk for row in page.rows]
            if not page.has_newer:
                break
            cursor = Cursor(True, page.rows[0].granted_at, page.rows[0].pk)
        assert found == expected


def test_a_row_that_was_pruned_still_marks_its_place(admin_client: Any) -> None:
    writes(range(1, 202))
    first = admin_client.get(list_url(FencedWrite)).content.decode()
    FencedWrite.objects.filter(token=102).delete()  # the last one of that page
    second = admin_client.get(list_url(FencedWrite) + links_of(first)["Older"]).content.decode()
    assert re.findall(r"field-token[^>]*>(?:<a[^>]*>)?(\d+)", second)[0] == "101"


def test_rows_that_come_meanwhile_move_no_page(admin_client: Any) -> None:
    writes(range(1, 202))
    first = admin_client.get(list_url(FencedWrite)).content.decode()
    writes(range(300, 320), at=timezone.now() + timedelta(seconds=1))
    second = admin_client.get(list_url(FencedWrite) + links_of(first)["Older"]).content.decode()
    assert re.findall(r"field-token[^>]*>(?:<a[^>]*>)?(\d+)", second)[0] == "101"


FORGED = [
    "nonsense",
    "WzEsbnVsbCwxLDBd:forged",
    "\x00",
    "é" * 500,
    Cursor(False, None, 1).signed("fencing.admin.keyset:fencing.FencedWrite")[:-1],
    Cursor(False, None, 1).signed("fencing.admin.keyset:fencing.TokenGrant"),
    Signer(salt="elsewhere").sign_object([0, None, 1, 0]),
]


@pytest.mark.parametrize("cursor", FORGED)
def test_a_forged_cursor_shows_the_newest_and_says_so(admin_client: Any, cursor: str) -> None:
    write(7)
    response = admin_client.get(list_url(FencedWrite), {"cursor": cursor})
    assert response.status_code == 200
    assert "That address of a page is not valid (any more)" in response.content.decode()
    assert ">7<" in response.content.decode()


def test_no_filter_is_a_cursor_and_no_cursor_a_filter(admin_client: Any) -> None:
    writes(range(1, 202))
    html = admin_client.get(list_url(FencedWrite, outcome="accepted", window="any")).content.decode()
    older = links_of(html)["Older"]
    response = admin_client.get(list_url(FencedWrite) + older)
    assert response.status_code == 200  # not a redirect to ?e=1
    html = response.content.decode()
    filters = filters_of(html)
    assert "cursor=" not in filters
    assert 'name="cursor"' not in html
    assert "outcome=accepted" in older and "window=any" in older


def test_one_page_has_no_links(admin_client: Any) -> None:
    write(7)
    html = admin_client.get(list_url(FencedWrite)).content.decode()
    assert links_of(html) == {}
    assert "1 write attempt in the last 24 hours" in page_of(admin_client, list_url(FencedWrite))


@pytest.mark.parametrize(
    ("query", "label"),
    [
        ({}, "150+ write attempts in the last 24 hours"),
        ({"window": "any"}, "150+ write attempts "),
        ({"q": "stock:1"}, "100+ write attempts "),
        ({"outcome": "stale"}, "Nothing found. Look at any time 0 write attempts in the last 24 hours"),
    ],
)
def test_the_count_stops_at_its_cap(admin_client: Any, monkeypatch: Any, query: Any, label: str) -> None:
    monkeypatch.setattr("fencing.admin.keyset.MAX_COUNTED", 150)
    TokenRange.objects.get_or_create(namespace="default", defaults={"space": "x", "partitions": 1, "ceiling": 1})
    writes(range(1, 203))
    assert label in page_of(admin_client, list_url(FencedWrite, **query))
    html = admin_client.get(list_url(FencedWrite, **query)).content.decode()
    if "Older" in links_of(html):
        assert label in page_of(admin_client, list_url(FencedWrite) + links_of(html)["Older"])


def test_ten_thousand_is_told_as_people_write_it(admin_client: Any) -> None:
    writes(range(1, 10_002))
    with CaptureQueriesContext(connection) as found:
        assert "10,000+ write attempts in the last 24 hours" in page_of(admin_client, list_url(FencedWrite))
    (counting,) = (query["sql"] for query in found if "COUNT(" in query["sql"])
    assert "LIMIT 10001" in counting
    assert not any("OFFSET" in query["sql"] for query in found)


def test_there_is_nothing_to_select_and_no_page_of_everything(admin_client: Any) -> None:
    writes(range(1, 150))
    for query in ({}, {"all": ""}, {"p": "2"}, {"o": "1"}):
        html = admin_client.get(list_url(FencedWrite, **query)).content.decode()
        assert html.count('class="field-token') + html.count('class="field-token ') >= 100
        assert html.count('<tr class="row') + html.count("<tr><") == 100 or html.count("field-action") == 100
        assert "action-checkbox" not in html
        assert "showall" not in html


def test_texts_with_nul_and_lookups_without_an_index_are_no_error_of_the_server(admin_client: Any) -> None:
    assert admin_client.get(list_url(FencedWrite), {"namespace": "\0"}).status_code == 302
    assert admin_client.get(list_url(FencedWrite), {"grant_token": "x"}).status_code == 302
    assert admin_client.get(list_url(FencedWrite), {"note__icontains": "x"}).status_code == 400
    assert admin_client.get(list_url(TokenGrant), {"holder__regex": "x"}).status_code == 400
    assert admin_client.get(list_url(FencedWrite), {"grant_token": str(10**30)}).status_code == 200
