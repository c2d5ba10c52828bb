"""Behind PgBouncer in transaction mode: whoever gets the server connection next finds nothing of who had it before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import F

from fencing import AlreadyAppliedError, LeaseHeldError, LeaseRequiredError, StaleWriteError, lease, unfenced
from fencing.acquiring import acquire
from fencing.guards import guard_name_of
from fencing.leases import Lease
from fencing.lifting import lift
from fencing.models import FencedWrite
from fencing.prepared import may_prepare
from inventory_demo.models import Stock
from tests import pgbouncer
from tests.concurrency import BOUND, threads
from tests.services import missing

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def pooled(size: int) -> Iterator[None]:
    """Every connection to the default database goes through a pooler with so many to the server."""
    if reason := pgbouncer.lacking():
        missing(reason)
    settings = connection.settings_dict
    before = {"HOST": settings["HOST"], "PORT": settings["PORT"], "DISABLE_SERVER_SIDE_CURSORS": False}
    connection.close()
    with pgbouncer.running(settings, size) as folder:
        settings.update(HOST=str(folder), PORT=str(pgbouncer.PORT), DISABLE_SERVER_SIDE_CURSORS=True)
        try:
            yield
        finally:
            connection.close()
            settings.update(before)


@pytest.fixture
def one(transactional_db: None) -> Iterator[None]:
    """All clients share one connection to the server."""
    with pooled(1):
        yield


@pytest.fixture
def several(transactional_db: None) -> Iterator[None]:
    """Each transaction gets another connection to the server than the one before."""
    with pooled(3):
        together = Barrier(3)
        with threads() as start:
            for each in [start(open_one, together) for _ in range(3)]:
                each.result(BOUND)
        yield


def open_one(together: Barrier) -> None:
    """Hold a connection to the server while the others hold theirs."""
    with transaction.atomic():
        Stock.objects.exists()
        together.wait(BOUND)


def server() -> tuple[int, list[tuple[str, str]], str, str]:
    """The present server process, and what anybody has set or told there for longer than a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name <> 'application_name' ORDER BY name"
        )
        settings = cursor.fetchall()
        cursor.execute(
            "SELECT pg_backend_pid(), coalesce(current_setting('fencing.unfenced', true), ''), "
            "coalesce(current_setting('fencing.token', true), '')"
        )
        process, lifted, token = cursor.fetchone()
    return process, settings, lifted, token


def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    """What another client gets."""
    with threads() as start:
        return start(function, *args).result(BOUND)


def refused() -> None:
    """Whether the guard stands for the client that asks."""
    for sql in ("UPDATE inventory_demo_stock SET quantity = 0", "DELETE FROM inventory_demo_stock"):
        with pytest.raises(IntegrityError) as caught, connection.cursor() as cursor:
            cursor.execute(sql)
        assert guard_name_of(caught.value) == "inventory_demo_stock_fence"


def grant(ttl: float = 30) -> Lease:
    """A lease that ends in the store at once, so that the next one is newer, without its holder's knowing."""
    held = acquire("stock:42", ttl=ttl, give_up=None, using="default", allow_in_transaction=False)
    held._backend.revoke(held._place, held.token)
    return held


# Ways out of a block in which the fence is lifted


def leave_in_order() -> None:
    with unfenced("audit"):
        Stock.objects.update(quantity=11)


def leave_by_an_error() -> None:
    with pytest.raises(ZeroDivisionError), unfenced("audit"):
        Stock.objects.update(quantity=12)
        raise ZeroDivisionError


def leave_a_broken_transaction() -> None:
    with pytest.raises(DatabaseError), unfenced("audit"), connection.cursor() as cursor:
        cursor.execute("SELECT nonsense")


def never_leave() -> None:
    block = lift(connection, 9)
    with transaction.atomic():
        block.__enter__()
        Stock.objects.filter(sku="none").exists()
    forgotten.append(block)


def vanish() -> None:
    """As a killed process does, in the middle of its transaction."""
    with pytest.raises(DatabaseError), unfenced("audit"):
        Stock.objects.update(quantity=13)
        connection.connection.close()
    connection.close()


forgotten: list[Any] = []


@pytest.mark.parametrize("leave", [leave_in_order, leave_by_an_error, leave_a_broken_transaction, never_leave, vanish])
def test_lifted_fence_does_not_reach_the_next_client(one: None, leave: Callable[[], None]) -> None:
    Stock.objects.create(sku="42", quantity=10)
    process, before, *_told = server()
    elsewhere(leave)
    after = server()
    assert (after[0] == process) == (leave is not vanish), "the same connection to the server, or it was ended"
    assert after[1:] == (before, "", "")
    refused()
    elsewhere(refused)
    forgotten.clear()


def test_client_that_waits_for_the_connection_is_refused(one: None) -> None:
    """It is asked for while the fence is lifted, and given out right after."""
    Stock.objects.create(sku="42", quantity=10)
    with threads() as start:
        with unfenced("audit"):
            waiting = start(refused)
            Stock.objects.update(quantity=11)
        waiting.result(BOUND)
    assert Stock.objects.get().quantity == 11


