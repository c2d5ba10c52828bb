"""Live leases: what the stores have now, what the databases say of it, and an answer when a store is down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from html import unescape
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse

from fencing import conf, lease
from fencing.admin import links, live_stores
from fencing.admin.drift import AHEAD, COUNTS, EMPTY, NO_RANGE, of_counter
from fencing.admin.live import HeldLeaseAdmin
from fencing.backends import get_backend
from fencing.backends.base import Counting, Held, HolderInfo
from fencing.models import FencedResource, HeldLease, TokenRange
from fencing.tokens import place_of
from inventory_demo.models import Stock
from tests.admin.test_timeline import queries

pytestmark = pytest.mark.django_db

ODD = 'lager:/{Größe} "4"\'?&#%<b>'
MEMORY = {"BACKEND": "fencing.backends.memory.MemoryBackend", "NAMESPACE": "live-memory"}
DATABASE = {"BACKEND": "fencing.backends.database.DatabaseBackend", "NAMESPACE": "live-database"}


@pytest.fixture(autouse=True)
def own_stores(settings: Any) -> None:
    """A store in memory for each test, so that it sees its own leases only, and one that keeps no queue."""
    settings.FENCING = {"BACKENDS": {"default": MEMORY, "second": DATABASE}}


@pytest.fixture
def held() -> Iterator[Any]:
    """A function that takes a lease until the end of the test."""
    with ExitStack() as stack:
        yield lambda resource, **options: stack.enter_context(lease(resource, **options))


def shown(client: Client, resource: str = "") -> str:
    response = client.get(links.live_url("admin", resource))
    assert response.status_code == 200
    return response.content.decode()


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))


def row_of(page: str, resource: str) -> str:
    """The text of a lease's row."""
    rows = [text_of(one) for one in re.findall(r'<tr role="row">.*?</tr>', page, re.S)]
    [found] = [one for one in rows if f" {resource} " in one]
    return found


def test_each_lease_tells_who_for_how_long_and_what_the_database_says(admin_client, held):
    stock = Stock.objects.create(sku="live", quantity=1)
    mine = held("stock:live")
    stock.save()
    page = shown(admin_client)
    assert re.search(
        rf"stock:live {mine.token} {mine.holder} \d+\.\d s \d+\.\d s 0 {mine.token} = in step",
        row_of(page, "stock:live"),
    )
    assert "namespace live-memory" in page and "namespace live-database" in page


def test_a_holder_that_drew_further_numbers_is_in_step(admin_client, held):
    stock = Stock.objects.create(sku="live", quantity=1)
    mine = held("stock:live")
    for _ in range(3):
        stock.save()
    assert mine.newest_token > mine.token
    assert "= in step" in row_of(shown(admin_client), "stock:live")


def test_a_superseded_holder_that_still_holds_stands_out(admin_client, held):
    mine = held("stock:live")
    FencedResource.objects.create(namespace="live-memory", name="stock:live", last_token=mine.token + 1, holder="newer")
    found = row_of(shown(admin_client), "stock:live")
    assert f"{mine.token + 1} ✕ superseded" in found
    assert "its next write is refused" in found


def test_a_holder_that_has_not_written_yet_is_no_alarm(admin_client, held):
    mine = held("stock:live")
    assert "- … has not written yet" in row_of(shown(admin_client), "stock:live")
    FencedResource.objects.create(namespace="live-memory", name="stock:live", last_token=mine.token - 1, holder="older")
    FencedResource.objects.create(namespace="other", name="stock:live", last_token=mine.token + 9, holder="foreign")
    assert f"{mine.token - 1} … has not written yet" in row_of(shown(admin_client), "stock:live")


def test_tasks_and_those_who_wait_are_told(admin_client):
    backend = get_backend()
    place = place_of(backend, "stock:live")
    with lease("warm-up"):
        pass
    backend.acquire(place, "holder-1", 30.0, HolderInfo(task_id="7a1c", task_name="shop.apply"))
    for holder in ("waits-1", "waits-2"):
        assert isinstance(backend.waiter(holder, 30.0, HolderInfo()).ask(place), Held)
    assert re.search(r"holder-1 shop\.apply 7a1c .* s 2 - ", row_of(shown(admin_client), "stock:live"))


