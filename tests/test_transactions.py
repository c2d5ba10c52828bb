"""lease.atomic(): the resource fence (I4), operations that happen once (I5), and what waits for whom."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from contextvars import copy_context
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from fencing import (
    AlreadyAppliedError,
    LeaseInsideTransactionError,
    LeaseLostError,
    OperationMismatchError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    lease,
    writes,
)
from fencing.acquiring import acquire
from fencing.exceptions import FencingError
from fencing.leases import Lease
from fencing.models import FencedResource, FencedWrite, Operation
from fencing.resources import may_pass_yet
from fencing.taskrun import run_plain
from fencing.transactions import FencedTransaction
from inventory_demo.models import Stock, StockDelta
from tests.concurrency import BOUND, threads, wait_until, waiting_for_locks
from tests.shop.models import Crate, Warehouse

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stock() -> Stock:
    return Stock.objects.create(sku="42", quantity=10)


def grant(resource: str = "stock:42", ttl: float = 30) -> Lease:
    """A lease that ends in the store at once, so that the next one is newer, without its holder's knowing."""
    held = acquire(resource, ttl=ttl, give_up=None, using="default", allow_in_transaction=True)
    held._backend.revoke(held._place, held.token)
    return held


def quantity() -> int:
    return Stock.objects.get(sku="42").quantity


def add(held: Lease, change: int, result: Any = None) -> Any:
    one = Stock.objects.get(sku="42")
    one.quantity += change
    one.save(lease=held)
    return result


def test_effect_key_and_result_commit_together(stock: Stock) -> None:
    held = grant()
    with held.atomic(operation="order-7") as once:
        add(held, -3)
        once.result = {"left": 7}
    assert quantity() == 7
    recorded = Operation.objects.get()
    assert (recorded.resource, recorded.key, recorded.result, recorded.token) == (
        "stock:42",
        "order-7",
        {"left": 7},
        held.token,
    )


def test_duplicate_gets_the_recorded_result_and_no_effect(stock: Stock) -> None:
    """I5"""
    held = grant()
    assert held.once("order-7", lambda: add(held, -3, {"left": 7})) == {"left": 7}
    later = grant()
    with pytest.raises(AlreadyAppliedError) as caught, later.atomic(operation="order-7"):
        raise AssertionError("the body of a duplicate runs")
    assert caught.value.result == {"left": 7}
    assert later.once("order-7", add, later, -3) == {"left": 7}
    assert quantity() == 7
    assert list(FencedWrite.objects.filter(outcome="duplicate").values_list("token", flat=True)) == [later.token] * 2


def test_duplicate_of_another_operation_is_not_taken_for_ones_own(stock: Stock) -> None:
    """The body comes upon a duplicate of the same name under another resource; its own effect must not vanish silently."""
    grant("stock:43").once("order-7", lambda: "of 43")
    held = grant()

    def body() -> None:
        add(held, -3)
        with grant("stock:43").atomic(operation="order-7"):
            raise AssertionError("the body of a duplicate runs")

    with pytest.raises(AlreadyAppliedError):
        held.once("order-7", body)
    assert quantity() == 10


def test_keys_are_of_their_resource_and_byte_by_byte(stock: Stock) -> None:
    """S7, S8"""
    Stock.objects.create(sku="43")
    ran: list[str] = []
    for resource, key in (
        ("stock:42", "order:A1"), ("stock:42", "order:a1"), ("stock:42", "order:A1 "), ("stock:42", "order:é"),
        ("stock:42", "order:e"), ("stock:43", "order:A1"),
    ):  # fmt: skip
        grant(resource).once(key, ran.append, key)
    assert len(ran) == 6


