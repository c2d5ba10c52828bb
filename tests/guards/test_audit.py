"""``manage.py fencing guards``: what is amiss is said and makes the exit status, and ``--install`` puts it right."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.exceptions import BadMigrationError
from django.db.migrations.recorder import MigrationRecorder

from fencing import checks, modelchecks
from fencing.guard_audit import audit, fenced_databases
from fencing.guards import FenceGuard, guard_name_of
from tests.shop.models import Bin, Crate, ExpressBin, Warehouse

from .conftest import ALIAS, ON_POSTGRESQL, Steps, create_model, run

GUARD = "shop_bin_fence"
ROW = "INSERT INTO shop_bin (id, last_token, label, quantity, changed_at) VALUES (1, 5, 'a', 10, '2026-01-01')"


@pytest.fixture
def tables(connection: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    """The tables of two fenced models, of a child of one, and of one that is not fenced."""
    with connection.schema_editor() as editor:
        for model in (Warehouse, Bin, Crate, ExpressBin):
            editor.create_model(model)
    run(connection, ROW)
    return connection


def shown(*options: str) -> dict[str, Any]:
    """What the command prints for programs; its exit status is checked against that."""
    out = StringIO()
    status = 0
    with suppress(CommandError):
        status = 1
        call_command("fencing", "guards", "--database", ALIAS, "--json", *options, stdout=out)
        status = 0
    (line,) = out.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    assert status == (found["amiss"] > 0)
    return found


def states(found: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The state of each guard whose table is there."""
    return {(one["table"], one["guard"]): one["state"] for one in found["guards"] if one["state"] != "no table"}


STANDING = {("shop_bin", GUARD): "installed", ("shop_crate", "shop_crate_fence"): "installed"}


def refused_by(connection: BaseDatabaseWrapper, sql: str) -> str | None:
    """The name of the guard that refuses a statement, or None; it is undone."""
    try:
        with transaction.atomic(using=ALIAS):
            assert run(connection, sql) == 1
            transaction.set_rollback(True, using=ALIAS)
    except IntegrityError as error:
        return guard_name_of(error)
    return None


def stands(connection: BaseDatabaseWrapper) -> bool:
    """Whether shop_bin's guard refuses what it has to."""
    found = {refused_by(connection, sql) for sql in ("UPDATE shop_bin SET quantity = 1", "DELETE FROM shop_bin")}
    assert len(found) == 1
    return found == {GUARD}


def trigger(connection: BaseDatabaseWrapper, event: str, table: str = "shop_bin") -> str:
    return f"fencing_guard_{event}" if connection.vendor == "postgresql" else f"{table}_fence_{event}"


def drop(connection: BaseDatabaseWrapper, *events: str, table: str = "shop_bin") -> None:
    on = f" ON {table}" if connection.vendor == "postgresql" else ""
    for event in events:
        run(connection, f"DROP TRIGGER {trigger(connection, event, table)}{on}")


def replace(connection: BaseDatabaseWrapper) -> None:
    """Another trigger under the name of the guard's."""
    drop(connection, "update")
    name = trigger(connection, "update")
    if connection.vendor == "postgresql":
        run(connection, f"CREATE TRIGGER {name} AFTER UPDATE ON shop_bin FOR EACH ROW EXECUTE FUNCTION fencing_guard()")
    else:
        nothing = "SELECT 1" if connection.vendor == "sqlite" else "SET @nothing = 1"
        run(connection, f"CREATE TRIGGER {name} BEFORE UPDATE ON shop_bin FOR EACH ROW BEGIN {nothing}; END")


def rename(connection: BaseDatabaseWrapper) -> None:
    """The guard of a model that had another name."""
    drop(connection, "update", "delete")
    with connection.schema_editor() as editor:
        editor.execute(FenceGuard(name="shop_box_fence").create_sql(Bin, editor), params=None)


FAULTS: dict[str, tuple[Callable[[BaseDatabaseWrapper], None], str]] = {
    "no trigger": (lambda connection: drop(connection, "update", "delete"), "missing"),
    "no delete": (lambda connection: drop(connection, "delete"), "differs"),
    "another trigger": (replace, "differs"),
}


def test_guards_that_stand(tables: BaseDatabaseWrapper) -> None:
    found = shown()
    assert states(found) == STANDING, "and the child, whose token is in its parent's table, needs none"
    assert {one["table"] for one in found["guards"]} > {"shop_bin", "inventory_demo_stock"}
    assert shown("--install")["repaired"] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_amiss_is_said_and_put_right(tables: BaseDatabaseWrapper, fault: str) -> None:
    spoil, state = FAULTS[fault]
    spoil(tables)
    for _ in range(2):
        assert states(shown()) == STANDING | {("shop_bin", GUARD): state}
    found = shown("--install")
    assert [(one["guard"], one["state"]) for one in found["repaired"]] == [(GUARD, state)]
    assert states(found) == STANDING
    assert stands(tables)


