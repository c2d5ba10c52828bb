"""Isolation levels under which a transaction goes on reading what was there when it read for the first time.

A begin inside such a transaction has to come before that, and must not have to wait once the snapshot is taken: it
waits for what is older and still in flight, and the body would not see what that has written.
"""

from __future__ import annotations

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from fencing.connections import in_testcase
from fencing.exceptions import LeaseInsideTransactionError

# MariaDB's SERIALIZABLE locks what it reads.
LEVELS = {"postgresql": ("repeatable read", "serializable"), "mysql": ("repeatable read",)}


def ensure_first_statement(connection: BaseDatabaseWrapper, resource: str) -> None:
    """Under REPEATABLE READ or stricter a begin must come before the snapshot, or the body reads what is old."""
    level = snapshot_level(connection)
    if level and has_snapshot(connection, level):
        raise LeaseInsideTransactionError(
            resource, f"under {level.upper()} the begin must be the transaction's first statement"
        )


def snapshot_level(connection: BaseDatabaseWrapper) -> str:
    """The isolation level of the open transaction if all its reads show what was there at the first one, or ""."""
    query = {"postgresql": "SHOW transaction_isolation", "mysql": "SELECT @@tx_isolation"}.get(connection.vendor)
    if query is None or in_testcase(connection):
        return ""
    with connection.cursor() as cursor:
        cursor.execute(query)
        level = str(cursor.fetchone()[0]).lower().replace("-", " ")
    return level if level in LEVELS[connection.vendor] else ""


def has_snapshot(connection: BaseDatabaseWrapper, level: str) -> bool:
    """Whether the open transaction, of this level, has read already."""
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute("SELECT @@in_transaction")
            return bool(cursor.fetchone()[0])
        other = "serializable" if level == "repeatable read" else "repeatable read"
        try:
            # PostgreSQL refuses a change of the level once a snapshot has been taken: there and back tells.
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {other}")
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        except DatabaseError:
            return True
    return False
