"""The guard through every kind of schema change: it stays, moves and goes with its table."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, NotSupportedError, connections, migrations, models, transaction
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.questioner import MigrationQuestioner
from django.db.migrations.writer import MigrationWriter, OperationWriter

from fencing.guards import FenceGuard, guard_name_of
from fencing.operations import PRINTED, Unfenced
from tests.concurrency import wait_until, waiting_for_locks

from .conftest import ALIAS, MARIADB, ON_POSTGRESQL, Steps, create_model, insert, rows, run


def guard_of(steps: Steps, table: str, column: str = "quantity", where: str = "TRUE") -> str | None:
    """The name of the guard that refuses an UPDATE and a DELETE of ``table``; None if both pass (and are undone)."""
    found = set()
    for sql in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):  # noqa: S608
        sql = f"{sql} WHERE {where}"
        try:
            with transaction.atomic(using=ALIAS):
                assert run(steps.connection, sql) == 1
                transaction.set_rollback(True, using=ALIAS)
        except IntegrityError as error:
            found.add(guard_name_of(error))
        else:
            found.add(None)
    assert len(found) == 1, f"the two triggers disagree: {found}"
    return found.pop()


GUARD = "shop_stock_fence"

CHANGES: dict[str, Any] = {
    "add field": migrations.AddField("stock", "note", models.CharField(max_length=9, default="x")),
    "add index": migrations.AddIndex("stock", models.Index(fields=["sku"], name="shop_stock_sku")),
    "add check": migrations.AddConstraint(
        "stock", models.CheckConstraint(condition=models.Q(last_token__lte=2**53 - 1), name="shop_stock_last_token")
    ),
    "add unique": migrations.AddConstraint("stock", models.UniqueConstraint(fields=["sku"], name="shop_stock_once")),
    "alter type": migrations.AlterField("stock", "quantity", models.BigIntegerField(default=0)),
    "alter length": migrations.AlterField("stock", "sku", models.CharField(max_length=80, unique=True)),
    "alter key": migrations.AlterField("stock", "id", models.IntegerField(primary_key=True)),
    "remove field": migrations.RemoveField("stock", "place"),
    "rename column": migrations.AlterField("stock", "sku", models.CharField(max_length=40, db_column="code")),
    "null to not null": Unfenced(
        [migrations.AlterField("stock", "place", models.CharField(max_length=40, default="here"))]
    ),
    "data": Unfenced(
        [
            migrations.RunPython(
                lambda apps, editor: apps.get_model("shop", "Stock").objects.using(ALIAS).update(sku="b"),
                migrations.RunPython.noop,
            )
        ]
    ),
    "sql": Unfenced([migrations.RunSQL("UPDATE shop_stock SET sku = 'b'", "UPDATE shop_stock SET sku = 'a'")]),
}


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_guard_and_rows_survive(stock: Steps, change: Any, atomic: bool) -> None:
    stock.forwards(change, atomic=atomic)
    assert guard_of(stock, "shop_stock") == GUARD
    assert rows(stock.connection, "shop_stock") == [(10, 5)]
    stock.backwards()
    assert guard_of(stock, "shop_stock") == GUARD
    assert rows(stock.connection, "shop_stock") == [(10, 5)]


def test_guard_survives_several_rebuilds_in_one_migration(stock: Steps) -> None:
    stock.forwards(*(CHANGES[name] for name in ("alter type", "add field", "null to not null", "alter length", "sql")))
    assert guard_of(stock, "shop_stock") == GUARD


def test_guard_created_and_changed_in_one_migration(steps: Steps) -> None:
    steps.forwards(create_model("Stock"), CHANGES["alter type"], CHANGES["add field"], CHANGES["add index"])
    run(steps.connection, "INSERT INTO shop_stock (id, last_token, sku, quantity, note) VALUES (1, 5, 'a', 10, '')")
    assert guard_of(steps, "shop_stock") == GUARD


def test_key_type_change_with_an_incoming_foreign_key(stock: Steps) -> None:
    stock.forwards(
        migrations.CreateModel(
            "Line",
            [("id", models.BigAutoField(primary_key=True)), ("stock", models.ForeignKey("shop.Stock", models.CASCADE))],
        )
    )
    stock.forwards(CHANGES["alter key"])
    assert guard_of(stock, "shop_stock") == GUARD


def test_rename_field(stock: Steps) -> None:
    stock.forwards(migrations.RenameField("stock", "quantity", "amount"))
    assert guard_of(stock, "shop_stock", "amount") == GUARD


def test_rename_table(stock: Steps) -> None:
    stock.forwards(migrations.AlterModelTable("stock", "warehouse"))
    assert guard_of(stock, "warehouse") == GUARD
    stock.forwards(CHANGES["alter type"])
    assert guard_of(stock, "warehouse") == GUARD
    stock.backwards()
    stock.backwards()
    assert guard_of(stock, "shop_stock") == GUARD


RENAME = (
    migrations.RenameModel("Stock", "Item"),
    migrations.RemoveConstraint("item", "shop_stock_fence"),
    migrations.AddConstraint("item", FenceGuard(name="shop_item_fence")),
)


def test_rename_model_as_makemigrations_writes_it(stock: Steps) -> None:
    stock.forwards(*RENAME)
    assert guard_of(stock, "shop_item") == "shop_item_fence"
    stock.backwards()
    assert guard_of(stock, "shop_stock") == GUARD


def test_create_and_rename_in_one_migration(steps: Steps) -> None:
    steps.forwards(create_model("Stock"), *RENAME)
    insert(steps.connection, "shop_item")
    assert guard_of(steps, "shop_item") == "shop_item_fence"


def test_a_new_model_takes_the_old_name(stock: Steps) -> None:
    stock.forwards(*RENAME, create_model("Stock"))
    insert(stock.connection, "shop_stock")
    assert guard_of(stock, "shop_item") == "shop_item_fence"
    assert guard_of(stock, "shop_stock") == GUARD


def test_removal_and_backwards(stock: Steps) -> None:
    stock.forwards(migrations.RemoveConstraint("stock", GUARD))
    assert guard_of(stock, "shop_stock") is None
    stock.backwards()
    assert guard_of(stock, "shop_stock") == GUARD


def test_create_and_remove_in_one_migration(steps: Steps) -> None:
    steps.forwards(create_model("Stock"), migrations.RemoveConstraint("stock", GUARD))
    insert(steps.connection, "shop_stock")
    assert guard_of(steps, "shop_stock") is None


def test_addition_to_an_existing_table(steps: Steps) -> None:
    steps.forwards(create_model("Stock", constraints=[]))
    insert(steps.connection, "shop_stock")
    assert guard_of(steps, "shop_stock") is None
    steps.forwards(migrations.AddConstraint("stock", FenceGuard(name=GUARD)))
    assert guard_of(steps, "shop_stock") == GUARD
    steps.backwards()
    assert guard_of(steps, "shop_stock") is None


def test_table_with_a_parametrised_default(steps: Steps) -> None:
    creation = create_model("Stock")
    creation.fields.append(("note", models.CharField(max_length=9, db_default="x")))
    steps.forwards(migrations.CreateModel(creation.name, creation.fields, creation.options))
    insert(steps.connection, "shop_stock")
    assert guard_of(steps, "shop_stock") == GUARD


def test_to_zero_and_again(stock: Steps) -> None:
    stock.backwards()
    assert "shop_stock" not in stock.connection.introspection.table_names()
    stock.forwards(create_model("Stock"))
    insert(stock.connection, "shop_stock")
    assert guard_of(stock, "shop_stock") == GUARD


def test_multi_table_child_has_no_guard_of_its_own(stock: Steps) -> None:
    parent = models.OneToOneField("shop.Stock", models.CASCADE, parent_link=True, primary_key=True)
    inherited = {"constraints": [FenceGuard(name="shop_box_fence")]}
    stock.forwards(
        migrations.CreateModel(
            "Box", [("stock_ptr", parent), ("size", models.IntegerField())], inherited, bases=("shop.stock",)
        )
    )
    run(stock.connection, "INSERT INTO shop_box (stock_ptr_id, size) VALUES (1, 4)")
    assert run(stock.connection, "UPDATE shop_box SET size = 5") == 1
    stock.forwards(migrations.AlterField("box", "size", models.BigIntegerField()))
    stock.forwards(migrations.RemoveConstraint("box", "shop_box_fence"))
    stock.backwards()
    assert run(stock.connection, "DELETE FROM shop_box") == 1
    assert guard_of(stock, "shop_stock") == GUARD


def test_multi_table_child_with_a_parametrised_default(stock: Steps) -> None:
    """Django then defers what create_sql answers, and runs it whatever it is."""
    parent = models.OneToOneField("shop.Stock", models.CASCADE, parent_link=True, primary_key=True)
    inherited = {"constraints": [FenceGuard(name="shop_box_fence")]}
    fields = [("stock_ptr", parent), ("note", models.CharField(max_length=9, db_default="x"))]
    stock.forwards(migrations.CreateModel("Box", fields, inherited, bases=("shop.stock",)))
    run(stock.connection, "INSERT INTO shop_box (stock_ptr_id) VALUES (1)")
    assert run(stock.connection, "UPDATE shop_box SET note = 'y'") == 1


def test_long_names_that_are_cut_do_not_collide(steps: Steps) -> None:
    one, other = (f"Warehouse{'Shelf' * 12}{letter}" for letter in "AB")
    steps.forwards(
        *(create_model(name, db_table=f"short_{name[-1].lower()}", guard=f"shop_{name}_fence") for name in (one, other))
    )
    for name in (one, other):
        table = f"short_{name[-1].lower()}"
        insert(steps.connection, table)
        assert guard_of(steps, table) == f"shop_{name}_fence"
    steps.forwards(migrations.RemoveConstraint(one, f"shop_{one}_fence"))
    assert guard_of(steps, "short_a") is None
    assert guard_of(steps, "short_b") == f"shop_{other}_fence"


def test_quotes_in_names(steps: Steps) -> None:
    steps.forwards(create_model("Stock", db_table="it's", guard="o'clock"))
    table = steps.connection.ops.quote_name("it's")
    insert(steps.connection, table)
    assert guard_of(steps, table) == "o'clock"


@pytest.mark.parametrize("connection", ["postgresql", MARIADB], indirect=True)
def test_null_to_not_null_without_unfenced_is_refused(stock: Steps) -> None:
    """SQLite copies the rows into a new table."""
    inner = CHANGES["null to not null"].operations[0]
    with pytest.raises(IntegrityError, match="fencing guard"):
        stock.forwards(inner)


def test_data_migration_without_unfenced_is_refused(stock: Steps) -> None:
    with pytest.raises(IntegrityError, match="fencing guard"):
        stock.forwards(*CHANGES["sql"].operations)
    assert rows(stock.connection, "shop_stock", "sku") == [("a",)]


def test_unfenced_ends_inside_its_migration(stock: Steps) -> None:
    with pytest.raises(IntegrityError, match="fencing guard"):
        stock.forwards(CHANGES["sql"], migrations.RunSQL("UPDATE shop_stock SET sku = 'c'"))


@pytest.mark.parametrize("connection", ["postgresql", MARIADB], indirect=True)
def test_unfenced_prints_what_lifts_the_guard(stock: Steps) -> None:
    """SQLite's guard asks Python, so no script can lift it."""
    state = stock.states[-1]
    with stock.connection.schema_editor(collect_sql=True) as editor:
        CHANGES["sql"].database_forwards("shop", editor, state, state)
    script = "\n".join(map(str, editor.collected_sql))
    lifting, standing = PRINTED[stock.connection.vendor]
    assert script.index(lifting) < script.index("UPDATE") < script.index(standing)


