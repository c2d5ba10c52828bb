"""save() in all its forms, decided by the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, models, transaction
from django.db.models import Case, F, Value, When
from django.db.models.functions import Coalesce, Upper
from django.db.models.signals import post_save

from fencing import (
    LeaseLostError,
    LeaseRequiredError,
    ResourceMismatchError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    lease,
    naming,
)
from fencing.models import FencedResource, FencedWrite
from fencing.scope import holding
from inventory_demo.models import Stock
from tests.shop.models import Bin, BinProxy, ExpressBin, Parcel, Warehouse

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

Pair = Callable[[str], Any]


def make(alias: str, **values: Any) -> Stock:
    Stock.objects.using(alias).create(**{"sku": "42", "quantity": 10, **values})
    return Stock.objects.using(alias).get(sku=values.get("sku", "42"))


def stored(alias: str, sku: str = "42") -> tuple[int, int]:
    return Stock.objects.using(alias).values_list("quantity", "last_token").get(sku=sku)


def test_save_writes_the_value_and_the_token(alias: str, outcomes: Callable[[], list[str]]) -> None:
    stock = make(alias)
    with lease("stock:42") as held:
        stock.quantity = 7
        stock.save()
    assert stored(alias) == (7, held.token)
    assert stock.last_token == held.token
    assert outcomes() == ["accepted"]
    row = FencedWrite.objects.using(alias).get()
    assert (row.token, row.grant_token, row.resource, row.seen) == (held.token, held.token, "stock:42", 0)


def test_save_without_a_lease_is_refused_for_every_form(alias: str) -> None:
    stock = make(alias)
    with lease("stock:43"), pytest.raises(LeaseRequiredError, match=r"'stock:42'.*'stock:43'"):
        stock.save()
    for options in ({}, {"update_fields": ["quantity"]}, {"force_update": True}):
        with pytest.raises(LeaseRequiredError):
            stock.save(**options)
    assert stored(alias) == (10, 0)


def test_stale_save_is_refused_after_the_newer_holder_wrote(
    alias: str, overtaken: Pair, outcomes: Callable[[], list[str]]
) -> None:
    late = make(alias)
    late.quantity = 9
    with overtaken("stock:42") as (sleeper, newer):
        fresh = Stock.objects.using(alias).get()
        fresh.quantity = 7
        fresh.save()
        with pytest.raises(StaleWriteError) as caught:
            late.save(lease=sleeper)
        assert (caught.value.resource, caught.value.token, caught.value.seen) == (
            "stock:42",
            sleeper.token,
            newer.token,
        )
        # The instance is untouched, so the same save is refused again.
        assert (late.quantity, late.last_token, late._state.adding) == (9, 0, False)
        with pytest.raises(StaleWriteError):
            late.save(lease=sleeper)
    assert stored(alias) == (7, newer.token)
    assert outcomes() == ["accepted", "stale", "stale"]


def test_row_fence_alone_refuses_a_token_that_is_not_higher(alias: str) -> None:
    """I2, with the resource's fence out of the way: the row has accepted a number that nobody of ours issued."""
    make(alias)
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE inventory_demo_stock SET last_token = 1000000")
    stock = Stock.objects.using(alias).get()
    with lease("stock:42") as held:
        stock.quantity = 3
        with pytest.raises(StaleWriteError) as caught:
            stock.save()
        assert held.token < caught.value.token < 1_000_000 == caught.value.seen
    assert stored(alias) == (10, 1_000_000)
    # The holder was rightful, so its numbers were raised: the next grant passes.
    with lease("stock:42") as held:
        stock.save()
        assert held.token > 1_000_000
    assert stored(alias) == (3, held.token)


def test_late_write_between_read_and_write_is_not_lost(alias: str, overtaken: Pair) -> None:
    """I3: nobody newer had written, so the sleeper's write is in order; the newer holder's read is old now."""
    late = make(alias)
    with overtaken("stock:42") as (sleeper, newer):
        fresh = Stock.objects.using(alias).get()
        late.quantity = 9
        late.save(lease=sleeper)
        fresh.quantity += 5
        with pytest.raises(StaleReadError) as caught:
            fresh.save()
        assert (caught.value.token, caught.value.seen) == (newer.token, sleeper.token)
        fresh.refresh_from_db()
        fresh.quantity += 5
        fresh.save()
    assert stored(alias) == (14, newer.token)


