"""Grant events become rows of ``TokenGrant``: a batch by two statements, with one result however often they come."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import DatabaseError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from fencing.backends.base import GrantEvent, HolderInfo
from fencing.databases import SERIALIZATION_FAILURES, code_of, is_unkeepable
from fencing.tables import sql_name, table

logger = logging.getLogger("fencing")

# As many rows in one statement.
ROWS = 500
# The columns of a grant besides its namespace, with PostgreSQL's types.
COLUMNS = {
    "token": "bigint",
    "resource": "text",
    "holder": "text",
    "task_id": "text",
    "task_name": "text",
    "ttl": "double precision",
    "granted_at": "timestamptz",
    "ended_at": "timestamptz",
    "ended": "text",
}
# Each try that fails means that another collector was in the way.
TRIES = 5


def merge(connection: BaseDatabaseWrapper, namespace: str, events: Sequence[GrantEvent]) -> None:
    """Insert or complete the rows of the events' grants, and end those that a newer grant has followed.

    The rows are written in the order of their tokens, so collectors hardly ever stand in each other's way; where two
    do after all, one of them begins again. How a grant ended does not depend on the order of the events, nor on how
    often they come. Each of the two statements commits by itself, so that the second sees what other collectors wrote.
    An event with a text that the database cannot keep stops no other: it is stored with its texts escaped, and logged.
    """
    for first in range(0, len(events), ROWS):
        part = events[first : first + ROWS]
        if not _is_kept(connection, namespace, part):
            for event in part:
                if not _is_kept(connection, namespace, [event]):
                    escaped = _escaped(event)
                    logger.error("The database cannot keep %r as it is, so it was stored as %r", event, escaped)
                    _write(connection, namespace, [escaped])


def _is_kept(connection: BaseDatabaseWrapper, namespace: str, events: Sequence[GrantEvent]) -> bool:
    """Write the rows; False, and nothing written, where the database cannot keep one of their texts."""
    before = connection.savepoint()  # None outside of a transaction, and so outside of a ``TestCase``
    try:
        _write(connection, namespace, events)
    except (DatabaseError, ValueError) as error:
        if not is_unkeepable(error):
            raise
        if before:
            connection.savepoint_rollback(before)
        return False
    if before:
        connection.savepoint_commit(before)
    return True


def _write(connection: BaseDatabaseWrapper, namespace: str, events: Sequence[GrantEvent]) -> None:
    for tries_left in reversed(range(TRIES)):
        try:
            with connection.cursor() as cursor:
                _upsert(cursor, namespace, list(folded(events)))
                _expire(cursor, namespace, {event.resource for event in events if event.kind == "granted"})
            break
        except OperationalError as error:
            if code_of(error) not in SERIALIZATION_FAILURES or not tries_left:
                raise


def _escaped(event: GrantEvent) -> GrantEvent:
    """The same with texts that every database keeps: printable ASCII, cut to the columns' lengths."""
    grants: Any = table("TokenGrant")

    def kept(column: str, text: str) -> str:
        return ascii(text)[1:-1][: grants._meta.get_field(column).max_length]

    info = HolderInfo(task_id=kept("task_id", event.info.task_id), task_name=kept("task_name", event.info.task_name))
    return replace(event, resource=kept("resource", event.resource), holder=kept("holder", event.holder), info=info)


@dataclass(slots=True)
class GrantRow:
    """What events tell of one grant: its beginning, its end, or both."""

    token: int
    resource: str
    holder: str
    task_id: str = ""
    task_name: str = ""
    ttl: float = 0.0
    granted_at: datetime | None = None
    ended_at: datetime | None = None
    ended: str = ""

    def add(self, event: GrantEvent) -> None:
        """Take over what an event tells. A release that was sent twice finds nothing the second time: that is no loss."""
        if event.kind == "granted":
            self.granted_at, self.ttl = event.at, event.ttl
            self.task_id, self.task_name = event.info.task_id, event.info.task_name
        elif event.kind != "lost" or not self.ended:
            self.ended_at = event.at if self.ended_at is None else min(self.ended_at, event.at)
            self.ended = event.kind


