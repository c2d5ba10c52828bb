"""The database backend on PostgreSQL: one statement for each operation."""

from __future__ import annotations

from typing import Any

from fencing.backends.database_sql import HERE, LEASE, LOCK_BOUND, Dialect, Row, Values
from fencing.tables import sql_name


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
        lease = sql_name("StoredLease")
        own = f"SELECT 1 FROM {lease} WHERE {self.mine()}"
        of_reign = f"SELECT 1 FROM {lease} AS kept WHERE {self.mine(sql_name('StoredCounter') + '.reign')}"
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
        ended = f"DELETE FROM {sql_name('StoredLease')} WHERE {LEASE} AND {condition} RETURNING *"
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
            f"WITH gone AS ({self.surplus()} RETURNING 1) UPDATE {sql_name('StoredCounter')} "
            f"SET dropped = dropped + (SELECT count(*) FROM gone) WHERE {HERE}",
            values,
        )
