"""Fenced transactions and waiting statements on MariaDB, whose plain reads may show what was there before.

Everything under READ COMMITTED, which Django sets, and under REPEATABLE READ, which is MariaDB's own default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import OperationalError, connections, models, transaction
from django.db.models import F
from django.utils import timezone

from fencing import (
    AlreadyAppliedError,
    LeaseInsideTransactionError,
    LeaseLostError,
    ResourceMismatchError,
    StaleReadError,
    StaleWriteError,
    lease,
    unfenced,
)
from fencing.acquiring import acquire
from fencing.conflicts import _may_be_equal
from fencing.databases import is_cut_off
from fencing.leases import Lease
from fencing.models import FencedResource, FencedWrite, Operation
from inventory_demo.models import PlainStock, Stock, StockDelta
from tests.concurrency import BOUND, threads, wait_until
from tests.shop.models import Crate, Warehouse

pytestmark = pytest.mark.django_db(databases=["default", "maria"], transaction=True)

REPEATABLE = "repeatable read"


@pytest.fixture(autouse=True, params=["read committed", REPEATABLE])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """The isolation of every connection to MariaDB."""
    options = connections["maria"].settings_dict["OPTIONS"]
    connections["maria"].close()
    options["isolation_level"] = request.param
    yield request.param
    connections["maria"].close()
    del options["isolation_level"]


@pytest.fixture
def stock() -> Stock:
    return Stock.objects.using("maria").create(sku="42", quantity=10)


def rows() -> Any:
    return Stock.objects.using("maria")


def raw(sql: str, *params: Any) -> list[tuple[Any, ...]]:
    with connections["maria"].cursor() as cursor:
        cursor.execute(sql, params)
        return [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]


def grant(resource: str = "stock:42", ttl: float = 30) -> Lease:
    """A lease that ends in the store at once, so that the next one is newer, without its holder's knowing."""
    held = acquire(resource, ttl=ttl, give_up=None, using="default", allow_in_transaction=True)
    held._backend.revoke(held._place, held.token)
    return held


def quantity() -> int:
    return int(rows().get(sku="42").quantity)


def add(held: Lease, change: int, result: Any = None) -> Any:
    one = rows().get(sku="42")
    one.quantity += change
    one.save(lease=held)
    return result


def once(held: Lease, key: str, function: Callable[..., Any], *args: Any) -> Any:
    with suppress(AlreadyAppliedError), held.atomic(operation=key, using="maria") as applied:
        applied.result = function(*args)
    return Operation.objects.using("maria").get(resource=held.resource, key=key).result


def waiting() -> int:
    """How many sessions of the test database wait for a row lock."""
    time.sleep(0.12)  # who looks more often sees what was there at the first look
    found = raw(
        "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist "
        "ON id = trx_mysql_thread_id WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()"
    )
    return int(found[0][0])


# --- single statements inside somebody's transaction


def test_late_write_in_an_open_transaction_is_judged_by_the_row_as_it_is(stock: Stock) -> None:
    old, newer = grant(), grant()
    with transaction.atomic(using="maria"):
        mine = rows().get()
        with threads() as start:
            start(add, newer, -5).result(BOUND)
        mine.quantity -= 3
        with pytest.raises(StaleWriteError) as caught:
            mine.save(lease=old)
    assert caught.value.seen == newer.token
    assert quantity() == 5
    outcomes = FencedWrite.objects.using("maria").order_by("id").values_list("outcome", "seen")
    assert list(outcomes)[1:] == [("stale", newer.token)]


def test_i3_what_was_read_in_the_snapshot_does_not_overwrite_a_late_write(stock: Stock) -> None:
    """The newer holder's snapshot is from before a late write of the older one, which landed first."""
    old, newer = grant(), grant()
    with transaction.atomic(using="maria"):
        mine = rows().get()
        with threads() as start:
            start(add, old, -3).result(BOUND)
        mine.quantity += 1
        with pytest.raises(StaleReadError):
            mine.save(lease=newer)
        mine.quantity = F("quantity") + 1
        mine.save(lease=newer, update_fields=["quantity"])
    assert quantity() == 8


