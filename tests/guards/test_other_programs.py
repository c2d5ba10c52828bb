"""The guard against what is not Django: clients of the databases, drivers, and statements that Django never sends."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.test import TransactionTestCase

from fencing.guards import guard_name_of
from tests.debian_postgres import PACKAGES
from tests.services import missing
from tests.shop.models import Bin, Crate, Warehouse

from .conftest import ALIAS, ON_MARIADB, ON_POSTGRESQL, ON_SQLITE, Steps, create_model, rows, run

GUARD = "shop_stock_fence"
CHANGES = ("UPDATE shop_stock SET quantity = 0", "DELETE FROM shop_stock")
ROW = (
    "INSERT INTO shop_bin (last_token, label, quantity, changed_at, warehouse_id) "
    "VALUES (1125899906842624, 'a', 1, '2026-01-01', 1)"
)
ADVICE = "under a lease of the row's resource, or use unfenced("


def client(name: str) -> str:
    """A database's own client."""
    places = [None, *sorted(str(place) for place in PACKAGES.glob("*/bin"))]
    found = next((found for place in places if (found := shutil.which(name, path=place))), None)
    return found or missing(f"{name} not found")


def said(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """What a client that fails prints of it."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    return done.stderr


@ON_POSTGRESQL
@pytest.mark.parametrize("sql", CHANGES)
def test_psql_is_told_what_to_do(stock: Steps, sql: str) -> None:
    settings = stock.connection.settings_dict
    environment = {
        "PGHOST": settings["HOST"], "PGPORT": str(settings["PORT"]), "PGUSER": settings["USER"],
        "PGPASSWORD": settings["PASSWORD"], "PGDATABASE": settings["NAME"], "PGOPTIONS": settings["OPTIONS"]["options"],
    }  # fmt: skip
    message = said([client("psql"), "-X", "-v", "ON_ERROR_STOP=1", "-c", sql], environment)
    assert f'fencing guard "{GUARD}" refused {sql[:6]} of table "shop_stock": last_token is 5' in message
    assert f"HINT:  Write {ADVICE}" in message
    assert rows(stock.connection, "shop_stock") == [(10, 5)]


@ON_MARIADB
@pytest.mark.parametrize(
    "sql", [*CHANGES, "REPLACE INTO shop_stock (id, last_token, sku, quantity) VALUES (1, 9, 'a', 0)"]
)
def test_mariadbs_client_is_told_what_to_do(stock: Steps, sql: str) -> None:
    settings = stock.connection.settings_dict
    where = ["--socket", settings["HOST"]] if settings["HOST"].startswith("/") else ["--host", settings["HOST"]]
    command = [client("mariadb"), "--no-defaults", *where, "--user", settings["USER"], settings["NAME"], "-e", sql]
    message = said(command, {"MYSQL_PWD": settings["PASSWORD"]})
    assert message.startswith("--------------\n") or "ERROR 4025 (23000)" in message
    assert f'fencing guard "{GUARD}" refused' in message
    assert f"Write {ADVICE}" in message
    assert rows(stock.connection, "shop_stock") == [(10, 5)]


@ON_SQLITE
@pytest.mark.parametrize("sql", [*CHANGES, "UPDATE shop_stock SET quantity = 0, last_token = 9"])
def test_sqlite_tells_other_programs_what_to_do(stock: Steps, sql: str) -> None:
    """It knows no way to say more than that there is no such function, so the name says it."""
    with closing(sqlite3.connect(stock.connection.settings_dict["NAME"])) as stranger:
        with pytest.raises(sqlite3.OperationalError, match=r"fencing guard: Django .+, under a lease or in unfenced\("):
            stranger.execute(sql)
        stranger.rollback()
    assert rows(stock.connection, "shop_stock") == [(10, 5)]


@pytest.mark.parametrize("sql", CHANGES)
def test_second_connection_of_the_driver_is_refused(stock: Steps, sql: str) -> None:
    """Not Django's: nothing of its wrappers is in the way."""
    with closing(stock.connection.copy()) as other:
        other.ensure_connection()
        with closing(other.connection.cursor()) as cursor, pytest.raises(Exception, match="fencing guard") as caught:
            cursor.execute(sql)
    assert type(caught.value).__module__.split(".")[0] in ("psycopg", "pymysql", "MySQLdb", "sqlite3")
    assert rows(stock.connection, "shop_stock") == [(10, 5)]


@ON_MARIADB
def test_mariadb_replace_is_refused(stock: Steps) -> None:
    """It deletes and inserts, or updates, as the database likes; in each case the guard is asked."""
    for sql in ("REPLACE INTO", "INSERT INTO"):
        end = "" if sql.startswith("R") else " ON DUPLICATE KEY UPDATE quantity = 0"
        with pytest.raises(IntegrityError) as caught:
            run(stock.connection, f"{sql} shop_stock (id, last_token, sku, quantity) VALUES (1, 9, 'a', 0){end}")
        assert guard_name_of(caught.value) == GUARD
    assert rows(stock.connection, "shop_stock") == [(10, 5)]


@ON_SQLITE
def test_sqlite_replace_is_no_delete_to_its_triggers(stock: Steps) -> None:
    """Said in the docs; with its own setting for that, the guard is asked."""
    replace = "REPLACE INTO shop_stock (id, last_token, sku, quantity) VALUES (1, 3, 'a', {})"
    assert run(stock.connection, replace.format(7)) == 1
    run(stock.connection, "PRAGMA recursive_triggers = ON")
    with pytest.raises(IntegrityError) as caught:
        run(stock.connection, replace.format(8))
    assert guard_name_of(caught.value) == GUARD
    assert rows(stock.connection, "shop_stock") == [(7, 3)]


@ON_SQLITE
def test_sqlite_or_replace_takes_the_rows_in_its_way(stock: Steps) -> None:
    """Said in the docs: the row that is replaced goes without a trigger, whatever the statement is."""
    run(stock.connection, "INSERT INTO shop_stock (id, last_token, sku, quantity) VALUES (2, 9, 'b', 5)")
    run(stock.connection, "UPDATE OR REPLACE shop_stock SET id = 2, last_token = 6 WHERE id = 1")
    assert rows(stock.connection, "shop_stock") == [(10, 6)]


@ON_SQLITE
def test_sqlite_upsert_is_refused(stock: Steps) -> None:
    with pytest.raises(IntegrityError) as caught:
        run(
            stock.connection,
            "INSERT INTO shop_stock (id, last_token, sku, quantity) VALUES (1, 3, 'a', 0) "
            "ON CONFLICT (id) DO UPDATE SET quantity = 0",
        )
    assert guard_name_of(caught.value) == GUARD


@ON_POSTGRESQL
def test_row_that_moves_to_another_partition_needs_a_named_number(steps: Steps) -> None:
    """Said in the docs: to the guard it is a DELETE as well."""
    connection = steps.connection
    steps.forwards(create_model("Other"))
    model = steps.model("Other")
    (guard,) = model._meta.constraints
    run(connection, "DROP TABLE shop_other")
    run(connection, "CREATE TABLE shop_other (id bigint, last_token bigint, sku text) PARTITION BY LIST (sku)")
    for sku in "ab":
        run(connection, f"CREATE TABLE shop_other_{sku} PARTITION OF shop_other FOR VALUES IN ('{sku}')")
    with connection.schema_editor() as editor:
        editor.add_constraint(model, guard)
    run(connection, "INSERT INTO shop_other VALUES (1, 5, 'a')")
    move = "UPDATE shop_other SET sku = 'b', last_token = 6"
    for refused in (move, "UPDATE shop_other_a SET last_token = 5", "DELETE FROM shop_other_a"):
        with pytest.raises(IntegrityError) as caught:
            run(connection, refused)
        assert guard_name_of(caught.value) == guard.name
    with transaction.atomic(using=connection.alias):
        run(connection, "SELECT set_config('fencing.token', '6', true)")
        run(connection, move)
    assert rows(connection, "shop_other", "sku, last_token") == [("b", 6)]


@ON_POSTGRESQL
def test_replication_role_fires_no_trigger(stock: Steps) -> None:
    """Said in the docs; only a superuser may set it."""
    with transaction.atomic(using=stock.connection.alias):
        run(stock.connection, "SET LOCAL session_replication_role = replica")
        assert run(stock.connection, "UPDATE shop_stock SET quantity = 0") == 1
    with pytest.raises(IntegrityError):
        run(stock.connection, "UPDATE shop_stock SET quantity = 1")


@ON_POSTGRESQL
def test_copy_adds_rows_and_changes_none(stock: Steps) -> None:
    """COPY inserts; a row that is there is a violation of its key, and nothing of the COPY is left."""

    def copy(text: str) -> None:
        with (
            stock.connection.cursor() as cursor,
            cursor.copy("COPY shop_stock (id, last_token, sku, quantity) FROM STDIN") as to,
        ):
            to.write(text)

    stock.connection.ensure_connection()
    copy("2\t7\tb\t0\n")
    with pytest.raises(Exception, match="duplicate key"):
        copy("3\t7\tc\t0\n1\t9\ta\t0\n")
    assert rows(stock.connection, "shop_stock", "id, quantity, last_token") == [(1, 10, 5), (2, 0, 7)]
    with pytest.raises(IntegrityError) as caught:
        run(stock.connection, "UPDATE shop_stock SET quantity = 1 WHERE id = 2")
    assert guard_name_of(caught.value) == GUARD


@ON_POSTGRESQL
def test_merge_and_upsert_are_refused(stock: Steps) -> None:
    merge = "MERGE INTO shop_stock s USING (SELECT 1 AS id) n ON s.id = n.id WHEN MATCHED THEN {}"
    upsert = "INSERT INTO shop_stock (id, last_token, sku, quantity) VALUES (1, 5, 'a', 0) ON CONFLICT (id) DO UPDATE SET sku = 'b'"
    for sql in (merge.format("UPDATE SET quantity = 0"), merge.format("DELETE"), upsert):
        with pytest.raises(IntegrityError) as caught:
            run(stock.connection, sql)
        assert guard_name_of(caught.value) == GUARD


@pytest.mark.parametrize(
    "connection", ["postgresql", pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)
def test_truncate_passes(stock: Steps) -> None:
    """It is not fenced, as the docs say: the teardown of tests needs it. SQLite has none."""
    run(stock.connection, "TRUNCATE shop_stock")
    assert rows(stock.connection, "shop_stock") == []


def test_rows_that_a_transaction_test_case_left_fenced_go_with_its_teardown(connection: Any) -> None:
    """With high tokens, in a parent and in its children, and after that the guards stand."""
    with connection.schema_editor() as editor:
        for model in (Warehouse, Bin, Crate):
            editor.create_model(model)

    class Case(TransactionTestCase):
        databases = {ALIAS}
        available_apps = ["tests.shop"]

    for _ in range(2):
        run(connection, "INSERT INTO shop_warehouse (id, name) VALUES (1, 'north')")
        run(connection, ROW)
        run(
            connection,
            "INSERT INTO shop_crate (last_token, warehouse_id, code, weight) VALUES (9007199254740991, 1, 'x', 0)",
        )
        case: Any = Case("run")
        case._fixture_teardown()
        for model in (Warehouse, Bin, Crate):
            assert not model._default_manager.using(ALIAS).exists()
    run(connection, ROW.replace("1)", "NULL)"))
    with pytest.raises(IntegrityError) as caught:
        run(connection, "DELETE FROM shop_bin")
    assert guard_name_of(caught.value) == "shop_bin_fence"
    call_command("flush", database=ALIAS, interactive=False, verbosity=0, inhibit_post_migrate=True)
    assert not Bin.objects.using(ALIAS).exists()