def test_late_write_with_nobody_newer_is_accepted(alias: str, overtaken: Pair) -> None:
    late = make(alias)
    with overtaken("stock:42") as (sleeper, _newer):
        late.quantity = 9
        late.save(lease=sleeper)
    assert stored(alias) == (9, sleeper.token)


def test_second_save_under_one_lease_carries_its_own_number(alias: str) -> None:
    stock = make(alias)
    with lease("stock:42") as held:
        for quantity in (7, 6, 5):
            stock.quantity = quantity
            stock.save()
        assert held.token < held.newest_token == stock.last_token
    assert stored(alias)[0] == 5
    tokens = list(FencedWrite.objects.using(alias).order_by("id").values_list("token", flat=True))
    assert tokens == sorted(set(tokens))


def test_second_instance_of_one_lease_is_no_stale_write(alias: str) -> None:
    """A number of one's own never supersedes: the second instance is told to read again."""
    first, second = make(alias), Stock.objects.using(alias).get()
    with lease("stock:42"):
        first.quantity = 7
        first.save()
        second.quantity = 8
        with pytest.raises(StaleReadError):
            second.save()
        second.quantity = F("quantity") - 1
        second.save(update_fields=["quantity"])
    assert stored(alias)[0] == 6


def test_expression_save_needs_no_comparison_and_leaves_nothing_behind(alias: str) -> None:
    stock = make(alias)
    with lease("stock:42"):
        stock.quantity = F("quantity") - 1
        stock.save(update_fields=["quantity"])
        assert stock.quantity == 9
        stock.save()
    assert stored(alias)[0] == 9


def test_expression_save_does_not_pretend_to_have_read_the_row(alias: str) -> None:
    """A reads; B changes the other field; A saves an expression; A's full save must not undo B's change."""
    box = Bin.objects.using(alias).create(label="old", quantity=10)
    name = box.fence_name()
    with lease(name):
        mine, theirs = Bin.objects.using(alias).get(), Bin.objects.using(alias).get()
        theirs.label = "new"
        theirs.save()
        mine.quantity = F("quantity") - 1
        mine.save(update_fields=["quantity"])
        with pytest.raises(StaleReadError):
            mine.save()
    row = Bin.objects.using(alias).get()
    assert (row.label, row.quantity) == ("new", 9)


@pytest.mark.parametrize(
    "value",
    [
        Value(5),
        Coalesce(F("quantity"), Value(5)),
        Case(When(quantity__gt=3, then=Value(5)), default=F("quantity")),
        Value(3) + Value(2),
    ],
    ids=["value", "coalesce", "case", "sum-of-values"],
)
def test_values_worked_out_in_python_are_compared(alias: str, value: Any) -> None:
    mine, theirs = make(alias), Stock.objects.using(alias).get()
    with lease("stock:42"):
        theirs.quantity = 7
        theirs.save()
        mine.quantity = value
        with pytest.raises(StaleReadError):
            mine.save(update_fields=["quantity"])
    assert stored(alias)[0] == 7


def test_auto_now_does_not_make_an_expression_save_plain(alias: str) -> None:
    box = Bin.objects.using(alias).create(label="a", quantity=1)
    with lease(box.fence_name()):
        mine, theirs = Bin.objects.using(alias).get(), Bin.objects.using(alias).get()
        theirs.save()
        mine.label = Upper("label")
        mine.save(update_fields=["label", "changed_at"])
    assert Bin.objects.using(alias).get().label == "A"


def test_update_fields_stores_the_token_too(alias: str) -> None:
    stock = make(alias)
    with lease("stock:42") as held:
        stock.quantity = 3
        stock.save(update_fields=["quantity"])
        assert stored(alias) == (3, held.token)
        stock.save(update_fields=[])
    assert stored(alias) == (3, held.token)


def test_last_token_cannot_be_forged(alias: str, overtaken: Pair) -> None:
    late = make(alias)
    with overtaken("stock:42") as (sleeper, newer):
        fresh = Stock.objects.using(alias).get()
        fresh.save()
        late.last_token = newer.token + 1000
        with pytest.raises(StaleWriteError):
            late.save(lease=sleeper)
    assert stored(alias) == (10, newer.token)


