"""Where a fenced transaction is entered and left: on PostgreSQL one prepared statement each, elsewhere a few."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import conf
from fencing.bounds import IDLE_BOUND, LOCK_BOUND, milliseconds
from fencing.connections import in_testcase
from fencing.once import Operation, Recorded, as_type_error, recorded_as, row_of_operation, take_key
from fencing.prepared import SERVER, fetch_one, named
from fencing.raising import ROW
from fencing.resources import MINE_AS_BEGUN, hold_to_end, row_of
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
    params = {"bound": milliseconds(lease.remaining())}
    if operation is not None:
        params |= {"namespace": lease.namespace, "resource": lease.resource}
        params |= {"task": operation.task, "key": operation.key}
    found = fetch_one(connection, entering(operation is not None), params)
    return None if found is None or found[1] is None else recorded_as(*found[1:])


@cache
def entering(looks_up: bool) -> str:
    """The statement that bounds waits; with the digest and the result of an operation, if it looks one up."""
    bound = named(LOCK_BOUND, ["bound", "bound"])
    if not looks_up:
        return f"SELECT {bound}, NULL, NULL, {SERVER}"
    return (
        f"SELECT {bound}, digest, CAST(result AS text), {SERVER} FROM (SELECT 1) AS one LEFT JOIN {sql_name('Operation')} "
        "ON namespace = %(namespace)s AND resource = %(resource)s AND task = %(task)s AND key = %(key)s"
    )


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
    idle = 0.0 if in_testcase(connection) else conf.idle_in_transaction(lease.ttl)
    big = connection.ops.adapt_integerfield_value
    params: dict[str, Any] = dict(zip(ROW, row_of(lease), strict=True))
    params |= {"grant_token": big(lease.token, "BigIntegerField"), "begins": big(begins, "BigIntegerField")}
    params |= {"idle": milliseconds(idle)}
    if operation is not None:
        params |= row_of_operation(connection, lease, operation)
    with as_type_error(operation.result if operation else ""):
        found = fetch_one(connection, leaving(operation is not None, bool(idle)), params)
    held, taken = found[:2] if found else (0, 0)
    return bool(held), bool(taken)


@cache
def leaving(takes_key: bool, idle: bool) -> str:
    """The statement that holds the resource's row; with an INSERT of an operation's row, and a bound on idling."""
    mine = named(MINE_AS_BEGUN, [*ROW, "begins"])
    parts = [f"held AS MATERIALIZED (SELECT 1 FROM {sql_name('FencedResource')} WHERE {mine} FOR SHARE)"]
    counts = ["(SELECT count(*) FROM held)", "1"]
    if takes_key:
        parts.append(
            f"taken AS (INSERT INTO {sql_name('Operation')} "
            "(namespace, resource, task, key, digest, token, result, applied_at) SELECT %(namespace)s, %(resource)s, "
            "%(task)s, %(key)s, %(digest)s, %(token)s, %(result)s::jsonb, %(applied_at)s FROM held "
            "ON CONFLICT DO NOTHING RETURNING 1)"
        )
        counts[1] = "(SELECT count(*) FROM taken)"
    if idle:
        # A holder that sleeps between its end and its commit holds the row.
        parts.append(f"bound AS MATERIALIZED (SELECT {named(IDLE_BOUND, ['idle', 'idle'])})")
        counts.append("(SELECT count(*) FROM bound)")
    return f"WITH {', '.join(parts)} SELECT {', '.join(counts)}, {SERVER}"