def test_tasks_have_keys_of_their_own_and_other_arguments_are_no_duplicate(stock: Stock) -> None:
    """S8"""
    with lease("stock:42") as held:
        for task in ("reserve", "invoice"):
            FencedTransaction(held, operation="order:1", task=task, digest="d").call(add, held, -1)
        assert quantity() == 8
        with pytest.raises(OperationMismatchError):
            FencedTransaction(held, operation="order:1", task="reserve", digest="other").call(add, held, -1)
    assert quantity() == 8


@pytest.mark.parametrize(
    "value",
    [None, True, 2**70, 1.5, 1e22, 1e-9, "", "\\u0000", "é😀", [], {}, (1, (2,)), {1: 2}, {"b": 1, "aa": [None]}],
    ids=repr,
)
def test_first_caller_and_duplicate_get_the_same_result(value: Any) -> None:
    held = grant()
    first = held.once("order-7", lambda: value)
    assert held.once("order-7", lambda: "another") == first == json.loads(json.dumps(value))


def test_failed_body_leaves_neither_effect_nor_key(stock: Stock) -> None:
    held = grant()
    with pytest.raises(ZeroDivisionError), held.atomic(operation="order-7"):
        add(held, -3)
        raise ZeroDivisionError
    assert quantity() == 10
    assert not Operation.objects.exists()
    held.once("order-7", add, held, -3)
    assert quantity() == 7


@pytest.mark.parametrize(
    "result", [object(), float("nan"), {1, 2}, b"x", "a\0b", {"a\0": 1}, "\ud800"], ids=lambda result: ascii(result)[:8]
)
def test_result_that_json_cannot_hold(stock: Stock, result: Any) -> None:
    held = grant()
    with pytest.raises(TypeError), held.atomic(operation="order-7") as once:
        add(held, -3)
        once.result = result
    assert quantity() == 10