def test_guard_of_another_name(tables: BaseDatabaseWrapper) -> None:
    """PostgreSQL's triggers have fixed names, so there it is one guard that differs; elsewhere the old one is surplus."""
    rename(tables)
    assert refused_by(tables, "UPDATE shop_bin SET quantity = 1") == "shop_box_fence"
    before = states(shown())
    if tables.vendor == "postgresql":
        assert before == STANDING | {("shop_bin", GUARD): "differs"}
    else:
        old = {("shop_bin", f"shop_box_fence_{event}"): "surplus" for event in ("update", "delete")}
        assert before == STANDING | {("shop_bin", GUARD): "missing"} | old
    assert states(shown("--install")) == STANDING
    assert stands(tables)


def test_table_without_the_column_is_a_case_of_its_own(
    tables: BaseDatabaseWrapper, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model became fenced, and its migrations are still to come: there is nothing that a guard could read."""
    drop(tables, "update", "delete")
    run(tables, "ALTER TABLE shop_bin RENAME COLUMN last_token TO other")
    for found in (shown(), shown("--install")):
        assert states(found) == STANDING | {("shop_bin", GUARD): "no column"}
        assert (found["amiss"], found["repaired"], found["failed"], caplog.records) == (1, [], [], [])
    out = StringIO()
    with pytest.raises(CommandError, match=r"^1 of \d+ guards are amiss."):
        call_command("fencing", "guards", "--database", ALIAS, "--install", stdout=out)
    assert "  no column  no column last_token: run makemigrations and migrate\n" in out.getvalue()
    assert "repaired" not in out.getvalue().lower()
    (warning,) = (one for one in checks.check_databases(databases=[ALIAS]) if one.id == "fencing.W004")
    assert "column last_token" in warning.msg and "manage.py makemigrations" in str(warning.hint)
    monkeypatch.setattr(Bin._meta, "managed", False)
    assert "not managed" in next(one.detail for one in audit(ALIAS) if one.state == "no column")


def test_guard_that_migrate_is_about_to_create_is_not_missed(connection: BaseDatabaseWrapper) -> None:
    """migrate runs the check first. Once the migration is applied, or where there is none, the guard is missed."""

    def warned() -> list[str | None]:
        return [one.id for one in checks.check_databases(databases=[ALIAS]) if "inventory_demo_stock" in one.msg]

    call_command("migrate", "inventory_demo", database=ALIAS, verbosity=0, skip_checks=True)
    assert warned() == []
    drop(connection, "update", "delete", table="inventory_demo_stock")
    assert warned() == ["fencing.W004"]
    MigrationRecorder(connection).record_unapplied("inventory_demo", "0001_initial")
    assert warned() == []
    run(connection, "ALTER TABLE inventory_demo_stock RENAME COLUMN last_token TO other")
    assert warned() == []
    MigrationRecorder(connection).record_applied("inventory_demo", "0001_initial")
    assert warned() == ["fencing.W004"]


def test_guard_is_missed_also_where_migrations_cannot_be_read(
    tables: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_connection: BaseDatabaseWrapper) -> None:
        raise BadMigrationError

    drop(tables, "update", "delete")
    monkeypatch.setattr(modelchecks, "MigrationLoader", broken)
    assert "fencing.W004" in {one.id for one in checks.check_databases(databases=[ALIAS])}


def test_table_that_is_not_there(tables: BaseDatabaseWrapper) -> None:
    """It is told how it comes to be; no guard is amiss for it, because a database need not have every model."""
    found = shown("--install")
    absent = {one["detail"] for one in found["guards"] if one["state"] == "no table"}
    assert (found["amiss"], absent) == (0, {"no such table: run makemigrations and migrate"})


def test_repair_that_fails_is_told_in_a_line(
    tables: BaseDatabaseWrapper, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(tables, "delete")
    monkeypatch.setattr("fencing.guard_audit._installation", lambda *_args: ["CREATE TRIGGER nonsense"])
    (failed,) = shown("--install")["failed"]
    (line,) = caplog.records
    assert failed["error"] in line.getMessage() and line.exc_info is None


DISABLED = "ALTER TABLE shop_bin DISABLE TRIGGER fencing_guard_update"
FUNCTION = "CREATE OR REPLACE FUNCTION fencing_guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"


@ON_POSTGRESQL
@pytest.mark.parametrize(
    ("sql", "amiss"),
    [
        (DISABLED, {"fencing_guard_update is disabled"}),
        (FUNCTION, {"fencing_guard_delete is another one, fencing_guard_update is another one"}),
    ],
)
def test_triggers_that_are_there_and_do_nothing(tables: BaseDatabaseWrapper, sql: str, amiss: set[str]) -> None:
    run(tables, sql)
    assert {one["detail"] for one in shown()["guards"] if one["state"] == "differs"} == amiss
    assert states(shown("--install")) == STANDING
    assert stands(tables)


def test_surplus_guard_of_an_unfenced_table(tables: BaseDatabaseWrapper) -> None:
    run(tables, "ALTER TABLE shop_warehouse ADD COLUMN last_token BIGINT DEFAULT 0 NOT NULL")
    with tables.schema_editor() as editor:
        for sql in [str(FenceGuard(name="old").create_sql(Bin, editor)), *map(str, editor.deferred_sql)]:
            editor.execute(sql.replace("shop_bin", "shop_warehouse"), params=None)
        editor.deferred_sql.clear()
    run(tables, "INSERT INTO shop_warehouse (id, name) VALUES (1, 'north')")
    assert refused_by(tables, "DELETE FROM shop_warehouse") == "old"
    assert {table for (table, _), state in states(shown()).items() if state == "surplus"} == {"shop_warehouse"}
    assert states(shown("--install")) == STANDING
    assert refused_by(tables, "DELETE FROM shop_warehouse") is None


def test_guard_of_a_table_that_no_model_here_has_is_left(tables: BaseDatabaseWrapper) -> None:
    """Another project's, perhaps: nobody here may open its door."""
    Steps(tables).forwards(create_model("Stock"))
    for found in (shown(), shown("--install")):
        strange = [one for one in found["guards"] if one["table"] == "shop_stock"]
        assert {(one["state"], one["model"], one["repairable"]) for one in strange} == {("surplus", "", False)}
        assert found["repaired"] == []


def test_guard_that_the_models_meta_lost_is_left(tables: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bin._meta, "constraints", [])
    found = shown("--install")
    assert {one["detail"] for one in found["guards"] if one["state"] == "surplus"} == {
        "the Meta of its model lost the guard: fencing.E006"
    }
    assert stands(tables)


def test_table_that_was_renamed_and_renamed_back(tables: BaseDatabaseWrapper) -> None:
    """Databases write the new name into their text of a trigger in ways of their own."""
    for old, new in (("shop_bin", "bins"), ("bins", "shop_bin")):
        run(tables, f"ALTER TABLE {old} RENAME TO {new}")
    assert states(shown()) == STANDING


@ON_POSTGRESQL
def test_it_waits_for_a_table_in_use_and_not_for_ever(tables: BaseDatabaseWrapper) -> None:
    drop(tables, "update", "delete")
    other = tables.copy()
    try:
        other.set_autocommit(False)
        run(other, "UPDATE shop_bin SET quantity = 1")
        found = shown("--install", "--lock-timeout", "0.2")
        assert [("lock timeout" in one["error"], one["table"]) for one in found["failed"]] == [(True, "shop_bin")]
        assert states(found)["shop_bin", GUARD] == "missing"
        other.rollback()
    finally:
        other.close()
    assert shown("--install")["failed"] == []
    assert stands(tables)


def test_what_people_read(tables: BaseDatabaseWrapper) -> None:
    drop(tables, "delete")
    out = StringIO()
    with pytest.raises(CommandError, match=r"^1 of \d+ guards are amiss. --install repairs them where it can.$"):
        call_command("fencing", "guards", "--database", ALIAS, stdout=out)
    assert f"{ALIAS}    shop_bin" in out.getvalue()
    assert f"{trigger(tables, 'delete')} is missing" in out.getvalue()
    again = StringIO()
    call_command("fencing", "guards", "--database", ALIAS, "--install", stdout=again)
    assert f"Repaired: {GUARD} of shop_bin in {ALIAS} (was: differs)." in again.getvalue()


@pytest.mark.django_db(databases=["default", "lite"])
def test_migrated_databases_are_in_order() -> None:
    for alias in ("default", "lite"):
        assert {one.state for one in audit(alias)} == {"installed"}
    with pytest.raises(CommandError, match="nowhere"):
        call_command("fencing", "guards", "--database", "nowhere")


def test_databases_where_fenced_models_migrate_to(settings: Any) -> None:
    assert fenced_databases() == list(connections)
    settings.DATABASE_ROUTERS = [
        type("Router", (), {"allow_migrate": lambda self, db, *_args, **_hints: db == "lite"})()
    ]
    assert fenced_databases() == ["lite"]


@ON_POSTGRESQL
@pytest.mark.parametrize("quotes", ["", '"'], ids=["inner", "outer"])
def test_table_of_another_schema(tables: BaseDatabaseWrapper, quotes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model names it past Django's quotes; without its guard nothing would say so."""
    schema = f"Guards {uuid4().hex}"
    monkeypatch.setattr(Bin._meta, "db_table", f'{quotes}{schema}"."Bins{quotes}')
    run(tables, f'CREATE SCHEMA "{schema}"')
    try:
        assert states(shown())[("shop_crate", "shop_crate_fence")] == "installed"
        with tables.schema_editor() as editor:
            editor.create_model(Bin)
        place = (Bin._meta.db_table, GUARD)
        assert states(shown())[place] == "installed"
        run(tables, f'DROP TRIGGER fencing_guard_update ON "{schema}"."Bins"')
        assert states(shown())[place] == "differs"
        run(tables, f'DROP TRIGGER fencing_guard_delete ON "{schema}"."Bins"')
        assert states(shown())[place] == "missing"
        assert states(shown("--install"))[place] == "installed"
        run(tables, f'ALTER TABLE "{schema}"."Bins" DISABLE TRIGGER fencing_guard_update')
        assert states(shown("--install"))[place] == "installed"
    finally:
        run(tables, f'DROP SCHEMA "{schema}" CASCADE')
