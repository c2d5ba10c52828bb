"""Ways to write that are seldom taken, and instances that are not what the row is."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
from django.core import serializers
from django.db import OperationalError, connections, transaction
from django.db.models import Count, F, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Concat
from django.db.models.sql.compiler import SQLUpdateCompiler

from fencing import (
    LeaseLostError,
    LeaseRequiredError,
    ResourceMismatchError,
    RowMissingError,
    StaleReadError,
    lease,
    unfenced,
)
from fencing.leases import Lease
from fencing.models import FencedWrite
from fencing.statements import send_steps
from fencing.taskrun import run_plain
from inventory_demo.models import Stock
from tests.concurrency import BOUND, threads
from tests.shop.models import Bin, Line, Paper, Parcel, Ticket, Warehouse

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

Pair = Callable[[str], Any]


def stock(alias: str, sku: str = "42", quantity: int = 10) -> Stock:
    Stock.objects.using(alias).create(sku=sku, quantity=quantity)
    return Stock.objects.using(alias).get(sku=sku)


def quantities(alias: str) -> dict[str, int]:
    return dict(Stock.objects.using(alias).values_list("sku", "quantity"))


def boxes(alias: str) -> tuple[Bin, Bin]:
    """Two instances of one row."""
    Bin.objects.using(alias).create(label="old", quantity=1)
    return Bin.objects.using(alias).get(), Bin.objects.using(alias).get()


def test_expression_does_not_reach_a_row_of_another_resource(alias: str) -> None:
    """I4: an instance that did not read its row may claim any name; the row knows its own."""
    first, second = stock(alias), stock(alias, "43")
    claimed = Stock(pk=second.pk, sku="42", quantity=F("quantity") - 1)
    first.pk, first.quantity = second.pk, F("quantity") - 1
    for one in (claimed, first):
        with lease("stock:42"), pytest.raises(ResourceMismatchError):
            one.save(using=alias, update_fields=["quantity"])
    assert quantities(alias) == {"42": 10, "43": 10}


def test_no_update_moves_a_row_to_another_resource(alias: str) -> None:
    moved = stock(alias)
    moved.sku = "43"
    rows = Stock.objects.using(alias)
    with lease(["stock:42", "stock:43"]):
        changes: list[Callable[[], Any]] = [
            lambda: rows.update(sku="43"),
            lambda: rows.update(quantity=1, sku=Concat("sku", Value("0"))),
            lambda: rows.bulk_update([moved], ["quantity", "sku"]),
        ]
        for change in changes:
            with pytest.raises(ResourceMismatchError):
                change()
        assert rows.update(sku="42", quantity=9) == 1
    assert quantities(alias) == {"42": 9}


def test_bulk_update_of_objects_that_did_not_read_their_rows(alias: str, outcomes: Callable[[], list[str]]) -> None:
    first, second = stock(alias), stock(alias, "43", 20)
    first.pk, first.quantity = second.pk, 1
    with lease(["stock:42", "stock:43"]):
        for one in (first, Stock(pk=second.pk, sku="43", quantity=1)):
            with pytest.raises(StaleReadError):
                Stock.objects.using(alias).bulk_update([one], ["quantity"])
    assert quantities(alias) == {"42": 10, "43": 20}
    assert outcomes() == ["stale-read"] * 2


def test_bulk_update_applies_an_expression_once(alias: str) -> None:
    one = stock(alias)
    with lease("stock:42"):
        one.quantity = F("quantity") - 1
        Stock.objects.using(alias).bulk_update([one], ["quantity"])
        one.save()
    assert quantities(alias) == {"42": 9}


def test_insert_that_met_another_row_has_read_nothing(alias: str) -> None:
    """I3: the row is not what the instance says."""
    key = uuid4()
    Ticket.objects.using(alias).create(code="k", note="theirs")
    Paper.objects.using(alias).create(key="k", facts="theirs")
    with lease(["shop.ticket:k", "shop.paper:k", f"shop.parcel:{key}"]):
        Parcel.objects.using(alias).create(id=key, weight=3)
        parcel, ticket, paper = Parcel(id=key, weight=9), Ticket(code="k", note="mine"), Paper(key="k", pages=5)
        Parcel.objects.using(alias).bulk_create([parcel], ignore_conflicts=True)
        Ticket.objects.using(alias).bulk_create([ticket], ignore_conflicts=True)
        Paper.objects.using(alias).bulk_create(
            [paper],
            update_conflicts=True,
            unique_fields=None if alias == "maria" else ["key"],
            update_fields=["pages"],
        )
        for one in (parcel, ticket, paper):
            with pytest.raises(StaleReadError):
                one.save(using=alias)
    assert Parcel.objects.using(alias).get().weight == 3
    assert Ticket.objects.using(alias).get().note == "theirs"
    assert Paper.objects.using(alias).values_list("facts", "pages").get() == ("theirs", 5)


@pytest.mark.parametrize("reported", [0, -1])
def test_count_that_the_driver_makes_up(alias: str, reported: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """C20: neither 0 for a row that was matched, nor -1 for "unknown", is taken for a success."""
    one = stock(alias)
    monkeypatch.setattr("fencing.writes.send_statement", send_steps)
    with monkeypatch.context() as patch:
        patch.setattr(SQLUpdateCompiler, "execute_sql", lambda self, kind: reported)
        with lease("stock:42"), pytest.raises(StaleReadError):
            one.save()
        patch.setattr("fencing.bulkwrites.can_be_one_statement", lambda *_args: False)
        with lease("stock:42"):
            assert Stock.objects.using(alias).update(quantity=7) == 0
    assert quantities(alias) == {"42": 10}
    assert not FencedWrite.objects.using(alias).filter(outcome="accepted").exists()


def test_fixtures_keep_the_numbers_of_their_rows(alias: str) -> None:
    """C17: into an empty table with the numbers that they had; over rows never, and nothing is made up for the history."""
    with connections[alias].cursor() as cursor:
        stock(alias)
        cursor.execute("UPDATE inventory_demo_stock SET last_token = 7")
    dumped = serializers.serialize("json", Stock.objects.using(alias))

    def load() -> None:
        for one in serializers.deserialize("json", dumped, using=alias):
            one.save(using=alias)

    for present in (7, 9):
        with connections[alias].cursor() as cursor:
            cursor.execute("UPDATE inventory_demo_stock SET last_token = %s WHERE last_token < %s", [present, present])
        with pytest.raises(LeaseRequiredError):
            load()
        assert Stock.objects.using(alias).get().last_token == present
    with unfenced("restore", database=alias) as number:
        load()
        # A newer one than the block's: a holder has written the row, and must not find the number that it knows.
        assert Stock.objects.using(alias).get().last_token > max(9, number)
        Stock.objects.using(alias).all().delete()
    before = FencedWrite.objects.using(alias).count()
    load()
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (10, 7)
    assert FencedWrite.objects.using(alias).count() == before


def test_two_who_create_at_once_make_one_row(alias: str) -> None:
    """C18: with a preset key, both under one lease; neither is told of a conflict that is none."""
    with lease(f"shop.ticket:k{alias}"):
        contexts = [copy_context() for _ in range(2)]

        def create() -> Any:
            return Ticket.objects.using(alias).get_or_create(code=f"k{alias}", defaults={"note": "n"})[1]

        if alias == "lite":  # a database in memory is of one thread
            made = [context.run(create) for context in contexts]
        else:
            with threads() as start:
                made = [one.result(BOUND) for one in [start(context.run, create) for context in contexts]]
    assert sorted(made) == [False, True]
    with lease(f"shop.ticket:k{alias}"):
        Ticket.objects.using(alias).get().save()


def test_ignored_rows_are_not_on_record_as_accepted(alias: str) -> None:
    """Only what an INSERT has made is; two rows of one resource are told apart by the number that it carries."""
    one = stock(alias)
    theirs = Line.objects.using(alias).create(order=1, number=1, quantity=5)
    with lease(["stock:42", "stock:43", "line:1:1", "line:1:2"]):
        one.save()
        Stock.objects.using(alias).bulk_create([Stock(sku="42"), Stock(sku="43")], ignore_conflicts=True)
        Line.objects.using(alias).bulk_create(
            [Line(order=1, number=number) for number in (1, 2)], ignore_conflicts=True
        )
        inserts = FencedWrite.objects.using(alias).filter(action="insert")
        made = Stock.objects.using(alias).get(sku="43")
        assert sorted(inserts.values_list("resource", "object_pk", "token")) == [
            ("line:1:2", "(1, 2)", Line.objects.using(alias).get(number=2).last_token),
            ("stock:43", str(made.pk), made.last_token),
        ]
    assert quantities(alias) == {"42": 10, "43": 0} and theirs.pk


def test_number_of_a_write_that_was_rolled_back_is_not_the_next_ones(alias: str) -> None:
    """I3: else the instance of the undone write would count as one that has read the next."""
    mine, theirs = boxes(alias)
    with lease(mine):
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            mine.quantity = 5
            mine.save()
            raise ZeroDivisionError
        theirs.label = "new"
        theirs.save()
        with pytest.raises(StaleReadError):
            mine.save()
    assert Bin.objects.using(alias).values_list("label", "quantity").get() == ("new", 1)


@pytest.mark.parametrize("many", [False, True], ids=["save", "bulk_create"])
def test_number_of_an_insert_that_was_rolled_back_is_not_the_next_ones(alias: str, many: bool) -> None:
    def create(parcel: Parcel) -> None:
        if many:
            Parcel.objects.using(alias).bulk_create([parcel])
        else:
            parcel.save(using=alias)

    mine = Parcel(weight=1)
    theirs = Parcel(id=mine.id, weight=2)
    with lease(mine):
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            create(mine)
            raise ZeroDivisionError
        create(theirs)
        with pytest.raises(StaleReadError):
            mine.save()
    assert Parcel.objects.using(alias).get().weight == 2


def test_write_with_the_fence_lifted_does_not_pretend_to_have_read_the_row(alias: str) -> None:
    mine, theirs = boxes(alias)
    with lease(mine):
        theirs.label = "new"
        theirs.save()
    with unfenced("audit", database=alias):
        mine.quantity = 7
        mine.save(update_fields=["quantity"])
    with lease(mine), pytest.raises(StaleReadError):
        mine.save()
    assert Bin.objects.using(alias).values_list("label", "quantity").get() == ("new", 7)


def test_rows_without_a_name_are_mended_with_the_fence_lifted(alias: str) -> None:
    """Other programs insert what they like; nobody could hold the lease of such a row."""
    rows = Stock.objects.using(alias)
    with connections[alias].cursor() as cursor:
        for sku in ("", "a\nb", "c\nd", "e\nf"):
            cursor.execute("INSERT INTO inventory_demo_stock (sku, quantity, last_token) VALUES (%s, 1, 0)", [sku])
    with lease("stock:x"), pytest.raises(ValueError, match="empty"):
        rows.filter(sku="").update(quantity=2)
    with unfenced("names", database=alias):
        rows.filter(sku="").update(sku="x")
        one = rows.get(sku="a\nb")
        one.sku = "y"
        one.save()
        rows.get(sku="c\nd").delete()
        rows.filter(sku="e\nf").delete()
        rows.bulk_create([Stock(sku="g\nh")])
    assert set(quantities(alias)) == {"x", "y", "g\nh"}


@pytest.mark.parametrize("seen", [5_000_000, 2**52], ids=["from elsewhere", "invented"])
def test_upsert_with_the_fence_lifted_lowers_no_number(alias: str, seen: int) -> None:
    """A number that counters can follow is passed; below one that was invented the row's stays."""
    first, second = stock(alias), stock(alias, "43")
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE inventory_demo_stock SET last_token = %s WHERE sku = '42'", [seen])
    with unfenced("import", database=alias) as number:
        Stock.objects.using(alias).bulk_create(
            [Stock(sku="42", quantity=1), Stock(sku="43", quantity=1), Stock(sku="44", quantity=1)],
            update_conflicts=True,
            unique_fields=None if alias == "maria" else ["sku"],
            update_fields=["quantity"],
        )
    rows = Stock.objects.using(alias).order_by("sku").values_list("quantity", "last_token")
    others = (1, number) if seen == 2**52 else (1, seen + 1)
    assert list(rows) == [(1, seen) if seen == 2**52 else others, others, others] and first.pk != second.pk