def test_unfenced_describes_itself_and_can_be_written() -> None:
    operation = Unfenced([migrations.RunSQL("SELECT 1"), migrations.RemoveField("stock", "place")])
    assert operation.describe() == "Unfenced: Raw SQL operation; Remove field place from stock"
    assert operation.migration_name_fragment == "remove_stock_place"
    assert not operation.reversible
    assert operation.reduces_to_sql
    assert not Unfenced([migrations.RunPython(migrations.RunPython.noop)]).reduces_to_sql
    text, imports = OperationWriter(operation, indentation=0).serialize()
    assert text.startswith("fencing.operations.Unfenced(")
    assert "import fencing.operations" in imports
    copy = eval(text.rstrip(","), {"fencing": __import__("fencing.operations"), "migrations": migrations})  # noqa: S307
    assert copy.describe() == operation.describe()


def test_guard_is_written_compared_and_cloned() -> None:
    guard = FenceGuard(name="shop_stock_fence")
    text, imports = MigrationWriter.serialize(guard)
    assert text == "fencing.guards.FenceGuard(name='shop_stock_fence')"
    assert imports == {"import fencing.guards"}
    assert guard.clone() == guard
    assert hash(guard.clone()) == hash(guard)
    assert guard != FenceGuard(name="other")
    assert guard != models.UniqueConstraint(fields=["sku"], name="shop_stock_fence")
    assert "shop_stock_fence" in repr(guard)


