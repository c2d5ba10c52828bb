"""Raising a resource's row to a grant's token, in one statement on each database: below a newer holder's it stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from fencing.bounds import LOCK_BOUND, milliseconds
from fencing.connections import in_testcase, in_user_transaction
from fencing.databases import waiting_at_most
from fencing.floors import let_in
from fencing.prepared import SERVER, fetch_one, named
from fencing.tables import sql_name

# The lease's values in a text, by name.
ROW = ("namespace", "resource", "grant_token", "holder")
PASSES = (
    "({table}.last_token < %(grant_token)s OR ({table}.last_token = %(grant_token)s AND {table}.holder = %(holder)s))"
)

# A refusal for want of a floor is followed by a floor; more than two mean that somebody removes it again and again.
ROUNDS = 3

# A begin need not wait for the disk. Should the server crash and forget it, the transaction that began is gone as well;
# and what that one commits later takes the begin along to the disk, because it stands before it in the log.
NO_WAIT_FOR_DISK = "set_config('synchronous_commit', 'off', true)"


def raising(condition: str, *, begins: int, source: str = "") -> str:
    """PostgreSQL: the UPDATE that raises a row which is there to a lease's token, if it is not a newer holder's.

    The lease's values stand in it by name: ``namespace``, ``resource``, ``grant_token`` and ``holder``.

    Args:
        condition: what else must be true, or "true".
        begins: by how much the count of begins rises.
        source: a CTE that is to be evaluated before, or "".
    """
    table = sql_name("FencedResource")
    counted = f", begins = {table}.begins + {begins}" if begins else ""
    return (
        f"UPDATE {table} SET last_token = %(grant_token)s, holder = %(holder)s{counted}"
        f"{f' FROM {source}' if source else ''} WHERE namespace = %(namespace)s AND name = %(resource)s "
        f"AND {PASSES.format(table=table)} AND {condition} RETURNING {table}.begins"
    )


def creating(condition: str, *, begins: int, source: str = "") -> str:
    """PostgreSQL: the INSERT of a row that is not there, above the floor only, because it may have been forgotten.

    The floor is locked: pruning may raise it and forget the row while this waits for something else. Somebody else may
    create the row in the same moment. Names and arguments as for ``raising``.
    """
    table = sql_name("FencedResource")
    counted = f", begins = {table}.begins + {begins}" if begins else ""
    return (
        f"INSERT INTO {table} (namespace, name, last_token, holder, begins) "
        f"SELECT %(namespace)s, %(resource)s, %(grant_token)s, %(holder)s, {begins} "
        f"FROM {sql_name('ResourceFloor')} AS floor{f', {source}' if source else ''} "
        f"WHERE floor.namespace = %(namespace)s AND floor.token < %(grant_token)s AND {condition} FOR SHARE OF floor "
        "ON CONFLICT (namespace, name) DO UPDATE SET last_token = excluded.last_token, holder = excluded.holder"
        f"{counted} WHERE {PASSES.format(table=table)} RETURNING begins"
    )


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
    send = {"postgresql": _raise_at_once, "mysql": _raise_in_mariadb}.get(connection.vendor, _raise_in_turn)
    named_row = dict(zip(ROW, row, strict=True))
    for _ in range(ROUNDS):
        raised = send(connection, named_row, begins, bound)
        if raised is not None or not let_in(connection, row[0], row[1], row[2]):
            return raised
    return None


def _raise_at_once(
    connection: BaseDatabaseWrapper, row: Mapping[str, Any], begins: int, bound: float | None
) -> int | None:
    bounded = bound is not None and not in_testcase(connection)
    alone = bounded and not in_user_transaction(connection)
    token = connection.ops.adapt_integerfield_value(row["grant_token"], "BigIntegerField")
    params = {**row, "grant_token": token, "bound": milliseconds(bound or 0)}
    found = fetch_one(connection, raising_text(begins, bounded, alone), params)
    return None if found is None else int(found[0])


@cache
def raising_text(begins: int, bounded: bool, alone: bool) -> str:
    """PostgreSQL: the statement that raises a row or creates it; ``bound`` stands in it for the bound on waiting.

    Args:
        begins: by how much the count of begins rises.
        bounded: whether waits in it are bounded.
        alone: whether it is a begin that commits by itself.
    """
    before, source = "", ""
    if bounded:
        settings = named(LOCK_BOUND, ["bound", "bound"]) + f", {NO_WAIT_FOR_DISK}" * alone
        before, source = f"bound AS MATERIALIZED (SELECT {settings}), ", "bound"
    known = raising("true", begins=begins, source=source)
    created = creating("NOT EXISTS (SELECT 1 FROM known)", begins=begins, source=source)
    return (
        f"WITH {before}known AS ({known}), created AS ({created}) "
        f"SELECT begins, {SERVER} FROM known UNION ALL SELECT begins, {SERVER} FROM created"
    )


def _raise_in_turn(
    connection: BaseDatabaseWrapper, row: Mapping[str, Any], begins: int, bound: float | None
) -> int | None:
    """SQLite: one writer at a time, who sees everything that others have done before."""
    table, floors = sql_name("FencedResource"), sql_name("ResourceFloor")
    passes = PASSES.format(table=table)
    known = _number(
        connection,
        f"UPDATE {table} SET last_token = %(grant_token)s, holder = %(holder)s, begins = begins + {begins} "
        f"WHERE namespace = %(namespace)s AND name = %(resource)s AND {passes} RETURNING begins",
        row,
    )
    if known is not None:
        return known
    return _number(
        connection,
        f"INSERT INTO {table} (namespace, name, last_token, holder, begins) "
        f"SELECT %(namespace)s, %(resource)s, %(grant_token)s, %(holder)s, {begins} FROM {floors} AS floor "
        "WHERE floor.namespace = %(namespace)s AND floor.token < %(grant_token)s ON CONFLICT (namespace, name) "
        f"DO UPDATE SET last_token = excluded.last_token, holder = excluded.holder, begins = begins + {begins} "
        f"WHERE {passes} RETURNING begins",
        row,
    )


def _raise_in_mariadb(
    connection: BaseDatabaseWrapper, row: Mapping[str, Any], begins: int, bound: float | None
) -> int | None:
    """MariaDB: an UPDATE gives a number back as the statement's insert id, and an upsert has no condition."""
    table, floors = sql_name("FencedResource"), sql_name("ResourceFloor")
    before = "" if bound is None else waiting_at_most(bound)
    place = "namespace = %(namespace)s AND name = %(resource)s"
    # Under REPEATABLE READ an UPDATE that finds nothing locks the gap, and of two who then insert one is undone.
    if not connection.in_atomic_block or finds(connection, f"SELECT 1 FROM {table} WHERE {place}", row):
        with connection.cursor() as cursor:
            cursor.execute(
                f"{before}UPDATE {table} SET begins = LAST_INSERT_ID(begins + {begins}), holder = %(holder)s, "
                f"last_token = %(grant_token)s WHERE {place} AND {PASSES.format(table=table)}",
                row,
            )
            if cursor.rowcount == 1:
                return int(cursor.lastrowid or 0)
    newer = f"{table}.last_token < VALUES(last_token)"
    mine = f"({table}.last_token = VALUES(last_token) AND {table}.holder = VALUES(holder))"
    with connection.cursor() as cursor:
        cursor.execute(
            f"{before}INSERT INTO {table} (namespace, name, last_token, holder, begins) "
            f"SELECT %(namespace)s, %(resource)s, %(grant_token)s, %(holder)s, {begins} FROM {floors} AS floor "
            "WHERE floor.namespace = %(namespace)s AND floor.token < %(grant_token)s LOCK IN SHARE MODE "
            # In this order: MariaDB sees what it has assigned already.
            f"ON DUPLICATE KEY UPDATE begins = IF({newer} OR {mine}, {table}.begins + {begins}, {table}.begins), "
            f"holder = IF({newer}, VALUES(holder), {table}.holder), "
            f"last_token = GREATEST({table}.last_token, VALUES(last_token)) "
            "RETURNING begins, last_token = %(grant_token)s AND holder = %(holder)s",
            row,
        )
        found = cursor.fetchone()
    return int(found[0]) if found is not None and found[1] else None


def _number(connection: BaseDatabaseWrapper, text: str, params: Mapping[str, Any]) -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        row = cursor.fetchone()
    return None if row is None else int(row[0])


def finds(connection: BaseDatabaseWrapper, select: str, params: Sequence[Any] | Mapping[str, Any]) -> bool:
    """Whether a SELECT has any row."""
    with connection.cursor() as cursor:
        cursor.execute(select, params)
        return cursor.fetchone() is not None