def test_row_that_is_gone_before_its_name_was_read(alias: str, outcomes: Callable[[], list[str]]) -> None:
    stock(alias)
    raw = Stock.objects.using(alias).raw("SELECT id, quantity FROM inventory_demo_stock")
    late = [raw[0] for _ in range(4)]
    with lease("stock:42"):
        Stock.objects.using(alias).get().delete()
        late[0].sku = "43"
        for write in (
            late[0].save,
            lambda: late[1].save(update_fields=["quantity"]),
            late[2].delete,
            lambda: Stock.objects.using(alias).bulk_update([late[3]], ["quantity"]),
        ):
            with pytest.raises(RowMissingError):
                write()
    with pytest.raises(RowMissingError):
        raw[0].save() if list(raw) else late[1].fence_name()
    assert not Stock.objects.using(alias).exists()
    assert outcomes() == ["accepted", *["missing"] * 4]


def test_lost_number_that_the_body_swallows(alias: str, overtaken: Pair) -> None:
    """I6: the second write never happened, so the transaction is no success."""
    one = stock(alias)
    with overtaken("stock:42") as (sleeper, _newer), pytest.raises(LeaseLostError), sleeper.atomic(using=alias):
        one.quantity = 9
        one.save(lease=sleeper)
        one.quantity = 8
        with suppress(LeaseLostError):
            one.save(lease=sleeper)
    assert quantities(alias) == {"42": 10}


