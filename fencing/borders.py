"""Where a fenced transaction is entered and left: on PostgreSQL one statement each, elsewhere a few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import conf
from fencing.connections import in_testcase
from fencing.once import Operation, Recorded, as_type_error, key_columns, recorded_as, take_key
from fencing.resources import IDLE_BOUND, LOCK_BOUND, MINE_AS_BEGUN, hold_to_end, milliseconds, row_of
from fencing.tables import sql_name

if TYPE_CHECKING:
    from fencing.leases import Lease


def limits_waits(connection: BaseDatabaseWrapper) -> bool:
    """Whether a fenced transaction starts with a statement of its own, which can look the operation up as well."""
    return connection.vendor == "postgresql" and not in_testcase(connection)


def enter(connection: BaseDatabaseWrapper, lease: Lease, operation: Operation | None) -> Recorded | None:
    """Let nobody in the transaction wait for longer than the lease has; what is recorded of the operation, or None.

    In a statement after the begin's: that one may have waited for the end that recorded it, and would not see it.
    """
    params = [milliseconds(lease.remaining())] * 2
    with connection.cursor() as cursor:
        if operation is None:
            cursor.execute(f"SELECT {LOCK_BOUND}", params)
            return None
        cursor.execute(
            f"SELECT {LOCK_BOUND}, digest, CAST(result AS text) FROM (SELECT 1) AS one "
            f"LEFT JOIN {sql_name('Operation')} ON namespace = %s AND resource = %s AND task = %s AND key = %s",
            [*params, lease.namespace, lease.resource, operation.task, operation.key],
        )
        _bound, digest, result = cursor.fetchone()
    return None if digest is None else recorded_as(digest, result)


def leave(connection: BaseDatabaseWrapper, lease: Lease, begins: int, operation: Operation | None) -> tuple[bool, bool]:
    """Hold the resource's row as the begin left it, and take the operation's key: whether each was there to be had."""
    if connection.vendor == "postgresql":
        return _leave_at_once(connection, lease, begins, operation)
    if not hold_to_end(connection, lease, begins):
        return False, False
    return True, operation is None or take_key(connection, lease, operation)


def _leave_at_once(
    connection: BaseDatabaseWrapper, lease: Lease, begins: int, operation: Operation | None
) -> tuple[bool, bool]:
    parts = [f"held AS MATERIALIZED (SELECT 1 FROM {sql_name('FencedResource')} WHERE {MINE_AS_BEGUN} FOR SHARE)"]
    counts = ["(SELECT count(*) FROM held)", "1"]
    params = [*row_of(lease), begins]
    if operation is not None:
        columns, values = key_columns(connection, lease, operation)
        marks = ", ".join(["%s"] * len(values))
        parts.append(
            f"taken AS (INSERT INTO {sql_name('Operation')} ({columns}) SELECT {marks} FROM held "
            "ON CONFLICT DO NOTHING RETURNING 1)"
        )
        counts[1] = "(SELECT count(*) FROM taken)"
        params += values
    idle = 0.0 if in_testcase(connection) else conf.idle_in_transaction(lease.ttl)
    if idle:
        # A holder that sleeps between its end and its commit holds the row.
        parts.append(f"bound AS MATERIALIZED (SELECT {IDLE_BOUND})")
        counts.append("(SELECT count(*) FROM bound)")
        params += [milliseconds(idle)] * 2
    with connection.cursor() as cursor, as_type_error(operation.result if operation else ""):
        cursor.execute(f"WITH {', '.join(parts)} SELECT {', '.join(counts)}", params)
        held, taken = cursor.fetchone()[:2]
    return bool(held), bool(taken)