def test_makemigrations_sees_no_change_where_there_is_none(stock: Steps) -> None:
    state = stock.states[-1]
    autodetector: Any = MigrationAutodetector(state, state.clone(), MigrationQuestioner())
    assert autodetector._detect_changes() == {}


@ON_POSTGRESQL
def test_two_migrations_at_the_same_time(steps: Steps) -> None:
    """Each replaces the function: without the advisory lock one ends in "tuple concurrently updated"."""
    state = steps.states[-1].clone()
    for name in ("First", "Second"):
        create_model(name).state_forwards("shop", state)
    first, second = (state.apps.get_model("shop", name) for name in ("First", "Second"))
    outcome: list[BaseException | None] = []

    def migrate() -> None:
        try:
            with connections[ALIAS].schema_editor() as editor:
                editor.create_model(second)
        except DatabaseError as error:
            outcome.append(error)
        else:
            outcome.append(None)
        finally:
            connections[ALIAS].close()

    thread = threading.Thread(target=migrate)
    with steps.connection.schema_editor() as editor:
        editor.create_model(first)
        editor.execute(editor.deferred_sql.pop(), params=None)
        thread.start()
        wait_until(lambda: waiting_for_locks() == 1 or outcome, "the second migration waits for the first")
        assert not outcome, "the second migration must wait for the end of the first"
    thread.join(20)
    assert outcome == [None]


def test_other_databases_are_refused_by_name() -> None:
    class Editor:
        connection = type("Connection", (), {"vendor": "oracle"})
        deferred_sql: list[Any] = []
        quote_name = str

    model = type("Plain", (), {"_meta": type("Meta", (), {"local_concrete_fields": [], "db_table": "t"})})
    guard: Any = FenceGuard(name="shop_stock_fence")
    assert not guard.create_sql(model, Editor)
    model._meta.local_concrete_fields.append(type("Field", (), {"name": "last_token"}))  # type: ignore[attr-defined]
    with pytest.raises(NotSupportedError, match=r"oracle; supported: postgresql, mariadb, sqlite"):
        guard.create_sql(model, Editor)
