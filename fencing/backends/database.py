"""Leases in a table, by the database's own clock: for teams without a Redis, and for those who want one authority.

The tables are in ``FENCING["BACKENDS"][alias]["DATABASE"]``. Every operation commits by itself, whatever transaction
the caller is in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.db import Error as DatabaseProblem
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from fencing.backends.base import (
    Counting,
    Granted,
    GrantEvent,
    Held,
    HolderInfo,
    LeaseBackend,
    LiveLease,
    Lost,
    NeedsRange,
    Place,
)
from fencing.backends.database_mariadb import MariaDB
from fencing.backends.database_postgresql import PostgreSQL
from fencing.backends.database_rows import grant_event, live_lease, values_of
from fencing.backends.database_sql import HERE, LEASE, Dialect
from fencing.backends.database_sqlite import SQLite
from fencing.connections import autocommit, in_testcase, in_user_transaction
from fencing.databases import SERIALIZATION_FAILURES, code_of, kind
from fencing.exceptions import LeaseBackendError
from fencing.tables import sql_name

DIALECTS: dict[str, Dialect] = {"postgresql": PostgreSQL(), "mariadb": MariaDB(), "sqlite": SQLite()}
# As Django names them: MariaDB cannot be told from MySQL without a connection.
VENDORS = ("postgresql", "mysql", "sqlite")
SUPPORTED = "PostgreSQL, MariaDB and SQLite"

# Each round that fails means that another client was faster, or that a new reign began.
ROUNDS = 20
# Between two times nobody can add many lines to the outbox.
TRIM_EVERY = 256

Answer = TypeVar("Answer")


class _AgainError(Exception):
    """Another client came in between: to be asked again."""


class DatabaseBackend(LeaseBackend):
    """The lease store in the database that owns the numbers."""

    # Lines that the outbox keeps when nobody collects them.
    events_cap = 100_000

    def acquire(self, place: Place, holder: str, ttl: float, info: HolderInfo) -> Granted | Held | NeedsRange:
        """See the contract."""
        values = values_of(place, holder=holder, ttl=ttl, info=info, cap=self.events_cap)

        def ask(dialect: Dialect, cursor: Any) -> Granted | Held | NeedsRange:
            row = dialect.grant(cursor, values | _bound(cursor))
            if row is None:
                return _range_needed(dialect, cursor, values)
            if row[0] != holder:
                return Held(holder=row[0], token=row[1], remaining=max(row[3], 0) / 1000, task_id=row[4])
            _trim(dialect, cursor, values, row[1])
            return Granted(token=row[1], reign=row[2], remaining=min(ttl, row[3] / 1000))

        return self._ask(ask)

    def renew(self, place: Place, holder: str, ttl: float) -> bool:
        """See the contract. A thread that had no connection, like the heartbeat's, keeps none until the next time."""
        values = values_of(place, holder=holder, ttl=ttl)
        had_none = connections[self.config.database].connection is None

        def ask(dialect: Dialect, cursor: Any) -> bool:
            deadline = f"SET deadline_ms = {dialect.now} + %(ttl)s"
            dialect.execute(cursor, f"UPDATE {sql_name('StoredLease')} {deadline} WHERE {dialect.mine()}", values)
            return bool(cursor.rowcount == 1)

        try:
            return self._ask(ask)
        finally:
            if had_none:
                connections[self.config.database].close()

    def advance(self, place: Place, holder: str) -> Granted | NeedsRange | Lost:
        """See the contract. A lease of another reign is lost, also when its row came back with a backup."""
        values = values_of(place, holder=holder, cap=self.events_cap)

        def ask(dialect: Dialect, cursor: Any) -> Granted | NeedsRange | Lost:
            row = dialect.advance(cursor, values | _bound(cursor))
            if row is not None:
                _trim(dialect, cursor, values, row[0])
                return Granted(token=row[0], reign=row[1])
            held = dialect.look(cursor, values)
            if held is None or held[0] != holder or held[2] != _reign(dialect, cursor, values):
                return Lost()
            return _range_needed(dialect, cursor, values)

        return self._ask(ask)

    def release(self, place: Place, holder: str, token: int) -> bool:
        """See the contract."""
        values = values_of(place, holder=holder, token=token)
        return self._ask(lambda dialect, cursor: dialect.end(cursor, "holder = %(holder)s", "released", "lost", values))

    def revoke(self, place: Place, token: int) -> bool:
        """See the contract."""
        values = values_of(place, token=token)
        return self._ask(lambda dialect, cursor: dialect.end(cursor, "token = %(token)s", "revoked", "", values))

    def draw(self, place: Place) -> Granted | NeedsRange:
        """See the contract."""
        values = values_of(place, cap=self.events_cap)

        def ask(dialect: Dialect, cursor: Any) -> Granted | NeedsRange:
            row = dialect.draw(cursor, values | _bound(cursor))
            if row is None:
                return _range_needed(dialect, cursor, values)
            _trim(dialect, cursor, values, row[0])
            return Granted(token=row[0], reign=row[1])

        return self._ask(ask)

    def install(self, place: Place, reign: str, first: int, last: int) -> bool:
        """See the contract. Leases that ended by themselves are removed on this occasion."""
        values = values_of(place, reign=reign, first=first, last=last)

        def ask(dialect: Dialect, cursor: Any) -> bool:
            dialect.execute(
                cursor,
                f"UPDATE {sql_name('StoredCounter')} SET next = %(first)s, ceiling = %(last)s "
                f"WHERE {HERE} AND reign = %(reign)s AND server = {dialect.server} AND next <= %(first)s",
                values,
            )
            installed = bool(cursor.rowcount == 1)
            dialect.execute(
                cursor, f"DELETE FROM {sql_name('StoredLease')} WHERE {HERE} AND deadline_ms <= {dialect.now}", values
            )
            return installed

        return self._ask(ask)

    def close_reign(self, place: Place) -> NeedsRange:
        """See the contract."""
        values = values_of(place)
        return self._ask(lambda dialect, cursor: _range_needed(dialect, cursor, values, close=True))

    def live(self, space: str, partition: int, limit: int) -> Iterator[LiveLease]:
        """See the contract."""
        yield from self._leases(Place(space=space, partition=partition), HERE, limit)

    def peek(self, place: Place) -> LiveLease | None:
        """See the contract."""
        return next(iter(self._leases(place, LEASE, 1)), None)

    def counting(self, space: str, partition: int) -> Counting | None:
        """See the contract."""
        values = values_of(Place(space=space, partition=partition))

        def ask(dialect: Dialect, cursor: Any) -> Counting | None:
            counter = sql_name("StoredCounter")
            dialect.execute(cursor, f"SELECT reign, server, next, ceiling FROM {counter} WHERE {HERE}", values)
            row = cursor.fetchone()
            return None if row is None else Counting(reign=row[0], server=row[1], next=row[2], ceiling=row[3])

        return self._ask(ask)

    def read_events(self, space: str, partition: int, count: int) -> Sequence[GrantEvent]:
        """See the contract."""
        values = values_of(Place(space=space, partition=partition), count=count)

        def ask(dialect: Dialect, cursor: Any) -> list[GrantEvent]:
            dialect.execute(
                cursor,
                "SELECT id, kind, token, resource, holder, at_ms, ttl_ms, task_id, task_name "
                f"FROM {sql_name('StoredEvent')} WHERE {HERE} ORDER BY id LIMIT %(count)s",
                values,
            )
            return [grant_event(*row) for row in cursor.fetchall()]

        return self._ask(ask)

    def forget_events(self, space: str, partition: int, ids: Iterable[str]) -> None:
        """See the contract."""
        given = [int(each) for each in ids]

        def ask(dialect: Dialect, cursor: Any) -> bool:
            cursor.execute(
                f"DELETE FROM {sql_name('StoredEvent')} WHERE id IN ({', '.join(['%s'] * len(given))})", given
            )
            return True

        if given:
            self._ask(ask)

    def dropped_events(self, space: str, partition: int) -> int:
        """See the contract."""
        values = values_of(Place(space=space, partition=partition))

        def ask(dialect: Dialect, cursor: Any) -> int:
            dialect.execute(cursor, f"SELECT dropped FROM {sql_name('StoredCounter')} WHERE {HERE}", values)
            row = cursor.fetchone()
            return 0 if row is None else int(row[0])

        return self._ask(ask)

    def forget(self, space: str) -> None:
        """See the contract."""

        def ask(dialect: Dialect, cursor: Any) -> bool:
            for name in ("StoredCounter", "StoredLease", "StoredEvent"):
                cursor.execute(f"DELETE FROM {sql_name(name)} WHERE space = %s", [space])
            return True

        self._ask(ask)

    def check(self) -> list[CheckMessage]:
        """See the contract."""
        alias = self.config.database
        if alias not in settings.DATABASES or connections[alias].vendor in VENDORS:
            return []
        message = f'FENCING["BACKENDS"][{self.config.alias!r}] keeps leases in database {alias!r}, which is '
        hint = f'Name a database on {SUPPORTED} in "DATABASE", or use fencing.backends.redis.RedisBackend.'
        return [Error(f"{message}{connections[alias].vendor}.", hint=hint, id="fencing.E023")]

    def _leases(self, place: Place, where: str, limit: int) -> list[LiveLease]:
        values = values_of(place, limit=limit)

        def ask(dialect: Dialect, cursor: Any) -> list[LiveLease]:
            dialect.execute(
                cursor,
                f"SELECT resource, holder, token, deadline_ms - {dialect.now}, granted_ms, task_id, task_name "
                f"FROM {sql_name('StoredLease')} WHERE {where} AND deadline_ms > {dialect.now} "
                "ORDER BY token LIMIT %(limit)s",
                values,
            )
            return [live_lease(*row) for row in cursor.fetchall()]

        return self._ask(ask)

    def _ask(self, ask: Callable[[Dialect, Any], Answer]) -> Answer:
        """The answer of ``ask``, which is called again when another client came in between."""
        database = self.config.database
        try:
            with autocommit(database) as connection:
                if (dialect := DIALECTS.get(kind(connection))) is None:
                    detail = f"database {database!r} is {kind(connection)}; leases are kept in {SUPPORTED}."
                    raise LeaseBackendError(self.config.alias, detail)
                for tries in range(ROUNDS):
                    try:
                        return _answer(connection, dialect, ask)
                    except _AgainError:
                        time.sleep(tries / 1000)
        except DatabaseProblem as error:
            detail = f"database {database!r}, which keeps the leases, refused: {type(error).__name__}: {error}"
            if connections[database].vendor == "sqlite" and in_user_transaction(connections[database]):
                detail += ". The open transaction may be in the way: give the leases an SQLite database of their own."
            raise LeaseBackendError(self.config.alias, detail) from error
        raise LeaseBackendError(self.config.alias, f"database {database!r} changed {ROUNDS} times in between.")


