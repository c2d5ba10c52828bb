"""The database backend on SQLite: short transactions of the one writer that it allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fencing.backends.database_sql import HERE, LEASE, Dialect, Row, Values
from fencing.tables import sql_name


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
        lease = sql_name("StoredLease")
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
                f"UPDATE {sql_name('StoredCounter')} SET dropped = dropped + %(dropped)s WHERE {HERE}", dropped
            )


@contextmanager
def _turn(cursor: Any) -> Iterator[None]:
    """A transaction that is the writer's from its begin. One that is open already is a ``TestCase``'s."""
    if cursor.db.in_atomic_block:
        yield
        return
    try:
        cursor.execute("BEGIN IMMEDIATE")
        yield
        # Refused while somebody reads, and then the transaction goes on: nobody else could write any more.
        cursor.execute("COMMIT")
    except BaseException:
        if cursor.db.connection.in_transaction:
            cursor.execute("ROLLBACK")
        raise
