"""QuerySet writes: fenced, all or nothing, never silently open."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, NotSupportedError, connections, transaction
from django.db.models import F

from fencing import (
    LeaseRequiredError,
    ResourceMismatchError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    lease,
    querysets,
)
from fencing.models import FencedWrite
from fencing.scope import holding
from inventory_demo.models import Stock
from tests.shop.models import Bin, Crate, ExpressBin, Warehouse

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

Pair = Callable[[str], Any]


def stock(alias: str, sku: str = "42", quantity: int = 10) -> Stock:
    Stock.objects.using(alias).create(sku=sku, quantity=quantity)
    return Stock.objects.using(alias).get(sku=sku)


def quantities(alias: str) -> dict[str, int]:
    return dict(Stock.objects.using(alias).values_list("sku", "quantity"))


def test_every_bulk_path_without_a_lease(alias: str) -> None:
    one = stock(alias)
    rows = Stock.objects.using(alias)
    for write in (
        lambda: rows.update(quantity=1),
        lambda: rows.filter(sku="42").delete(),
        lambda: rows.bulk_update([one], ["quantity"]),
        lambda: rows.bulk_create(
            [Stock(sku="42", quantity=1)], update_conflicts=True, unique_fields=["sku"], update_fields=["quantity"]
        ),
        lambda: rows.update_or_create(sku="42", defaults={"quantity": 1}),
    ):
        with pytest.raises(LeaseRequiredError):
            write()
    assert quantities(alias) == {"42": 10}


def test_a_missing_lease_is_named(alias: str) -> None:
    """By its resource where there is one, else by how the model names them."""
    one, two = stock(alias), stock(alias, sku="43")
    rows = Stock.objects.using(alias)
    upsert: dict[str, Any] = {"update_conflicts": True, "unique_fields": ["sku"], "update_fields": ["quantity"]}
    of_one = "needs the lease of 'stock:42'; held here: none"
    of_all = "needs the leases of its rows, each named like 'stock:{sku}'; held here: none"
    for said, write in (
        (of_one, lambda: rows.filter(sku="42").update(quantity=1)),
        (of_one, lambda: rows.filter(sku="42").delete()),
        (of_one, lambda: rows.bulk_update([one], ["quantity"])),
        (of_one, lambda: rows.bulk_create([Stock(sku="42")], **upsert)),
        (of_all, lambda: rows.update(quantity=1)),
        (of_all, lambda: rows.all().delete()),
        (of_all, lambda: rows.bulk_update([one, two], ["quantity"])),
        (of_all, lambda: rows.bulk_create([Stock(sku="42"), Stock(sku="43")], **upsert)),
    ):
        with pytest.raises(LeaseRequiredError, match=re.escape(said)) as caught:
            write()
        assert (caught.value.resource, caught.value.template) in {("stock:42", ""), ("", "stock:{sku}")}
    assert quantities(alias) == {"42": 10, "43": 10}


def test_a_missing_lease_is_not_named_by_the_first_of_many_rows(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(querysets, "LOOKED_AT", 1)
    stock(alias)
    with pytest.raises(LeaseRequiredError, match="of 'stock:42'"):
        Stock.objects.using(alias).update(quantity=1)
    stock(alias, sku="43")
    with pytest.raises(LeaseRequiredError, match=re.escape("each named like 'stock:{sku}'")):
        Stock.objects.using(alias).update(quantity=1)


def test_missing_leases_of_a_cascade_are_not_named_by_the_first_of_them(alias: str) -> None:
    parent = Warehouse.objects.using(alias).create(name="w")
    for code in "12":
        Crate.objects.using(alias).create(warehouse=parent, code=code)
    with pytest.raises(LeaseRequiredError, match=re.escape("each named like 'crate:{warehouse}:{code}'")):
        parent.delete()


def test_a_lease_of_the_same_name_from_another_backend_is_told_apart(alias: str, settings: Any) -> None:
    backends = settings.FENCING["BACKENDS"]
    other = {**backends["default"], "NAMESPACE": "another"}
    settings.FENCING = {**settings.FENCING, "BACKENDS": {**backends, "another": other}}
    stock(alias)
    with lease("stock:42", using="another"), pytest.raises(LeaseRequiredError, match=r"'stock:42' \(but from another"):
        Stock.objects.using(alias).update(quantity=1)


def test_nothing_matched_needs_no_lease(alias: str) -> None:
    assert Stock.objects.using(alias).filter(sku="none").update(quantity=1) == 0
    assert Stock.objects.using(alias).filter(sku="none").delete() == (0, {})


def test_update_carries_an_unused_number(alias: str) -> None:
    one = stock(alias)
    with lease("stock:42") as held:
        one.save()
        assert Stock.objects.using(alias).update(quantity=F("quantity") - 3) == 1
        assert Stock.objects.using(alias).get().last_token == held.newest_token > held.token
    assert quantities(alias) == {"42": 7}


def test_update_by_a_superseded_holder(alias: str, overtaken: Pair) -> None:
    stock(alias)
    with overtaken("stock:42") as (sleeper, newer):
        Stock.objects.using(alias).get().save()
        with holding(sleeper), pytest.raises(StaleWriteError, match="1 of 1 rows") as caught:
            Stock.objects.using(alias).update(quantity=1)
        assert (caught.value.token, caught.value.seen) == (sleeper.token, newer.token)
    assert quantities(alias) == {"42": 10}
    assert FencedWrite.objects.using(alias).filter(outcome="stale", token=sleeper.token).count() == 1


def test_update_by_a_holder_who_was_superseded_on_another_row(alias: str, overtaken: Pair) -> None:
    """I4: the resource's row refuses although the matched row itself has seen nobody newer."""
    stock(alias)
    with overtaken("stock:42") as (sleeper, newer):
        with newer.atomic(using=alias):
            pass
        with holding(sleeper), pytest.raises(StaleWriteError) as caught:
            Stock.objects.using(alias).update(quantity=1)
        assert caught.value.seen == newer.token
    assert quantities(alias) == {"42": 10}


