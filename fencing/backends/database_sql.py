"""The statements of the database backend: what all databases share.

A number is counted before the lease is written, and the counter's row stays locked until both are committed: so of two
grants of a resource the later one has the higher number. Each operation is one statement where the database has such
statements, because a process that sleeps inside a transaction would keep everybody else from the counter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from fencing.tables import sql_name

Values = Mapping[str, Any]
Row = tuple[Any, ...]

HERE = 'space = %(space)s AND "partition" = %(partition)s'
LEASE = f"{HERE} AND resource = %(resource)s"
LEASE_COLUMNS = 'space, "partition", resource, holder, token, reign, deadline_ms, granted_ms, task_id, task_name'
EVENT_COLUMNS = 'space, "partition", kind, token, resource, holder, at_ms, ttl_ms, task_id, task_name'
CONFLICT = 'ON CONFLICT (space, "partition", resource)'

# Seconds that an operation waits for another one; each of them is a matter of milliseconds.
LOCK_BOUND = 5


class Dialect(ABC):
    """What differs between the databases. ``now`` is in milliseconds; another ``server`` may have forgotten numbers."""

    now: str
    server: str

    def execute(self, cursor: Any, sql: str, values: Values) -> None:
        """Execute a statement; names in double quotes are quoted as the database wants it."""
        cursor.execute(sql, values)

    @abstractmethod
    def grant(self, cursor: Any, values: Values) -> Row | None:
        """Grant the lease if it is free: (holder, token, reign, remaining, task_id) of who has it then.

        None without a number, or when somebody else was faster.
        """

    @abstractmethod
    def advance(self, cursor: Any, values: Values) -> Row | None:
        """Count for the holder of a live lease of the present reign: (token, reign)."""

    @abstractmethod
    def end(self, cursor: Any, condition: str, kind: str, otherwise: str, values: Values) -> bool:
        """End the lease that meets ``condition`` and say whether it was live.

        The outbox gets ``kind``, or ``otherwise``, if it is not empty, where none was live.
        """

    @abstractmethod
    def trim(self, cursor: Any, values: Values) -> None:
        """Drop the oldest lines above the outbox's ``cap``, and count them."""

    @abstractmethod
    def draw(self, cursor: Any, values: Values) -> Row | None:
        """Count for nobody: (token, reign)."""

    def open_counter(self, cursor: Any, values: Values) -> None:
        """Let the reign ``offer`` begin, without numbers, where this server did not write the counter or it is to ``close``."""
        counter = sql_name("StoredCounter")
        cursor.execute(
            f'INSERT INTO {counter} (space, "partition", reign, server, next, ceiling, dropped) '
            f'VALUES (%(space)s, %(partition)s, %(offer)s, {self.server}, 1, 0, 0) ON CONFLICT (space, "partition") '
            "DO UPDATE SET reign = excluded.reign, server = excluded.server, ceiling = 0 "
            f"WHERE %(close)s OR {counter}.server <> excluded.server",
            values,
        )

    def look(self, cursor: Any, values: Values) -> Row | None:
        """The live lease as ``grant`` answers it."""
        self.execute(cursor, self.looking(), values)
        row: Row | None = cursor.fetchone()
        return row

    def looking(self) -> str:
        """The SELECT of a live lease."""
        return (
            f"SELECT holder, token, reign, deadline_ms - {self.now} AS remaining, task_id "
            f"FROM {sql_name('StoredLease')} WHERE {LEASE} AND deadline_ms > {self.now}"
        )

    def mine(self, reign: str = "") -> str:
        """The condition on a lease that is live and the holder's own, and of this reign."""
        of_reign = f" AND reign = {reign}" if reign else ""
        return f"{LEASE} AND holder = %(holder)s AND deadline_ms > {self.now}{of_reign}"

    def counting(self, source: str = "", condition: str = "") -> str:
        """The UPDATE that takes the next number, if this server may and has one."""
        counter = sql_name("StoredCounter")
        return (
            f"UPDATE {counter} SET next = next + 1 {source} WHERE {HERE} AND server = {self.server} "
            f"AND next <= ceiling {condition} RETURNING next - 1 AS token, {counter}.reign AS reign"
        )

    def keeping(self, source: str) -> str:
        """The INSERT of a lease with the number in ``source``, over one that has ended."""
        lease = sql_name("StoredLease")
        fresh = ", ".join(f"{name} = excluded.{name}" for name in LEASE_COLUMNS.split(", ")[3:])
        return (
            f"INSERT INTO {lease} ({LEASE_COLUMNS}) SELECT %(space)s, %(partition)s, %(resource)s, %(holder)s, "
            f"token, reign, {self.now} + %(ttl)s, {self.now}, %(task_id)s, %(task_name)s FROM {source} WHERE true "
            f"{CONFLICT} DO UPDATE SET {fresh} WHERE {lease}.deadline_ms <= {self.now} RETURNING token, reign"
        )

    def surplus(self) -> str:
        """The DELETE of the lines above the cap."""
        events = sql_name("StoredEvent")
        return (
            f"DELETE FROM {events} WHERE {HERE} AND id <= "
            f"(SELECT id FROM {events} WHERE {HERE} ORDER BY id DESC LIMIT 1 OFFSET %(cap)s)"
        )

    def noting(self, kind: str, token: str, source: str = "", *, holder: str = "%(holder)s") -> str:
        """The INSERT of a line of the outbox; ``kind``, ``token`` and ``holder`` are expressions."""
        return (
            f"INSERT INTO {sql_name('StoredEvent')} ({EVENT_COLUMNS}) SELECT %(space)s, %(partition)s, {kind}, {token}, "
            f"%(resource)s, {holder}, {self.now}, %(ttl)s, %(task_id)s, %(task_name)s {source}"
        )