def test_update_in_every_shape(alias: str) -> None:
    house = Warehouse.objects.using(alias).create(name="7")
    pair = [Bin.objects.using(alias).create(label=label, warehouse=house) for label in "ab"]
    rows = Bin.objects.using(alias)
    name = Warehouse.objects.filter(pk=OuterRef("warehouse")).values("name")[:1]
    with pytest.raises(LeaseRequiredError):
        rows.distinct().update(quantity=1)
    with lease(pair):
        for matched, values in (
            (rows.annotate(more=F("quantity") + 5), {"quantity": F("more")}),
            (rows.filter(warehouse__name="7").order_by("-label"), {"quantity": F("quantity") + 1}),
            (rows.annotate(n=Count("expressbin")).filter(n=0), {"quantity": F("quantity") + 1}),
            (rows.all(), {"label": Subquery(name)}),
            (rows.distinct(), {"warehouse": house}),
            (rows.values("warehouse"), {"changed_at": F("changed_at")}),
            (rows.select_for_update(), {"changed_at": F("changed_at")}),
        ):
            assert matched.update(**values) == 2
        assert list(rows.values_list("label", "quantity")) == [("7", 7)] * 2
        assert rows.none().update(quantity=3) == 0
        with pytest.raises(TypeError, match="slice"):
            rows.all()[:1].update(quantity=1)
        assert rows.filter(warehouse__name="7").distinct().delete()[0] == 2


