"""I2 at the boundary that nobody can pass: what the triggers refuse and what they let through."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connections, migrations, models, transaction
from django.db.backends.signals import connection_created
from django.db.models import F
from django.utils.connection import ConnectionProxy

from fencing.exceptions import InvalidTokenError
from fencing.guards import guard_name_of
from fencing.lifting import lift, lifted, naming_token

from .conftest import ALIAS, MARIADB, ON_MARIADB, ON_SQLITE, Steps, create_model, insert, rows, run

GUARD = "shop_stock_fence"


def refused(steps: Steps, sql: str) -> IntegrityError:
    """Run ``sql`` in a transaction of its own and return the guard's error."""
    with pytest.raises(IntegrityError) as caught, transaction.atomic(using=ALIAS):
        run(steps.connection, sql)
    assert guard_name_of(caught.value) == GUARD
    return caught.value


@pytest.mark.parametrize("assignment", ["quantity = 0", "quantity = 0, last_token = 5", "quantity = 0, last_token = 4"])
def test_i2_raw_update_that_does_not_raise_last_token_is_refused(stock: Steps, assignment: str) -> None:
    refused(stock, f"UPDATE shop_stock SET {assignment}")  # noqa: S608
    assert rows(stock.connection, "shop_stock") == [(10, 5)]


def test_i2_raw_update_that_raises_last_token_passes(stock: Steps) -> None:
    assert run(stock.connection, "UPDATE shop_stock SET quantity = 7, last_token = 6") == 1
    assert rows(stock.connection, "shop_stock") == [(7, 6)]


def test_i2_null_as_new_token_is_refused(steps: Steps) -> None:
    creation = create_model("Stock")
    creation.fields = [
        (name, models.BigIntegerField(null=True) if name == "last_token" else field) for name, field in creation.fields
    ]
    steps.forwards(migrations.CreateModel(creation.name, creation.fields, creation.options))
    insert(steps.connection, "shop_stock")
    refused(steps, "UPDATE shop_stock SET last_token = NULL")


def test_i2_raw_delete_is_refused(stock: Steps) -> None:
    refused(stock, "DELETE FROM shop_stock")
    assert rows(stock.connection, "shop_stock") == [(10, 5)]


@pytest.mark.parametrize("token", [1, 5])
def test_i2_delete_with_a_token_that_is_not_higher_is_refused(stock: Steps, token: int) -> None:
    refusal = pytest.raises(IntegrityError, match="fencing guard")
    with refusal, transaction.atomic(using=ALIAS), naming_token(stock.connection, token):
        run(stock.connection, "DELETE FROM shop_stock")
    assert rows(stock.connection, "shop_stock") == [(10, 5)]


def test_i2_delete_with_a_higher_token_passes(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS), naming_token(stock.connection, 6):
        assert run(stock.connection, "DELETE FROM shop_stock") == 1


def test_named_token_does_not_excuse_an_update(stock: Steps) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(using=ALIAS), naming_token(stock.connection, 6):
        run(stock.connection, "UPDATE shop_stock SET quantity = 0")


def test_named_token_is_gone_after_its_block(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS):
        with naming_token(stock.connection, 6):
            pass
        with pytest.raises(IntegrityError), transaction.atomic(using=ALIAS):
            run(stock.connection, "DELETE FROM shop_stock")
        with pytest.raises(ZeroDivisionError), naming_token(stock.connection, 6):
            raise ZeroDivisionError
        with pytest.raises(IntegrityError), transaction.atomic(using=ALIAS):
            run(stock.connection, "DELETE FROM shop_stock")


def test_named_tokens_nest(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS), naming_token(stock.connection, 6):
        with naming_token(stock.connection, 2):
            pass
        assert run(stock.connection, "DELETE FROM shop_stock") == 1


def test_i2_upsert_cannot_lower_last_token(stock: Steps) -> None:
    model = stock.model("Stock")
    upsert: dict[str, Any] = {"update_conflicts": True, "update_fields": ["quantity", "last_token"]}
    if stock.connection.features.supports_update_conflicts_with_target:
        upsert["unique_fields"] = ["id"]
    with pytest.raises(IntegrityError) as caught:
        model.objects.using(ALIAS).bulk_create([model(id=1, sku="a", quantity=0, last_token=1)], **upsert)
    assert guard_name_of(caught.value) == GUARD
    assert rows(stock.connection, "shop_stock") == [(10, 5)]
    model.objects.using(ALIAS).bulk_create([model(id=1, sku="a", quantity=3, last_token=8)], **upsert)
    assert rows(stock.connection, "shop_stock") == [(3, 8)]


def test_statement_over_several_rows_is_all_or_nothing(stock: Steps) -> None:
    run(stock.connection, "INSERT INTO shop_stock (id, last_token, sku, quantity) VALUES (2, 9, 'b', 20)")
    refused(stock, "UPDATE shop_stock SET quantity = 0, last_token = 7")
    assert rows(stock.connection, "shop_stock") == [(10, 5), (20, 9)]