def test_a_store_without_a_queue_says_that_it_cannot_tell(admin_client, held):
    held("stock:second", using="second")
    page = shown(admin_client)
    assert " ? " in row_of(page, "stock:second")
    assert "This store keeps no queue" in page


@pytest.mark.parametrize("name", [ODD, "ö" * 200, " x "])
def test_odd_names_link_to_their_timeline_and_are_found(admin_client, held, name):
    mine = held(name)
    held("another")
    page = shown(admin_client, name)
    assert "<b>" not in page
    assert "another" not in page
    [url] = re.findall(r'href="([^"]+timeline[^"]+)"', page)
    timeline = admin_client.get(unescape(url))
    assert timeline.context["resource"] == name
    assert timeline.context["live"]["token"] == str(mine.token)


def test_a_resource_that_nobody_holds_is_told(admin_client):
    assert "Nobody holds the lease of stock:nobody." in shown(admin_client, "stock:nobody")
    assert "Nobody holds a lease." in shown(admin_client)


def test_a_name_that_is_none_is_told(admin_client):
    page = shown(admin_client, "x" * 201)
    assert "errorlist" in page and "Nobody holds" not in page
    assert "printable characters only" in text_of(shown(admin_client, "a\nb"))


def test_no_more_than_its_cap_and_it_says_so(admin_client, held, monkeypatch):
    monkeypatch.setattr(live_stores, "MOST", 3)
    for number in range(3):
        held(f"stock:{number}")
    assert "Truncated" not in shown(admin_client)
    held("stock:3")
    page = shown(admin_client)
    assert page.count('<th scope="row" role="rowheader"') == 3
    assert "Truncated: there are more than these 3." in page
    assert "stock:3" in shown(admin_client, "stock:3")


def test_reigns_ranges_and_what_was_dropped(admin_client, held, monkeypatch):
    monkeypatch.setattr("fencing.backends.memory.MemoryBackend.events_cap", 2)
    for _ in range(3):
        with lease("stock:live"):
            pass
    mine = held("stock:other")
    backend = get_backend()
    found = backend.counting(place_of(backend, "x").space, 0)
    assert found is not None
    page = text_of(shown(admin_client))
    ceiling = TokenRange.objects.get(namespace="live-memory").ceiling
    assert f"The database has reserved tokens up to {ceiling}." in page
    assert f"0 {mine.token + 1} {found.ceiling} = in step" in page
    assert found.reign in page and found.server in page
    assert "grant events were dropped" in page


@pytest.mark.parametrize(
    ("counting", "expected"),
    [
        (None, EMPTY),
        (Counting(reign="r", server="s", next=7, ceiling=10), COUNTS),
        (Counting(reign="r", server="s", next=11, ceiling=10), NO_RANGE),
        (Counting(reign="r", server="s", next=11, ceiling=0), NO_RANGE),
        (Counting(reign="r", server="s", next=12, ceiling=20), AHEAD),
        (Counting(reign="r", server="s", next=12, ceiling=0), AHEAD),
    ],
)
def test_a_counter_is_compared_with_what_the_database_reserved(counting, expected):
    assert of_counter(counting, 10) is expected


def test_a_database_that_was_set_back_is_an_alarm(admin_client, held):
    held("stock:live")
    TokenRange.objects.filter(namespace="live-memory").update(ceiling=0)
    page = text_of(shown(admin_client))
    assert "ahead of the database" in page and "fencing reigns --open" in page


@pytest.mark.parametrize("location", ["unix:///nowhere/valkey.sock", "nonsense"])
def test_a_store_that_is_down_costs_its_own_part_only(admin_client, settings, location):
    settings.CACHES = {**settings.CACHES, "down": {**settings.CACHES["leases"], "LOCATION": location}}
    down = {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "down", "NAMESPACE": "live-down"}
    nowhere = {"BACKEND": "nowhere.at.all", "NAMESPACE": "live-nowhere"}
    settings.FENCING = {"BACKENDS": {"down": down, "nowhere": nowhere, "default": MEMORY}}
    with lease("stock:live"):
        page = shown(admin_client)
    assert page.count("errornote") == 2
    assert "Nobody holds" not in page, "nobody knows"
    assert "stock:live" in page
    assert "cannot be imported" in text_of(page)
    assert "stock:live" in text_of(shown(admin_client, "stock:live"))