def _answer(connection: BaseDatabaseWrapper, dialect: Dialect, ask: Callable[[Dialect, Any], Answer]) -> Answer:
    try:
        with connection.cursor() as cursor:
            return ask(dialect, cursor)
    except DatabaseProblem as error:
        if connection.in_atomic_block:
            raise
        if code_of(error) in SERIALIZATION_FAILURES:
            raise _AgainError from error
        # The heartbeat's thread has no request after which Django would drop a dead connection.
        connection.close_if_unusable_or_obsolete()
        raise


def _trim(dialect: Dialect, cursor: Any, values: Mapping[str, Any], token: int) -> None:
    """Keep the outbox at its cap, every now and then, by any number: grants may never get those that another one gets."""
    if token % TRIM_EVERY == 0:
        dialect.trim(cursor, values)


def _bound(cursor: Any) -> dict[str, bool]:
    """Whether waits may be bounded for the length of the transaction: inside a ``TestCase`` the bound would stay."""
    return {"bounded": not in_testcase(cursor.db)}


def _reign(dialect: Dialect, cursor: Any, values: Mapping[str, Any]) -> str | None:
    """The reign in which this server counts, if it does."""
    counter = sql_name("StoredCounter")
    dialect.execute(cursor, f"SELECT reign FROM {counter} WHERE {HERE} AND server = {dialect.server}", values)
    row = cursor.fetchone()
    return None if row is None else str(row[0])


def _range_needed(dialect: Dialect, cursor: Any, values: Mapping[str, Any], *, close: bool = False) -> NeedsRange:
    """What the counter asks for, in a new reign where this server did not write it, or where the present one is closed."""
    dialect.open_counter(cursor, {**values, "offer": uuid4().hex, "close": close})
    counter = sql_name("StoredCounter")
    dialect.execute(cursor, f"SELECT reign, server, next, ceiling FROM {counter} WHERE {HERE}", values)
    row = cursor.fetchone()
    if row is None or row[2] <= row[3]:
        raise _AgainError
    return NeedsRange(reign=row[0], server=row[1], next=row[2])