def test_i4_newer_holder_that_has_only_begun_is_noticed_in_the_snapshot(stock: Stock) -> None:
    old, newer = grant(), grant()
    with transaction.atomic(using="maria"):
        mine = rows().get()
        assert not FencedResource.objects.using("maria").exists()
        with threads() as start:
            start(once, newer, "x", quantity).result(BOUND)
        with pytest.raises(StaleWriteError) as caught:
            mine.save(lease=old)
        assert caught.value.seen == newer.token
    assert quantity() == 10


def test_s1_old_statement_that_waited_for_the_row_is_refused(stock: Stock) -> None:
    old, newer = grant(), grant()
    mine = rows().get()
    with threads() as start:
        with transaction.atomic(using="maria"):
            rows().select_for_update().get()
            late = start(lambda: mine.save(lease=old))
            wait_until(lambda: waiting() == 1, "the old statement waits for the row")
            assert start(once, newer, "x", quantity).result(BOUND) == 10
        with pytest.raises(StaleWriteError) as caught:
            late.result(BOUND)
    assert caught.value.seen == newer.token
    assert rows().get().last_token == 0


def test_s1_old_statement_that_waited_is_refused_although_it_had_passed_before(stock: Stock) -> None:
    with lease("stock:42") as old, threads() as start:
        add(old, -1)
        mine = rows().get()
        with transaction.atomic(using="maria"):
            rows().select_for_update().get()
            late = start(lambda: mine.save(lease=old))
            wait_until(lambda: waiting() == 1, "the old statement waits for the row")
            old._backend.revoke(old._place, old.token)
            newer = grant()
            assert start(once, newer, "x", quantity).result(BOUND) == 9
        with pytest.raises(StaleWriteError):
            late.result(BOUND)
    assert quantity() == 9


def test_s1_begin_waits_for_a_write_of_an_older_holder(stock: Stock) -> None:
    """What the newer holder reads after its begin must stay true; also where the older one has passed before."""
    read: list[int] = []
    with lease("stock:42") as old, threads() as start:
        add(old, -1)
        with transaction.atomic(using="maria"):
            add(old, -2)
            old._backend.revoke(old._place, old.token)
            newer = grant()

            def begin_and_read() -> None:
                with newer.atomic(using="maria"):
                    read.append(quantity())

            beginning = start(begin_and_read)
            wait_until(lambda: waiting() == 1 or beginning.done(), "the begin waits")
            assert not read
        beginning.result(BOUND)
    assert read == [7]


def test_begin_waits_no_longer_than_the_lease_has(stock: Stock) -> None:
    old, newer = grant(), grant(ttl=1)
    with transaction.atomic(using="maria"), threads() as start:
        add(old, -3)
        with pytest.raises(LeaseLostError, match="time ran out"):
            start(once, newer, "x", quantity).result(BOUND)
    assert quantity() == 7


def test_rows_that_match_only_since_the_snapshot_are_judged_too(level: str) -> None:
    """A cascade deletes the rows as they are, so they must be judged as they are."""
    house = Warehouse.objects.using("maria").create(name="a")
    crates = Crate.objects.using("maria")
    crates.create(warehouse=house, code="mine")
    with lease(f"crate:{house.pk}:mine") as held:
        held.advance()
        with transaction.atomic(using="maria"):
            assert crates.count() == 1
            with threads() as start:
                start(lambda: crates.create(warehouse=house, code="theirs")).result(BOUND)
            with pytest.raises(ResourceMismatchError):
                crates.filter(warehouse=house).delete()
    assert crates.count() == 2


# --- lease.atomic()


def test_superseded_holder_has_no_effect_on_any_table(stock: Stock) -> None:
    old, newer = grant(), grant()
    with pytest.raises(StaleWriteError) as caught, old.atomic(using="maria"):
        StockDelta.objects.using("maria").create(sku="42", delta=-3, reason="late", operation="1")
        with threads() as start:
            start(once, newer, "x", add, newer, -5).result(BOUND)
    assert caught.value.seen == newer.token
    assert quantity() == 5
    assert not StockDelta.objects.using("maria").exists()
    (end,) = FencedWrite.objects.using("maria").filter(outcome="stale")
    assert (end.token, end.seen, end.action) == (old.token, newer.token, "end")


