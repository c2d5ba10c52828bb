"""The statements of the database backend, for PostgreSQL and for SQLite.

A number is counted before the lease is written, and the counter's row stays locked until both are committed: so of two
grants of a resource the later one has the higher number. On PostgreSQL each operation is one statement, because a
process that sleeps inside a transaction would keep everybody else from the counter. SQLite has no such statement; it
gets short transactions of the one writer that it allows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fencing.tables import quoted

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

    def look(self, cursor: Any, values: Values) -> Row | None:
        """The live lease as ``grant`` answers it."""
        cursor.execute(self.looking(), values)
        row: Row | None = cursor.fetchone()
        return row

    def looking(self) -> str:
        """The SELECT of a live lease."""
        return (
            f"SELECT holder, token, reign, deadline_ms - {self.now} AS remaining, task_id "
            f"FROM {quoted('StoredLease')} WHERE {LEASE} AND deadline_ms > {self.now}"
        )

    def mine(self, reign: str = "") -> str:
        """The condition on a lease that is live and the holder's own, and of this reign."""
        of_reign = f" AND reign = {reign}" if reign else ""
        return f"{LEASE} AND holder = %(holder)s AND deadline_ms > {self.now}{of_reign}"

    def counting(self, source: str = "", condition: str = "") -> str:
        """The UPDATE that takes the next number, if this server may and has one."""
        counter = quoted("StoredCounter")
        return (
            f"UPDATE {counter} SET next = next + 1 {source} WHERE {HERE} AND server = {self.server} "
            f"AND next <= ceiling {condition} RETURNING next - 1 AS token, {counter}.reign AS reign"
        )

    def keeping(self, source: str) -> str:
        """The INSERT of a lease with the number in ``source``, over one that has ended."""
        lease = quoted("StoredLease")
        fresh = ", ".join(f"{name} = excluded.{name}" for name in LEASE_COLUMNS.split(", ")[3:])
        return (
            f"INSERT INTO {lease} ({LEASE_COLUMNS}) SELECT %(space)s, %(partition)s, %(resource)s, %(holder)s, "
            f"token, reign, {self.now} + %(ttl)s, {self.now}, %(task_id)s, %(task_name)s FROM {source} WHERE true "
            f"{CONFLICT} DO UPDATE SET {fresh} WHERE {lease}.deadline_ms <= {self.now} RETURNING token, reign"
        )

    def surplus(self) -> str:
        """The DELETE of the lines above the cap."""
        events = quoted("StoredEvent")
        return (
            f"DELETE FROM {events} WHERE {HERE} AND id <= "
            f"(SELECT id FROM {events} WHERE {HERE} ORDER BY id DESC LIMIT 1 OFFSET %(cap)s)"
        )

    def noting(self, kind: str, token: str, source: str = "", *, holder: str = "%(holder)s") -> str:
        """The INSERT of a line of the outbox; ``kind``, ``token`` and ``holder`` are expressions."""
        return (
            f"INSERT INTO {quoted('StoredEvent')} ({EVENT_COLUMNS}) SELECT %(space)s, %(partition)s, {kind}, {token}, "
            f"%(resource)s, {holder}, {self.now}, %(ttl)s, %(task_id)s, %(task_name)s {source}"
        )