def test_update_of_rows_of_several_resources(alias: str) -> None:
    stock(alias, "42"), stock(alias, "43")
    with lease("stock:42"), pytest.raises(ResourceMismatchError, match="stock:43"):
        Stock.objects.using(alias).update(quantity=1)
    assert quantities(alias) == {"42": 10, "43": 10}
    with lease(["stock:42", "stock:43"]) as (first, second):
        assert Stock.objects.using(alias).update(quantity=1) == 2
    tokens = dict(Stock.objects.using(alias).values_list("sku", "last_token"))
    assert tokens == {"42": first.token, "43": second.token}


def test_one_stale_row_undoes_the_whole_update(alias: str, overtaken: Pair) -> None:
    stock(alias, "42"), stock(alias, "43")
    with overtaken("stock:43") as (sleeper, _newer), lease("stock:42"):
        Stock.objects.using(alias).get(sku="43").save()
        with holding(sleeper), pytest.raises(StaleWriteError):
            Stock.objects.using(alias).update(quantity=1)
    assert quantities(alias) == {"42": 10, "43": 10}


def test_forged_token_in_update(alias: str) -> None:
    stock(alias)
    with lease("stock:42"), pytest.raises(TypeError, match="last_token"):
        Stock.objects.using(alias).update(last_token=5)


def test_bulk_update_compares_object_by_object(alias: str) -> None:
    first, second = stock(alias, "42"), stock(alias, "43")
    with lease(["stock:42", "stock:43"]):
        moved = Stock.objects.using(alias).get(sku="43")
        moved.quantity = 99
        moved.save()
        first.quantity = second.quantity = 1
        with pytest.raises(StaleReadError, match="1 of 1 rows"):
            Stock.objects.using(alias).bulk_update([first, second], ["quantity"])
        assert quantities(alias) == {"42": 10, "43": 99}
        second.refresh_from_db()
        second.quantity = 1
        assert Stock.objects.using(alias).bulk_update([first, second], ["quantity"]) == 2
        first.quantity = 2
        first.save()
    assert quantities(alias) == {"42": 2, "43": 1}


def test_bulk_update_of_expressions_compares_too(alias: str) -> None:
    """S5: Case and Cast hide what was worked out from a read."""
    mine, theirs = stock(alias), Stock.objects.using(alias).get()
    with lease("stock:42"):
        theirs.quantity = 7
        theirs.save()
        mine.quantity = F("quantity") + 1
        with pytest.raises(StaleReadError):
            Stock.objects.using(alias).bulk_update([mine], ["quantity"])
    assert quantities(alias) == {"42": 7}