@pytest.mark.parametrize("operation", ["", "x" * 201, "a\0b", 7])
def test_operation_that_cannot_be_a_key(operation: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        grant().atomic(operation=operation)


def test_superseded_holder_cannot_begin(stock: Stock) -> None:
    old, newer = grant(), grant()
    with newer.atomic():
        pass
    with pytest.raises(StaleWriteError) as caught, old.atomic():
        raise AssertionError("the body of a superseded holder runs")
    assert (caught.value.token, caught.value.seen) == (old.token, newer.token)
    assert FencedWrite.objects.get(outcome="stale").action == "begin"


def test_superseded_holder_has_no_effect_on_any_table(stock: Stock) -> None:
    """I4: overtaken between begin and end, the old holder's transaction leaves nothing, in any table."""
    old = grant()
    with pytest.raises(StaleWriteError) as caught, old.atomic(operation="order-7"), threads() as start:
        StockDelta.objects.create(sku="42", delta=-3, reason="sale", operation="order-7")
        newer = grant()
        start(lambda: newer.once("order-8", lambda: None)).result(BOUND)
    assert caught.value.seen == newer.token
    assert not StockDelta.objects.exists()
    assert list(Operation.objects.values_list("key", flat=True)) == ["order-8"]
    assert FencedWrite.objects.get(outcome="stale").action == "end"


def test_begin_is_respected_by_an_older_row_write(stock: Stock) -> None:
    old, newer = grant(), grant()
    with newer.atomic():
        assert quantity() == 10
        with threads() as start, pytest.raises(StaleWriteError):
            start(add, old, -3).result(BOUND)
    assert quantity() == 10


def test_old_statement_that_waited_for_the_row_is_refused(stock: Stock) -> None:
    """S1 B: it was sent before the newer holder's begin, and would land after it."""
    old, newer = grant(), grant()
    mine = Stock.objects.get()
    with threads() as start:
        with transaction.atomic():
            Stock.objects.select_for_update().get()
            waiting = start(lambda: mine.save(lease=old))
            wait_until(lambda: waiting_for_locks() == 1, "the old statement waits for the row")

            def read_and_commit() -> int:
                with newer.atomic():
                    return quantity()

            assert start(read_and_commit).result(BOUND) == 10
        with pytest.raises(StaleWriteError) as caught:
            waiting.result(BOUND)
    assert caught.value.seen == newer.token
    assert Stock.objects.get().last_token == 0


def test_begin_waits_for_an_older_write_in_an_open_transaction(stock: Stock) -> None:
    """S1 A: what the newer holder reads after its begin must stay true, so the begin waits for the older write."""
    old, newer = grant(), grant()
    read: list[int] = []
    with threads() as start:
        with transaction.atomic():
            add(old, -3)

            def begin_and_read() -> None:
                with newer.atomic():
                    read.append(quantity())

            beginning = start(begin_and_read)
            wait_until(lambda: waiting_for_locks() == 1, "the begin waits for the older transaction")
            assert not read
        beginning.result(BOUND)
    assert read == [7]


@pytest.mark.parametrize("inside", [False, True])
def test_bound_on_waiting_that_is_tighter_stays(stock: Stock, inside: bool) -> None:
    """The lease's time bounds who would wait longer, and prolongs nobody's patience."""
    held = grant()

    def bound() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            return str(cursor.fetchone()[0])

    for users in ("70ms", "0", "2h"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, false)", [users])
        try:
            with transaction.atomic() if inside else contextlib.nullcontext(), held.atomic():
                assert bound() == users if users == "70ms" else bound() not in ("0", "2h")
            assert bound() == users
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")


def test_update_records_what_it_updated_and_no_row_that_stopped_to_match(stock: Stock) -> None:
    """A row that another program changes while the statement waits for it has not been written."""
    Stock.objects.create(sku="43", quantity=10)
    grant(), grant("stock:43")
    locked, go = Event(), Event()

    def change() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("UPDATE inventory_demo_stock SET quantity = 11, last_token = 1 WHERE sku = '42'")
            locked.set()
            assert go.wait(BOUND)

    with threads() as start, lease(["stock:42", "stock:43"]) as (first, _second):
        changing = start(change)
        assert locked.wait(BOUND)
        updating = start(copy_context().run, lambda: Stock.objects.filter(quantity=10).update(quantity=5))
        wait_until(lambda: waiting_for_locks() == 1, "the update waits for the row")
        go.set()
        changing.result(BOUND)
        assert updating.result(BOUND) == 1
        assert first.token > 1
    assert dict(Stock.objects.values_list("sku", "quantity")) == {"42": 11, "43": 5}
    assert list(FencedWrite.objects.values_list("resource", "outcome")) == [("stock:43", "accepted")]


def test_begin_waits_for_a_later_write_of_an_older_holder_too(stock: Stock) -> None:
    """The older holder has passed the resource before, so its row is as it should be: reading it would not do."""
    read: list[int] = []
    with lease("stock:42") as old, threads() as start:
        add(old, -1)
        with transaction.atomic():
            add(old, -2)
            old._backend.revoke(old._place, old.token)
            newer = grant()

            def begin_and_read() -> None:
                with newer.atomic():
                    read.append(quantity())

            beginning = start(begin_and_read)
            wait_until(lambda: waiting_for_locks() == 1 or beginning.done(), "the begin waits")
            assert not read
        beginning.result(BOUND)
    assert read == [7]


def test_old_statement_that_waited_is_refused_although_it_had_passed_before(stock: Stock) -> None:
    """S1 B again, with a resource's row that the old statement's own view still finds in order."""
    with lease("stock:42") as old, threads() as start:
        add(old, -1)
        mine = Stock.objects.get()
        with transaction.atomic():
            Stock.objects.select_for_update().get()
            number = old.advance()
            waiting = start(lambda: mine.save(lease=old))
            wait_until(lambda: waiting_for_locks() == 1, "the old statement waits for the row")
            old._backend.revoke(old._place, old.token)
            newer = grant()
            assert start(lambda: newer.once("x", quantity)).result(BOUND) == 9
        with pytest.raises(StaleWriteError) as caught:
            waiting.result(BOUND)
    assert (caught.value.token, caught.value.seen) == (number, newer.token)


def roll_back(write: Callable[[], object]) -> None:
    """Write in a transaction that is rolled back: this process takes the resource's row for raised, wrongly."""
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        write()
        raise ZeroDivisionError


def test_save_passes_the_resource_although_its_raise_was_rolled_back(stock: Stock) -> None:
    add(grant(), +1)
    with lease("stock:42") as held:
        roll_back(lambda: add(held, -1))
        add(held, -2)
        assert FencedResource.objects.get().last_token == held.token
    assert quantity() == 9


def test_update_passes_the_resource_although_its_raise_was_rolled_back(stock: Stock) -> None:
    add(grant(), +1)
    with lease("stock:42") as held:
        roll_back(lambda: Stock.objects.update(quantity=1))
        Stock.objects.update(quantity=8)
        assert FencedResource.objects.get().last_token == held.token
    assert quantity() == 8


def test_thread_of_a_lease_beside_one_that_has_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the resource's row for raised, finds it otherwise, and so again if the other one writes meanwhile."""
    house = Warehouse.objects.create(name="north")
    first, second = (Crate.objects.create(warehouse=house, code="1") for _ in range(2))
    asked, answered = Event(), Event()

    def ask(*args: Any) -> bool:
        answer = may_pass_yet(*args)
        asked.set()
        assert answered.wait(BOUND)
        return answer

    monkeypatch.setattr(writes, "may_pass_yet", ask)
    with grant(first.fence_name()).atomic():
        pass
    with lease(first) as held, threads() as start:
        with transaction.atomic():
            first.save(lease=held)
            waiting = start(lambda: second.save(lease=held))
            assert asked.wait(BOUND)
            first.save(lease=held)
            answered.set()
            wait_until(lambda: waiting_for_locks() == 1, "it waits for the transaction of the other one")
        waiting.result(BOUND)
    assert all(held.issued(one.last_token) for one in Crate.objects.all())


def test_superseded_holder_is_refused_although_its_raise_was_rolled_back(stock: Stock) -> None:
    old = grant()
    roll_back(lambda: add(old, -1))
    mine = Stock.objects.get()
    with grant().atomic():
        pass
    with pytest.raises(StaleWriteError):
        mine.save(lease=old)
    assert quantity() == 10


def test_first_write_of_the_newer_holder_waits_too(stock: Stock) -> None:
    Stock.objects.create(sku="43")
    old, newer = grant(), grant()
    with threads() as start:
        with transaction.atomic():
            add(old, -3)
            other = start(add, newer, +1)
            wait_until(lambda: waiting_for_locks() == 1, "the newer write waits for the older transaction")
        with pytest.raises(StaleReadError):
            other.result(BOUND)
    assert quantity() == 7


def test_sleeper_before_its_first_write_blocks_nobody(stock: Stock) -> None:
    old, newer = grant(), grant()
    with pytest.raises(StaleWriteError), old.atomic(), threads() as start:
        assert quantity() == 10
        start(lambda: newer.once("x", lambda: add(newer, +1))).result(BOUND)
    assert quantity() == 11


def test_sleeper_after_its_first_write_is_ended_by_the_database(stock: Stock) -> None:
    """L1: it holds row locks, so its transaction may idle for one ttl only."""
    old, newer = grant(ttl=2), grant()
    with pytest.raises(LeaseLostError, match="time ran out"), threads() as start, old.atomic():
        add(old, -3)
        start(lambda: newer.once("x", lambda: add(newer, +1))).result(BOUND)
    assert quantity() == 11


@pytest.mark.parametrize(("setting", "bound"), [(None, "30s"), (7, "7s"), (0, "0"), (False, "0")])
def test_idling_bound_is_the_settings(stock: Stock, settings: Any, setting: Any, bound: str) -> None:
    """Off means no bound at all, not the smallest one."""
    settings.FENCING = {**settings.FENCING, "IDLE_IN_TRANSACTION": setting}
    with lease("stock:42", ttl=30) as held, held.atomic(), connection.cursor() as cursor:
        add(held, -1)
        cursor.execute("SELECT current_setting('idle_in_transaction_session_timeout')")
        assert cursor.fetchone() == (bound,)


def test_sleeper_between_its_end_and_its_commit_is_ended_by_the_database(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end holds the resource's row, so a newer begin waits for the commit: for one ttl only."""
    old, newer = grant(ttl=2), grant()
    close = FencedTransaction._close

    def sleep_until_overtaken(self: FencedTransaction, *args: Any) -> None:
        if self.lease is old:
            start(lambda: newer.once("x", lambda: None)).result(BOUND)
        close(self, *args)

    monkeypatch.setattr(FencedTransaction, "_close", sleep_until_overtaken)
    with threads() as start, pytest.raises(LeaseLostError, match="time ran out"), old.atomic():
        StockDelta.objects.create(sku="42", delta=-3, reason="sale", operation="order-7")
    assert not StockDelta.objects.exists()


def cut_off() -> None:
    """End the connection so that no word of the server arrives any more."""
    with socket.socket(fileno=os.dup(connection.connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)


def cut_off_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every transaction."""
    close = FencedTransaction._close

    def cut_off_and_close(*args: Any) -> None:
        cut_off()
        close(*args)

    monkeypatch.setattr(FencedTransaction, "_close", cut_off_and_close)


@pytest.mark.parametrize("when", ["in the body", "before the commit"])
def test_connection_that_ends_without_a_word_when_the_lease_is_over_is_the_end_of_its_time(
    stock: Stock, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """PostgreSQL says that the transaction idled for too long, and closes; who slept sometimes sees the latter only."""
    held = grant(ttl=1.5)
    if when == "before the commit":
        cut_off_before_the_commit(monkeypatch)
    with pytest.raises(LeaseLostError, match="time ran out"), held.atomic(operation="order-7"):
        StockDelta.objects.create(sku="42", delta=-3, reason="sale", operation="order-7")
        wait_until(lambda: not held.is_held(), "the lease is over")
        if when == "in the body":
            cut_off()
            StockDelta.objects.count()
    monkeypatch.undo()
    assert not StockDelta.objects.exists()
    assert grant().once("order-7", lambda: "done") == "done"


def test_commit_without_an_answer_is_not_taken_for_a_refusal(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have happened, and nothing but an operation's key would tell: whoever repeats it must know."""
    held = grant(ttl=1.5)
    cut_off_before_the_commit(monkeypatch)
    with pytest.raises(OperationalError), held.atomic():
        wait_until(lambda: not held.is_held(), "the lease is over")


def test_connection_that_ends_under_a_live_lease_is_the_databases_own_error(stock: Stock) -> None:
    with pytest.raises(OperationalError), grant().atomic(operation="order-7"):
        cut_off()
        StockDelta.objects.count()


def test_row_write_in_an_open_transaction_is_bounded_as_well(stock: Stock) -> None:
    old, newer = grant(ttl=2), grant()
    with pytest.raises(Exception, match=r"idle|closed"), threads() as start, transaction.atomic():
        add(old, -3)
        start(lambda: newer.once("x", lambda: add(newer, +1))).result(BOUND)
        Stock.objects.count()
    assert quantity() == 11


def test_wait_for_a_begin_ends_with_the_lease(stock: Stock) -> None:
    """L6: bounded by the lease's remaining time, at least 1 ms, never for ever."""
    old = grant()
    newer = acquire("stock:42", ttl=0.5, give_up=0, using="default", allow_in_transaction=False)
    with threads() as start, transaction.atomic():
        add(old, -3)

        def begin() -> None:
            with newer.atomic():
                pass

        with pytest.raises(LeaseLostError):
            start(begin).result(BOUND)
        expired = grant(ttl=0.001)
        wait_until(lambda: expired.remaining() == 0, "the lease is over")
        with pytest.raises(LeaseLostError):
            start(lambda: expired.once("y", lambda: None)).result(BOUND)


def test_two_transactions_of_one_lease_do_not_both_take_effect(stock: Stock) -> None:
    """S14: the later begin supersedes the earlier one."""
    held = grant()

    def order() -> None:
        with held.atomic():
            StockDelta.objects.create(sku="42", delta=-1, reason="sale", operation="second")

    with pytest.raises(StaleWriteError), held.atomic(), threads() as start:
        StockDelta.objects.create(sku="42", delta=-1, reason="sale", operation="first")
        start(order).result(BOUND)
    assert list(StockDelta.objects.values_list("operation", flat=True)) == ["second"]


def test_concurrent_duplicates_take_effect_once(stock: Stock) -> None:
    """The second copy began while the first still ran: it overtakes it, and one of the two takes effect."""
    first = grant()
    with threads() as start, pytest.raises(AlreadyAppliedError) as caught, first.atomic(operation="order-7"):
        second = grant()
        result = start(lambda: second.once("order-7", lambda: add(second, -3, "second"))).result(BOUND)
        assert result == "second"
        # The end's own look at the resource would refuse first; what is under test here is the key.
        FencedResource.objects.update(holder=first.holder, last_token=first.token, begins=1)
    assert caught.value.result == "second"
    assert quantity() == 7


def test_nested_atomic_of_one_lease_begins_once(stock: Stock) -> None:
    with lease("stock:42") as held, held.atomic(operation="outer"):
        with held.atomic(operation="inner") as inner:
            add(held, -1)
            inner.result = "in"
        with pytest.raises(AlreadyAppliedError), held.atomic(operation="inner"):
            pass
        add(held, -1)
    assert quantity() == 8
    assert FencedResource.objects.get().begins == 1


def test_two_leases_in_one_transaction() -> None:
    """L10: the inner begin commits by itself and holds nothing while the body runs."""
    Stock.objects.create(sku="42", quantity=10), Stock.objects.create(sku="43", quantity=0)
    with lease(["stock:42", "stock:43"]) as (source, target), source.atomic(), target.atomic():
        one, other = Stock.objects.get(sku="42"), Stock.objects.get(sku="43")
        one.quantity, other.quantity = 7, 3
        one.save()
        other.save()
    assert dict(Stock.objects.values_list("sku", "quantity")) == {"42": 7, "43": 3}


def test_swallowed_refusal_is_raised_at_the_end(stock: Stock) -> None:
    """I6, S18"""
    mine, theirs = Stock.objects.get(), Stock.objects.get()
    with lease("stock:42") as held, pytest.raises(StaleReadError), held.atomic():
        theirs.save()
        StockDelta.objects.create(sku="42", delta=1, reason="x", operation="x")
        with contextlib.suppress(FencingError):
            mine.save()
    assert not StockDelta.objects.exists()


@pytest.mark.parametrize("where", ["inside", "begin", "end"])
def test_swallowed_refusal_of_a_whole_transaction_is_raised_at_the_end(stock: Stock, where: str) -> None:
    """I6: of a body that is in none itself, as that of a task with ``atomic=False``."""
    late = Stock.objects.get()

    def newer() -> None:
        with grant().atomic():
            pass

    def body() -> None:
        if where == "inside":
            add(held, 1)
        if where == "begin":
            newer()
        with contextlib.suppress(FencingError), held.atomic():
            if where == "inside":
                late.save(lease=held)
            if where == "end":
                newer()

    held = grant()
    with pytest.raises(StaleReadError if where == "inside" else StaleWriteError):
        run_plain(held, body)


@pytest.mark.parametrize("many", [False, True], ids=["save", "bulk_update"])
def test_transaction_that_was_repeated_after_a_refusal_makes_it_good(stock: Stock, many: bool) -> None:
    late = Stock.objects.get()

    def body() -> None:
        one = late
        for _ in range(2):
            with contextlib.suppress(StaleReadError), held.atomic():
                one.quantity += 1
                if many:
                    Stock.objects.bulk_update([one], ["quantity"])
                else:
                    one.save()
            one = Stock.objects.get()

    with lease("stock:42") as held:
        add(held, 1)
        run_plain(held, body)
        assert held.refusals.is_empty()
    assert quantity() == 12


def test_refusal_that_is_swallowed_a_second_time_is_raised_at_the_end(stock: Stock) -> None:
    """I6: the first one was there before the body."""
    late = Stock.objects.get()

    def refused() -> None:
        with contextlib.suppress(StaleReadError), held.atomic():
            late.save()

    with lease("stock:42") as held:
        add(held, 1)
        refused()
        with pytest.raises(StaleReadError):
            run_plain(held, refused)


def test_row_that_was_created_anew_after_a_refusal_makes_it_good(stock: Stock) -> None:
    gone = Stock.objects.get()

    def body() -> None:
        with pytest.raises(RowMissingError), held.atomic():
            gone.save()
        Stock(id=gone.id, sku="42", quantity=3).save(force_insert=True)

    with lease("stock:42") as held:
        Stock.objects.get().delete()
        run_plain(held, body)
    assert quantity() == 3


def test_operation_that_took_effect_after_all_makes_its_refusal_good(stock: Stock) -> None:
    """Another thread of the lease began, and was first."""

    def first() -> None:
        with threads() as start:
            start(copy_context().run, held.once, "order-7", add, held, 1).result(BOUND)

    def body() -> None:
        with pytest.raises(StaleWriteError), held.atomic(operation="order-7"):
            first()
        held.once("order-7", add, held, 1)

    with lease("stock:42") as held:
        run_plain(held, body)
    assert quantity() == 11


def test_mended_refusal_is_none(stock: Stock) -> None:
    mine, theirs = Stock.objects.get(), Stock.objects.get()
    with lease("stock:42") as held, held.atomic():
        theirs.save()
        with pytest.raises(StaleReadError):
            mine.save()
        mine.refresh_from_db()
        mine.quantity = 3
        mine.save()
    assert quantity() == 3


def test_inside_an_open_transaction(stock: Stock) -> None:
    held = acquire("stock:42", ttl=30, give_up=0, using="default", allow_in_transaction=False)
    with transaction.atomic(), pytest.raises(LeaseInsideTransactionError), held.atomic():
        pass
    held.release()
    with transaction.atomic(), pytest.raises(LeaseInsideTransactionError):
        lease("stock:42").__enter__()
    with transaction.atomic(), lease("stock:42", allow_in_transaction=True) as allowed, allowed.atomic():
        add(allowed, -3)
    assert quantity() == 7


def test_begin_inside_an_open_transaction_holds_until_its_commit(stock: Stock) -> None:
    """Leaving the lease before the outer commit lets nobody newer in between."""
    with threads() as start:
        with transaction.atomic():
            with lease("stock:42", allow_in_transaction=True) as held, held.atomic():
                add(held, -3)
            newer = grant()
            other = start(lambda: newer.once("x", quantity))
            wait_until(lambda: waiting_for_locks() == 1, "the newer begin waits for the outer commit")
        assert other.result(BOUND) == 7


def test_begin_alone_does_not_wait_for_the_disk(stock: Stock) -> None:
    """What commits anything else does, as the user has set it: told by a trigger that fires at the commit."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE told (setting text)")
        cursor.execute(
            "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO told VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER tell AFTER INSERT OR UPDATE ON fencing_resource DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION tell()"
        )

    def told() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("WITH gone AS (DELETE FROM told RETURNING setting) SELECT setting FROM gone")
            return [setting for (setting,) in cursor.fetchall()]

    try:
        with grant().atomic():
            assert told() == ["off"]
            with connection.cursor() as cursor:
                cursor.execute("SHOW synchronous_commit")
                assert cursor.fetchone() == ("on",)
        add(grant(), -1)
        assert told() == ["on"]
        with transaction.atomic():
            held = grant()
            with held.atomic():
                add(held, -1)
        assert told() == ["on"]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER tell ON fencing_resource")
            cursor.execute("DROP FUNCTION tell; DROP TABLE told")


def test_begin_under_repeatable_read_must_come_first(stock: Stock) -> None:
    """S13: a snapshot taken before the begin would show the body what is old."""
    with lease("stock:42", allow_in_transaction=True) as held:
        with transaction.atomic(), pytest.raises(LeaseInsideTransactionError, match="first statement"):
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            quantity()
            with held.atomic():
                pass
            transaction.set_rollback(True)
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            with held.atomic():
                add(held, -3)
    assert quantity() == 7


def test_serialization_failure_stays_the_databases_error(stock: Stock) -> None:
    """C22: it is retryable, and no refusal."""
    from django.db import OperationalError

    held = grant()
    with threads() as start, pytest.raises(OperationalError, match="serialize"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        mine = Stock.objects.get()
        start(add, held, -3).result(BOUND)
        mine.save(lease=grant())
    assert not FencedWrite.objects.exclude(outcome="accepted").exists()


def test_signal_of_a_refused_transaction(stock: Stock) -> None:
    from fencing.signals import write_rejected

    seen: list[FencingError] = []

    def note(error: FencingError, **_named: Any) -> None:
        seen.append(error)

    write_rejected.connect(note)
    try:
        old, newer = grant(), grant()
        newer.once("x", lambda: None)
        with pytest.raises(StaleWriteError) as caught:
            old.once("y", lambda: None)
    finally:
        write_rejected.disconnect(note)
    assert seen == [caught.value]


def test_lost_deltas_and_deadlocks_under_stress(stock: Stock) -> None:
    """Stale and live writers at random, by rows and by transactions: every accepted delta counts, exactly once."""
    rounds, writers = 15, 6

    def work(number: int) -> int:
        accepted = 0
        for turn in range(rounds):
            held = grant()
            with contextlib.suppress(StaleWriteError, StaleReadError, LeaseLostError):
                held.once(f"{number}-{turn}", add, held, 1) if turn % 2 else add(held, 1)
                accepted += 1
        return accepted

    with threads() as start:
        accepted = sum(one.result(60) for one in [start(work, number) for number in range(writers)])
    assert quantity() == 10 + accepted
    assert FencedWrite.objects.filter(action="update", outcome="accepted").count() == accepted
    assert accepted > 0


def test_transfers_between_two_stocks_in_both_directions_at_once() -> None:
    """Both leases are taken by one call, in the order of the names: nobody deadlocks, nothing is lost."""
    for sku in ("42", "43"):
        Stock.objects.create(sku=sku, quantity=100)

    def transfer(source: str, target: str, number: int) -> None:
        for turn in range(10):
            both = lease([f"stock:{source}", f"stock:{target}"], wait=BOUND)
            with both as (giver, taker), giver.atomic(operation=f"{number}-{turn}"), taker.atomic():
                one, other = Stock.objects.get(sku=source), Stock.objects.get(sku=target)
                one.quantity, other.quantity = one.quantity - number, other.quantity + number
                one.save()
                other.save()

    with threads() as start:
        ways = [("42", "43", 1), ("43", "42", 2), ("42", "43", 3), ("43", "42", 4)]
        for one in [start(transfer, *way) for way in ways]:
            one.result(60)
    assert dict(Stock.objects.values_list("sku", "quantity")) == {"42": 120, "43": 80}
    assert not FencedWrite.objects.exclude(outcome="accepted").exists()
    assert Operation.objects.count() == 40