def test_refusal_says_what_and_what_to_do(stock: Steps) -> None:
    error = refused(stock, "UPDATE shop_stock SET quantity = 0, last_token = 4")
    assert "unfenced(" in str(error)
    if stock.connection.vendor == "postgresql":
        diagnosis: Any = error.__cause__
        assert diagnosis.diag.constraint_name == GUARD
        assert diagnosis.diag.table_name == "shop_stock"
        assert diagnosis.sqlstate == "23514"
        assert 'UPDATE of table "shop_stock": last_token is 5, the new one 4' in str(error)
        assert "TRUNCATE" in diagnosis.diag.message_hint
    if stock.connection.vendor == "mysql":
        assert error.args[0] == 4025
        assert "refused UPDATE: last_token is 5, the new one 4. Write under a lease" in str(error)


def test_other_integrity_errors_are_nobodys_refusal(stock: Steps) -> None:
    with pytest.raises(IntegrityError) as caught:
        run(stock.connection, "INSERT INTO shop_stock (id, last_token, sku, quantity) VALUES (1, 9, 'b', 20)")
    assert guard_name_of(caught.value) is None


def test_lift_lets_everything_through_and_keeps_the_higher_number(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS), lift(stock.connection, 9):
        assert lifted(stock.connection) == 9
        run(stock.connection, "UPDATE shop_stock SET quantity = 0")
    assert lifted(stock.connection) is None
    # SQLite cannot change what the statement writes.
    assert rows(stock.connection, "shop_stock") == [(0, 5 if stock.connection.vendor == "sqlite" else 9)]


def test_lift_with_0_keeps_last_token(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS), lift(stock.connection, 0):
        assert lifted(stock.connection) == 0
        stock.model("Stock").objects.using(ALIAS).update(quantity=F("quantity") + 1)
    assert rows(stock.connection, "shop_stock") == [(11, 5)]


@pytest.mark.parametrize("connection", ["postgresql", MARIADB], indirect=True)
def test_last_token_is_never_lowered_even_when_lifted(stock: Steps) -> None:
    """SQLite cannot change what the statement writes."""
    with transaction.atomic(using=ALIAS), lift(stock.connection, 3):
        run(stock.connection, "UPDATE shop_stock SET quantity = 0, last_token = 1")
    assert rows(stock.connection, "shop_stock") == [(0, 5)]


def test_lift_lets_delete_through(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS), lift(stock.connection, 0):
        assert run(stock.connection, "DELETE FROM shop_stock") == 1


def test_lift_nests(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS), lift(stock.connection, 9):
        with lift(stock.connection, 12):
            assert lifted(stock.connection) == 12
        assert lifted(stock.connection) == 9
        run(stock.connection, "UPDATE shop_stock SET quantity = 0")


def test_lift_ends_with_its_block_inside_the_transaction(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS):
        with lift(stock.connection, 9):
            pass
        with pytest.raises(IntegrityError), transaction.atomic(using=ALIAS):
            run(stock.connection, "UPDATE shop_stock SET quantity = 0")


def test_lift_ends_with_its_block_after_an_error_that_a_savepoint_absorbed(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS):
        with pytest.raises(IntegrityError), lift(stock.connection, 9), transaction.atomic(using=ALIAS):
            raise IntegrityError
        with pytest.raises(IntegrityError, match="fencing guard"), transaction.atomic(using=ALIAS):
            run(stock.connection, "UPDATE shop_stock SET quantity = 0")


def test_lift_survives_a_failed_statement(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS):
        with pytest.raises(DatabaseError), transaction.atomic(using=ALIAS), lift(stock.connection, 9):
            run(stock.connection, "SELECT nonsense")
        assert lifted(stock.connection) is None
        with pytest.raises(IntegrityError, match="fencing guard"), transaction.atomic(using=ALIAS):
            run(stock.connection, "UPDATE shop_stock SET quantity = 0")


@pytest.mark.parametrize("rollback", [False, True])
def test_lift_does_not_leak_to_the_next_transaction(stock: Steps, rollback: bool) -> None:
    with transaction.atomic(using=ALIAS), lift(stock.connection, 9):
        run(stock.connection, "UPDATE shop_stock SET quantity = 1")
        transaction.set_rollback(rollback, using=ALIAS)
    refused(stock, "UPDATE shop_stock SET quantity = 2")
    refused(stock, "DELETE FROM shop_stock")


def test_lift_that_is_never_left_ends_with_the_transaction(stock: Steps) -> None:
    forgotten = lift(stock.connection, 9)
    with transaction.atomic(using=ALIAS):
        forgotten.__enter__()
    assert lifted(stock.connection) is None
    with transaction.atomic(using=ALIAS):
        assert lifted(stock.connection) is None
    refused(stock, "UPDATE shop_stock SET quantity = 2")
    forgotten.__exit__(None, None, None)
    refused(stock, "UPDATE shop_stock SET quantity = 2")