def test_bulk_update_of_a_missing_row(alias: str) -> None:
    gone = stock(alias)
    with lease("stock:42"):
        Stock.objects.using(alias).get().delete()
        with pytest.raises(RowMissingError):
            Stock.objects.using(alias).bulk_update([gone], ["quantity"])


def test_bulk_update_in_batches(alias: str) -> None:
    boxes = Bin.objects.using(alias).bulk_create([Bin(label=str(n)) for n in range(5)])
    with lease([box.fence_name() for box in boxes]):
        for box in boxes:
            box.quantity = 3
        assert Bin.objects.using(alias).bulk_update(boxes, ["quantity"], batch_size=2) == 5
        for box in boxes:
            box.save()
    assert set(Bin.objects.using(alias).values_list("quantity", flat=True)) == {3}


def test_bulk_create_under_and_without_leases(alias: str) -> None:
    with lease("stock:42") as held:
        Stock.objects.using(alias).bulk_create([Stock(sku="42"), Stock(sku="43", last_token=77)])
    tokens = dict(Stock.objects.using(alias).values_list("sku", "last_token"))
    assert tokens == {"42": held.token, "43": 0}


def target(alias: str, *names: str) -> list[str] | None:
    """``unique_fields`` of an upsert: MariaDB takes none, where every unique key counts."""
    return None if alias == "maria" else [*names]


def test_upsert(alias: str, overtaken: Pair) -> None:
    stock(alias)

    def upsert(quantity: int) -> None:
        Stock.objects.using(alias).bulk_create(
            [Stock(sku="42", quantity=quantity)],
            update_conflicts=True,
            unique_fields=target(alias, "sku"),
            update_fields=["quantity"],
        )

    with overtaken("stock:42") as (sleeper, newer):
        upsert(7)
        assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (7, newer.token)
        with holding(sleeper), pytest.raises(StaleWriteError):
            upsert(9)
    assert quantities(alias) == {"42": 7}
    other = [Stock(sku="42", pk=4711 if alias == "maria" else None)]
    with lease("stock:42"), pytest.raises(NotSupportedError, match="sku: else the row in conflict"):
        Stock.objects.using(alias).bulk_create(
            other, update_conflicts=True, unique_fields=target(alias, "id"), update_fields=["quantity"]
        )


def test_upsert_onto_a_row_with_a_higher_number_is_refused_by_the_guard(alias: str) -> None:
    stock(alias)
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE inventory_demo_stock SET last_token = 5000000")
    with lease("stock:42"), pytest.raises(StaleWriteError):
        Stock.objects.using(alias).bulk_create(
            [Stock(sku="42")], update_conflicts=True, unique_fields=target(alias, "sku"), update_fields=["quantity"]
        )
    assert quantities(alias) == {"42": 10}


def test_delete(alias: str, overtaken: Pair) -> None:
    one, late = stock(alias), Stock.objects.using(alias).get()
    with overtaken("stock:42") as (sleeper, _newer):
        one.save()
        with pytest.raises(StaleWriteError):
            late.delete(lease=sleeper)
        assert Stock.objects.using(alias).exists() and late.pk
        assert Stock.objects.using(alias).filter(sku="42").delete()[0] == 1
        with pytest.raises(RowMissingError):
            one.delete()
    actions = list(FencedWrite.objects.using(alias).order_by("id").values_list("action", "outcome"))
    assert actions == [("update", "accepted"), ("delete", "stale"), ("delete", "accepted"), ("delete", "missing")]


def test_queryset_delete_by_a_superseded_holder(alias: str, overtaken: Pair) -> None:
    stock(alias)
    with overtaken("stock:42") as (sleeper, _newer):
        Stock.objects.using(alias).get().save()
        with holding(sleeper), pytest.raises(StaleWriteError):
            Stock.objects.using(alias).all().delete()
    assert quantities(alias) == {"42": 10}


