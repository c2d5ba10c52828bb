"""A lifted fence, and `unfenced()`, on connections that others use afterwards: persistent ones, pools, savepoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.signals import request_finished, request_started
from django.db import DatabaseError, IntegrityError, close_old_connections, connections, transaction
from django.utils.functional import SimpleLazyObject

from fencing import LeaseRequiredError, unfenced
from fencing.guards import guard_name_of
from fencing.lifting import lift, lifted
from fencing.models import FencedWrite
from inventory_demo.models import Stock
from tests.concurrency import BOUND, threads

MARIA = pytest.mark.django_db(databases=["default", "maria"], transaction=True)
pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

EVERYWHERE = pytest.mark.parametrize("alias", ["default", "lite", pytest.param("maria", marks=MARIA)])
ON_SERVERS = pytest.mark.parametrize("alias", ["default", pytest.param("maria", marks=MARIA)])
ENDS = ("in order", "by an error", "by a broken statement", "by a rollback", "never")


def write(alias: str, quantity: int) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE inventory_demo_stock SET quantity = %s", [quantity])


def ensure_fenced(alias: str) -> None:
    """Whether the guard and the ORM refuse whoever is on the connection now."""
    assert lifted(connections[alias]) is None
    with pytest.raises(IntegrityError) as caught, transaction.atomic(using=alias):
        write(alias, 99)
    assert guard_name_of(caught.value) == "inventory_demo_stock_fence"
    with pytest.raises(LeaseRequiredError):
        Stock.objects.using(alias).update(quantity=99)


def quantity(alias: str) -> int:
    return int(Stock.objects.using(alias).get().quantity)


@pytest.fixture
def stock(alias: str) -> Stock:
    return Stock.objects.using(alias).create(sku="42", quantity=10)


def request(alias: str, end: str) -> Any:
    """What a request does that lifts the fence, and the connection that it did it on."""
    request_started.send(request)
    never: Any = None
    try:
        if end == "never":
            never = lift(connections[alias], 9)
            with transaction.atomic(using=alias):
                never.__enter__()
                write(alias, 11)
        else:
            with unfenced("audit", database=alias):
                write(alias, 11)
                if end == "by an error":
                    raise ZeroDivisionError
                if end == "by a broken statement":
                    connections[alias].cursor().execute("SELECT nonsense")
                if end == "by a rollback":
                    transaction.set_rollback(True, using=alias)
    except (ZeroDivisionError, DatabaseError):
        pass
    return connections[alias].connection, never


@contextmanager
def settings_of(alias: str, **given: Any) -> Iterator[None]:
    """Other settings of a database for the block, which begins and ends without a connection."""
    settings = connections[alias].settings_dict
    before = {name: settings[name] for name in given}
    connections[alias].close()
    settings.update(given)
    try:
        yield
    finally:
        connections[alias].close()
        settings.update(before)


@ON_SERVERS
@pytest.mark.parametrize("end", ENDS)
def test_persistent_connection_is_fenced_in_the_next_request(stock: Stock, alias: str, end: str) -> None:
    with settings_of(alias, CONN_MAX_AGE=None):
        raw, forgotten = request(alias, end)
        request_finished.disconnect(close_old_connections)  # the test client does so, too; here it is called by name
        try:
            close_old_connections()
        finally:
            request_finished.connect(close_old_connections)
        assert connections[alias].connection is raw, "the same connection is used again"
        ensure_fenced(alias)
        assert quantity(alias) == (11 if end in ("in order", "never") else 10)
        del forgotten


@pytest.mark.parametrize("alias", ["default"])
@pytest.mark.parametrize("end", [*ENDS, "with the transaction open"])
def test_connection_from_djangos_pool_is_fenced_for_the_next_thread(stock: Stock, alias: str, end: str) -> None:
    """The pool has one connection to the server, so the next one to ask gets it."""
    options = {**connections[alias].settings_dict["OPTIONS"], "pool": {"min_size": 1, "max_size": 1}}
    with settings_of(alias, OPTIONS=options):
        try:
            with threads() as start:
                first = start(in_a_thread, alias, end).result(BOUND)
                second = start(after_it, alias).result(BOUND)
            assert first == second, "the same server process"
            assert quantity(alias) == (11 if end in ("in order", "never") else 10)
        finally:
            connections[alias].close()
            connections[alias].close_pool()  # type: ignore[attr-defined]


def in_a_thread(alias: str, end: str) -> int:
    process = server_process(alias)
    if end == "with the transaction open":
        connection: Any = connections[alias]
        with pytest.raises(DatabaseError), unfenced("audit"):
            write(alias, 11)
            connection.close()
            write(alias, 12)
        return process
    request(alias, end)
    return process


def after_it(alias: str) -> int:
    ensure_fenced(alias)
    return server_process(alias)


def server_process(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


# Savepoints


@EVERYWHERE
def test_block_that_a_savepoint_undid_leaves_the_outer_transaction_fenced(stock: Stock, alias: str) -> None:
    with transaction.atomic(using=alias):
        Stock.objects.using(alias).create(sku="43", quantity=1)
        with pytest.raises(ZeroDivisionError), unfenced("audit", database=alias):
            Stock.objects.using(alias).update(quantity=11)
            raise ZeroDivisionError
        ensure_fenced(alias)
    assert sorted(Stock.objects.using(alias).values_list("quantity", flat=True)) == [1, 10]
    assert not FencedWrite.objects.using(alias).filter(action="unfenced").exists(), "undone with what it had done"


@EVERYWHERE
@pytest.mark.parametrize("error", [ZeroDivisionError, IntegrityError])
def test_savepoint_inside_that_is_undone_leaves_the_block_lifted(
    stock: Stock, alias: str, error: type[Exception]
) -> None:
    with unfenced("outer", database=alias) as number:
        with pytest.raises(error), unfenced("inner", database=alias):
            Stock.objects.using(alias).update(quantity=11)
            if error is IntegrityError:
                Stock.objects.using(alias).bulk_create([Stock(sku="42")])
            raise error
        assert lifted(connections[alias]) == number
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
            write(alias, 12)
            raise ZeroDivisionError
        assert quantity(alias) == 10
        Stock.objects.using(alias).update(quantity=13)
    ensure_fenced(alias)
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (13, number)
    notes = FencedWrite.objects.using(alias).filter(action="unfenced").values_list("note", flat=True)
    assert [note.split()[0] for note in notes] == ["outer"]


@EVERYWHERE
def test_block_inside_a_transaction_ends_before_it(stock: Stock, alias: str) -> None:
    with transaction.atomic(using=alias):
        with unfenced("audit", database=alias):
            write(alias, 11)
        ensure_fenced(alias)
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
            with unfenced("again", database=alias):
                write(alias, 12)
            raise ZeroDivisionError
        ensure_fenced(alias)
    assert quantity(alias) == 11


# Who it was


def notes(function: Callable[[], Any]) -> list[str]:
    with unfenced("the audit", by=function()):
        pass
    return list(FencedWrite.objects.values_list("note", flat=True))


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (lambda: None, "the audit ("),
        (lambda: "Ada", "the audit (Ada, "),
        (lambda: User.objects.create(username="ada", pk=7), "the audit (ada (user 7), "),
        (lambda: SimpleLazyObject(lambda: User(username="ada", pk=7)), "the audit (ada (user 7), "),
        (AnonymousUser, "the audit (anonymous, "),
    ],
)
def test_who_wanted_it_is_on_record_with_the_process(by: Callable[[], Any], expected: str) -> None:
    [note] = notes(by)
    assert note.startswith(expected)
    assert note.endswith(")") and " pid " in note


def test_longest_reason_and_name_leave_room_for_the_process() -> None:
    with unfenced("x" * 300, by="y" * 150):
        pass
    note = FencedWrite.objects.get().note
    assert note.startswith("x" * 300 + " (" + "y" * 60 + ", ") and note.endswith(")")