def save() -> None:
    with lease("stock:42"):
        stock = Stock.objects.get()
        stock.quantity += 1
        stock.save()


def save_in_a_transaction() -> None:
    with lease("stock:42"), transaction.atomic():
        Stock.objects.update(quantity=F("quantity") + 1)


def save_in_a_fenced_transaction() -> None:
    with lease("stock:42") as held, held.atomic(operation="order-1"):
        save()


def delete() -> None:
    with lease("stock:42"):
        Stock.objects.get().delete()


def is_refused() -> None:
    sleeper, stale = grant(), Stock.objects.get()
    save()
    with pytest.raises(StaleWriteError):
        stale.save(lease=sleeper)


def lease_in_the_database() -> None:
    with lease("stock:42", using="table", ttl=5) as held:
        held.renew()
        held.advance()
        with pytest.raises(LeaseHeldError):
            elsewhere(acquire_from_the_table)


def acquire_from_the_table() -> None:
    with lease("stock:42", using="table"):
        pytest.fail("two holders")


@pytest.fixture
def table(settings: Any) -> None:
    """A lease backend that keeps its leases in the default database."""
    backend = {"BACKEND": "fencing.backends.database.DatabaseBackend", "NAMESPACE": "behind-a-pooler"}
    settings.FENCING = {**settings.FENCING, "BACKENDS": {**settings.FENCING["BACKENDS"], "table": backend}}


@pytest.mark.parametrize(
    "work", [save, save_in_a_transaction, save_in_a_fenced_transaction, delete, is_refused, lease_in_the_database]
)
def test_bounds_do_not_reach_the_next_client(one: None, table: None, work: Callable[[], None]) -> None:
    Stock.objects.create(sku="42", quantity=10)
    before = server()
    work()
    assert server() == before
    assert elsewhere(server) == before


def test_saves_are_sent_unprepared_over_changing_connections(several: None) -> None:
    Stock.objects.create(sku="42", quantity=0)
    for _ in range(9):
        save()
    assert Stock.objects.get().quantity == 9
    assert not may_prepare(connection)
    found = []
    for _ in range(6):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid(), (SELECT count(*) FROM pg_prepared_statements)")
            found.append(cursor.fetchone())
    assert len({process for process, _prepared in found}) == 3
    assert {prepared for _process, prepared in found} == {0}
    assert FencedWrite.objects.filter(outcome="accepted", action="update").count() == 9


def test_fenced_transactions_happen_once(several: None) -> None:
    Stock.objects.create(sku="42", quantity=0)
    for _ in range(3):
        with lease("stock:42") as held:
            held.once("order-1", save)
    with lease("stock:42") as held, pytest.raises(AlreadyAppliedError), held.atomic(operation="order-1"):
        raise AssertionError("the body runs")
    assert Stock.objects.get().quantity == 1
    old, newer = grant(), grant()
    with newer.atomic():
        Stock.objects.filter(sku="none").exists()
    with pytest.raises(StaleWriteError), old.atomic():
        raise AssertionError("the body runs")


def test_refusal_in_a_transaction_is_recorded_on_a_connection_of_its_own(several: None) -> None:
    """So it needs one more to the server for that moment."""
    Stock.objects.create(sku="42", quantity=0)
    sleeper, stale = grant(), Stock.objects.get()
    save()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Stock.objects.create(sku="43")
        with pytest.raises(StaleWriteError):
            stale.save(lease=sleeper)
        raise ZeroDivisionError
    assert not Stock.objects.filter(sku="43").exists()
    assert FencedWrite.objects.filter(outcome="stale").count() == 1


def test_pool_without_a_free_connection_costs_the_transaction_and_nothing_more(one: None) -> None:
    """Who asks for a second one waits for himself; the bound on idling ends that after a ttl."""
    Stock.objects.create(sku="42", quantity=0)
    sleeper, stale = grant(ttl=1), Stock.objects.get()
    save()
    with pytest.raises(DatabaseError), transaction.atomic():
        Stock.objects.create(sku="43")
        with pytest.raises(StaleWriteError):
            stale.save(lease=sleeper)
        Stock.objects.exists()
    connection.close()
    assert list(Stock.objects.values_list("sku", "quantity")) == [("42", 1)]
    assert FencedWrite.objects.filter(outcome="stale").count() == 1


def test_writes_without_a_lease_are_refused_as_ever(one: None) -> None:
    stock = Stock.objects.create(sku="42", quantity=0)
    with pytest.raises(LeaseRequiredError):
        stock.save()
    refused()


def test_leases_in_the_database(several: None, table: None) -> None:
    """Every operation of theirs commits by itself, so it does not matter which connection answers the next one."""
    tokens = []
    for _ in range(4):
        with lease("stock:42", using="table", ttl=5) as held:
            tokens.append(held.token)
            tokens.append(held.advance())
            held.renew()
            assert held.is_held()
    assert tokens == sorted(set(tokens))
    with threads() as start:

        def take() -> int:
            with lease("stock:42", using="table", ttl=5, wait=BOUND) as waited:
                return waited.token

        waited = [start(take) for _ in range(4)]
        assert len({one.result(BOUND) for one in waited} - set(tokens)) == 4
