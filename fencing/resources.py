"""The resource fence: one row per resource with the highest grant that has written or begun (I4).

The first statement of a grant raises the row to the grant's token, if it is lower; later ones of the same holder hold
it for the length of their transaction; any other state refuses. Every statement locks the row: a condition that only
read it would be judged on the statement's own view, and an old statement that had waited for something else would
land after a newer holder's begin had committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import conf
from fencing.connections import in_testcase
from fencing.databases import waiting_at_most
from fencing.prepared import named
from fencing.tables import quoted

if TYPE_CHECKING:
    from fencing.leases import Lease

MINE = "namespace = %s AND name = %s AND last_token = %s AND holder = %s"
MINE_AS_BEGUN = f"{MINE} AND begins = %s"
ROW = ("namespace", "resource", "grant_token", "holder")

# The user's own bound stays if it is the tighter one.
IDLE_BOUND = (
    "set_config('idle_in_transaction_session_timeout', "
    "CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval BETWEEN interval '1 ms' AND %s::text::interval "
    "THEN current_setting('idle_in_transaction_session_timeout') ELSE %s END, true)"
)


def row_of(lease: Lease) -> list[Any]:
    """The parameters of ``MINE``, and of the columns of the row that a lease leaves."""
    return [lease.namespace, lease.resource, lease.token, lease.holder]


def raising(source: str, *, begins: int) -> str:
    """The INSERT that raises the row to a lease's token, unless somebody newer was there.

    Args:
        source: what follows the values, from the FROM or WHERE on.
        begins: by how much the count of begins rises.
    """
    table = quoted("FencedResource")
    counted = f", begins = {table}.begins + {begins}" if begins else ""
    return (
        f"INSERT INTO {table} (namespace, name, last_token, holder, begins) SELECT %s, %s, %s, %s, {begins} {source} "
        "ON CONFLICT (namespace, name) DO UPDATE SET last_token = excluded.last_token, holder = excluded.holder"
        f"{counted} WHERE {table}.last_token < excluded.last_token "
        f"OR ({table}.last_token = excluded.last_token AND {table}.holder = excluded.holder) RETURNING begins"
    )


def passing(locked: str, *, begun: bool) -> str:
    """PostgreSQL: the CTEs that pass the row once rows are locked; the last one, ``passed``, is empty if it refuses.

    The lease's values stand in it by name: ``namespace``, ``resource``, ``grant_token`` and ``holder``.

    Args:
        locked: the condition that is true once all rows are locked, and there are any.
        begun: the statement is inside the lease's own fenced transaction: reading is enough, its end decides.
    """
    table = quoted("FencedResource")
    mine = named(MINE, ROW)
    if begun:
        return f"passed AS MATERIALIZED (SELECT 1 FROM {table} WHERE {mine})"
    raised = named(raising(f"WHERE {locked} AND NOT EXISTS (SELECT 1 FROM shared)", begins=0), ROW)
    return (
        f"shared AS MATERIALIZED (SELECT 1 FROM {table} WHERE {locked} AND {mine} FOR SHARE), raised AS ({raised}), "
        "passed AS (SELECT 1 FROM shared UNION ALL SELECT 1 FROM raised)"
    )


def pass_resource(connection: BaseDatabaseWrapper, lease: Lease, *, begun: bool) -> bool:
    """Pass the row by statements of their own and hold it until the open transaction ends; False if it refuses."""
    mine = f"SELECT 1 FROM {quoted('FencedResource')} WHERE {MINE}"
    if begun:
        return _finds(connection, mine, row_of(lease))
    share = sharing(connection)
    # MariaDB locks the row of another grant, too: two new grants would share it first, and neither could raise it.
    may_share = connection.vendor != "mysql" or _finds(connection, mine, row_of(lease))
    if may_share and _finds(connection, mine + share, row_of(lease)):
        return True
    return raise_row(connection, row_of(lease), begins=0) is not None


def pass_to_begin(connection: BaseDatabaseWrapper, lease: Lease) -> int | None:
    """Pass the row for a transaction that begins; how many have begun by now, or None if the row refuses."""
    return raise_row(connection, row_of(lease), begins=1, bound=lease.remaining())


def raise_row(
    connection: BaseDatabaseWrapper, row: Sequence[Any], *, begins: int, bound: float | None = None
) -> int | None:
    """Raise a resource's row in one statement; how many transactions have begun by now, or None if the row refuses.

    Args:
        connection: the database.
        row: namespace, name, token and holder.
        begins: by how much the count of begins rises.
        bound: how many seconds to wait for statements in flight; None for the connection's own bound.
    """
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            before = "" if bound is None else waiting_at_most(bound)
            cursor.execute(before + raising_in_mariadb(begins=begins), [*row, *row[2:]])
            count, passed = cursor.fetchone()
            return int(count) if passed else None
        if bound is not None and connection.vendor == "postgresql" and not in_testcase(connection):
            before = "WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', %s, true)) "
            cursor.execute(before + raising("FROM bound", begins=begins), [milliseconds(bound), *row])
        else:
            cursor.execute(raising("WHERE true", begins=begins), row)
        raised = cursor.fetchone()
    return None if raised is None else int(raised[0])


def raising_in_mariadb(*, begins: int) -> str:
    """The same as ``raising``, where an upsert has no condition: its last column says whether the row passed."""
    table = quoted("FencedResource")
    newer = f"{table}.last_token < VALUES(last_token)"
    mine = f"({table}.last_token = VALUES(last_token) AND {table}.holder = VALUES(holder))"
    return (
        f"INSERT INTO {table} (namespace, name, last_token, holder, begins) VALUES (%s, %s, %s, %s, {begins}) "
        # In this order: MariaDB sees what it has assigned already.
        f"ON DUPLICATE KEY UPDATE begins = IF({newer} OR {mine}, {table}.begins + {begins}, {table}.begins), "
        f"holder = IF({newer}, VALUES(holder), {table}.holder), "
        f"last_token = GREATEST({table}.last_token, VALUES(last_token)) "
        "RETURNING begins, last_token = %s AND holder = %s"
    )


def sharing(connection: BaseDatabaseWrapper) -> str:
    """The end of a SELECT that holds its rows against writers, and sees them as they are now."""
    if connection.vendor == "mysql":
        return " LOCK IN SHARE MODE"
    return " FOR SHARE" if connection.features.has_select_for_update else ""


def _finds(connection: BaseDatabaseWrapper, select: str, params: Sequence[Any]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(select, params)
        return cursor.fetchone() is not None


def hold_to_end(connection: BaseDatabaseWrapper, lease: Lease, begins: int) -> bool:
    """Hold the row until the commit, if holder and begins are still what the begin left."""
    table, params = quoted("FencedResource"), [*row_of(lease), begins]
    if connection.features.has_select_for_update:
        return _finds(connection, f"SELECT 1 FROM {table} WHERE {MINE_AS_BEGUN}{sharing(connection)}", params)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET begins = begins WHERE {MINE_AS_BEGUN}", params)
        return bool(cursor.rowcount == 1)


def seen_token(connection: BaseDatabaseWrapper, lease: Lease) -> int | None:
    """The highest token that the resource has seen, by a fresh look; None if it has seen none."""
    # Under REPEATABLE READ a plain look inside MariaDB's transaction would be at what was there when it began.
    share = sharing(connection) if connection.vendor == "mysql" and connection.in_atomic_block else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT last_token FROM {quoted('FencedResource')} WHERE namespace = %s AND name = %s{share}",
            [lease.namespace, lease.resource],
        )
        row = cursor.fetchone()
    return None if row is None else int(row[0])


def take_write_lock(connection: BaseDatabaseWrapper) -> None:
    """On a database with a single writer, become that writer before reading: a snapshot could not be written from."""
    if not connection.features.has_select_for_update:
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {quoted('FencedResource')} SET begins = begins WHERE 1 = 0")


def bound_idling(connection: BaseDatabaseWrapper, lease: Lease) -> None:
    """Bound how long the open transaction may idle: a holder that sleeps now holds row locks."""
    idle = conf.idle_in_transaction(lease.ttl)
    if idle and connection.vendor == "postgresql" and not in_testcase(connection):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {IDLE_BOUND}", [milliseconds(idle)] * 2)


def milliseconds(seconds: float) -> str:
    """``seconds`` as PostgreSQL takes them; at least 1 ms, because 0 means no bound at all."""
    return f"{max(1, round(seconds * 1000))}ms"