def test_superseded_holder_cannot_begin(stock: Stock) -> None:
    old, newer = grant(), grant()
    once(newer, "x", quantity)
    with pytest.raises(StaleWriteError), old.atomic(using="maria"):
        raise AssertionError("the body runs")


def test_two_transactions_of_one_lease_do_not_both_take_effect(stock: Stock) -> None:
    held = grant()
    with pytest.raises(StaleWriteError), held.atomic(using="maria"), threads() as start:
        start(once, held, "second", quantity).result(BOUND)
    assert list(Operation.objects.using("maria").values_list("key", flat=True)) == ["second"]


def test_concurrent_duplicates_take_effect_once(stock: Stock) -> None:
    """I5"""
    holders = [grant() for _ in range(4)]

    def attempt(held: Lease) -> Any:
        with suppress(StaleWriteError):
            return once(held, "order-7", add, held, -3, {"left": 7})
        return None

    with threads() as start:
        results = [one.result(BOUND) for one in [start(attempt, held) for held in holders]]
    assert quantity() == 7
    assert {"left": 7} in results and all(result in (None, {"left": 7}) for result in results)


def test_duplicate_that_overtook_wins(stock: Stock) -> None:
    held = grant()
    with pytest.raises(AlreadyAppliedError) as caught, held.atomic(operation="o", using="maria") as applied:
        add(held, -3)
        with threads() as start:  # by a holder who had lost the lease before, of which only the key is left
            start(insert_key, held, "o").result(BOUND)
        applied.result = "mine"
    assert caught.value.result == "theirs"
    assert quantity() == 10


def insert_key(held: Lease, key: str) -> None:
    Operation.objects.using("maria").create(
        namespace=held.namespace, resource=held.resource, key=key, token=1, result="theirs", applied_at=timezone.now()
    )


def test_keys_compare_byte_by_byte(stock: Stock) -> None:
    ran: list[str] = []
    for key in ("order:A1", "order:a1", "order:A1 ", "order:é", "order:e"):
        once(grant(), key, ran.append, key)
    assert len(ran) == 5


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "é𝄞\0\\'", [1, {"a": [None]}], {"": ""}])
def test_results_are_those_of_the_first(value: Any) -> None:
    assert once(grant(), "o", lambda: value) == value
    assert once(grant(), "o", lambda: "other") == value


def test_result_that_its_json_cannot_hold(stock: Stock) -> None:
    held = grant()
    with pytest.raises(TypeError, match="cannot hold the result"):
        once(held, "o", add, held, -3, "\ud800")
    assert quantity() == 10


def test_lock_waits_inside_end_with_the_lease_and_bounds_are_set_back(stock: Stock) -> None:
    held = grant(ttl=2)
    other = rows().create(sku="43")
    with threads() as start, transaction.atomic(using="maria"):
        rows().select_for_update().get(pk=other.pk)

        def wait_for_other() -> Any:
            try:
                with pytest.raises(LeaseLostError, match="1205"), held.atomic(using="maria"):
                    rows().select_for_update().get(pk=other.pk)
            finally:
                found = raw("SELECT @@innodb_lock_wait_timeout, @@idle_write_transaction_timeout")
            return found

        assert start(wait_for_other).result(BOUND) == [(50, 0)]


def test_tighter_bounds_of_the_users_own_stay(stock: Stock) -> None:
    raw("SET innodb_lock_wait_timeout = 3, idle_write_transaction_timeout = 2")
    ask = "SELECT @@innodb_lock_wait_timeout, @@idle_write_transaction_timeout"
    with grant().atomic(using="maria"):
        assert raw(ask) == [(3, 2)]
    raw("SET innodb_lock_wait_timeout = 50, idle_write_transaction_timeout = 0")
    with grant().atomic(using="maria"):
        assert raw(ask) == [(30, 30)]
    assert raw(ask) == [(50, 0)]


def test_l1_sleeper_that_has_written_is_ended_by_the_database(stock: Stock) -> None:
    old, newer = grant(ttl=2), grant()
    with pytest.raises(LeaseLostError, match="time ran out"), threads() as start, old.atomic(using="maria"):
        add(old, -3)
        start(once, newer, "x", add, newer, +1).result(BOUND)
        wait_until(lambda: not old.is_held(), "the lease is over")
    assert quantity() == 11


