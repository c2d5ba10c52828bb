"""Prepared statements of PostgreSQL: kept where that is safe, and never in the way of what changes underneath."""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.db import ProgrammingError, connection, connections, models, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from fencing import StaleWriteError, lease, prepared
from fencing.models import FencedWrite, Operation
from fencing.naming import fence_of
from fencing.prepared import SERVER, fetch_one, may_prepare
from fencing.rowstatement import bindable_values
from fencing.scope import holding
from fencing.statements import RowWrite
from inventory_demo.models import Stock
from tests.shop.models import Bin, BinProxy

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh_connection() -> Iterator[None]:
    """Each test starts with a connection that has prepared nothing."""
    connection.close()
    yield
    prepared._given_up.clear()
    connection.close()


def prepared_statements() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        return [row[0] for row in cursor.fetchall()]


def save_times(count: int, sku: str = "42") -> Stock:
    """Save one row so many times, each under a lease of its own."""
    if not Stock.objects.filter(sku=sku).exists():
        Stock.objects.create(sku=sku)
        with lease(f"stock:{sku}") as held, held.atomic():
            """The resource is known from now on: the first update of an unknown one is sent twice."""
    for _ in range(count):
        with lease(f"stock:{sku}"):
            stock = Stock.objects.get(sku=sku)
            stock.quantity += 1
            stock.save()
    return stock


def test_save_is_one_statement_and_prepared() -> None:
    save_times(3)
    sent: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        sent.append(sql)
        return execute(sql, params, many, context)

    with lease("stock:42"):
        stock = Stock.objects.get(sku="42")
        stock.quantity = 70
        with connection.execute_wrapper(note):
            stock.save(update_fields=["quantity"])
            assert len(sent) == 1
            with CaptureQueriesContext(connection) as captured:
                stock.save(update_fields=["quantity"])
        assert [query["sql"][:8] for query in captured] == ["WITH old"]
        assert "70" in captured[0]["sql"]
    [statement] = prepared_statements()
    assert statement.startswith("WITH old")
    stock.refresh_from_db()
    assert stock.quantity == 70
    assert FencedWrite.objects.filter(outcome="accepted").count() == 5


def test_save_of_a_proxy_is_one_statement_too() -> None:
    """It has parents, as a child of several tables has, which is saved in a transaction."""
    Bin.objects.create(label="a")
    proxy = BinProxy.objects.get()
    with lease(proxy):
        proxy.save()
        with CaptureQueriesContext(connection) as captured:
            proxy.save()
    assert [query["sql"][:8] for query in captured] == ["WITH old"]


def test_fenced_transaction_is_prepared() -> None:
    """Its begin, what it is entered with, and its end, each once whatever the numbers are."""
    with lease("stock:42") as held:
        for operation in ("order-6", "order-7", "order-8", "order-9"):
            held.once(operation, lambda: {"pieces": 3})
    begin, enter, leave = sorted(prepared_statements(), key=lambda text: ("held AS" in text, "LEFT JOIN" in text))
    assert "created AS" in begin
    assert "LEFT JOIN" in enter
    assert "held AS" in leave
    assert sorted(Operation.objects.values_list("key", "result")) == [
        (f"order-{number}", {"pieces": 3}) for number in (6, 7, 8, 9)
    ]


def test_tokens_of_any_size_are_the_same_prepared_statements() -> None:
    """psycopg would bind small integers as small types, and prepare for each of them."""
    stock = save_times(3)
    with lease("stock:42") as held:
        stock = Stock.objects.get(sku="42")
        for token in (held.token, 2**31 + 7, 2**40 + 7):
            held.newest_token = token
            stock.save()
    # One that raises the resource's row, and one that finds it raised.
    assert sorted("FOR SHARE" in text for text in prepared_statements()) == [False, True]


def test_no_threshold_is_no() -> None:
    with options(prepare_threshold=None):
        save_times(4)
        assert prepared_statements() == []


