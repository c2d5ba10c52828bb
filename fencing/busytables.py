"""Schema changes of a table that is in use: no statement that shuts others out reads or rewrites the table.

Adding a column, or a trigger, takes a lock for an instant only. What takes long is the wait for it, because whoever
comes later waits behind the one who waits: so each try waits a moment, gives way, and comes again. And PostgreSQL reads
the whole table, with everybody shut out, for the CHECK of a new column: there it is added without being checked, and
checked in a second step that lets readers and writers go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, transaction
from django.db.backends.utils import split_identifier, truncate_name
from django.db.transaction import TransactionManagementError

from fencing.bounds import milliseconds
from fencing.databases import LOCK_TIMEOUTS, as_it_was, code_of, is_busy, kind, setting_back, whole_seconds
from fencing.guards import FenceGuard

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.models import Field, Model

# PostgreSQL takes a vacuum of the table for a reason to wait until deadlock_timeout, by default 1 s; then it ends it.
WAIT = 2.0
PATIENCE = 600.0
PAUSE = 0.5

DEADLOCK = "40P01"


class GivingWay:
    """Runs what needs a table to itself for an instant, as soon as it can have it.

    Args:
        editor: of a migration that is no transaction as a whole.
        wait: seconds that a try waits, with those who come later behind it. On SQLite the connection's ``timeout``.
        patience: seconds after which there is no further try.
    """

    def __init__(self, editor: BaseDatabaseSchemaEditor, *, wait: float, patience: float) -> None:
        self.editor = editor
        self.connection = editor.connection
        self.wait = wait
        self.patience = patience
        if self.connection.in_atomic_block:
            raise TransactionManagementError(
                "WhileInUse needs `atomic = False` in its migration: locks are kept until the end of a transaction."
            )

    def run(self, change: Callable[[], object]) -> None:
        """Make one change, in a transaction of its own where DDL takes one.

        Raises:
            OperationalError: the table was never free; nothing of this change was made.
        """
        started = time.monotonic()
        while True:
            try:
                with self._waiting_a_moment():
                    change()
                return
            except OperationalError as error:
                if not is_in_the_way(error) or time.monotonic() - started > self.patience:
                    raise
            time.sleep(max(PAUSE, self.wait))  # for as long as the others may have waited behind it

    @contextmanager
    def _waiting_a_moment(self) -> Iterator[None]:
        if self.editor.collect_sql:
            with _printed(self.editor, self.wait):
                yield
        elif self.connection.vendor == "mysql":
            with _wait_of_session(self.connection, self.wait):
                yield
        else:
            with transaction.atomic(using=self.connection.alias):
                if self.connection.vendor == "postgresql":
                    self.editor.execute(f"SET LOCAL lock_timeout = '{milliseconds(self.wait)}'")
                yield


def add_token(way: GivingWay, model: type[Model], field: Field[Any, Any]) -> None:
    """Add ``last_token`` with its CHECK to a table in use; goes on where an earlier try has stopped."""
    editor, table = way.editor, model._meta.db_table
    # Asked before, because SQLite does not let a transaction write that has read what somebody else has written over.
    if editor.collect_sql or not _has_check(way.connection, table, str(field.column)):
        way.run(lambda: editor.execute(*_column(editor, table, field)))
    if way.connection.vendor == "postgresql":
        # Not in a transaction, and without a bound: nobody waits for it, nor behind it.
        editor.execute(
            f"ALTER TABLE {editor.quote_name(table)} VALIDATE CONSTRAINT {_check_name(editor, table, field)}"
        )


def add_guard(way: GivingWay, model: type[Model], guard: FenceGuard) -> None:
    """Create the triggers of a guard on a table in use, or again what an earlier try has created."""
    editor = way.editor

    def create() -> None:
        for sql in _triggers(editor, model, guard):
            editor.execute(sql, params=None)

    way.run(create)


def is_in_the_way(error: OperationalError) -> bool:
    """Whether somebody else's lock was, so that a later try may find the table free."""
    return is_busy(error) or code_of(error) in LOCK_TIMEOUTS or code_of(error) == DEADLOCK


def _column(editor: BaseDatabaseSchemaEditor, table: str, field: Field[Any, Any]) -> tuple[str, Any]:
    """The statement that adds the column, which is done without reading a row or is refused, and its parameters."""
    definition, params = editor.column_sql(field.model, field, include_default=True)
    check = f"CHECK ({field.db_parameters(connection=editor.connection)['check']})"
    start = f"ALTER TABLE {editor.quote_name(table)} ADD COLUMN {editor.quote_name(str(field.column))} {definition}"
    if editor.connection.vendor == "postgresql":
        return f"{start}, ADD CONSTRAINT {_check_name(editor, table, field)} {check} NOT VALID", params or None
    instantly = ", ALGORITHM=INSTANT" if editor.connection.vendor == "mysql" else ""
    return f"{start} {check}{instantly}", params or None


def _triggers(editor: BaseDatabaseSchemaEditor, model: type[Model], guard: FenceGuard) -> Sequence[str]:
    # Apart from the migration's own deferred statements, which run when nobody gives way any more.
    apart = editor.connection.schema_editor(collect_sql=True)
    apart.deferred_sql = []
    creation = [str(guard.create_sql(model, apart)), *map(str, apart.deferred_sql)]
    if kind(editor.connection) == "sqlite":
        names = [sql.split(maxsplit=3)[2] for sql in creation]
        return [*(f"DROP TRIGGER IF EXISTS {name}" for name in names), *creation]
    return [sql.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER") for sql in creation]


def _has_check(connection: BaseDatabaseWrapper, table: str, column: str) -> bool:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, table).values()
    return any(one["check"] and one["columns"] == [column] for one in found)


def _check_name(editor: BaseDatabaseSchemaEditor, table: str, field: Field[Any, Any]) -> str:
    """The one that PostgreSQL itself would give, but for long names."""
    _schema, name = split_identifier(table)
    length = editor.connection.ops.max_name_length()
    return str(editor.quote_name(truncate_name(f"{name}_{field.column}_check", length, hash_len=8)))


@contextmanager
def _printed(editor: BaseDatabaseSchemaEditor, wait: float) -> Iterator[None]:
    """What ``sqlmigrate`` prints around a change; the tries are up to whoever runs the script."""
    vendor = editor.connection.vendor
    if vendor == "mysql":
        editor.execute(f"SET lock_wait_timeout = {whole_seconds(wait)}", params=None)
        yield
        return
    editor.execute("BEGIN", params=None)
    if vendor == "postgresql":
        editor.execute(f"SET LOCAL lock_timeout = '{milliseconds(wait)}'", params=None)
    yield
    editor.execute("COMMIT", params=None)


@contextmanager
def _wait_of_session(connection: BaseDatabaseWrapper, wait: float) -> Iterator[None]:
    """MariaDB: DDL is in no transaction, so the bound is the connection's, and is set back in any case."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET @fencing_wait = @@lock_wait_timeout, lock_wait_timeout = {whole_seconds(wait)}")
    with setting_back(connection, as_it_was("lock_wait_timeout", "fencing_wait")):
        yield