def test_copies_of_an_instance_are_compared_each(alias: str) -> None:
    one = stock(alias)
    copies = [pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one)]  # noqa: S301
    with lease("stock:42"):
        one.save()
        for other in copies:
            with pytest.raises(StaleReadError):
                other.save()
        pickle.loads(pickle.dumps(one)).save()  # noqa: S301


def test_refresh_from_another_queryset(alias: str) -> None:
    one, other = stock(alias), Stock.objects.using(alias).get()
    with lease("stock:42"):
        other.quantity = 5
        other.save()
        one.refresh_from_db(from_queryset=Stock.objects.using(alias))
        one.quantity += 1
        one.save()
        one.refresh_from_db(from_queryset=QuerySet(Stock, using=alias).only("quantity"))
        one.save()
    assert quantities(alias) == {"42": 6}
    assert FencedWrite.objects.using(alias).filter(outcome="accepted").count() == 3


@pytest.mark.parametrize("atomic", [True, False])
def test_refusal_that_was_mended_by_what_was_undone(alias: str, atomic: bool) -> None:
    """I6: the body has swallowed both, and nothing of the row was written."""
    late, other = boxes(alias)

    def body(undone: bool) -> None:
        late.quantity = 9
        with suppress(StaleReadError):
            late.save()
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            other.refresh_from_db()
            other.quantity += 1
            other.save()
            assert 1 / (not undone)

    def run(held: Lease, undone: bool) -> None:
        if atomic:
            with held.atomic(using=alias):
                body(undone)
        else:
            run_plain(held, lambda: body(undone))

    with lease(late) as held:
        other.save()
        with pytest.raises(StaleReadError):
            run(held, True)
        run(held, False)
        assert not held.refusals.unmended() and held.refusals.is_empty()
    assert Bin.objects.using(alias).get().quantity == 2


def test_refusal_that_was_mended_where_nobody_tells_of_a_commit() -> None:
    """I6: Django neither commits nor rolls back where it was told to leave that to the user."""
    late, other = boxes("default")

    def body() -> None:
        other.save()
        with suppress(StaleReadError):
            late.save()
        transaction.set_autocommit(False)
        try:
            Bin.objects.get().save()
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    with lease(late) as held, pytest.raises(StaleReadError):
        run_plain(held, body)


