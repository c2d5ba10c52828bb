"""I3: what was written or read in a transaction that was rolled back never counts as having read the next write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connections, transaction
from django.db.models import F

from fencing import LeaseBackendError, StaleReadError, lease
from inventory_demo.models import Stock
from tests.shop.models import Parcel

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)


def by_update(rows: Any) -> None:
    rows.filter(sku="42").update(quantity=7)


def by_update_in_steps(rows: Any) -> None:
    rows.annotate(now=F("quantity")).filter(sku="42").update(quantity=7)


def by_bulk_update(rows: Any) -> None:
    one = rows.get()
    one.quantity = 7
    rows.bulk_update([one], ["quantity"])


def by_upsert(rows: Any) -> None:
    again = Stock(id=10**6, sku="42", quantity=7)  # it meets a row of another key
    rows.bulk_create([again], update_conflicts=True, update_fields=["quantity"], unique_fields=["sku"])


def by_save(rows: Any) -> None:
    one = rows.get()
    one.quantity = 7
    one.save()


@contextmanager
def in_djangos(alias: str) -> Iterator[None]:
    with suppress(ZeroDivisionError), transaction.atomic(using=alias):
        yield
        raise ZeroDivisionError


@contextmanager
def without_autocommit(alias: str) -> Iterator[None]:
    transaction.set_autocommit(False, using=alias)
    try:
        yield
    finally:
        transaction.rollback(using=alias)
        transaction.set_autocommit(True, using=alias)


@contextmanager
def begun_in_sql(alias: str) -> Iterator[None]:
    with connections[alias].cursor() as cursor:
        cursor.execute("BEGIN")
        yield
        cursor.execute("ROLLBACK")


@pytest.mark.parametrize("write", [by_update, by_update_in_steps, by_bulk_update, by_save])
def test_row_that_was_read_there_is_not_the_next_one(alias: str, write: Callable[[Any], None]) -> None:
    read_late(alias, write)


@pytest.mark.parametrize("alias", ["default", "lite"])
def test_row_that_was_upserted_there_is_not_the_next_one(alias: str) -> None:
    """MariaDB has no conflict in one unique key only, so this model takes no upsert there."""
    read_late(alias, by_upsert)


def read_late(alias: str, write: Callable[[Any], None]) -> None:
    rows = Stock.objects.using(alias)
    rows.create(sku="42", quantity=10)
    with lease("stock:42") as earlier, earlier.atomic(using=alias):
        pass  # the first write to a resource that is not known takes steps
    with lease("stock:42"):
        with in_djangos(alias):
            write(rows)
            late = rows.get()
        other = rows.get()
        assert (late.quantity, other.quantity) == (7, 10)
        other.quantity = 3
        other.save()
        with pytest.raises(StaleReadError):
            late.save()
    assert rows.get().quantity == 3


def save(one: Stock, quantity: int) -> None:
    one.quantity = quantity
    one.save()


def bulk_update(one: Stock, quantity: int) -> None:
    one.quantity = quantity
    Stock.objects.using(one._state.db).bulk_update([one], ["quantity"])


@pytest.mark.parametrize("write", [save, bulk_update])
def test_instance_that_was_written_there_is_not_the_next_one(alias: str, write: Callable[[Stock, int], None]) -> None:
    Stock.objects.using(alias).create(sku="42", quantity=10)
    write_again(alias, write, in_djangos)


@pytest.mark.parametrize(
    ("write", "surroundings"), [(save, begun_in_sql), (save, without_autocommit), (bulk_update, without_autocommit)]
)
def test_transaction_that_django_does_not_know_is_one(
    write: Callable[[Stock, int], None], surroundings: Callable[[str], AbstractContextManager[None]]
) -> None:
    """On PostgreSQL: in SQLite Django's savepoint would be the transaction, and committed as it is released."""
    Stock.objects.create(sku="42", quantity=10)
    write_again("default", write, surroundings)


def write_again(
    alias: str, write: Callable[[Stock, int], None], surroundings: Callable[[str], AbstractContextManager[None]]
) -> None:
    rows = Stock.objects.using(alias)
    with lease("stock:42"):
        late = rows.get()
        with surroundings(alias):
            write(late, 7)
        other = rows.get()
        assert other.quantity == 10
        write(other, 3)
        with pytest.raises(StaleReadError):
            write(late, 7)
    assert rows.get().quantity == 3


@pytest.mark.parametrize("many", [False, True], ids=["save", "bulk_create"])
def test_key_that_is_written_in_another_way_is_the_same_row(alias: str, many: bool) -> None:
    """A UUID as text is one; the next write must not have the number of the one that was undone."""
    theirs = Parcel(weight=3)
    late = Parcel(id=theirs.id.hex, weight=7)
    with lease(theirs):
        with in_djangos(alias):
            if many:
                Parcel.objects.using(alias).bulk_create([late])
            else:
                late.save(using=alias)
        theirs.save(using=alias)
        with pytest.raises(StaleReadError):
            late.save(using=alias)
        read, again = (Parcel.objects.using(alias).get() for _ in range(2))
        read.pk = read.pk.hex
        with in_djangos(alias):
            read.save()
        again.save()
        with pytest.raises(StaleReadError):
            read.save()
    assert Parcel.objects.using(alias).get().weight == 3


def test_store_that_gives_no_further_number_refuses_the_next_write(alias: str) -> None:
    """I7: the number of the write that was undone would be the next one's, and the instance of the first could write."""
    rows = Stock.objects.using(alias)
    rows.create(sku="42", quantity=10)
    with lease("stock:42") as held:
        with in_djangos(alias):
            by_save(rows)
        other = rows.get()
        other.quantity = 3
        down = LeaseBackendError("default", "down")
        with patch.object(held._backend, "advance", side_effect=down), pytest.raises(LeaseBackendError):
            other.save()
        other.save()
    assert rows.get().quantity == 3
