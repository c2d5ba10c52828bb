"""The admin's lists: exact, read-only, bounded, and there when the lease store is not."""

from __future__ import annotations

import re
from contextvars import Context
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from fencing import StaleWriteError, history, lease
from fencing.admin import ReadOnlyAdmin, ReadOnlyAdminMixin
from fencing.models import FencedResource, FencedWrite, Operation, Reign, TokenGrant, TokenRange
from inventory_demo.models import Stock
from tests.admin.rows import grant, list_url, page_of, write
from tests.concurrency import wait_until, wait_until_expired

pytestmark = pytest.mark.django_db

TABLES = [TokenGrant, FencedWrite, FencedResource, Operation, Reign, TokenRange]
BIG = 2**53 + 1


@pytest.fixture
def one_row_each():
    grant(5)
    write(5)
    FencedResource.objects.create(namespace="default", name="stock:1", last_token=5, holder="h")
    now = timezone.now()
    Operation.objects.create(namespace="default", resource="stock:1", key="k", token=5, result={"a": 1}, applied_at=now)
    Reign.objects.create(namespace="default", partition=0, reign="r", server="s", first_token=1, opened_at=now)


@pytest.mark.parametrize("model", TABLES)
def test_nobody_adds_changes_or_deletes(admin_client, one_row_each, model):
    row = model.objects.first()
    urls = {
        name: reverse(f"admin:fencing_{model._meta.model_name}_{name}", args=[row.pk]) for name in ("change", "delete")
    }
    page = admin_client.get(urls["change"]).content.decode()
    assert "<input" not in page.replace('<input type="hidden"', "").split('id="content-main"')[1]
    assert 'name="_save"' not in page
    assert admin_client.post(urls["change"], {}).status_code == 403
    assert admin_client.post(urls["delete"], {"post": "yes"}).status_code == 403
    assert admin_client.get(reverse(f"admin:fencing_{model._meta.model_name}_add")).status_code == 403
    assert model.objects.filter(pk=row.pk).exists()
    assert 'name="action"' not in admin_client.get(list_url(model)).content.decode()


@pytest.mark.parametrize("model", TABLES)
def test_view_permission_is_enough_and_needed(client, one_row_each, model):
    user = User.objects.create_user("viewer", is_staff=True)
    client.force_login(user)
    assert client.get(list_url(model)).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename=f"view_{model._meta.model_name}"))
    assert client.get(list_url(model)).status_code == 200


@pytest.mark.django_db(transaction=True)  # as in production: a page has a transaction of its own, not a savepoint
@pytest.mark.parametrize("model", TABLES)
@pytest.mark.parametrize("query", [{}, {"q": "stock:1"}, {"q": "7"}], ids=["newest", "text", "number"])
def test_each_list_takes_at_most_8_queries(admin_client, one_row_each, model, query, django_assert_max_num_queries):
    for token in range(6, 120):
        grant(token)
        write(token)
        write(token, "stale")
    admin_client.get(list_url(model, **query))
    with django_assert_max_num_queries(8) as found:
        assert admin_client.get(list_url(model, **query)).status_code == 200
    counts = [query["sql"] for query in found.captured_queries if "COUNT(*)" in query["sql"]]
    assert all("LIMIT" in sql for sql in counts)


def test_grants_tell_who_when_how_and_what_came_of_it(admin_client):
    now = timezone.now()
    grant(
        7,
        task_name="shop.apply",
        task_id="t-1",
        granted_at=now,
        ended_at=now + timedelta(seconds=2.5),
        ended="released",
    )
    grant(8)
    for outcome in ("accepted", "accepted", "stale"):
        write(7, outcome)
    page = page_of(admin_client, list_url(TokenGrant))
    assert re.search(
        r"7 ✓ 2 accepted ✕ 1 stale write stock:1 \d{4}-.* 2\.500 s released shop\.apply t-1 holder-7", page
    )
    assert re.search(r"8 - stock:1 \d{4}-.* - open - holder-8", page)


