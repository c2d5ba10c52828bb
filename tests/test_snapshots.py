"""A begin inside a transaction that reads what was there at its first read: PostgreSQL's and MariaDB's REPEATABLE READ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction

from fencing import LeaseInsideTransactionError, lease
from fencing.acquiring import acquire
from fencing.leases import Lease
from fencing.models import FencedWrite
from inventory_demo.models import Stock
from tests.concurrency import BOUND, blocked_sessions, threads, wait_until

LEVEL = {"default": "SET default_transaction_isolation = '{}'", "maria": "SET SESSION TRANSACTION ISOLATION LEVEL {}"}


@pytest.fixture(
    params=[
        pytest.param("default", marks=pytest.mark.django_db(transaction=True)),
        pytest.param("maria", marks=pytest.mark.django_db(databases=["default", "maria"], transaction=True)),
    ]
)
def alias(request: pytest.FixtureRequest) -> str:
    """The database of the rows."""
    return str(request.param)


@contextmanager
def repeatable_read(alias: str) -> Iterator[None]:
    """What this thread's connection does until it is closed."""
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute(LEVEL[alias].format("repeatable read"))
        yield
    finally:
        connections[alias].close()


def grant() -> Lease:
    """A lease that ends in the store at once, without its holder's knowing."""
    held = acquire("stock:42", ttl=30, give_up=None, using="default", allow_in_transaction=True)
    held._backend.revoke(held._place, held.token)
    return held


def write(alias: str, held: Lease) -> None:
    one = Stock.objects.using(alias).get(sku="42")
    one.quantity += 5
    one.save(lease=held)


def begin(alias: str, held: Lease) -> None:
    with held.atomic(using=alias):
        """The resource has seen it."""


@pytest.mark.parametrize("before", [begin, lambda alias, held: None], ids=["began before", "new"])
def test_begin_that_has_to_wait_reads_what_it_waited_for(alias: str, before: Callable[[str, Lease], Any]) -> None:
    """S13: an older write that was in flight at the begin is a part of what the body reads."""
    Stock.objects.using(alias).create(sku="42", quantity=10)
    old = grant()
    before(alias, old)
    newer = grant()

    def body() -> int:
        with repeatable_read(alias), transaction.atomic(using=alias), newer.atomic(using=alias):
            return Stock.objects.using(alias).get(sku="42").quantity

    with threads() as start:
        with transaction.atomic(using=alias):
            write(alias, old)
            read = start(body)
            wait_until(lambda: blocked_sessions(alias) == 1, "the newer begin waits for the older write")
        assert read.result(BOUND) == 15


def test_second_begin_after_the_snapshot_is_told_so(alias: str) -> None:
    """What it says is what can be done about it: nobody newer came, so nothing is stale."""
    Stock.objects.using(alias).create(sku="42", quantity=10)
    told = pytest.raises(LeaseInsideTransactionError, match="first statement")
    with repeatable_read(alias), lease(["stock:1", "stock:42"]) as (one, other), told, one.atomic(using=alias):
        assert Stock.objects.using(alias).count() == 1
        with other.atomic(using=alias):
            raise AssertionError("the body runs")
    assert not FencedWrite.objects.using(alias).exists()
