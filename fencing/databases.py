"""What differs between the databases: PostgreSQL, MariaDB and SQLite.

MySQL is not MariaDB: it has neither ``INSERT … RETURNING`` nor ``SET STATEMENT``, and is refused.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import DataError, Error, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

# PostgreSQL's SQLSTATEs and MariaDB's error numbers. Nothing has happened; a new try sees what the other one did.
SERIALIZATION_FAILURES = frozenset({"40001", "40P01", "1020", "1213"})
LOCK_TIMEOUTS = frozenset({"55P03", "1205"})
DUPLICATE_KEY = "1062"
CANCELLED = frozenset({"57014", "1969"})
CUT_OFF = frozenset({"2006", "2013"})  # the numbers of MariaDB's clients: gone before the statement, and during it
UNKNOWN_TABLE = frozenset({"42P01", "1146"})
CHECK_VIOLATION = "4025"  # MariaDB's; its JSON is text with a CHECK
UNKNOWN_CHARACTER = "1366"  # MariaDB's; not every driver calls that a DataError


def kind(connection: BaseDatabaseWrapper) -> str:
    """``postgresql``, ``mariadb`` or ``sqlite``; for any other database Django's name of its vendor."""
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        return "mariadb"
    return connection.vendor


def code_of(error: BaseException) -> str:
    """The SQLSTATE, or on MariaDB the number, of a database error; "" if it has none."""
    if error.args and isinstance(error.args[0], int):
        return str(error.args[0])
    return str(_sqlstate(error, "") or "")


def _sqlstate(error: BaseException, unknown: str) -> str | None:
    """What the driver has of an SQLSTATE, None if the server sent none; psycopg 2 has another name for it than 3."""
    cause = error.__cause__
    state: str | None = getattr(cause, "sqlstate", getattr(cause, "pgcode", unknown))
    return state


def is_cut_off(error: BaseException) -> bool:
    """Whether the connection ended without a word: errors of PostgreSQL have an SQLSTATE, those of its driver none."""
    if not isinstance(error, OperationalError):
        return False
    return code_of(error) in CUT_OFF or _sqlstate(error, "unknown") is None


def is_busy(error: BaseException) -> bool:
    """Whether SQLite refused a statement because another connection's transaction is in the way."""
    code = getattr(error.__cause__, "sqlite_errorcode", 0)
    # The low byte; the others say more exactly why.
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_cancelled(error: BaseException) -> bool:
    """Whether the database, or an operator, ended a statement because it took too long."""
    interrupted = getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
    return interrupted or code_of(error) in CANCELLED


def is_unkeepable(error: BaseException) -> bool:
    """Whether a text is too long for the database, or holds what it, or its driver, has no character for."""
    return isinstance(error, (DataError, ValueError)) or code_of(error) == UNKNOWN_CHARACTER


def is_unmigrated(error: BaseException) -> bool:
    """Whether a table that a statement names is not there."""
    return code_of(error) in UNKNOWN_TABLE or str(error).startswith("no such table: ")


def unless_there(connection: BaseDatabaseWrapper, column: str) -> str:
    """The end of an INSERT that does nothing where the row exists; ``column`` is any of the table's."""
    if connection.vendor == "mysql":
        # Not INSERT IGNORE, which lets through every other error as well.
        return f"ON DUPLICATE KEY UPDATE {column} = {column}"
    return "ON CONFLICT DO NOTHING"


def locked(rows: QuerySet[Any]) -> QuerySet[Any]:
    """The queryset with its rows locked against writers until the end of the transaction, and read as they are now."""
    weaker = connections[rows.db].features.has_select_for_no_key_update
    return rows.select_for_update(no_key=weaker)


def set_in_any_case(connection: BaseDatabaseWrapper, assignment: str) -> None:
    """MariaDB: set a variable of the connection back, past Django, which lets nothing through in a broken transaction.

    It outlives the transaction, and must not reach who uses the connection next: else the connection is closed.
    """
    if connection.connection is None:
        return
    try:
        with connection.wrap_database_errors, connection.connection.cursor() as cursor:
            cursor.execute(f"SET {assignment}")
    except BaseException:
        connection.close()
        raise


@contextmanager
def setting_back(connection: BaseDatabaseWrapper, assignment: str) -> Iterator[None]:
    """MariaDB: ``set_in_any_case`` after the block. An error of the block is what is told, also where that fails, too.

    A connection that died in the block says of each further statement only that it is dead.
    """
    try:
        yield
    except BaseException:
        with suppress(Error):
            set_in_any_case(connection, assignment)
        raise
    set_in_any_case(connection, assignment)


def as_it_was(variable: str, saved: str) -> str:
    """MariaDB: the assignment of the number in ``@saved`` to a variable of the connection.

    A connection that was opened meanwhile has saved nothing, and keeps what it has.
    """
    # A user variable that was never set is a text, and so is what COALESCE makes of it, which no number may be set to.
    return f"{variable} = CAST(COALESCE(@{saved}, @@{variable}) AS UNSIGNED)"


def waiting_at_most(seconds: float) -> str:
    """What makes one statement of MariaDB wait for locks no longer than that; the connection's own bound stays."""
    return f"SET STATEMENT innodb_lock_wait_timeout = {whole_seconds(seconds)} FOR "


def whole_seconds(seconds: float) -> int:
    """``seconds`` as MariaDB takes them, rounded up; at least 1, because 0 means not to wait at all."""
    return max(1, math.ceil(seconds))