def test_page_of_a_row_has_a_dash_where_there_is_nothing(admin_client):
    odd, alone = write(7, "unfenced", seen=None, model="", object_pk=""), grant(8)
    page = page_of(admin_client, f"{list_url(FencedWrite)}{odd.pk}/change/")
    assert "Token before: - " in page and "Object: - " in page and "Overtaken by: - " in page
    page = page_of(admin_client, f"{list_url(TokenGrant)}{alone.pk}/change/")
    assert "Task: - " in page and "Held for: - " in page and "Ended: - " in page and "Writes: - " in page


def test_a_search_finds_the_term_in_every_column_and_namespace_that_has_it(admin_client):
    grant(7, "stock:1")
    grant(8, "7")
    grant(9, "stock:2", task_id="7")
    grant(10, "stock:3")
    TokenRange.objects.create(namespace="other", space="y", partitions=1, ceiling=1)
    grant(11, "7", namespace="other")
    for term, expected in (("7", {"7", "8", "9", "11"}), (" stock:3 ", {"10"}), ("stock", set()), ("9" * 30, set())):
        html = admin_client.get(list_url(TokenGrant, q=term)).content.decode()
        assert set(re.findall(r"holder-(\d+)", html)) == expected, term


def test_words_after_counts_of_writes_are_plural_where_they_can_be(admin_client):
    grant(7)
    for outcome in FencedWrite.Outcome.values:
        write(7, outcome)
        write(7, outcome)
    page = page_of(admin_client, list_url(TokenGrant))
    counts = (
        "✓ 2 accepted ✕ 2 stale writes ↺ 2 stale reads ∅ 2 rows missing ⌛ 2 leases lost = 2 duplicates ⚠ 2 unfenced"
    )
    assert counts in page


def test_outcomes_of_another_namespace_are_not_counted(admin_client):
    grant(7)
    grant(7, namespace="other")
    write(7, "stale", namespace="other")
    page = page_of(admin_client, list_url(TokenGrant))
    assert page.count("1 stale write") == 1


def test_writes_show_the_outcome_as_icon_and_word(admin_client):
    write(7, "stale", seen=9, operation="order-1")
    response = admin_client.get(list_url(FencedWrite)).content.decode()
    assert '<span class="fencing-refused"><span aria-hidden="true">✕</span> stale write</span>' in response
    page = page_of(admin_client, list_url(FencedWrite))
    assert re.search(r"✕ stale write 7 9 stock:1 \d{4}-\S+ \S+ shop\.stock 1 update order-1 ", page)


@pytest.mark.parametrize("separator", [True, False])
def test_big_numbers_are_exact_and_distinct(admin_client, settings, separator):
    settings.USE_THOUSAND_SEPARATOR = separator
    first, second = grant(BIG), grant(BIG + 1)
    attempt = write(BIG, seen=BIG + 1)
    FencedResource.objects.create(namespace="default", name="stock:1", last_token=BIG, holder="h")
    pages = {
        list_url(TokenGrant): {BIG, BIG + 1},
        list_url(FencedWrite): {BIG, BIG + 1},
        list_url(FencedResource): {BIG},
        reverse("admin:fencing_tokengrant_change", args=[first.pk]): {BIG, BIG + 1},
        reverse("admin:fencing_tokengrant_change", args=[second.pk]): {BIG, BIG + 1},
        reverse("admin:fencing_fencedwrite_change", args=[attempt.pk]): {BIG, BIG + 1},
    }
    for url, numbers in pages.items():
        shown = set(re.findall(r"90071992547\d+", page_of(admin_client, url)))
        assert shown == {str(number) for number in numbers}


def test_times_are_in_the_current_zone_with_their_offset(admin_client, settings):
    settings.TIME_ZONE = "Asia/Kathmandu"
    write(7)
    assert re.search(r"\d\d:\d\d\.\d{3}\+05:45|\d\d\.\d{3}\+05:45", page_of(admin_client, list_url(FencedWrite)))