def test_cascade_from_an_unfenced_parent(alias: str) -> None:
    parent = Warehouse.objects.using(alias).create(name="w")
    crate = Crate.objects.using(alias).create(warehouse=parent, code="1")
    with pytest.raises(LeaseRequiredError):
        parent.delete()
    assert Crate.objects.using(alias).exists() and Warehouse.objects.using(alias).exists()
    with lease(crate):
        Warehouse.objects.using(alias).get().delete()
    assert not Crate.objects.using(alias).exists() and not Warehouse.objects.using(alias).exists()
    assert FencedWrite.objects.using(alias).get().action == "delete"


def test_set_null_from_an_unfenced_parent(alias: str) -> None:
    parent = Warehouse.objects.using(alias).create(name="w")
    Warehouse.objects.using(alias).create(name="empty").delete()
    box = Bin.objects.using(alias).create(label="a", warehouse=parent)
    with pytest.raises((LeaseRequiredError, IntegrityError)), transaction.atomic(using=alias):
        parent.delete()
    assert Bin.objects.using(alias).get().warehouse_id == parent.pk
    with lease(box):
        Warehouse.objects.using(alias).get().delete()
    assert Bin.objects.using(alias).get().warehouse_id is None


def test_related_manager(alias: str) -> None:
    parent = Warehouse.objects.using(alias).create(name="w")
    box = Bin.objects.using(alias).create(label="a")
    with pytest.raises(LeaseRequiredError):
        parent.bin_set.add(box)
    with lease(box) as held:
        parent.bin_set.add(box)
    assert Bin.objects.using(alias).values_list("warehouse", "last_token").get() == (parent.pk, held.token)


def test_multi_table_child(alias: str) -> None:
    child = ExpressBin.objects.using(alias).create(label="a", courier="x")
    with pytest.raises(LeaseRequiredError):
        ExpressBin.objects.using(alias).update(courier="y")
    with lease(child) as held:
        assert ExpressBin.objects.using(alias).update(courier="y", quantity=3) == 1
        assert Bin.objects.using(alias).values_list("quantity", "last_token").get() == (3, held.token)
        ExpressBin.objects.using(alias).all().delete()
    assert not Bin.objects.using(alias).exists()


def test_child_deleted_without_its_parent(alias: str) -> None:
    child = ExpressBin.objects.using(alias).create(label="a", courier="x")
    with lease(child) as held:
        child.delete(keep_parents=True)
    assert not ExpressBin.objects.using(alias).exists()
    assert Bin.objects.using(alias).get().last_token == held.token


def test_raw_sql_meets_the_guard(alias: str) -> None:
    stock(alias)
    for statement in (
        "UPDATE inventory_demo_stock SET quantity = 1",
        "UPDATE inventory_demo_stock SET quantity = 1, last_token = 0",
        "DELETE FROM inventory_demo_stock",
    ):
        with pytest.raises(IntegrityError, match="inventory_demo_stock_fence"), connections[alias].cursor() as cursor:
            cursor.execute(statement)
    assert quantities(alias) == {"42": 10}


@pytest.mark.parametrize("batch_size", [None, 1])
def test_bulk_update_of_one_row_read_at_different_times(alias: str, batch_size: int | None) -> None:
    """I3: Django writes what the first object says, so it is that one which must have read the row as it is."""
    late = stock(alias)
    with lease("stock:42"):
        fresh = Stock.objects.using(alias).get()
        fresh.quantity = 5
        fresh.save()
        late.quantity -= 1
        for objects in ([late, fresh], [fresh, late]):
            with pytest.raises(StaleReadError, match=f"last token {fresh.last_token}"):
                Stock.objects.using(alias).bulk_update(objects, ["quantity"], batch_size)
    assert quantities(alias) == {"42": 5}


def test_bulk_update_of_objects_of_one_row(alias: str) -> None:
    """A join finds a row several times. Of the objects one was written, and none of them is the row afterwards."""
    one = stock(alias)
    first, second = Stock.objects.using(alias).get(), Stock.objects.using(alias).get()
    with lease("stock:42"):
        first.quantity, second.quantity = 1, 2
        Stock.objects.using(alias).bulk_update([first, second, first], ["quantity"])
        for either in (first, second):
            with pytest.raises(StaleReadError):
                either.save()
        one.refresh_from_db()
        Stock.objects.using(alias).bulk_update([one, one], ["quantity"])
        one.save()
    assert quantities(alias) == {"42": 1}