def test_threshold_counts() -> None:
    with options(prepare_threshold=3):
        save_times(3)
        assert prepared_statements() == []
        save_times(1)
        assert len(prepared_statements()) == 1


@contextmanager
def options(**given: Any) -> Iterator[None]:
    """Other OPTIONS of the default database for the block, which begins with a new connection."""
    before = connection.settings_dict["OPTIONS"]
    connection.settings_dict["OPTIONS"] = {**before, **given}
    connection.close()
    try:
        yield
    finally:
        connection.settings_dict["OPTIONS"] = before
        connection.close()


def test_values_bound_by_the_server_everywhere() -> None:
    with options(server_side_binding=True):
        save_times(4)
        with lease("stock:42"):
            stock = Stock.objects.get(sku="42")
            stock.quantity = F("quantity") + 10
            stock.save()
            Stock.objects.filter(sku="42").update(quantity=F("quantity") + 100)
        stock.refresh_from_db()
        assert stock.quantity == 114
        with lease("stock:42") as held, held.atomic(operation="once"):
            Stock.objects.filter(sku="42").update(quantity=1)


class Greeter:
    """Stands before PostgreSQL and greets clients in its own name, as poolers do: with a process id of no server."""

    def __init__(self, place: Path, host: str, port: str) -> None:
        self._host, self._port = host, port or "5432"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Take no more clients, and wait until those that there were have gone."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, self._server() as server:
            answers = threading.Thread(target=self._pass_on, args=(server, client), kwargs={"forge": True})
            answers.start()
            self._pass_on(client, server)
            answers.join(10)

    def _server(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host or "127.0.0.1", int(self._port)))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return server

    def _pass_on(self, one: socket.socket, other: socket.socket, *, forge: bool = False) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if forge and (place := data.find(b"K\0\0\0\x0c")) >= 0:
                    data = data[: place + 5] + struct.pack("!i", -7) + data[place + 9 :]
                    forge = False
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def test_nothing_is_prepared_behind_a_pooler() -> None:
    """It would be prepared on one server and asked for on another, or there be another client's of the same name."""
    settings = connection.settings_dict
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # a socket's path is short
    greeter = Greeter(folder / ".s.PGSQL.5432", settings["HOST"], str(settings["PORT"]))
    pooled = connections.create_connection("default")
    pooled.settings_dict = {**settings, "HOST": str(folder), "PORT": "5432"}
    direct = connections.create_connection("default")
    try:
        for _ in range(3):
            assert fetch_one(pooled, f"SELECT 1, {SERVER}", {}) == (1,)
            assert fetch_one(direct, f"SELECT 1, {SERVER}", {}) == (1,)
        assert not may_prepare(pooled)
        assert may_prepare(direct)
    finally:
        pooled.close()
        direct.close()
        greeter.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("change", "back"),
    [
        ("ALTER quantity TYPE bigint", "ALTER quantity TYPE integer"),
        ("ADD more integer DEFAULT 3", "DROP more"),
        ("ALTER quantity TYPE text", "ALTER quantity TYPE integer USING quantity::integer"),
    ],
)
def test_schema_changes_under_a_prepared_statement(change: str, back: str) -> None:
    """As a migration does it while workers live: from another connection."""
    save_times(4)
    assert len(prepared_statements()) == 1
    other = connections.create_connection("default")
    try:
        for number, clause in enumerate((change, back)):
            if "text" in change:
                clause = f"ALTER quantity DROP DEFAULT, {clause}"
            with other.cursor() as cursor:
                cursor.execute(f"ALTER TABLE inventory_demo_stock {clause}")
            with lease("stock:42"):
                stock = Stock.objects.get(sku="42")
                stock.quantity = 50 + number
                stock.save()
                stock.refresh_from_db()
                assert int(stock.quantity) == 50 + number
    finally:
        other.close()