def test_a_grant_shows_its_own_writes(admin_client):
    shown = grant(7)
    write(7, "stale", seen=9, object_pk="41")
    write(8, object_pk="42")
    write(7, namespace="other", object_pk="43")
    page = page_of(admin_client, reverse("admin:fencing_tokengrant_change", args=[shown.pk]))
    assert "✕ stale write 7 9 9 - shop.stock 41 update -" in page
    assert "shop.stock 42" not in page
    assert "shop.stock 43" not in page


def test_a_grant_shows_its_50_newest_writes_and_links_to_all(admin_client):
    shown = grant(7)
    for number in range(51):
        write(7, object_pk=f"pk-{number}-")
    write(8, object_pk="foreign")
    response = admin_client.get(reverse("admin:fencing_tokengrant_change", args=[shown.pk])).content.decode()
    assert response.count("pk-") == 50
    assert "pk-0-" not in response
    found = re.search(r'href="([^"]+)">All writes', response)
    assert found
    link = unescape(found[1])
    page = page_of(admin_client, link)
    assert page.count("pk-") == 51
    assert "foreign" not in page


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("stock:1", {7, 9}),
        ("stock", set()),
        ("9", {9}),
        ("task of 7", {7}),
        (str(10**30), set()),
        (" 7 ", {7}),
    ],
)
def test_grants_are_found_by_the_whole_resource_token_or_task(admin_client, term, expected):
    grant(7, task_id="task of 7")
    grant(8, "stock:2")
    grant(9)
    page = page_of(admin_client, list_url(TokenGrant, q=term))
    assert set(map(int, re.findall(r"holder-(\d)", page))) == expected


def test_writes_are_found_by_the_whole_resource_or_the_grants_token(admin_client):
    grant(7)
    write(7, object_pk="pk-a")
    write(8, grant_token=7, object_pk="pk-b")
    write(9, object_pk="pk-c", resource="stock:2")
    assert re.findall("pk-.", page_of(admin_client, list_url(FencedWrite, q="7"))) == ["pk-b", "pk-a"]
    assert re.findall("pk-.", page_of(admin_client, list_url(FencedWrite, q="stock:2"))) == ["pk-c"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"outcome": "refused"}, {"stale"}),
        ({"outcome": "refused", "window": "any"}, {"stale", "missing"}),
        ({"outcome": "stale"}, {"stale"}),
        ({"outcome": "accepted"}, {"accepted"}),
        ({"outcome": "nonsense"}, {"accepted", "stale", "unfenced"}),
        ({"window": "hour"}, {"accepted", "stale", "unfenced"}),
        ({"window": "week"}, {"accepted", "stale", "missing", "unfenced"}),
        ({"window": "any"}, {"accepted", "stale", "missing", "unfenced"}),
        ({"window": "nonsense"}, {"accepted", "stale", "unfenced"}),
    ],
)
def test_writes_are_filtered_by_fixed_choices(admin_client, query, expected):
    write(7, object_pk="pk-accepted-")
    write(7, "stale", object_pk="pk-stale-")
    write(7, "unfenced", object_pk="pk-unfenced-")
    write(7, "missing", object_pk="pk-missing-", at=timezone.now() - timedelta(days=2))
    page = page_of(admin_client, list_url(FencedWrite, **query))
    assert set(re.findall(r"pk-(\w+)-", page)) == expected


@pytest.mark.parametrize(("ended", "expected"), [("open", {7}), ("released", {8}), ("revoked", set())])
def test_grants_are_filtered_by_how_they_ended(admin_client, ended, expected):
    grant(7)
    grant(8, ended="released")
    page = page_of(admin_client, list_url(TokenGrant, ended=ended))
    assert set(map(int, re.findall(r"holder-(\d)", page))) == expected


def test_opening_the_grants_collects_the_newest(admin_client):
    stock = Stock.objects.create(sku="admin-1", quantity=10)
    with lease(stock) as held:
        stock.save()
    page = page_of(admin_client, list_url(TokenGrant))
    assert re.search(rf"{held.token} ✓ 1 accepted stock:admin-1 .* released - {held.holder}", page)


