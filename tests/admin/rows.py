"""Rows of the history, and pages of the admin as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from fencing.models import FencedWrite, TokenGrant, TokenRange


def list_url(model: Any, **query: Any) -> str:
    return reverse(f"admin:fencing_{model._meta.model_name}_changelist", query=query or None)


def page_of(client: Client, url: str) -> str:
    """The page's text without tags, with every run of white space as one space."""
    response = client.get(url)
    assert response.status_code == 200
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", response.content.decode())))


def grant(token: int, resource: str = "stock:1", **values: Any) -> TokenGrant:
    TokenRange.objects.get_or_create(namespace="default", defaults={"space": "x", "partitions": 1, "ceiling": 1})
    now = timezone.now()
    return TokenGrant.objects.create(
        **{"namespace": "default", "token": token, "resource": resource, "holder": f"holder-{token}", "ttl": 30}
        | {"granted_at": now} | values
    )  # fmt: skip


def write(token: int, outcome: str = "accepted", **values: Any) -> FencedWrite:
    return FencedWrite.objects.create(
        **{"namespace": "default", "token": token, "grant_token": token, "resource": "stock:1", "outcome": outcome}
        | {"model": "shop.stock", "object_pk": "1", "action": "update", "seen": 3, "at": timezone.now()} | values
    )  # fmt: skip


def grants(rows: Iterable[TokenGrant]) -> None:
    """Many grants at once."""
    TokenRange.objects.get_or_create(namespace="default", defaults={"space": "x", "partitions": 1, "ceiling": 1})
    TokenGrant.objects.bulk_create(rows)


def writes(numbers: Iterable[int], **values: Any) -> None:
    """Many writes at once, with these tokens."""
    now = timezone.now()
    common: dict[str, Any] = {
        "namespace": "default",
        "resource": "stock:1",
        "outcome": "accepted",
        "model": "shop.stock",
    }
    common |= {"object_pk": "1", "action": "update", "at": now} | values
    FencedWrite.objects.bulk_create(FencedWrite(**{"token": n, "grant_token": n} | common) for n in numbers)


MANY = 200_000


def explained(sql: str) -> str:
    """PostgreSQL's plan of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        return "\n".join(line for (line,) in cursor.fetchall())


@pytest.fixture
def many_rows(db: None) -> None:
    """200 000 grants, one a second until now, and a write under each; some are of a rare kind."""
    TokenRange.objects.get_or_create(namespace="default", defaults={"space": "x", "partitions": 1, "ceiling": 1})
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO fencing_tokengrant "
            "(namespace, token, resource, holder, task_id, task_name, ttl, granted_at, ended_at, ended) "
            "SELECT 'default', n, 'stock:' || n %% 1000, n, 'task-' || n, 'shop.task_' || n %% 10, 30, "
            "now() - n * interval '1 s', now() - n * interval '1 s', "
            "CASE WHEN n %% 500 = 0 THEN 'lost' WHEN n %% 5000 = 1 THEN '' ELSE 'released' END "
            "FROM generate_series(1, %(many)s) n",
            {"many": MANY},
        )
        cursor.execute(
            "INSERT INTO fencing_fencedwrite "
            "(namespace, token, grant_token, resource, model, object_pk, action, outcome, operation, note, at) "
            "SELECT 'default', CASE WHEN n %% 100 = 0 THEN n + 1000000 ELSE n END, n, 'stock:' || n %% 1000, 'shop.stock', "
            "n %% 1000, 'update', CASE WHEN n %% 500 = 0 THEN 'stale' WHEN n %% 20000 = 1 THEN 'missing' "
            "WHEN n %% 20000 = 2 THEN 'unfenced' ELSE 'accepted' END, '', '', now() - n * interval '1 s' "
            "FROM generate_series(1, %(many)s) n",
            {"many": MANY},
        )
        cursor.execute("ANALYZE fencing_tokengrant, fencing_fencedwrite, fencing_tokenrange")


def filters_of(html: str) -> str:
    """The part of a list's page with its filters, which Django 6.1 puts before the rows and 5.2 behind them."""
    found = re.search(r'<(nav|search) id="changelist-filter".*?</\1>', html, re.DOTALL)
    assert found
    return found[0]
