"""unfenced(): the only way round, in a transaction, on record, and seen by holders who read before."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core import serializers
from django.db import IntegrityError, connections, transaction

from fencing import LeaseRequiredError, StaleReadError, StaleWriteError, lease, unfenced
from fencing.backends import get_backend
from fencing.lifting import lifted
from fencing.models import FencedWrite
from fencing.tokens import place_of
from inventory_demo.models import Stock
from tests.concurrency import BOUND, threads
from tests.services import PrivateValkey

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)


MARIA = pytest.mark.django_db(databases=["default", "maria"], transaction=True)


@pytest.fixture(params=["default", "lite", pytest.param("maria", marks=MARIA)])
def alias(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_write_path_is_open_carries_the_number_and_is_on_record(alias: str) -> None:
    Stock.objects.using(alias).bulk_create([Stock(sku=str(n), quantity=n) for n in range(4)])
    with unfenced("audit of november", database=alias) as number:
        first, second = Stock.objects.using(alias).order_by("sku")[:2]
        first.quantity = 100
        first.save()
        first.save()
        second.delete()
        Stock.objects.using(alias).filter(sku="2").update(quantity=102)
        third = Stock.objects.using(alias).get(sku="3")
        third.quantity = 103
        Stock.objects.using(alias).bulk_update([third], ["quantity"])
        Stock.objects.using(alias).create(sku="5", quantity=105)
    rows = {sku: (quantity, token) for sku, quantity, token in Stock.objects.using(alias).values_list(
        "sku", "quantity", "last_token"
    )}  # fmt: skip
    assert rows == {"0": (100, number), "2": (102, number), "3": (103, number), "5": (105, number)}
    history = FencedWrite.objects.using(alias).order_by("id")
    assert set(history.values_list("outcome", "token")) == {("unfenced", number)}
    assert list(history.values_list("action", flat=True)) == [
        "unfenced", "update", "update", "delete", "update", "update", "insert",
    ]  # fmt: skip
    assert "audit of november" in history[0].note and "pid" in history[0].note


def test_fence_is_back_after_the_block_and_after_a_rollback(alias: str) -> None:
    stock = Stock.objects.using(alias).create(sku="42", quantity=10)
    with unfenced("x", database=alias):
        pass
    with pytest.raises(ZeroDivisionError), unfenced("x", database=alias):
        Stock.objects.using(alias).update(quantity=1)
        raise ZeroDivisionError
    assert lifted(connections[alias]) is None
    with pytest.raises(LeaseRequiredError):
        stock.save()
    with pytest.raises(IntegrityError), connections[alias].cursor() as cursor:
        cursor.execute("UPDATE inventory_demo_stock SET quantity = 2")
    assert Stock.objects.using(alias).get().quantity == 10
    assert FencedWrite.objects.using(alias).count() == 1


def test_nested_blocks_share_the_number(alias: str) -> None:
    with transaction.atomic(using=alias), unfenced("outer", database=alias) as outer:
        with unfenced("inner", database=alias) as inner:
            assert inner == outer
        assert lifted(connections[alias]) == outer
    assert FencedWrite.objects.using(alias).count() == 2


def test_holder_who_read_before_notices(alias: str) -> None:
    """S10: else the holder's save, computed from before the maintenance, would undo it."""
    Stock.objects.using(alias).create(sku="42", quantity=10)
    with lease("stock:42"):
        mine = Stock.objects.using(alias).get()
        with unfenced("audit", database=alias):
            Stock.objects.using(alias).update(quantity=500)
        mine.quantity += 1
        with pytest.raises((StaleReadError, StaleWriteError)):
            mine.save()
    assert Stock.objects.using(alias).get().quantity == 500


def write_by(way: str, alias: str) -> None:
    """Write the quantity 500 onto the one row, with the fence lifted."""
    rows = Stock.objects.using(alias)
    stock = rows.get()
    stock.quantity = 500
    if way == "save":
        stock.save()
    elif way == "update":
        rows.update(quantity=500)
    elif way == "bulk_update":
        rows.bulk_update([stock], ["quantity"])
    else:
        by_sku = connections[alias].features.supports_update_conflicts_with_target
        rows.bulk_create(
            [Stock(sku=stock.sku, quantity=500)],
            update_conflicts=True,
            update_fields=["quantity"],
            unique_fields=["sku"] if by_sku else None,
        )