def test_lift_is_not_seen_by_another_connection(stock: Steps) -> None:
    other = stock.connection.copy()
    try:
        with transaction.atomic(using=ALIAS), lift(stock.connection, 9):
            assert lifted(other) is None
            with pytest.raises(IntegrityError, match="fencing guard"):
                run(other, "UPDATE shop_stock SET quantity = 2")
    finally:
        other.close()


def test_lift_and_naming_need_a_transaction(stock: Steps) -> None:
    for telling in (lift(stock.connection, 9), naming_token(stock.connection, 9)):
        with pytest.raises(transaction.TransactionManagementError, match="atomic"), telling:
            pass


@pytest.mark.parametrize("number", [-1, 2**53, 1.5, True, "7", None])
def test_lift_and_naming_refuse_what_is_no_number(connection: Any, number: Any) -> None:
    for telling in (lift(connection, number), naming_token(connection, number)):
        with pytest.raises(InvalidTokenError), telling:
            pass


@ON_MARIADB
@pytest.mark.parametrize("told", ["", "abc", "7 ", "9" * 17, "0x9", "-9"])
def test_mariadb_what_is_no_number_lifts_nothing(stock: Steps, told: str) -> None:
    with transaction.atomic(using=ALIAS):
        with stock.connection.cursor() as cursor:
            cursor.execute("SET @fencing_unfenced = %s, @fencing_token = %s", [told, told])
        with pytest.raises(IntegrityError), transaction.atomic(using=ALIAS):
            run(stock.connection, "UPDATE shop_stock SET quantity = 0")
        with pytest.raises(IntegrityError), transaction.atomic(using=ALIAS):
            run(stock.connection, "DELETE FROM shop_stock")


@ON_MARIADB
def test_mariadb_variables_count_inside_a_transaction_only(stock: Steps) -> None:
    """Whoever has set them by hand, and forgot."""
    run(stock.connection, "SET @fencing_unfenced = 0, @fencing_token = 9")
    for sql in ("UPDATE shop_stock SET quantity = 0", "DELETE FROM shop_stock"):
        with pytest.raises(IntegrityError):
            run(stock.connection, sql)


@ON_MARIADB
@pytest.mark.parametrize("broken", ["exception", "needs rollback", "deadlock", "never left", "DDL"])
def test_mariadb_nothing_told_reaches_the_next_user_of_the_connection(stock: Steps, broken: str) -> None:
    """The variables would outlive the transaction; what is asked here goes past Django, as another program's would."""

    def told() -> Any:
        with stock.connection.connection.cursor() as cursor:
            cursor.execute("SELECT @fencing_unfenced, @fencing_token, @fencing_migrating")
            return cursor.fetchone()

    blocks = [lift(stock.connection, 9), naming_token(stock.connection, 9)]
    with suppress(ZeroDivisionError, DatabaseError), transaction.atomic(using=ALIAS), ExitStack() as stack:
        for block in blocks:
            (block.__enter__ if broken == "never left" else partial(stack.enter_context, block))()
        assert told()[:2] == (9, 9)
        if broken == "exception":
            raise ZeroDivisionError
        if broken == "needs rollback":
            transaction.set_rollback(True, using=ALIAS)
        if broken == "deadlock":
            run(stock.connection, "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213")
        if broken == "DDL":
            run(stock.connection, "CREATE TABLE other (id INT)")
    if broken == "never left":
        run(stock.connection, "SELECT 1")
    assert told() == (None, None, None)


@ON_MARIADB
def test_mariadb_connection_that_cannot_be_cleaned_is_closed(stock: Steps) -> None:
    with suppress(DatabaseError), transaction.atomic(using=ALIAS), lift(stock.connection, 9):
        number = stock.connection.connection.thread_id()
        with closing(stock.connection.copy()) as other:
            run(other, f"KILL {number}")
    run(stock.connection, "SELECT 1")
    assert stock.connection.connection.thread_id() != number
    refused(stock, "UPDATE shop_stock SET quantity = 2")


@ON_MARIADB
def test_mariadb_pool_below_django_hands_on_a_clean_connection(stock: Steps) -> None:
    raw = stock.connection.connection
    with raw.cursor() as cursor:
        cursor.execute("SET @fencing_unfenced = 0, @fencing_migrating = TRUE")
    connection_created.send(type(stock.connection), connection=stock.connection)
    refused(stock, "UPDATE shop_stock SET quantity = 2")


@ON_SQLITE
def test_sqlite_connection_does_not_keep_its_wrapper_alive(stock: Steps) -> None:
    copy = stock.connection.copy()
    run(copy, "SELECT 1")
    raw, reference = copy.connection, weakref.ref(copy)
    del copy
    gc.collect()
    assert reference() is None
    raw.close()


def test_django_db_proxy_is_understood(stock: Steps) -> None:
    with transaction.atomic(using=ALIAS), lift(ConnectionProxy(connections, ALIAS), 9):  # type: ignore[arg-type]
        assert lifted(stock.connection) == 9
