"""The filters by time and by task: what is looked at by default, and that nothing older is hidden silently."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test.utils import override_settings
from django.utils import timezone

from fencing.celery import fenced_task
from fencing.models import FencedWrite, TokenGrant
from inventory_demo.celery import app
from inventory_demo.tasks import apply_delta
from tests.admin.rows import filters_of, grant, grants, list_url, page_of, write, writes

pytestmark = pytest.mark.django_db(databases=["default", "lite"])

NOW = timezone.now()
AGES = {"new": timedelta(), "today": timedelta(hours=2), "this-week": timedelta(days=2), "old": timedelta(days=30)}


@pytest.fixture
def ages() -> None:
    """A write of each age under grant 7."""
    grant(7)
    for name, age in AGES.items():
        write(7, object_pk=f"pk-{name}-", at=timezone.now() - age)


def shown(client: Any, **query: str) -> set[str]:
    return set(re.findall(r"pk-([\w-]+)-", page_of(client, list_url(FencedWrite, **query))))


@pytest.mark.usefixtures("ages")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, {"new", "today"}),
        ({"window": "hour"}, {"new"}),
        ({"window": "week"}, {"new", "today", "this-week"}),
        ({"window": "any"}, set(AGES)),
        ({"window": "unknown"}, {"new", "today"}),  # writes always have a time
        ({"outcome": "accepted"}, {"new", "today"}),
        ({"q": "stock:1"}, set(AGES)),
        ({"q": "  "}, {"new", "today"}),
        ({"q": "stock:1", "window": "day"}, {"new", "today"}),
        ({"grant_token": "7", "namespace": "default"}, set(AGES)),
    ],
)
def test_the_last_day_unless_something_else_is_asked_for(admin_client: Any, query: Any, expected: set[str]) -> None:
    assert shown(admin_client, **query) == expected


@pytest.mark.usefixtures("ages")
def test_a_search_says_which_times_it_looks_at(admin_client: Any) -> None:
    page = page_of(admin_client, list_url(FencedWrite, q="stock:1"))
    assert "A search looks at any time, not only at the last 24 hours." in page
    html = admin_client.get(list_url(FencedWrite, q="stock:1", window="day")).content.decode()
    assert "Searched only in the last 24 hours." in html
    (link,) = re.findall(r'href="([^"]+)">Search at any time<', html)
    assert (
        re.findall(r"pk-([\w-]+)-", admin_client.get(list_url(FencedWrite) + unescape(link)).content.decode())[-1]
        == "old"
    )


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York"])
@pytest.mark.usefixtures("ages")
def test_from_one_time_to_another_in_the_current_zone(admin_client: Any, settings: Any, zone: str) -> None:
    settings.TIME_ZONE = zone
    since, until = (
        timezone.localtime(NOW - timedelta(days=days)).replace(tzinfo=None).isoformat(timespec="minutes")
        for days in (3, 1)
    )
    assert shown(admin_client, since=since, until=until) == {"this-week"}
    assert shown(admin_client, since=since) == {"new", "today", "this-week"}
    assert shown(admin_client, until=until) == {"this-week", "old"}
    assert shown(admin_client, since=until, until=since) == set()
    html = admin_client.get(list_url(FencedWrite, since=since, outcome="accepted")).content.decode()
    assert f'name="since" value="{since}"' in html
    form = html.split('class="fencing-window')[1].split("</form>")[0]
    assert '<input type="hidden" name="outcome" value="accepted">' in form
    assert f"Time zone: {zone}" in form
    assert "between these times" in html


@pytest.mark.usefixtures("ages")
@pytest.mark.parametrize(
    "bad", ["yesterday", "2026-02-31T00:00", "0001-01-01T00:00", "9999-12-31T23:59", "<b>", "\x00", "1e9", "²"]
)
@pytest.mark.parametrize("name", ["since", "until"])
def test_what_is_no_time_is_named_and_left_out(admin_client: Any, name: str, bad: str) -> None:
    response = admin_client.get(list_url(FencedWrite), {name: bad})
    if bad == "\x00":
        assert response.status_code == 302  # as for any filter
        return
    assert response.status_code == 200
    assert f"“{bad}” is not a time like" in unescape(response.content.decode())
    assert shown(admin_client, **{name: bad}) == {"new", "today"}


@override_settings(USE_TZ=False)
def test_a_project_without_time_zones(admin_client: Any) -> None:
    naive = timezone.now()
    write(7, object_pk="pk-new-", at=naive)
    assert shown(admin_client) == {"new"}
    assert shown(admin_client, since=(naive - timedelta(minutes=5)).isoformat(timespec="minutes")) == {"new"}
    assert shown(admin_client, until="2001-01-01T00:00:00+05:45") == set()


def test_tasks_come_from_celerys_registry_and_from_the_address(admin_client: Any) -> None:
    grant(1, task_name=apply_delta.name)
    grant(2, task_name="shop.elsewhere")
    html = admin_client.get(list_url(TokenGrant)).content.decode()
    filters = filters_of(html)
    assert f"?task={apply_delta.name}" in filters
    assert "celery.chord" not in filters
    assert "shop.elsewhere" not in filters
    for name, holder in ((apply_delta.name, "holder-1"), ("shop.elsewhere", "holder-2"), ("no'such\"<b>", None)):
        html = admin_client.get(list_url(TokenGrant, task=name)).content.decode()
        assert re.findall(r"holder-\d", html) == ([holder] if holder else [])
        assert name in unescape(filters_of(html))
    # The name in the list leads to all grants of the task.
    html = admin_client.get(list_url(TokenGrant)).content.decode()
    assert f'href="{list_url(TokenGrant, task="shop.elsewhere", window="any").replace("&", "&amp;")}"' in html


@pytest.mark.parametrize("name", ["shop.a\ud800b", "shop.a\0b"], ids=["half", "NUL"])
def test_task_whose_name_fits_into_no_address_is_not_in_the_filter(admin_client: Any, name: str) -> None:
    @fenced_task(resource="stock:{sku}", name=name)
    def misnamed(sku: str) -> None:
        """Never runs: the history could not keep its name."""

    try:
        response = admin_client.get(list_url(TokenGrant))
    finally:
        app.tasks.unregister(name)
    assert response.status_code == 200
    assert "shop.a" not in filters_of(response.content.decode())


def test_without_celery_there_is_a_list_all_the_same(admin_client: Any, monkeypatch: Any) -> None:
    monkeypatch.delitem(sys.modules, "fencing.celery")
    grant(1, task_name="shop.apply")
    html = admin_client.get(list_url(TokenGrant)).content.decode()
    assert "shop.apply" in html
    assert "?task=inventory" not in html


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [("refused", {"1", "3"}), ("stale", {"1"}), ("missing", {"3"}), ("duplicate", {"2"}), ("lost", set())],
)
def test_grants_are_found_by_what_became_of_their_writes(admin_client: Any, outcome: str, expected: set[str]) -> None:
    for token, kind in ((1, "stale"), (2, "duplicate"), (3, "missing"), (4, "accepted")):
        grant(token)
        write(token, kind)
        write(token)
    grant(5)
    write(5, "stale", namespace="other")
    html = admin_client.get(list_url(TokenGrant, outcome=outcome)).content.decode()
    assert set(re.findall(r"holder-(\d)", html)) == expected


def test_grants_by_the_outcome_of_a_write_are_not_counted(admin_client: Any) -> None:
    numbers = range(1, 103)
    grants(TokenGrant(namespace="default", token=n, resource="r", granted_at=NOW) for n in numbers)
    writes(numbers, outcome="stale", resource="r")
    page = page_of(admin_client, list_url(TokenGrant, outcome="refused"))
    assert "100+ grants in the last 24 hours" in page
    assert "102 grants in the last 24 hours" in page_of(admin_client, list_url(TokenGrant))


def test_two_filters_at_once_are_not_counted(admin_client: Any) -> None:
    grants(
        TokenGrant(namespace="default", token=n, resource="r", granted_at=NOW, ended="lost", task_name="t")
        for n in range(1, 103)
    )
    for query, count in (({"ended": "lost"}, "102"), ({"task": "t"}, "102"), ({"ended": "lost", "task": "t"}, "100+")):
        assert f"{count} grants in the last 24 hours" in page_of(admin_client, list_url(TokenGrant, **query))


class GrantsElsewhere:
    """Grants are in the backend's database, writes in that of the rows."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "lite" if model is TokenGrant else None

    db_for_write = db_for_read


@override_settings(DATABASE_ROUTERS=[GrantsElsewhere()])
def test_grants_and_writes_in_two_databases(admin_client: Any) -> None:
    shown_grant = grant(7)
    write(7, "stale")
    for query in ({}, {"outcome": "stale"}, {"q": "shop.stock 1"}, {"q": "7"}):
        html = admin_client.get(list_url(TokenGrant, **query)).content.decode()
        assert ("holder-7" in html) is (query != {"q": "shop.stock 1"})
        assert "outcome of a write" not in html
    html = admin_client.get(f"{list_url(TokenGrant)}{shown_grant.pk}/change/").content.decode()
    assert "stale write" in html
