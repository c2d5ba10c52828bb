"""The pages of the history on each database."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test.utils import override_settings
from django.urls import reverse

from fencing.models import FencedWrite, TokenGrant
from tests.admin.rows import grant, grants, list_url, write, writes
from tests.admin.test_export import exported
from tests.admin.test_keyset import links_of
from tests.admin.test_plans import PAGES

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)
MARIA = [pytest.mark.mariadb, pytest.mark.django_db(databases=["default", "maria"], transaction=True)]


class ToOneDatabase:
    """Routes this app's tables."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return self.alias if model._meta.app_label == "fencing" else None

    db_for_write = db_for_read


@pytest.fixture(autouse=True, params=["default", "lite", pytest.param("maria", marks=MARIA)])
def alias(request: pytest.FixtureRequest) -> Any:
    """Where the history is."""
    with override_settings(DATABASE_ROUTERS=[ToOneDatabase(request.param)]):
        yield request.param


def test_every_page_answers_with_what_it_should(admin_client: Any, alias: str) -> None:
    for token in range(1, 131):
        grant(token, task_name="shop.apply", ended="lost" if token % 10 == 0 else "released")
    writes(range(1, 131), object_pk="77")
    refused = write(10, "stale", resource="stock:1", seen=11)
    assert TokenGrant.objects.using(alias).count() == 130
    for model, query in PAGES:
        html = admin_client.get(list_url(model, **query)).content.decode()
        assert "fencing-pager" in html, query
        if older := links_of(html).get("Older"):
            assert "Newer" in links_of(admin_client.get(list_url(model) + older).content.decode())
    for query, expected in (
        ({"outcome": "refused"}, ["10"]),
        ({"outcome": "missing"}, []),
        ({"ended": "lost", "task": "shop.apply"}, [str(token) for token in range(130, 0, -10)]),
        ({"q": "10"}, ["10"]),
        ({"q": "shop.stock 1"}, ["10"]),
    ):
        html = admin_client.get(list_url(TokenGrant, **query)).content.decode()
        assert re.findall(r"holder-(\d+)", html) == expected, query
    for row in (TokenGrant.objects.get(token=10), refused):
        html = admin_client.get(reverse(f"admin:fencing_{row._meta.model_name}_change", args=[row.pk])).content.decode()
        assert ">11</a> shop.apply" in html
    assert len(exported(admin_client, TokenGrant)) == 130
    assert len(exported(admin_client, q="shop.stock 77")) == 130


def test_grants_of_unknown_times_come_last_and_are_found(admin_client: Any) -> None:
    grants(TokenGrant(namespace="default", token=n, resource="r", holder=f"holder-{n}") for n in (1, 2))
    grant(3)
    for query, expected in (
        ({}, ["3"]),
        ({"window": "any"}, ["3", "2", "1"]),
        ({"window": "unknown"}, ["2", "1"]),
        ({"q": "2"}, ["2"]),
    ):
        html = admin_client.get(list_url(TokenGrant, **query)).content.decode()
        assert re.findall(r"holder-(\d+)", html) == expected, query


def test_a_page_that_takes_too_long_is_an_ordinary_page(
    admin_client: Any, settings: Any, monkeypatch: Any, alias: str
) -> None:
    endless = {
        "default": "SELECT pg_sleep(60)",
        "lite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
        "maria": "SELECT SUM(a.seq * b.seq %% 7) FROM seq_1_to_1000000 a, seq_1_to_1000000 b",
    }[alias]
    settings.FENCING = {**settings.FENCING, "ADMIN_TIMEOUT": 0.7}
    row = write(7)
    slow = FencedWrite.objects.raw(endless)
    monkeypatch.setattr("fencing.admin.keyset.read_page", lambda *args: list(slow))
    response = admin_client.get(list_url(FencedWrite))
    assert response.status_code == 200
    assert "The database was asked for 0.7 s" in response.content.decode()
    assert 'href="?window=hour"' in response.content.decode()
    page = admin_client.get(reverse("admin:fencing_fencedwrite_change", args=[row.pk]))
    assert "✓" in page.content.decode()