def folded(events: Iterable[GrantEvent]) -> Iterator[GrantRow]:
    """One row for each grant that the events tell of, in the order of the tokens."""
    rows: dict[int, GrantRow] = {}
    for event in events:
        rows.setdefault(event.token, GrantRow(event.token, event.resource, event.holder)).add(event)
    newer: dict[str, datetime] = {}
    for token in sorted(rows, reverse=True):
        row = rows[token]
        # A lease was over at the latest when the next one was granted, whenever its holder noticed.
        if row.ended == "lost" and row.ended_at and (granted := newer.get(row.resource)):
            row.ended_at = min(row.ended_at, granted)
        if row.granted_at is not None:
            newer[row.resource] = row.granted_at
    return (rows[token] for token in sorted(rows))


def _upsert(cursor: Any, namespace: str, rows: Sequence[GrantRow]) -> None:
    """Insert the rows, or complete those that exist with their beginning or their end, in one statement."""
    given = _as_json if cursor.db.vendor == "postgresql" else _as_values
    source, values = given(cursor.db, namespace, [[getattr(row, name) for name in COLUMNS] for row in rows])
    cursor.execute(
        f"INSERT INTO {sql_name('TokenGrant')} (namespace, {', '.join(COLUMNS)}) {source} {_completing(cursor.db)}",
        values,
    )


def _as_json(_connection: BaseDatabaseWrapper, namespace: str, rows: Sequence[list[Any]]) -> tuple[str, list[Any]]:
    """All rows as one value: psycopg takes longer for thousands of values than PostgreSQL for the rows."""
    text = json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], default=datetime.isoformat)
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return f"SELECT %s, given.* FROM json_to_recordset(%s) AS given ({columns})", [namespace, text]


def _as_values(connection: BaseDatabaseWrapper, namespace: str, rows: Sequence[list[Any]]) -> tuple[str, list[Any]]:
    time = connection.ops.adapt_datetimefield_value
    marks = ", ".join([f"({', '.join(['%s'] * (len(COLUMNS) + 1))})"] * len(rows))
    values = [time(one) if isinstance(one, datetime) else one for row in rows for one in (namespace, *row)]
    return f"VALUES {marks}", values


def _completing(connection: BaseDatabaseWrapper) -> str:
    """How the INSERT completes a row that exists, whichever of beginning and end it brings."""
    grants, is_mariadb = sql_name("TokenGrant"), connection.vendor == "mysql"
    new = "VALUES({})" if is_mariadb else "excluded.{}"
    began, ended, ended_at = (new.format(name) for name in ("granted_at", "ended", "ended_at"))
    counts = f"{ended} <> '' AND ({ended} <> 'lost' OR {grants}.ended IN ('', 'expired'))"
    earlier = f"CASE WHEN {grants}.ended_at < {ended_at} THEN {grants}.ended_at ELSE {ended_at} END"
    parts = [
        f"{name} = CASE WHEN {began} IS NULL THEN {grants}.{name} ELSE {new.format(name)} END"
        for name in ("task_id", "task_name", "ttl", "granted_at")
    ]
    # In this order: MariaDB sees what it has assigned already.
    parts.append(f"ended_at = CASE WHEN {counts} THEN {earlier} ELSE {grants}.ended_at END")
    parts.append(f"ended = CASE WHEN {counts} THEN {ended} ELSE {grants}.ended END")
    on = "ON DUPLICATE KEY UPDATE" if is_mariadb else "ON CONFLICT (namespace, token) DO UPDATE SET"
    return f"{on} {', '.join(parts)}"


def _expire(cursor: Any, namespace: str, resources: Collection[str]) -> None:
    """End what nobody has told the end of where a newer grant of the resource is known: it had expired by then."""
    if not resources:
        return
    grants = sql_name("TokenGrant")
    newer = (
        f"FROM {grants} AS newer WHERE newer.namespace = {grants}.namespace AND newer.resource = {grants}.resource "
        f"AND newer.token > {grants}.token AND newer.granted_at IS NOT NULL"
    )
    cursor.execute(
        f"UPDATE {grants} SET ended = 'expired', ended_at = (SELECT newer.granted_at {newer} "
        f"ORDER BY newer.token LIMIT 1) WHERE namespace = %s AND ended = '' "
        f"AND resource IN ({', '.join(['%s'] * len(resources))}) AND EXISTS (SELECT 1 {newer})",
        [namespace, *sorted(resources)],
    )
