"""One grant and one write: what it wrote, before and after, what overtook it, and the way to its neighbours."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from fencing.models import FencedWrite, TokenGrant
from tests.admin.rows import grant, list_url, page_of, write, writes
from tests.admin.test_keyset import links_of

pytestmark = pytest.mark.django_db


def url_of(row: TokenGrant | FencedWrite) -> str:
    return reverse(f"admin:fencing_{row._meta.model_name}_change", args=[row.pk])


def test_a_grant_leads_to_the_grants_before_and_after_it_of_its_resource(admin_client: Any) -> None:
    grants = {token: grant(token, resource) for token, resource in ((3, "a"), (4, "b"), (5, "a"), (6, "b"), (9, "a"))}
    grant(7, "a", namespace="other")
    html = admin_client.get(url_of(grants[5])).content.decode()
    neighbours = html.split("fencing-neighbours")[1].split("</ul>")[0]
    assert re.findall(r'href="([^"]+)">(\d+)<', neighbours) == [(url_of(grants[3]), "3"), (url_of(grants[9]), "9")]
    assert "Grant before: 3 holder-3 Grant after: 9 holder-9" in page_of(admin_client, url_of(grants[5]))
    assert "This is the newest grant of the resource." in page_of(admin_client, url_of(grants[9]))
    assert "Grant before" not in page_of(admin_client, url_of(grants[3]))


@pytest.mark.parametrize(
    ("ended", "outcome", "overtaken"),
    [
        ("released", "accepted", False),
        ("released", "stale-read", False),
        ("released", "stale", True),
        ("lost", "accepted", True),
        ("expired", "accepted", True),
        ("revoked", "accepted", True),
        ("", "lost", True),
    ],
)
def test_a_grant_tells_whether_the_next_one_overtook_it(
    admin_client: Any, ended: str, outcome: str, overtaken: bool
) -> None:
    shown = grant(7, ended=ended)
    grant(9, task_name="shop.newer")
    write(7, outcome)
    page = page_of(admin_client, url_of(shown))
    assert ("Overtaken by: 9 shop.newer" in page) is overtaken
    assert ("Grant after: 9 shop.newer" in page) is not overtaken


def test_each_write_tells_the_tokens_before_and_after_and_who_overtook_it(admin_client: Any) -> None:
    shown = grant(7)
    newer = grant(9, task_name="shop.newer")
    grant(12)
    attempts = [
        write(7, seen=3),
        write(7, "stale", seen=11),
        write(7, "stale-read", seen=7),
        write(7, "missing", seen=None),
    ]
    page = page_of(admin_client, url_of(shown))
    assert "✓ accepted 7 3 7 - shop.stock 1" in page
    assert "✕ stale write 7 11 11 9 shop.newer shop.stock 1" in page
    assert "↺ stale read 7 7 7 - shop.stock 1" in page
    assert "∅ row missing 7 - - - shop.stock 1" in page
    html = admin_client.get(url_of(shown)).content.decode()
    assert f'<a href="{url_of(newer)}">9</a> shop.newer' in html
    assert all(f'<a href="{url_of(attempt)}">7</a>' in html for attempt in attempts)


def test_a_write_leads_to_its_grant_and_to_the_one_that_overtook_it(admin_client: Any) -> None:
    own, newer = grant(7), grant(9)
    refused = admin_client.get(url_of(write(7, "stale", seen=11))).content.decode()
    assert f'<a href="{url_of(own)}">7</a>' in refused
    assert f'<a href="{url_of(newer)}">9</a> holder-9' in refused
    accepted = admin_client.get(url_of(write(7))).content.decode()
    assert url_of(newer) not in accepted


def test_a_write_whose_grant_was_not_collected_yet_is_shown_all_the_same(admin_client: Any) -> None:
    assert "✕ stale write" in page_of(admin_client, url_of(write(7, "stale")))


def test_the_writes_of_a_grant_are_paged(admin_client: Any) -> None:
    shown = grant(7)
    writes(range(1001, 1121), grant_token=7)  # all at one time
    writes([2001], grant_token=8)
    found: list[str] = []
    html = admin_client.get(url_of(shown)).content.decode()
    while True:
        found += re.findall(r'class="fencing-number"><a href="[^"]+">(\d+)<', html)
        if "Older" not in links_of(html):
            break
        html = admin_client.get(url_of(shown) + links_of(html)["Older"].split("#")[0]).content.decode()
    assert found == [str(token) for token in range(1120, 1000, -1)]
    html = admin_client.get(url_of(shown) + links_of(html)["Newer"].split("#")[0]).content.decode()
    assert re.findall(r'class="fencing-number"><a href="[^"]+">(\d+)<', html)[0] == "1070"


@pytest.mark.parametrize("cursor", ["nonsense", "\x00", "é"])
def test_a_forged_cursor_shows_the_newest_writes_and_says_so(admin_client: Any, cursor: str) -> None:
    shown = grant(7)
    write(7)
    response = admin_client.get(url_of(shown), {"cursor": cursor})
    assert response.status_code == 200
    assert "That address of a page is not valid (any more)" in response.content.decode()
    assert "✓" in response.content.decode()


def test_a_cursor_of_one_grant_is_none_of_another(admin_client: Any) -> None:
    first, second = grant(7), grant(8)
    writes(range(1001, 1061), grant_token=7)
    older = links_of(admin_client.get(url_of(first)).content.decode())["Older"].split("#")[0]
    assert "is not valid" in admin_client.get(url_of(second) + older).content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_page_of_one_grant_takes_at_most_10_queries(admin_client: Any, django_assert_max_num_queries: Any) -> None:
    shown = grant(7)
    grant(3)
    grant(9)
    writes(range(1001, 1121), grant_token=7)
    admin_client.get(url_of(shown))
    with django_assert_max_num_queries(10):
        admin_client.get(url_of(shown))


def test_names_of_every_kind_are_shown_and_linked(admin_client: Any) -> None:
    odd = 'lager:/{Größe} "4"\'?&#%<b>' + "x" * 150
    shown = grant(7, odd, task_name="<script>alert(1)</script>", holder="a&b")
    for url in (list_url(TokenGrant), url_of(shown)):
        html = admin_client.get(url).content.decode()
        assert "<script>alert" not in html
        assert odd in unescape(html)
        (link,) = set(re.findall(r'href="([^"]*timeline/[^"]+)"', html))
        assert admin_client.get(unescape(link)).status_code == 200


@pytest.mark.parametrize(
    ("rights", "sees_grant", "sees_timeline"),
    [(("view_fencedwrite",), False, False), (("view_fencedwrite", "view_tokengrant"), True, True)],
)
def test_links_lead_only_to_what_one_may_see(client: Any, rights: Any, sees_grant: bool, sees_timeline: bool) -> None:
    user = User.objects.create_user("somebody", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client.force_login(user)
    own = grant(7)
    html = client.get(url_of(write(7, "stale"))).content.decode()
    assert (url_of(own) in html) is sees_grant
    assert ("/timeline/" in html) is sees_timeline


def test_reading_changes_nothing(admin_client: Any) -> None:
    shown, attempt = grant(7), write(7, "stale")
    admin_client.get(list_url(TokenGrant))  # collects what there is
    with CaptureQueriesContext(connection) as found:
        for url in (list_url(TokenGrant), list_url(FencedWrite), url_of(shown), url_of(attempt)):
            assert admin_client.get(url).status_code == 200
    changed = [
        query["sql"] for query in found if re.match("INSERT|UPDATE|DELETE", query["sql"]) and "fencing_" in query["sql"]
    ]
    assert not changed