@pytest.mark.parametrize("number", [2006, 2013])
def test_connection_that_ended_is_known_by_the_number_of_either_driver(number: int) -> None:
    """PyMySQL's errors have an SQLSTATE, which is None here; mysqlclient's have none at all."""
    error = OperationalError(number, "gone")
    error.__cause__ = Exception(number, "gone")
    assert is_cut_off(error)


def cut_off() -> None:
    """End this thread's connection as the server does with one that idles for too long."""
    ((number,),) = raw("SELECT CONNECTION_ID()")
    with threads() as start:
        start(raw, f"KILL CONNECTION {number}").result(BOUND)


def test_connection_that_ends_under_a_live_lease_is_the_databases_own_error(stock: Stock) -> None:
    """Django has opened another one by the end, which has nothing to set back."""
    with pytest.raises(OperationalError, match=r"20(06|13)"), grant().atomic(using="maria"):
        cut_off()
        rows().count()
    assert raw("SELECT @@innodb_lock_wait_timeout, @@idle_write_transaction_timeout") == [(50, 0)]
    with grant().atomic(using="maria"):
        assert raw("SELECT @@innodb_lock_wait_timeout") == [(30,)]
    assert raw("SELECT @@innodb_lock_wait_timeout, @@idle_write_transaction_timeout") == [(50, 0)]


def test_connection_that_ends_with_the_fence_lifted_is_the_databases_own_error(stock: Stock) -> None:
    """Setting back what the guard was told fails as well then, with an error that says less."""
    with pytest.raises(OperationalError, match=r"20(06|13)"), unfenced("audit", database="maria"):
        rows().update(quantity=3)
        cut_off()
        rows().count()
    assert quantity() == 10


def lock(pk: int) -> None:
    raw("SELECT 1 FROM inventory_demo_plainstock WHERE id = %s FOR UPDATE", pk)


def deadlock(first: int, second: int) -> None:
    """Be the victim of a deadlock, and swallow that as a body might, past Django's notice."""
    met = []
    with threads() as start:

        def other() -> None:
            with transaction.atomic(using="maria"):
                for number in range(20):  # InnoDB rolls back who has written less
                    PlainStock.objects.using("maria").create(sku=f"x{number}")
                lock(second)
                met.append(True)
                lock(first)

        lock(first)
        running = start(other)
        wait_until(lambda: met, "the other one has its first row")
        with pytest.raises(OperationalError, match="1213"):
            lock(second)
        running.result(BOUND)


def test_body_that_swallowed_a_deadlock_has_no_effect(stock: Stock) -> None:
    """InnoDB has rolled the first half back, and the second one stands in another transaction."""
    PlainStock.objects.using("maria").bulk_create([PlainStock(pk=1, sku="a"), PlainStock(pk=2, sku="b")])
    held, deltas = grant(), StockDelta.objects.using("maria")
    with pytest.raises(OperationalError, match="ended the transaction"), held.atomic(operation="o", using="maria"):
        deltas.create(sku="42", delta=1, reason="first half", operation="1")
        deadlock(1, 2)
        deltas.create(sku="42", delta=1, reason="second half", operation="2")
        assert raw("SELECT @@in_transaction") == [(1,)], "so that would tell nothing"
    assert not deltas.exists() and not Operation.objects.using("maria").exists()
    once(grant(), "o", quantity)


def test_body_that_committed_by_ddl_is_told_so(stock: Stock) -> None:
    held, deltas = grant(), StockDelta.objects.using("maria")
    with pytest.raises(OperationalError, match="ended the transaction"), held.atomic(operation="o", using="maria"):
        deltas.create(sku="42", delta=1, reason="first half", operation="1")
        raw("CREATE TABLE of_the_body (id INT)")
        deltas.create(sku="42", delta=1, reason="second half", operation="2")
    raw("DROP TABLE of_the_body")
    assert list(deltas.values_list("reason", flat=True)) == ["first half"]
    assert not Operation.objects.using("maria").exists()