WAYS = ["save", "update", "bulk_update", "upsert"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("alias", ["default", pytest.param("maria", marks=MARIA)])
def test_holder_who_has_written_since_the_block_began_notices(alias: str, way: str) -> None:
    """The row carries the holder's own number by then, which is higher than the one that the block began with."""
    Stock.objects.using(alias).create(sku="42", quantity=10)

    def hold_and_write() -> None:
        with lease("stock:42"):
            mine = Stock.objects.using(alias).get()
            mine.quantity += 1
            mine.save()
            has_written.set()
            assert may_go_on.wait(BOUND)
            mine.quantity += 1
            with pytest.raises((StaleReadError, StaleWriteError)):
                mine.save()

    has_written, may_go_on = threading.Event(), threading.Event()
    with threads() as start:
        with unfenced("audit", database=alias) as number:
            holder = start(hold_and_write)
            assert has_written.wait(BOUND)
            write_by(way, alias)
        may_go_on.set()
        holder.result(BOUND)
    quantity, token = Stock.objects.using(alias).values_list("quantity", "last_token").get()
    assert quantity == 500 and token > number + 1
    told = FencedWrite.objects.using(alias).filter(outcome="unfenced", resource="stock:42")
    assert set(told.values_list("token", flat=True)) <= {number, token}, "the history has the number of the row"


@pytest.mark.parametrize("way", WAYS)
def test_holder_who_counts_in_another_partition_notices(alias: str, way: str, settings: Any) -> None:
    backends = settings.FENCING["BACKENDS"]
    entry = {**backends["default"], "NAMESPACE": f"n-{secrets.token_hex(6)}", "PARTITIONS": 2, "BLOCK": 100}
    settings.FENCING = {**settings.FENCING, "BACKENDS": {**backends, "default": entry}}
    backend = get_backend()
    first = place_of(backend, "unfenced").partition
    sku = next(str(n) for n in range(100) if place_of(backend, f"stock:{n}").partition != first)
    Stock.objects.using(alias).create(sku=sku, quantity=10)
    with unfenced("so that its counter has the lower range", database=alias):
        pass
    with lease(f"stock:{sku}") as held:
        mine = Stock.objects.using(alias).get()
        mine.quantity += 1
        mine.save()
        with unfenced("audit", database=alias) as number:
            write_by(way, alias)
        assert number < held.token
        mine.quantity += 1
        with pytest.raises((StaleReadError, StaleWriteError)):
            mine.save()
    with lease(f"stock:{sku}"):
        again = Stock.objects.using(alias).get()
        assert again.quantity == 500
        again.save()


def test_row_with_an_invented_number_can_be_maintained(alias: str) -> None:
    """Nobody can write it under a lease, so nobody has to notice; and no counter may follow it."""
    invented = 2**52
    with connections[alias].cursor() as cursor, unfenced("an import", database=alias):
        cursor.execute("INSERT INTO inventory_demo_stock (sku, quantity, last_token) VALUES ('42', 1, %s)", [invented])
    with unfenced("audit", database=alias) as number:
        write_by("save", alias)
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (500, invented)
    with unfenced("later", database=alias) as later:
        assert number < later < invented


def test_raw_sql_in_the_block_carries_the_number_but_on_sqlite(alias: str) -> None:
    Stock.objects.using(alias).create(sku="42", quantity=10)
    with unfenced("audit", database=alias) as number, connections[alias].cursor() as cursor:
        cursor.execute("UPDATE inventory_demo_stock SET quantity = 500")
    found = Stock.objects.using(alias).values_list("quantity", "last_token").get()
    assert found == (500, 0 if alias == "lite" else number)


def test_other_connections_stay_fenced() -> None:
    Stock.objects.create(sku="42", quantity=10)
    with unfenced("audit"), threads() as start, pytest.raises(LeaseRequiredError):
        start(lambda: Stock.objects.get().save()).result(BOUND)


def test_number_is_the_stores_next_one(alias: str) -> None:
    with lease("a") as before:
        pass
    with unfenced("x", database=alias) as number:
        pass
    with lease("a") as after:
        pass
    assert before.token < number < after.token


def test_store_that_does_not_answer(settings: Any, valkey_server: Callable[..., PrivateValkey]) -> None:
    server = valkey_server()
    settings.CACHES = {**settings.CACHES, "leases": {**settings.CACHES["leases"], "LOCATION": server.url()}}
    Stock.objects.create(sku="42", quantity=10)
    with lease("stock:42") as held:
        pass
    server.kill()
    with unfenced("the store is down") as number:
        Stock.objects.update(quantity=1)
    assert number > held.token
    assert Stock.objects.values_list("quantity", "last_token").get() == (1, number)


@pytest.mark.parametrize("reason", ["", "  ", "x" * 301, None, 7])
def test_reason_is_demanded(reason: Any) -> None:
    with pytest.raises(ValueError, match="reason"), unfenced(reason):
        raise AssertionError("entered")


def test_bare_decorator_has_no_reason() -> None:
    """Called, it would have taken its argument for the function, and done nothing."""
    bare: Any = unfenced
    with pytest.raises(ValueError, match="reason"):
        bare(lambda sku: None)


def test_loaddata(alias: str) -> None:
    """C17: into an empty table with its tokens; over rows never silently, and never back."""
    with lease("stock:42") as held:
        stock = Stock.objects.using(alias).create(sku="42", quantity=10)
    dumped = serializers.serialize("json", [stock])

    def load() -> None:
        for one in serializers.deserialize("json", dumped, using=alias):
            one.save(using=alias)

    with lease("stock:42") as newer:
        stock.quantity = 7
        stock.save()
    with pytest.raises(LeaseRequiredError):
        load()
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (7, newer.token)
    with unfenced("restore", database=alias) as number:
        load()
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (10, number)
    with unfenced("empty", database=alias):
        Stock.objects.using(alias).all().delete()
    load()
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (10, held.token)
