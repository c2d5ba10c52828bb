"""The guard: database triggers that hold the row fence against everyone; ``fencing.lifting`` speaks to them.

``FenceGuard`` is a constraint, so that plain ``makemigrations`` installs, renames and removes the triggers. They
refuse every UPDATE that does not raise ``last_token``, and every DELETE by a transaction that has not named a higher
token. Not fenced: TRUNCATE, triggers that an administrator disabled, SQLite's ``REPLACE INTO``, and the own table of
a multi-table child (its parent's table has ``last_token`` and the guard).

A guard tells raised from not raised. It cannot tell a token that was issued from one that somebody made up.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.db import NotSupportedError
from django.db.backends.ddl_references import Statement, Table
from django.db.backends.utils import truncate_name
from django.db.models import BaseConstraint

from fencing.databases import kind
from fencing.guard_sql import (
    MARIADB_CREATE_DELETE,
    MARIADB_CREATE_UPDATE,
    MARIADB_REMOVE,
    POSTGRESQL_CREATE,
    POSTGRESQL_REMOVE,
    SQLITE_CREATE_DELETE,
    SQLITE_CREATE_UPDATE,
)

if TYPE_CHECKING:
    from django.db import IntegrityError
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.models import Model

SUPPORTED_VENDORS = ("postgresql", "mariadb", "sqlite")
HINT = '. Write under a lease of the row\'s resource, or use unfenced("reason") for maintenance.'

REFUSAL = re.compile(r'fencing guard "(.*?)" refused')


class _Creation(Statement):
    """The DDL of a guard, recognisable while it waits in a schema editor."""


class _Nothing(Statement):
    """Answered where there is nothing to create: not None, which CREATE TABLE with parameters would defer and run."""

    def __init__(self) -> None:
        super().__init__("SELECT 1")

    def __bool__(self) -> bool:
        return False


class FenceGuard(BaseConstraint):
    """The triggers of one fenced table, on PostgreSQL, MariaDB and SQLite.

    Args:
        name: the guard's name, unique among all constraints; an ``IntegrityError`` of the guard tells it.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)

    def constraint_sql(self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> None:  # type: ignore[override]
        """Let the triggers follow the new table; there is nothing to stand inside CREATE TABLE."""
        # Triggers that are only deferred follow SQLite's rebuilt table to its final name.
        schema_editor.deferred_sql.extend(self._creation(model, schema_editor))

    def create_sql(self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> Statement:  # type: ignore[override]
        """The script that installs the triggers; a false one where ``last_token`` stands in a parent's table."""
        # SQLite, which rebuilds the table, does not come here. PostgreSQL's script is one statement, MariaDB's are two.
        creation: list[Statement] = [*self._creation(model, schema_editor)]
        first, *others = creation or [_Nothing()]
        schema_editor.deferred_sql.extend(others)
        return first

    def remove_sql(self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> Statement | None:  # type: ignore[override]
        """The script that drops the triggers; None where there are none."""
        if not _has_own_token(model):
            return None
        table = model._meta.db_table
        # A guard that was created in the same migration may still be waiting, and would come back at its end.
        waiting = schema_editor.deferred_sql
        waiting[:] = [sql for sql in waiting if not (isinstance(sql, _Creation) and sql.references_table(table))]
        if schema_editor.connection.vendor == "mysql":
            names = (self._trigger(event, schema_editor) for event in ("update", "delete"))
            update, delete = (Statement(MARIADB_REMOVE, trigger=name) for name in names)
            schema_editor.execute(update, params=None)
            return delete
        return Statement(POSTGRESQL_REMOVE, table=Table(table, schema_editor.quote_name))

    def validate(self, model: Any, instance: Any, exclude: Any = None, using: str = "default") -> None:
        """Nothing: only the database knows the row's last token."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FenceGuard):
            return self.name == other.name
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<FenceGuard: name={self.name!r}>"

    def _creation(self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> list[_Creation]:
        if not _has_own_token(model):
            return []
        table = Table(model._meta.db_table, schema_editor.quote_name)
        vendor = kind(schema_editor.connection)
        if vendor == "postgresql":
            return [_Creation(POSTGRESQL_CREATE, table=table, name=schema_editor.quote_value(self.name))]
        if vendor == "sqlite":
            return [
                self._sqlite_trigger(SQLITE_CREATE_UPDATE, "update", table, schema_editor),
                self._sqlite_trigger(SQLITE_CREATE_DELETE, "delete", table, schema_editor),
            ]
        if vendor == "mariadb":
            return [
                self._mariadb_trigger(MARIADB_CREATE_UPDATE, "update", table, schema_editor),
                self._mariadb_trigger(MARIADB_CREATE_DELETE, "delete", table, schema_editor),
            ]
        raise NotSupportedError(
            f"FenceGuard {self.name!r} cannot be created on {vendor}; supported: {', '.join(SUPPORTED_VENDORS)}."
        )

    def _sqlite_trigger(
        self, template: str, event: str, table: Table, schema_editor: BaseDatabaseSchemaEditor
    ) -> _Creation:
        message = f'fencing guard "{self.name}" refused {event.upper()}: the token is not higher than last_token{HINT}'
        trigger = schema_editor.quote_name(f"{self.name}_{event}")
        return _Creation(template, table=table, trigger=trigger, message=schema_editor.quote_value(message))

    def _mariadb_trigger(
        self, template: str, event: str, table: Table, schema_editor: BaseDatabaseSchemaEditor
    ) -> _Creation:
        return _Creation(
            template,
            table=table,
            trigger=self._trigger(event, schema_editor),
            message=schema_editor.quote_value(f'fencing guard "{self.name}" refused {event.upper()}: '),
            hint=schema_editor.quote_value(HINT),
        )

    def _trigger(self, event: str, schema_editor: BaseDatabaseSchemaEditor) -> str:
        """MariaDB's name of a trigger, cut to what it takes."""
        length = schema_editor.connection.ops.max_name_length()
        return str(schema_editor.quote_name(truncate_name(f"{self.name}_{event}", length, hash_len=8)))


def _has_own_token(model: type[Model]) -> bool:
    return any(field.name == "last_token" for field in model._meta.local_concrete_fields)


def guard_name_of(error: IntegrityError) -> str | None:
    """The name of the guard that refused, or None when something else raised ``error``."""
    # MariaDB's number comes first.
    refusal = REFUSAL.match(str(error.args[-1])) if error.args else None
    if refusal is None:
        return None
    diagnosis = getattr(error.__cause__, "diag", None)
    return getattr(diagnosis, "constraint_name", None) or refusal[1]