def test_missing_row_is_never_inserted_again(alias: str, overtaken: Pair) -> None:
    late = make(alias)
    with overtaken("stock:42") as (sleeper, _newer):
        Stock.objects.using(alias).get().delete()
        for options in ({}, {"update_fields": ["quantity"]}, {"force_update": True}):
            with pytest.raises(RowMissingError):
                late.save(lease=sleeper, **options)
    assert not Stock.objects.using(alias).exists()


def test_superseded_holder_cannot_bring_a_deleted_row_back(alias: str, overtaken: Pair) -> None:
    """I4: INSERT under a lease passes the resource, too."""
    make(alias)
    with overtaken("stock:42") as (sleeper, _newer):
        Stock.objects.using(alias).get().delete()
        with holding(sleeper):
            for create in (
                lambda: Stock.objects.using(alias).create(sku="42", quantity=1),
                lambda: Stock.objects.using(alias).update_or_create(sku="42", defaults={"quantity": 1}),
                lambda: Stock.objects.using(alias).bulk_create([Stock(sku="42", quantity=1)]),
            ):
                with pytest.raises(StaleWriteError):
                    create()
    assert not Stock.objects.using(alias).exists()


def test_delete_and_create_again_under_one_lease(alias: str) -> None:
    stock = make(alias)
    with lease("stock:42") as held:
        stock.delete()
        Stock.objects.using(alias).create(sku="42", quantity=1)
    assert stored(alias) == (1, held.newest_token)


def test_superseded_holder_cannot_write_a_row_that_nobody_newer_has_touched(alias: str, overtaken: Pair) -> None:
    """I4: the resource has several rows; the newer holder wrote another one of them."""
    make(alias)
    Bin.fence_resource = "stock:{label}"
    try:
        naming._fences.clear()
        box = Bin.objects.using(alias).create(label="42", quantity=1)
        with overtaken("stock:42") as (sleeper, newer):
            Stock.objects.using(alias).get().save()
            box.quantity = 9
            with pytest.raises(StaleWriteError) as caught:
                box.save(lease=sleeper)
            assert caught.value.seen == newer.token
        assert Bin.objects.using(alias).get().quantity == 1
    finally:
        Bin.fence_resource = ""
        naming._fences.clear()


def test_create_without_a_lease_starts_at_zero_and_under_one_at_its_token(alias: str) -> None:
    assert make(alias).last_token == 0
    with lease("stock:43") as held:
        made = Stock.objects.using(alias).create(sku="43", last_token=99)
    assert made.last_token == held.token == stored(alias, "43")[1]
    Stock.objects.using(alias).create(sku="44", last_token=99)
    assert stored(alias, "44")[1] == 0


def test_created_row_can_be_saved_at_once(alias: str) -> None:
    with lease("stock:42"):
        made = Stock.objects.using(alias).create(sku="42", quantity=1)
        made.quantity = 2
        made.save()
    assert stored(alias)[0] == 2


def test_creation_that_needs_a_lease(alias: str) -> None:
    parcel = Parcel(weight=3)
    with pytest.raises(LeaseRequiredError):
        parcel.save(using=alias)
    with lease(parcel) as held:
        parcel.save(using=alias)
    assert Parcel.objects.using(alias).get().last_token == held.token


def test_instance_with_a_known_key_that_was_not_read(alias: str) -> None:
    """It would overwrite what nobody looked at: a loud refusal, and expressions only."""
    key = make(alias).pk
    with pytest.raises(LeaseRequiredError):
        Stock(pk=key, sku="42", quantity=1).save(using=alias)
    with lease("stock:42"), pytest.raises(StaleReadError):
        Stock(pk=key, sku="42", quantity=1).save(using=alias)
    assert stored(alias) == (10, 0)
    Stock(pk=key + 1000, sku="new", quantity=1).save(using=alias)
    assert stored(alias, "new") == (1, 0)