def test_two_leases_in_one_transaction(level: str) -> None:
    for sku in ("1", "2"):
        rows().create(sku=sku, quantity=5)
    with lease(["stock:1", "stock:2"]) as (one, two), one.atomic(using="maria"), two.atomic(using="maria"):
        for held, change in ((one, -1), (two, +1)):
            row = rows().get(sku=held.resource[-1])
            row.quantity += change
            row.save()
    assert list(rows().order_by("sku").values_list("quantity", flat=True)) == [4, 6]


def test_second_begin_must_come_before_the_snapshot(level: str) -> None:
    """Its body would read what was there before the second resource's begin."""
    for sku in ("1", "2"):
        rows().create(sku=sku, quantity=5)
    with lease(["stock:1", "stock:2"]) as (one, two), one.atomic(using="maria"):
        assert rows().count() == 2
        if level == REPEATABLE:
            with pytest.raises(LeaseInsideTransactionError, match="first statement"), two.atomic(using="maria"):
                raise AssertionError("the body runs")
        else:
            with two.atomic(using="maria"):
                pass


def test_begin_inside_an_open_transaction_must_come_first(stock: Stock, level: str) -> None:
    with transaction.atomic(using="maria"):
        held = grant()
        held.allow_in_transaction = True
        with held.atomic(using="maria"):
            add(held, -3)
    with transaction.atomic(using="maria"):
        assert quantity() == 7
        held = grant()
        held.allow_in_transaction = True
        if level == REPEATABLE:
            with pytest.raises(LeaseInsideTransactionError, match="first statement"), held.atomic(using="maria"):
                raise AssertionError("the body runs")
        else:
            with held.atomic(using="maria"):
                add(held, -3)


@pytest.mark.slow
def test_lost_deltas_and_deadlocks_under_stress() -> None:
    for sku in ("1", "2"):
        rows().create(sku=sku, quantity=0)

    def transfer(number: int) -> None:
        names = ["stock:1", "stock:2"] if number % 2 else ["stock:2", "stock:1"]
        for _ in range(8):
            with lease(names, wait=BOUND) as (one, two), one.atomic(using="maria"), two.atomic(using="maria"):
                for held in (one, two):
                    row = rows().get(sku=held.resource[-1])
                    row.quantity += 1
                    row.save()

    def single(_number: int) -> None:
        for _ in range(8):
            with lease("stock:1", wait=BOUND):
                row = rows().get(sku="1")
                row.quantity += 1
                row.save()

    with threads() as start:
        running = [start(work, number) for number in range(3) for work in (transfer, single)]
        for one in running:
            one.result(60)
    assert list(rows().order_by("sku").values_list("quantity", flat=True)) == [48, 24]


@pytest.mark.parametrize("fields", [["quantity"], ["quantity", "sku"]], ids=["value", "name"])
def test_i4_upsert_onto_a_row_whose_name_is_equal_to_the_database_only(fields: list[str]) -> None:
    """MariaDB takes "A" for "a", in a unique key too; the row of stock:A is not the holder's of stock:a."""
    rows().create(sku="A", quantity=10)
    equal = Stock(sku="a", quantity=1)
    with lease("stock:a"), pytest.raises(ResourceMismatchError):
        rows().bulk_create([equal], update_conflicts=True, update_fields=fields)
    assert rows().values_list("sku", "quantity", "last_token").get() == ("A", 10, 0) and equal.last_token == 0
    with lease("stock:A"):
        rows().bulk_create([Stock(sku="A", quantity=1)], update_conflicts=True, update_fields=fields)
    assert rows().values_list("sku", "quantity").get() == ("A", 1)


def test_which_names_may_be_equal_to_a_database_only() -> None:
    def may_be(alias: str, field: Any) -> bool:
        return _may_be_equal(connections[alias], field)

    class Lowered(models.CharField):  # type: ignore[type-arg]
        def db_type(self, connection: Any) -> str:
            return "citext"

    assert may_be("maria", models.CharField(max_length=9))
    assert not may_be("maria", models.BigIntegerField()) and not may_be("maria", models.UUIDField())
    assert not may_be("default", models.SlugField())
    assert may_be("default", models.CharField(max_length=9, db_collation="any"))
    assert may_be("default", Lowered(max_length=9))
