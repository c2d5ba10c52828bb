"""A fresh, empty database of each kind, and a way to take one migration step after the other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, migrations, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.migration import Migration
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from fencing.guards import FenceGuard

ALIAS = "guards"

# For what only these databases can do: the connection of the test is theirs, whatever others it could have.
MARIADB = pytest.param("mariadb", marks=pytest.mark.mariadb)
ON_MARIADB = pytest.mark.parametrize("connection", [MARIADB], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("connection", ["postgresql"], indirect=True)
ON_SQLITE = pytest.mark.parametrize("connection", ["sqlite"], indirect=True)


@pytest.fixture(params=["postgresql", "sqlite", MARIADB])
def connection(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any, tmp_path: Path
) -> Iterator[BaseDatabaseWrapper]:
    """Autocommit connection to an empty database under the alias "guards", once for each vendor."""
    with django_db_blocker.unblock():
        if request.param == "postgresql":
            yield from _postgresql()
        elif request.param == "mariadb":
            yield from _mariadb()
        else:
            yield from _registered({"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "guards.sqlite3")})


def _postgresql() -> Iterator[BaseDatabaseWrapper]:
    schema = f"guards_{uuid.uuid4().hex}"
    default = connections["default"]
    options = {**default.settings_dict["OPTIONS"], "options": f"-c search_path={schema}"}
    with default.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {schema}")
    try:
        yield from _registered({**deepcopy(default.settings_dict), "OPTIONS": options})
    finally:
        with default.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA {schema} CASCADE")
        default.close()


def _mariadb() -> Iterator[BaseDatabaseWrapper]:
    name = f"guards_{uuid.uuid4().hex}"
    maria: Any = connections["maria"]
    with maria._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        yield from _registered({**deepcopy(maria.settings_dict), "NAME": name})
    finally:
        with maria._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}")


def _registered(database: dict[str, Any]) -> Iterator[BaseDatabaseWrapper]:
    connections.databases[ALIAS] = database
    connections.configure_settings(connections.databases)
    try:
        yield connections[ALIAS]
    finally:
        connections[ALIAS].close()
        del connections[ALIAS]
        del connections.databases[ALIAS]


class Steps:
    """The migrations of an app named "shop", applied one by one and undone in reverse."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.states = [ProjectState()]
        self.done: list[Migration] = []

    def forwards(self, *operations: Operation, atomic: bool = True) -> None:
        """Apply one migration with these operations."""
        migration: Any = Migration(f"{len(self.done):04}", "shop")
        migration.operations = list(operations)
        migration.atomic = atomic
        before = self.states[-1].clone()
        with self.connection.schema_editor(atomic=atomic) as editor:
            self.states.append(migration.apply(before.clone(), editor))
        self.done.append(migration)

    def backwards(self) -> None:
        """Undo the newest migration."""
        migration = self.done.pop()
        self.states.pop()
        with self.connection.schema_editor(atomic=migration.atomic) as editor:
            migration.unapply(self.states[-1].clone(), editor)

    def model(self, name: str) -> Any:
        """The historical model, as RunPython would get it."""
        return self.states[-1].apps.get_model("shop", name)


@pytest.fixture
def steps(connection: BaseDatabaseWrapper) -> Steps:
    """Migrations on the empty database."""
    return Steps(connection)


@pytest.fixture
def stock(steps: Steps) -> Steps:
    """The same with the guarded table ``shop_stock`` and one row: id 1, sku "a", quantity 10, last_token 5."""
    steps.forwards(create_model("Stock"))
    insert(steps.connection, "shop_stock")
    return steps


def create_model(name: str, *, guard: str = "", **options: Any) -> migrations.CreateModel:
    """The operation that creates a guarded model, as makemigrations writes it."""
    return migrations.CreateModel(
        name,
        fields=[
            ("id", models.BigAutoField(primary_key=True)),
            ("last_token", models.BigIntegerField(default=0, editable=False)),
            ("sku", models.CharField(max_length=40)),
            ("quantity", models.IntegerField(default=0)),
            ("place", models.CharField(max_length=40, null=True)),
        ],
        options={"constraints": [FenceGuard(name=guard or f"shop_{name.lower()}_fence")], **options},
    )


def insert(connection: BaseDatabaseWrapper, table: str) -> None:
    """One row: id 1, sku "a", quantity 10, last_token 5."""
    run(connection, f"INSERT INTO {table} (id, last_token, sku, quantity) VALUES (1, 5, 'a', 10)")  # noqa: S608


def run(connection: BaseDatabaseWrapper, sql: str) -> int:
    """Run raw SQL, as somebody who knows nothing of leases, and return how many rows it touched."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.rowcount)


def rows(connection: BaseDatabaseWrapper, table: str, columns: str = "quantity, last_token") -> list[tuple[Any, ...]]:
    """What the table holds."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {table} ORDER BY id")  # noqa: S608
        return [tuple(row) for row in cursor.fetchall()]