def test_refusal_is_not_mended_in_another_database(alias: str) -> None:
    """I6: a row of the same key there is another row."""
    late, other = boxes(alias)
    second = "lite" if alias == "default" else "default"
    elsewhere = Bin(pk=late.pk)
    elsewhere.save(using=second, force_insert=True)
    with lease(late) as held:
        other.save()
        with pytest.raises(StaleReadError), held.atomic(using=alias):
            with suppress(StaleReadError):
                late.save()
            elsewhere.save()
    assert Bin.objects.using(second).get().last_token == elsewhere.last_token > 0


def test_refusal_stays_mended_when_a_further_write_is_undone(alias: str) -> None:
    late, other = boxes(alias)
    with lease(late) as held, held.atomic(using=alias):
        other.save()
        with pytest.raises(StaleReadError):
            late.save()
        other.quantity = 5
        other.save()
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            other.save()
            assert 1 / 0
    assert Bin.objects.using(alias).get().quantity == 5


def test_refusal_before_a_transaction_that_was_undone_counts(alias: str) -> None:
    """I6: a task that goes on after both would else report success."""
    late, other = boxes(alias)

    def body() -> None:
        other.save()
        with suppress(StaleReadError):
            late.save()
        with suppress(ZeroDivisionError), held.atomic(using=alias):
            assert 1 / 0

    with lease(late) as held, pytest.raises(StaleReadError):
        run_plain(held, body)


def test_wait_that_the_body_did_not_want_is_no_lost_lease(alias: str) -> None:
    """A lock that was not free at once tells nothing of the lease."""
    if alias == "lite":  # where nothing is locked but the whole
        return
    Warehouse.objects.using(alias).create(name="w")
    locked, seen = Event(), Event()

    def hold() -> None:
        with transaction.atomic(using=alias):
            Warehouse.objects.using(alias).select_for_update().get()
            locked.set()
            assert seen.wait(BOUND)

    with threads() as start, lease("stock:42") as held:
        holding = start(hold)
        try:
            assert locked.wait(BOUND)
            with pytest.raises(OperationalError), held.atomic(using=alias):
                Warehouse.objects.using(alias).select_for_update(nowait=True).get()
            assert held.is_held()
        finally:
            seen.set()
        holding.result(BOUND)


def test_row_of_another_database_has_its_own_name(alias: str) -> None:
    """I4: what was read in one database is saved to another, where the row of that key is of another resource."""
    other = "lite" if alias == "default" else "default"
    for place, sku in ((other, "42"), (alias, "43")):
        Stock.objects.using(place).bulk_create([Stock(pk=7, sku=sku, quantity=10)])
    one, change = Stock.objects.using(other).get(), Stock.objects.using(other).get()
    change.quantity = F("quantity") - 1
    with lease("stock:42"):
        with pytest.raises(ResourceMismatchError):
            one.save(using=alias)
        with pytest.raises(ResourceMismatchError):
            change.save(using=alias, update_fields=["quantity"])
        with pytest.raises(ResourceMismatchError):
            Stock.objects.using(alias).bulk_update([one], ["quantity"])
        with pytest.raises(ResourceMismatchError):
            one.delete(using=alias)
    assert quantities(alias) == {"43": 10}
    with unfenced("rename", database=alias):
        Stock.objects.using(alias).update(sku="42")
    with lease("stock:42") as held:
        change.save(using=alias, update_fields=["quantity"])
        assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (9, held.token)


@pytest.mark.parametrize("name", ["43", "A"])
@pytest.mark.parametrize("read", [True, False])
def test_expression_does_not_reach_a_row_that_was_given_another_name(
    alias: str, read: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: nothing of the row is compared, but its name, which only a lifted fence changes; MariaDB takes "A" for equal."""
    one = stock(alias, "a")
    change = Stock.objects.using(alias).get() if read else Stock(pk=one.pk, sku="a")
    change.quantity = F("quantity") - 1

    def rename() -> None:
        with unfenced("rename", database=alias):
            Stock.objects.using(alias).update(sku=name)

    rename()
    with lease("stock:a"):
        if not read:  # it looks before, so that the other name comes in between
            monkeypatch.setattr(Stock, "_fence_finds_row", lambda *_args: True)
        with pytest.raises(StaleReadError):
            change.save(using=alias, update_fields=["quantity"])
    assert quantities(alias) == {name: 10}