def test_table_that_is_made_anew_under_a_prepared_statement() -> None:
    save_times(4)
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("ALTER TABLE inventory_demo_stock RENAME TO former")
            cursor.execute("CREATE TABLE inventory_demo_stock (LIKE former INCLUDING ALL)")
            cursor.execute("INSERT INTO inventory_demo_stock SELECT * FROM former")
        try:
            assert save_times(1).quantity == 5
        finally:
            with other.cursor() as cursor:
                cursor.execute("DROP TABLE inventory_demo_stock")
                cursor.execute("ALTER TABLE former RENAME TO inventory_demo_stock")
    finally:
        other.close()
    assert save_times(1).quantity == 5


def test_search_path_decides_for_a_prepared_statement_too() -> None:
    save_times(4)
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        try:
            cursor.execute("CREATE TABLE tenant.inventory_demo_stock (LIKE public.inventory_demo_stock INCLUDING ALL)")
            cursor.execute("SET search_path = tenant, public")
            assert save_times(4).quantity == 4
            cursor.execute("SET search_path = public")
            assert save_times(1).quantity == 5
        finally:
            cursor.execute("SET search_path = public")
            cursor.execute("DROP SCHEMA tenant CASCADE")


def test_prepared_statement_that_has_gone_is_sent_in_djangos_way() -> None:
    save_times(4)
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    assert save_times(2).quantity == 6
    assert FencedWrite.objects.filter(outcome="accepted").count() == 6
    assert prepared_statements() == []


def test_prepared_statement_that_has_gone_breaks_no_second_transaction() -> None:
    """The first one is broken: PostgreSQL takes nothing more in it."""
    save_times(1)
    with lease("stock:42"):
        stock = Stock.objects.get(sku="42")
        for _ in range(3):
            with transaction.atomic():
                stock.save()
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
        with pytest.raises(ProgrammingError, match="does not exist"), transaction.atomic():
            stock.save()
        with transaction.atomic():
            stock.save()
    assert FencedWrite.objects.filter(outcome="accepted").count() == 5


def test_refusal_by_a_prepared_statement(overtaken: Any) -> None:
    save_times(4)
    with overtaken("stock:42") as (sleeper, newer):
        stale = Stock.objects.get(sku="42")
        with holding(newer):
            fresh = Stock.objects.get(sku="42")
            fresh.quantity = 90
            fresh.save()
        with holding(sleeper), pytest.raises(StaleWriteError):
            stale.save()
    assert Stock.objects.get(sku="42").quantity == 90


# A field whose value stands inside SQL of its own; Django 6.1 has another name for that.
PLACEHOLDER = "get_placeholder_sql" if hasattr(models.BinaryField, "get_placeholder_sql") else "get_placeholder"
Wrapped = type("Wrapped", (models.Field,), {PLACEHOLDER: lambda *_args: "abs(%s)", "__module__": __name__})


class Listed(models.Field):  # type: ignore[type-arg]
    """A field whose value PostgreSQL types in one way in a text, and in another when it is bound."""

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        return [value]


class Halved(models.DecimalField):  # type: ignore[type-arg]
    """A field that stores something else than what it shows."""

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        return value / 2


@pytest.mark.parametrize(
    ("field", "value", "bound"),
    [
        (models.IntegerField(), 3, [3]),
        (models.IntegerField(), F("other"), None),
        (Wrapped(), 3, None),
        (Listed(), 3, None),
        (Halved(max_digits=9, decimal_places=2), Decimal(3), [Decimal("1.5")]),
        (models.JSONField(), {"a": 1}, [{"a": 1}]),
        (models.BinaryField(), b"a", None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_can_be_bound(field: models.Field[Any, Any], value: Any, bound: list[Any] | None) -> None:
    field.set_attributes_from_name("field")
    write = RowWrite(fence=fence_of(Stock), pk=1, values=[(field, None, value)], pin=1, compares=True)
    found = bindable_values(connections["default"], write)
    assert (found is None) == (bound is None)
    assert [getattr(one, "obj", one) for one in (found or {}).values()] == (bound or [])