def test_a_database_that_is_slow_costs_its_own_part_only(admin_client, held, monkeypatch):
    def slow(*_args: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")

    held("stock:live")
    monkeypatch.setattr(conf, "admin_timeout", lambda: 0.5)
    monkeypatch.setattr(live_stores, "logged_reigns", slow)
    page = shown(admin_client)
    assert "The database took too long to answer." in page
    assert "stock:live" in page and "in step" not in page


def test_leases_of_a_redis_with_its_queue(admin_client, settings):
    redis = {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "leases", "NAMESPACE": "live-redis"}
    settings.FENCING = {"BACKENDS": {"default": redis}}
    backend = get_backend()
    backend.forget(place_of(backend, "x").space)
    with lease(ODD) as mine:
        place = place_of(backend, ODD)
        with backend.waiter("waits", 30.0, HolderInfo()) as waiter:
            assert isinstance(waiter.ask(place), Held)
            page = shown(admin_client)
            backend.give_up(place, "waits")
    assert re.search(rf" {mine.token} {mine.holder} \S+ s \S+ s 1 - ", text_of(page))


@pytest.mark.parametrize(
    ("rights", "status", "revoke"),
    [
        ([], 403, False),
        (["view_tokengrant"], 403, False),
        (["revoke_heldlease"], 403, False),
        (["view_heldlease"], 200, False),
        (["view_heldlease", "revoke_heldlease"], 200, True),
    ],
)
def test_it_needs_its_own_right_and_revoking_another(client, held, rights, status, revoke):
    held("stock:live")
    url = links.live_url("admin")
    assert "/login/" in client.get(url).headers["Location"]
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client.force_login(user)
    response = client.get(url)
    assert response.status_code == status
    assert (b"revoke/?" in response.content) is revoke


def test_it_stands_in_the_index_and_changes_nothing(admin_client, held):
    held("stock:live")
    assert links.live_url("admin") in admin_client.get(reverse("admin:index")).content.decode()
    page = shown(admin_client)
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    assert 'method="post"' not in page.split('id="content-main"')[1]
    with CaptureQueriesContext(connection) as found:
        shown(admin_client)
    assert not [one["sql"] for one in found if re.match("INSERT|UPDATE|DELETE", one["sql"])]


def test_nobody_adds_changes_or_deletes(admin_client):
    for name, args in (("add", []), ("delete", [1])):
        assert admin_client.get(reverse(f"admin:fencing_heldlease_{name}", args=args)).status_code == 403
    response = admin_client.get(reverse("admin:fencing_heldlease_change", args=[7]))
    assert response.headers["Location"] == reverse("admin:fencing_tokengrant_change", args=[7])


def test_many_leases_take_no_more_queries(admin_client, held):
    held("stock:one")
    shown(admin_client)
    with CaptureQueriesContext(connection) as few:
        shown(admin_client)
    for number in range(20):
        held(f"stock:{number}")
    with CaptureQueriesContext(connection) as found:
        shown(admin_client)
    # The second store is kept in this database: its own four statements are no more for more leases.
    assert len(queries(found)) == len(queries(few)) <= 2 + 3 + 3 + 4


other = AdminSite("other")
other.register(HeldLease, HeldLeaseAdmin)
urlpatterns = [path("other/", other.urls)]


@pytest.mark.urls("tests.admin.test_live")
def test_another_site_works_with_links_to_what_it_has(admin_client, held):
    held("stock:live")
    page = admin_client.get(links.live_url("other")).content.decode()
    assert "stock:live" in page
    assert "timeline/?" not in page
    assert not re.findall(r'(?:href|action)="/admin/', page)
    [url] = re.findall(r'href="([^"]+/revoke/[^"]+)"', page)
    asked = admin_client.get(unescape(url))
    assert asked.status_code == 200
    assert not re.findall(r'(?:href|action)="/admin/', asked.content.decode())