def test_a_row_that_was_not_read_is_told_in_words(alias: str) -> None:
    """Not by the last token that it was read with, because there is none."""
    one = make(alias)
    unread, raw = Stock(pk=one.pk, sku="42"), Stock.objects.using(alias).raw("SELECT id FROM inventory_demo_stock")[0]
    with lease("stock:42") as held:
        for write in (
            lambda: unread.save(using=alias),
            lambda: raw.save(update_fields=["quantity"]),
            lambda: Stock.objects.using(alias).bulk_update([unread], ["quantity"]),
        ):
            with pytest.raises(StaleReadError, match=r"did not read the row.*Get the row first") as caught:
                write()
            assert f"resource 'stock:42' (inventory_demo.stock {one.pk}), token {held.token}. " in str(caught.value)
            assert caught.value.seen is None
        one.quantity = 5
        one.save()
        unread = Stock.objects.using(alias).get()
        unread._fence_pin = 0
        with pytest.raises(StaleReadError, match=f"no longer the one that was read: .*last token {one.last_token}. "):
            unread.save()


def test_a_row_that_is_gone_is_told_without_numbers_that_nobody_has(alias: str) -> None:
    one = make(alias)
    with lease("stock:42") as held:
        Stock.objects.using(alias).get().delete()
        with pytest.raises(RowMissingError, match=rf"stock {one.pk}\), token {held.token}\. It was deleted"):
            one.save()
    assert str(RowMissingError("", 0, None, "shop.bin 1")).startswith(
        "Write refused, the row no longer exists: shop.bin 1."
    )


def test_change_of_the_key_is_another_row(alias: str) -> None:
    first, second = make(alias), make(alias, sku="43", quantity=20)
    first.pk = second.pk
    with lease("stock:42"), pytest.raises(StaleReadError):
        first.save()
    assert stored(alias, "43") == (20, 0)


def test_partial_reads_never_leave_the_token_out(alias: str) -> None:
    """S4: a token that was read later than the values would defeat the comparison with what was read."""
    make(alias)
    mine = Stock.objects.using(alias).only("quantity").get()
    other = Stock.objects.using(alias).defer("last_token", "sku").get()
    assert {"last_token", "sku"} <= set(mine.__dict__) & set(other.__dict__)
    with lease("stock:42"):
        other.quantity = 9
        other.save()
        mine.quantity += 5
        with pytest.raises(StaleReadError):
            mine.save()
        mine.refresh_from_db(fields=["last_token"])
        with pytest.raises(StaleReadError):
            mine.save()
        raw = Stock.objects.using(alias).raw("SELECT id, quantity FROM inventory_demo_stock")[0]
        raw.quantity += 5
        with pytest.raises(StaleReadError):
            raw.save(update_fields=["quantity"])
    assert stored(alias)[0] == 9


def test_change_of_a_field_in_the_resource_name(alias: str) -> None:
    stock = make(alias)
    stock.sku = "43"
    with lease(["stock:42", "stock:43"]), pytest.raises(ResourceMismatchError):
        stock.save()
    assert stored(alias) == (10, 0)


def test_lease_of_another_resource(alias: str) -> None:
    stock = make(alias)
    with lease("stock:43") as other, pytest.raises(ResourceMismatchError):
        stock.save(lease=other)
    with lease("stock:43") as other, pytest.raises(ResourceMismatchError):
        stock.delete(lease=other)
    assert stored(alias) == (10, 0)


def test_lease_that_was_released_here(alias: str) -> None:
    stock = make(alias)
    with lease("stock:42") as held:
        pass
    for write in (lambda: stock.save(lease=held), lambda: stock.delete(lease=held)):
        with pytest.raises(LeaseLostError, match="released"):
            write()


def test_refusal_leaves_the_callers_transaction_usable(alias: str, overtaken: Pair) -> None:
    late = make(alias)
    with overtaken("stock:42") as (sleeper, newer):
        fresh = Stock.objects.using(alias).get()
        fresh.save()
        with transaction.atomic(using=alias):
            with pytest.raises(StaleWriteError):
                late.delete(lease=sleeper)
            with pytest.raises(StaleWriteError):
                late.save(lease=sleeper)
            Warehouse.objects.using(alias).create(name="kept")
    assert Warehouse.objects.using(alias).count() == 1
    assert stored(alias) == (10, newer.token)


def test_refused_write_outlives_the_callers_rollback(
    alias: str, overtaken: Pair, outcomes: Callable[[], list[str]]
) -> None:
    """I6, with the refusal in the middle of two nested transactions that both roll back."""
    late = make(alias)
    with overtaken("stock:42") as (sleeper, _newer):
        Stock.objects.using(alias).get().save()
        with pytest.raises(StaleWriteError), transaction.atomic(using=alias), transaction.atomic(using=alias):
            late.save(lease=sleeper)
    assert outcomes() == ["accepted", "stale"]


