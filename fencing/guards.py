"""The guard: database triggers that hold the row fence against everyone, and the ways to speak to them.

``FenceGuard`` is a constraint, so that plain ``makemigrations`` installs, renames and removes the triggers. They
refuse every UPDATE that does not raise ``last_token``, and every DELETE by a transaction that has not named a higher
token. Not fenced: TRUNCATE, triggers that an administrator disabled, SQLite's ``REPLACE INTO``, and the own table of
a multi-table child (its parent's table has ``last_token`` and the guard).

A guard tells raised from not raised. It cannot tell a token that was issued from one that somebody made up.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from django.db import NotSupportedError
from django.db.backends.ddl_references import Statement, Table
from django.db.backends.signals import connection_created
from django.db.backends.utils import truncate_name
from django.db.models import BaseConstraint
from django.db.transaction import TransactionManagementError
from django.dispatch import receiver

from fencing.conf import MAX_TOKEN
from fencing.databases import kind, set_in_any_case
from fencing.exceptions import InvalidTokenError
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
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.models import Model

Setting = Literal["token", "unfenced"]

SUPPORTED_VENDORS = ("postgresql", "mariadb", "sqlite")
HINT = '. Write under a lease of the row\'s resource, or use unfenced("reason") for maintenance.'

# What libpq calls a connection inside a transaction that has not failed (PQTRANS_INTRANS).
IN_LIVE_TRANSACTION = 2

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


@contextmanager
def naming_token(connection: BaseDatabaseWrapper, token: int) -> Iterator[None]:
    """Name ``token`` to the guard for the DELETEs of this block, in the open transaction.

    Raises:
        InvalidTokenError: no integer from 1 to 2**53 - 1.
        TransactionManagementError: no transaction is open.
    """
    with _told(connection, "token", token, at_least=1):
        yield


@contextmanager
def lift(connection: BaseDatabaseWrapper, number: int) -> Iterator[None]:
    """Lift the guard for this block, in the open transaction; nests, and is gone with the transaction at the latest.

    On PostgreSQL a statement that does not raise ``last_token`` leaves it at ``number``, if that is higher. On SQLite
    a trigger cannot do so: the statement has to carry the number itself.

    Args:
        connection: whose transaction it is.
        number: a token, or 0 to leave ``last_token`` as it is.

    Raises:
        InvalidTokenError: no integer from 0 to 2**53 - 1.
        TransactionManagementError: no transaction is open.
    """
    with _told(connection, "unfenced", number, at_least=0):
        yield


def lifted(connection: BaseDatabaseWrapper) -> int | None:
    """The number under which the guard is lifted in this connection's transaction, or None where it stands."""
    return _present(connection, "unfenced")


def guard_name_of(error: IntegrityError) -> str | None:
    """The name of the guard that refused, or None when something else raised ``error``."""
    # MariaDB's number comes first.
    refusal = REFUSAL.match(str(error.args[-1])) if error.args else None
    if refusal is None:
        return None
    diagnosis = getattr(error.__cause__, "diag", None)
    return getattr(diagnosis, "constraint_name", None) or refusal[1]


@contextmanager
def _told(connection: BaseDatabaseWrapper, setting: Setting, number: Any, *, at_least: int) -> Iterator[None]:
    if isinstance(number, bool) or not isinstance(number, int) or not at_least <= number <= MAX_TOKEN:
        raise InvalidTokenError(number)
    if not connection.in_atomic_block:
        raise TransactionManagementError(
            "The guard is told something for one transaction only, and none is open: wrap this in transaction.atomic()."
        )
    before = _present(connection, setting)
    try:
        _tell(connection, setting, number)
        _remember(connection, setting, number)
        yield
    finally:
        _remember(connection, setting, before)
        if connection.vendor == "mysql":
            set_in_any_case(connection, f"@fencing_{setting} = {'NULL' if before is None else int(before)}")
        elif _can_tell(connection):
            _tell(connection, setting, before)


def _tell(connection: BaseDatabaseWrapper, setting: Setting, number: int | None) -> None:
    """PostgreSQL's guard reads a setting of the transaction, MariaDB's one of the connection; SQLite's asks this process."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            value = "" if number is None else str(number)
            cursor.execute("SELECT set_config(%s, %s, true)", (f"fencing.{setting}", value))
    elif connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET @fencing_{setting} = %s", [number])


def _can_tell(connection: BaseDatabaseWrapper) -> bool:
    """Whether the transaction still takes statements. One that does not will be undone, and the setting with it."""
    if connection.vendor != "postgresql":
        return True
    info = getattr(connection.connection, "info", None)
    return not connection.needs_rollback and getattr(info, "transaction_status", None) == IN_LIVE_TRANSACTION


# What a connection was told stands on the connection itself, because django.db.connection is a proxy of it.
_RECORD = "_fencing_told"


def _remember(connection: BaseDatabaseWrapper, setting: Setting, number: int | None) -> None:
    record = dict(getattr(connection, _RECORD, {}))
    record.pop(setting, None)
    if number is not None and connection.in_atomic_block:
        record[setting] = (connection.atomic_blocks[0], number)
    setattr(connection, _RECORD, record)


def _present(connection: BaseDatabaseWrapper, setting: Setting) -> int | None:
    """What the guard was told in the present transaction; a record of another transaction does not count."""
    transaction, number = getattr(connection, _RECORD, {}).get(setting, (None, None))
    if number is None or not connection.in_atomic_block or connection.atomic_blocks[0] is not transaction:
        return None
    return int(number)


@receiver(connection_created)
def _teach_sqlite(connection: BaseDatabaseWrapper, **_kwargs: Any) -> None:
    """Give a new SQLite connection the functions that its guards call.

    Any other program's connection lacks them, so its UPDATE or DELETE of a fenced table fails: closed, not open.
    """
    if connection.vendor != "sqlite":
        return
    # SQLite keeps the functions out of the garbage collector's sight: a strong reference would never be freed.
    reference = weakref.ref(connection)

    def answer(setting: Setting) -> int | None:
        asked = reference()
        return None if asked is None else _present(asked, setting)

    connection.connection.create_function("fencing_token", 0, lambda: answer("token"))
    connection.connection.create_function("fencing_unfenced", 0, lambda: answer("unfenced"))