def test_a_sleeper_has_held_until_the_next_grant_and_not_until_it_woke_up(admin_client):
    def overtake() -> None:
        with lease("admin-3"):
            pass

    with lease("admin-3", ttl=0.1, renew=False) as sleeper:
        wait_until_expired("admin-3")
        Context().run(overtake)
        history.collect()
        overtaken = timezone.now()
        wait_until(lambda: timezone.now() > overtaken + timedelta(seconds=0.1), "it wakes up later than that")
    history.collect()
    lost, newer = TokenGrant.objects.filter(resource="admin-3").order_by("token")
    assert (lost.token, lost.ended, newer.ended) == (sleeper.token, "lost", "released")
    assert lost.ended_at == newer.granted_at


@pytest.mark.parametrize("location", ["unix:///nowhere/valkey.sock", "nonsense"])
def test_a_store_that_is_down_costs_a_message_and_not_the_page(admin_client, settings, location):
    grant(7)
    settings.CACHES = {**settings.CACHES, "down": {**settings.CACHES["leases"], "LOCATION": location}}
    settings.FENCING = {
        "BACKENDS": {
            "default": {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "down", "NAMESPACE": "down"}
        }
    }
    page = page_of(admin_client, list_url(TokenGrant))
    assert "The newest grants of the lease backend “default” are missing here" in page
    assert "holder-7" in page


@pytest.mark.django_db(transaction=True)
def test_a_refused_write_is_there_after_the_rollback(admin_client):
    stock = Stock.objects.create(sku="admin-2", quantity=10)
    with lease(stock) as held:
        Stock.objects.filter(pk=stock.pk).update(quantity=9)
        FencedResource.objects.filter(name="stock:admin-2").update(last_token=held.token + 1, holder="somebody")
        with pytest.raises(StaleWriteError):
            Stock.objects.get(pk=stock.pk).save()
    assert "✕ stale write" in page_of(admin_client, list_url(FencedWrite, outcome="refused"))


def test_nothing_is_inline(admin_client, one_row_each):
    rows = (TokenGrant.objects.get(), FencedWrite.objects.get())
    urls = [list_url(model, q="5") for model in TABLES] + [
        reverse(f"admin:fencing_{row._meta.model_name}_change", args=[row.pk]) for row in rows
    ]
    for url in urls:
        page = admin_client.get(url).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)", page)
        assert not re.search(r"<style|\sstyle=|\son\w+=", page)


@pytest.mark.parametrize(
    "query", [{"q": "\x00"}, {"q": "x" * 5000}, {"_popup": "1"}, {"e": "1"}, {"all": "x"}, {"o": "9.-9"}, {"p": "x"}]
)
@pytest.mark.parametrize("model", [TokenGrant, FencedWrite])
def test_odd_addresses_are_answered(admin_client, one_row_each, model, query):
    assert admin_client.get(list_url(model), query).status_code == 200


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("slow", [False, True])
def test_pages_inside_a_transaction_of_the_whole_request(admin_client, one_row_each, settings, monkeypatch, slow):
    def sleep(*args: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")

    if slow:
        settings.FENCING = {**settings.FENCING, "ADMIN_TIMEOUT": 0.2}
        monkeypatch.setattr("fencing.admin.keyset.read_page", sleep)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    response = admin_client.get(list_url(FencedWrite))
    assert response.status_code == 200
    assert ("This takes too long" in response.content.decode()) is slow


def test_the_lists_ask_no_table_for_its_values():
    for model in TABLES:
        options = admin.site._registry[model]
        assert isinstance(options, ReadOnlyAdminMixin)
        assert options.date_hierarchy is None
        assert options.show_full_result_count is False
        assert options.actions is None
        filters: Any = options.list_filter
        assert all(issubclass(each, admin.SimpleListFilter) for each in filters)


def test_read_only_admin_shows_models_of_ones_own(rf, admin_user):
    stock = Stock.objects.create(sku="own", quantity=3)
    request = rf.get("/")
    request.user = admin_user
    response: Any = ReadOnlyAdmin(Stock, admin.site).change_view(request, str(stock.pk))
    response.render()
    assert 'class="readonly">own<' in response.content.decode()
