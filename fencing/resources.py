"""The resource fence: one row per resource with the highest grant that has written or begun (I4).

The first statement of a grant raises the row to the grant's token, if it is lower; later ones of the same holder hold
it for the length of their transaction; any other state refuses. Every statement locks the row: a condition that only
read it would be judged on the statement's own view, and an old statement that had waited for something else would
land after a newer holder's begin had committed.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper

from fencing.floors import look
from fencing.prepared import named
from fencing.raising import ROW, finds, raise_row, raising
from fencing.tables import sql_name

if TYPE_CHECKING:
    from fencing.leases import Lease

MINE = "namespace = %s AND name = %s AND last_token = %s AND holder = %s"
MINE_AS_BEGUN = f"{MINE} AND begins = %s"


def row_of(lease: Lease) -> list[Any]:
    """The parameters of ``MINE``, and of the columns of the row that a lease leaves."""
    return [lease.namespace, lease.resource, lease.token, lease.holder]


class Way(Enum):
    """How a statement passes the resource's row."""

    READ = "inside the lease's own fenced transaction reading is enough: its end decides"
    SHARE = "it carries the grant already, as far as this process knows, and is held against others who raise it"
    RAISE = "it is raised to the grant"


def passing(locked: str, way: Way) -> str:
    """PostgreSQL: the CTE that passes the row once rows are locked, ``passed``; it is empty if the row refuses.

    The lease's values stand in it by name: ``namespace``, ``resource``, ``grant_token`` and ``holder``. A row that is
    not there refuses, too, and so does one to be shared whose raise was rolled back (see ``may_pass_yet``).

    Args:
        locked: the condition that is true once all rows are locked, and there are any.
        way: how.
    """
    if way is Way.RAISE:
        return f"passed AS ({raising(locked, begins=0)})"
    mine = f"SELECT 1 FROM {sql_name('FencedResource')} WHERE {named(MINE, ROW)}"
    held = f" AND {locked} FOR SHARE" if way is Way.SHARE else ""
    return f"passed AS MATERIALIZED ({mine}{held})"


def may_pass_yet(connection: BaseDatabaseWrapper, lease: Lease) -> bool:
    """After ``passing`` has refused: whether the row was not there, or not raised, so that it is worth sending again.

    It may also have come into being while the statement waited for something else, and not be in its view.
    """
    seen = look(connection, lease.namespace, lease.resource).token
    if seen is None:
        return raise_row(connection, row_of(lease), begins=0) is not None
    return seen <= lease.token


def pass_resource(connection: BaseDatabaseWrapper, lease: Lease, *, begun: bool) -> bool:
    """Pass the row by statements of their own and hold it until the open transaction ends; False if it refuses."""
    mine = f"SELECT 1 FROM {sql_name('FencedResource')} WHERE {MINE}"
    if begun:
        return finds(connection, mine, row_of(lease))
    share = sharing(connection)
    # MariaDB locks the row of another grant, too: two new grants would share it first, and neither could raise it.
    may_share = connection.vendor != "mysql" or finds(connection, mine, row_of(lease))
    if may_share and finds(connection, mine + share, row_of(lease)):
        return True
    return raise_row(connection, row_of(lease), begins=0) is not None


def pass_to_begin(connection: BaseDatabaseWrapper, lease: Lease) -> int | None:
    """Pass the row for a transaction that begins; how many have begun by now, or None if the row refuses."""
    return raise_row(connection, row_of(lease), begins=1, bound=lease.remaining())


def sharing(connection: BaseDatabaseWrapper) -> str:
    """The end of a SELECT that holds its rows against writers, and sees them as they are now."""
    if connection.vendor == "mysql":
        return " LOCK IN SHARE MODE"
    return " FOR SHARE" if connection.features.has_select_for_update else ""


def hold_to_end(connection: BaseDatabaseWrapper, lease: Lease, begins: int) -> bool:
    """Hold the row until the commit, if holder and begins are still what the begin left."""
    table, params = sql_name("FencedResource"), [*row_of(lease), begins]
    if connection.features.has_select_for_update:
        return finds(connection, f"SELECT 1 FROM {table} WHERE {MINE_AS_BEGUN}{sharing(connection)}", params)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET begins = begins WHERE {MINE_AS_BEGUN}", params)
        return bool(cursor.rowcount == 1)


def seen_token(connection: BaseDatabaseWrapper, lease: Lease) -> int | None:
    """The highest token that the resource has seen, by a fresh look; the floor if it is unknown; None without either."""
    return look(connection, lease.namespace, lease.resource).highest


def take_write_lock(connection: BaseDatabaseWrapper) -> None:
    """On a database with a single writer, become that writer before reading: a snapshot could not be written from."""
    if not connection.features.has_select_for_update:
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {sql_name('FencedResource')} SET begins = begins WHERE 1 = 0")