class PostgreSQL(Dialect):
    """One statement for each operation."""

    now = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    # New at every start, so also where a replica was promoted or a backup is served, whose counter may be behind.
    server = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text"

    # A number that a crash of the database forgets would be issued twice. Inside a TestCase the settings would stay.
    bound = (
        "bound AS MATERIALIZED (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
        "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true), "
        "CASE WHEN %(bounded)s THEN set_config('lock_timeout', "
        f"'{LOCK_BOUND}s', true) END)"
    )

    def grant(self, cursor: Any, values: Values) -> Row | None:
        """See ``Dialect``. Only who finds no live lease touches the counter, and waits for nobody but the counter's row."""
        counted = self.counting("FROM bound", "AND NOT EXISTS (SELECT 1 FROM held)")
        noted = self.noting("'granted'", "token", "FROM granted")
        cursor.execute(
            f"WITH {self.bound}, held AS MATERIALIZED ({self.looking()}), counted AS ({counted}), "
            f"granted AS ({self.keeping('counted')}), noted AS ({noted}) "
            "SELECT %(holder)s, token, reign, %(ttl)s, %(task_id)s FROM granted UNION ALL "
            "SELECT holder, token, reign, remaining, task_id FROM held",
            values,
        )
        row: Row | None = cursor.fetchone()
        return row

    def advance(self, cursor: Any, values: Values) -> Row | None:
        """See ``Dialect``. The lease is looked at again, as it is now, when the counter's row is locked."""
        lease = quoted("StoredLease")
        own = f"SELECT 1 FROM {lease} WHERE {self.mine()}"
        of_reign = f"SELECT 1 FROM {lease} AS kept WHERE {self.mine(quoted('StoredCounter') + '.reign')}"
        counted = self.counting("FROM bound", f"AND EXISTS ({of_reign})")
        cursor.execute(
            f"WITH {self.bound}, counted AS ({counted}), "
            f"kept AS ({own} AND (SELECT count(*) FROM counted) = 1 FOR SHARE) "
            "SELECT token, reign FROM counted WHERE EXISTS (SELECT 1 FROM kept)",
            values,
        )
        row: Row | None = cursor.fetchone()
        return row

    def draw(self, cursor: Any, values: Values) -> Row | None:
        """See ``Dialect``."""
        cursor.execute(f"WITH {self.bound} {self.counting('FROM bound')}", values)
        row: Row | None = cursor.fetchone()
        return row

    def end(self, cursor: Any, condition: str, kind: str, otherwise: str, values: Values) -> bool:
        """See ``Dialect``."""
        ended = f"DELETE FROM {quoted('StoredLease')} WHERE {LEASE} AND {condition} RETURNING *"
        noted = self.noting(f"'{kind}'", "token", "FROM live", holder="holder")
        parts = [f"gone AS ({ended})", f"live AS (SELECT * FROM gone WHERE deadline_ms > {self.now})"]
        parts.append(f"noted AS ({noted})")
        if otherwise:
            other = self.noting(f"'{otherwise}'", "%(token)s", "WHERE NOT EXISTS (SELECT 1 FROM live)")
            parts.append(f"other AS ({other})")
        cursor.execute(f"WITH {', '.join(parts)} SELECT count(*) FROM live", values)
        return bool(cursor.fetchone()[0])

    def trim(self, cursor: Any, values: Values) -> None:
        """See ``Dialect``."""
        cursor.execute(
            f"WITH gone AS ({self.surplus()} RETURNING 1) UPDATE {quoted('StoredCounter')} "
            f"SET dropped = dropped + (SELECT count(*) FROM gone) WHERE {HERE}",
            values,
        )


class SQLite(Dialect):
    """Short transactions of the one writer."""

    now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    server = "'sqlite'"

    def grant(self, cursor: Any, values: Values) -> Row | None:
        """See ``Dialect``. Who waits for a lease asks often, and must not take the writer's turn each time."""
        if (held := self.look(cursor, values)) is not None:
            return held
        with _turn(cursor):
            if (held := self.look(cursor, values)) is not None or (counted := self.draw(cursor, values)) is None:
                return held
            issued = {**values, "issued": counted[0], "reign": counted[1]}
            cursor.execute(self.keeping("(SELECT %(issued)s AS token, %(reign)s AS reign)"), issued)
            cursor.fetchall()
            cursor.execute(self.noting("'granted'", "%(issued)s"), issued)
            return values["holder"], *counted, values["ttl"], values["task_id"]

    def advance(self, cursor: Any, values: Values) -> Row | None:
        """See ``Dialect``."""
        with _turn(cursor):
            held = self.look(cursor, values)
            if held is None or held[0] != values["holder"]:
                return None
            cursor.execute(self.counting("", "AND reign = %(reign)s"), {**values, "reign": held[2]})
            row: Row | None = cursor.fetchone()
            return row

    def draw(self, cursor: Any, values: Values) -> Row | None:
        """See ``Dialect``."""
        cursor.execute(self.counting(), values)
        row: Row | None = cursor.fetchone()
        return row

    def end(self, cursor: Any, condition: str, kind: str, otherwise: str, values: Values) -> bool:
        """See ``Dialect``."""
        lease = quoted("StoredLease")
        with _turn(cursor):
            cursor.execute(
                f"DELETE FROM {lease} WHERE {LEASE} AND {condition} RETURNING token, holder, deadline_ms > {self.now}",
                values,
            )
            token, holder, live = cursor.fetchone() or (values["token"], values["holder"], False)
            if live or otherwise:
                noted = {**values, "token": token if live else values["token"], "holder": holder}
                cursor.execute(self.noting(f"'{kind if live else otherwise}'", "%(token)s"), noted)
            return bool(live)

    def trim(self, cursor: Any, values: Values) -> None:
        """See ``Dialect``."""
        with _turn(cursor):
            cursor.execute(self.surplus(), values)
            dropped = {**values, "dropped": cursor.rowcount}
            cursor.execute(
                f"UPDATE {quoted('StoredCounter')} SET dropped = dropped + %(dropped)s WHERE {HERE}", dropped
            )


@contextmanager
def _turn(cursor: Any) -> Iterator[None]:
    """A transaction that is the writer's from its begin. One that is open already is a ``TestCase``'s."""
    if cursor.db.in_atomic_block:
        yield
        return
    cursor.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        cursor.execute("ROLLBACK")
        raise
    cursor.execute("COMMIT")
