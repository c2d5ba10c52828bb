"""The database backend on MariaDB: one compound statement for each operation, which is a transaction of its own.

It runs on the server from its begin to its commit, whatever happens to the process that sent it.
"""

from __future__ import annotations

from typing import Any

from fencing.backends.database_sql import HERE, LEASE, LEASE_COLUMNS, LOCK_BOUND, Dialect, Row, Values
from fencing.tables import sql_name

# For one statement; the connection may be the caller's. The clock's value must not depend on daylight saving time.
STATEMENT = f"SET STATEMENT time_zone = '+00:00', innodb_lock_wait_timeout = {LOCK_BOUND} FOR "
ISSUED = "SELECT issued, reigning FROM DUAL WHERE issued IS NOT NULL"


class MariaDB(Dialect):
    """Compound statements."""

    # SYSDATE, because NOW is the time when the statement began, before it waited for a lock.
    now = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)"
    # When it started (both are worked out from the same moment), and which it is: also new where a replica was
    # promoted or a backup is served, whose counter may be behind. MariaDB knows whole seconds only; to be taken for the
    # same, a server would have to start, forget and start again within one.
    server = (
        "(SELECT CONVERT(CONCAT(UNIX_TIMESTAMP() - CAST(VARIABLE_VALUE AS SIGNED), '-', "
        "MD5(CONCAT_WS(' ', @@hostname, @@port, @@socket, @@datadir, @@server_id))) USING utf8mb4) "
        "COLLATE utf8mb4_nopad_bin FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'UPTIME')"
    )

    def execute(self, cursor: Any, sql: str, values: Values) -> None:
        """See ``Dialect``."""
        cursor.execute(STATEMENT + sql.replace('"', "`"), values)

    def grant(self, cursor: Any, values: Values) -> Row | None:
        """See ``Dialect``. Only who finds no live lease touches the counter, and looks again with its row locked."""
        live = f"SELECT COUNT(*) INTO others FROM {sql_name('StoredLease')} WHERE {LEASE} AND deadline_ms > {self.now}"
        noting = self.noting("'granted'", "issued")
        body = (
            f"IF NOT EXISTS ({self.looking()}) THEN {self._counting()}; "
            f"IF issued IS NOT NULL THEN {live} FOR UPDATE; END IF; "
            f"IF issued IS NOT NULL AND others = 0 THEN {self._count()}; {self._keeping()}; {noting}; "
            "ELSE SET issued = NULL; END IF; END IF"
        )
        answer = (
            f"IF issued IS NULL THEN {self.looking()}; "
            "ELSE SELECT %(holder)s, issued, reigning, %(ttl)s, %(task_id)s; END IF"
        )
        return self._run(cursor, body, answer, values)

    def advance(self, cursor: Any, values: Values) -> Row | None:
        """See ``Dialect``. The lease is looked at as it is when the counter's row is locked."""
        own = f"SELECT COUNT(*) INTO others FROM {sql_name('StoredLease')} WHERE {self.mine('reigning')}"
        body = (
            f"{self._counting()}; IF issued IS NOT NULL THEN {own} LOCK IN SHARE MODE; END IF; "
            f"IF others = 1 THEN {self._count()}; ELSE SET issued = NULL; END IF"
        )
        return self._run(cursor, body, ISSUED, values)

    def draw(self, cursor: Any, values: Values) -> Row | None:
        """See ``Dialect``."""
        body = f"{self._counting()}; IF issued IS NOT NULL THEN {self._count()}; END IF"
        return self._run(cursor, body, ISSUED, values)

    def end(self, cursor: Any, condition: str, kind: str, otherwise: str, values: Values) -> bool:
        """See ``Dialect``."""
        lease = sql_name("StoredLease")
        ended = self.noting(f"'{kind}'", "issued", holder="held_by")
        other = self.noting(f"'{otherwise}'", "%(token)s")
        body = (
            f"SELECT token, holder, deadline_ms > {self.now} INTO issued, held_by, others FROM {lease} "
            f"WHERE {LEASE} AND {condition} FOR UPDATE; "
            f"DELETE FROM {lease} WHERE {LEASE} AND {condition}; "
            f"IF others = 1 THEN {ended}; {f'ELSE {other};' if otherwise else ''} END IF"
        )
        row = self._run(cursor, body, "SELECT others", values)
        return row is not None and bool(row[0])

    def trim(self, cursor: Any, values: Values) -> None:
        """See ``Dialect``."""
        counting = f"UPDATE {sql_name('StoredCounter')} SET dropped = dropped + others WHERE {HERE}"
        self._run(cursor, f"{self.surplus()}; SET others = ROW_COUNT(); {counting}", "SELECT others", values)

    def open_counter(self, cursor: Any, values: Values) -> None:
        """See ``Dialect``. The server is assigned last: MariaDB sees what it has assigned already."""
        counter = sql_name("StoredCounter")
        opens = f"%(close)s OR {counter}.server <> VALUES(server)"
        self.execute(
            cursor,
            f'INSERT INTO {counter} (space, "partition", reign, server, next, ceiling, dropped) '
            f"VALUES (%(space)s, %(partition)s, %(offer)s, {self.server}, 1, 0, 0) ON DUPLICATE KEY UPDATE "
            f"reign = IF({opens}, VALUES(reign), {counter}.reign), ceiling = IF({opens}, 0, {counter}.ceiling), "
            "server = VALUES(server)",
            values,
        )

    def _counting(self) -> str:
        """Lock the counter and read its next number, if this server may count and has one."""
        return (
            f"SELECT next, reign INTO issued, reigning FROM {sql_name('StoredCounter')} "
            f"WHERE {HERE} AND server = {self.server} AND next <= ceiling FOR UPDATE"
        )

    def _count(self) -> str:
        return f"UPDATE {sql_name('StoredCounter')} SET next = next + 1 WHERE {HERE}"

    def _keeping(self) -> str:
        """Write the lease over one that has ended."""
        fresh = ", ".join(f"{name} = VALUES({name})" for name in LEASE_COLUMNS.split(", ")[3:])
        return (
            f"INSERT INTO {sql_name('StoredLease')} ({LEASE_COLUMNS}) VALUES (%(space)s, %(partition)s, %(resource)s, "
            f"%(holder)s, issued, reigning, {self.now} + %(ttl)s, {self.now}, %(task_id)s, %(task_name)s) "
            f"ON DUPLICATE KEY UPDATE {fresh}"
        )

    def _run(self, cursor: Any, body: str, answer: str, values: Values) -> Row | None:
        """Run ``body`` as a transaction and answer the row of ``answer``. One that is open is a ``TestCase``'s."""
        begin, commit, undo = "START TRANSACTION;", "COMMIT;", "ROLLBACK;"
        if cursor.db.in_atomic_block:
            begin = commit = undo = ""
        self.execute(
            cursor,
            "BEGIN NOT ATOMIC DECLARE issued BIGINT; DECLARE reigning VARCHAR(80); DECLARE held_by VARCHAR(64); "
            "DECLARE others BIGINT DEFAULT 0; "
            f"DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN {undo} RESIGNAL; END; "
            f"{begin} {body}; {commit} {answer}; END",
            values,
        )
        row: Row | None = cursor.fetchone()
        while cursor.nextset():
            pass
        return row