def test_accepted_write_rolls_back_with_its_history(alias: str, outcomes: Callable[[], list[str]]) -> None:
    stock = make(alias)
    with pytest.raises(ZeroDivisionError), lease("stock:42"), transaction.atomic(using=alias):
        stock.quantity = 1
        stock.save()
        raise ZeroDivisionError
    assert stored(alias) == (10, 0)
    assert outcomes() == []
    assert not FencedResource.objects.using(alias).exists()


def test_multi_table_child(alias: str, overtaken: Pair) -> None:
    child = ExpressBin.objects.using(alias).create(label="a", courier="x")
    with overtaken(child.fence_name()) as (sleeper, newer):
        fresh = ExpressBin.objects.using(alias).get()
        fresh.courier = "y"
        fresh.save(update_fields=["courier"])
        child.courier = "z"
        with pytest.raises(StaleWriteError):
            child.save(lease=sleeper)
        with pytest.raises(StaleWriteError):
            child.save(lease=sleeper, update_fields=["courier"])
    row = ExpressBin.objects.using(alias).get()
    assert (row.courier, row.last_token) == ("y", newer.token)


def test_proxy_shares_the_resource(alias: str) -> None:
    box = Bin.objects.using(alias).create(label="a")
    proxy = BinProxy.objects.using(alias).get()
    assert proxy.fence_name() == box.fence_name() == f"shop.bin:{box.pk}"
    with lease(proxy) as held:
        proxy.label = "b"
        proxy.save()
    assert Bin.objects.using(alias).get().last_token == held.token
    assert FencedWrite.objects.using(alias).get().model == "shop.bin"


def test_base_manager_that_hides_the_row(alias: str, monkeypatch: pytest.MonkeyPatch, overtaken: Pair) -> None:
    """C16: the UPDATE goes by the key, never through a filtering manager, and never becomes an INSERT."""
    stock, late = make(alias), Stock.objects.using(alias).get()
    with overtaken("stock:42") as (sleeper, newer), monkeypatch.context() as patch:
        manager = type(Stock._base_manager)
        patch.setattr(manager, "get_queryset", lambda self: models.QuerySet(Stock, using=self._db).none())
        stock.quantity = 7
        stock.save()
        with pytest.raises(StaleWriteError):
            late.save(lease=sleeper)
    assert stored(alias) == (7, newer.token)


def test_signal_that_saves_again(alias: str) -> None:
    stock = make(alias)

    def again(instance: Stock, **_named: Any) -> None:
        if instance.quantity == 7:
            instance.quantity = 8
            instance.save()

    post_save.connect(again, sender=Stock)
    try:
        with lease("stock:42"), lease("stock:43"):
            stock.quantity = 7
            stock.save()
            Stock.objects.using(alias).create(sku="43", quantity=7)
    finally:
        post_save.disconnect(again, sender=Stock)
    assert stored(alias)[0] == stored(alias, "43")[0] == 8


def test_equal_values_are_a_success(alias: str) -> None:
    """C20: the count of matched rows, not of changed ones."""
    stock = make(alias)
    with lease("stock:42") as held:
        stock.save()
    assert stored(alias) == (10, held.token)


def test_copy_idiom_makes_a_new_row(alias: str) -> None:
    stock = make(alias)
    stock.pk, stock.sku, stock._state.adding = None, "copy", True
    stock.save()
    assert stored(alias, "copy") == (10, 0)
    with lease("stock:copy") as held:
        stock.save()
    assert stored(alias, "copy") == (10, held.token)


def test_lost_lease_with_a_row_that_consumed_its_number(
    alias: str, overtaken: Pair, outcomes: Callable[[], list[str]]
) -> None:
    """The first save of a row goes to the database; a second one needs a further number, and there is none."""
    late = make(alias)
    with overtaken("stock:42") as (sleeper, _newer):
        late.save(lease=sleeper)
        with pytest.raises(LeaseLostError):
            late.save(lease=sleeper)
    assert outcomes() == ["accepted", "lost"]
