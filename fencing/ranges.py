"""Ranges of tokens, reserved in the database: one row per namespace holds the highest number reserved.

Every reservation is one statement that commits by itself, before a number of the range can be issued.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.core.signals import setting_changed
from django.db import Error as DatabaseProblem
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic
from django.dispatch import receiver
from django.utils import timezone

from fencing.backends.base import NeedsRange, Place
from fencing.conf import MAX_TOKEN, BackendConfig
from fencing.connections import autocommit, testcase_block
from fencing.databases import SERIALIZATION_FAILURES, code_of, is_unmigrated, kind, unless_there
from fencing.exceptions import InvalidTokenError, LeaseBackendError, TokensExhaustedError
from fencing.tables import sql_name

# A number that is higher than what was reserved by more than this was not issued but invented.
MAX_RAISE = 2**40
DATABASES = ("postgresql", "mariadb", "sqlite")
# Each round that fails means that another client was faster, that the row vanished, or that the end of the numbers is near.
ROUNDS = 20


class Namespace(NamedTuple):
    """What the row of a namespace says, as far as it never changes.

    Attributes:
        space: the namespace's random id.
        partitions: how many counters it has.
        made_in: the transaction of Django's ``TestCase`` that made the row, and takes it back at its end; None for any
            other row.
    """

    space: str
    partitions: int
    made_in: Atomic | None = None


class MovedError(LeaseBackendError):
    """The namespace's row has another random id than this process knew: what it asked for is to be asked again."""


_namespaces: dict[tuple[str, str], Namespace] = {}


def namespace_of(config: BackendConfig) -> Namespace:
    """The namespace's row, read once per process, and created where there is none.

    Raises:
        LeaseBackendError: the database cannot be used.
    """
    key = (config.database, config.namespace)
    known = _namespaces.get(key)
    if known is None or (known.made_in and known.made_in not in connections[config.database].atomic_blocks):
        made_in = None
        with _database(config) as connection, connection.cursor() as cursor:
            row = _row(cursor, config)
            if row is None:
                _insert_row(cursor, config, secrets.token_hex(8))
                row = _row(cursor, config)
                made_in = testcase_block(connection)
        if row is None:
            raise LeaseBackendError(config.alias, f"the row of namespace {config.namespace!r} vanishes at once.")
        known = _namespaces[key] = Namespace(row[0], row[1], made_in)
    return known


def forget_database(alias: str) -> None:
    """Forget the namespaces of a database whose tables were emptied: their rows come back with other ids."""
    for key in [key for key in _namespaces if key[0] == alias]:
        _namespaces.pop(key, None)


@receiver(setting_changed)
def _forget_namespaces(*, setting: str, **_kwargs: Any) -> None:
    if setting in ("FENCING", "DATABASES"):
        _namespaces.clear()


def reserve(
    config: BackendConfig, place: Place, size: int, *, issued: int = 0, seen: int = 0, reign: NeedsRange | None = None
) -> range:
    """Reserve numbers above everything reserved before.

    Args:
        config: the alias that asks.
        place: where the store counts.
        size: how many numbers; near the end it may be one.
        issued: the highest number that the store has issued, to be passed as well.
        seen: a number that a row holds, to be passed as well.
        reign: the store's request, when the range is for a reign that may be new and is to be logged.

    Returns:
        The numbers, rising.

    Raises:
        MovedError: the row was created anew since ``place`` was worked out.
        InvalidTokenError: ``seen`` is too far above everything reserved.
        TokensExhaustedError: no number is left.
        LeaseBackendError: the database cannot be used.
    """
    with _database(config) as connection:
        for tries in range(ROUNDS):
            time.sleep(tries / 1000)
            with _another_try(connection), connection.cursor() as cursor:
                ceiling = _raise_ceiling(connection, cursor, config, place.space, size, issued, seen)
                if ceiling is None:
                    size = _why_not(cursor, config, place.space, size, issued, seen)
                    continue
                numbers = range(ceiling - size + 1, ceiling + 1)
                if reign is not None:
                    _log_reign(connection, cursor, config, place, reign, numbers[0])
                return numbers
    raise LeaseBackendError(
        config.alias, f"the row of namespace {config.namespace!r} changed {ROUNDS} times in between."
    )


def _raise_ceiling(
    connection: BaseDatabaseWrapper, cursor: Any, config: BackendConfig, space: str, size: int, issued: int, seen: int
) -> int | None:
    """Raise the ceiling by ``size`` above everything and return it; None if the row does not allow it."""
    if connection.vendor == "mysql":
        return _raise_ceiling_in_mariadb(cursor, config, space, size, issued, seen)
    durable, source, larger = "", "", "MAX"
    if connection.vendor == "postgresql":
        # A reservation that a crash of the database forgets would be made twice.
        durable = (
            "WITH durable AS MATERIALIZED (SELECT set_config('synchronous_commit', CASE current_setting("
            "'synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)) "
        )
        source, larger = " FROM durable", "GREATEST"
    floor = max(issued, seen)
    used = f"{larger}(kept.ceiling, CAST(%s AS bigint))"
    cursor.execute(
        f"{durable}UPDATE {sql_name('TokenRange')} AS kept SET ceiling = {used} + %s{source} "
        f"WHERE kept.namespace = %s AND kept.space = %s AND {used} <= %s AND {used} >= %s RETURNING ceiling",
        [floor, size, config.namespace, space, floor, MAX_TOKEN - size, issued, seen - MAX_RAISE],
    )
    row = cursor.fetchone()
    return None if row is None else int(row[0])


def _raise_ceiling_in_mariadb(
    cursor: Any, config: BackendConfig, space: str, size: int, issued: int, seen: int
) -> int | None:
    """The same where an UPDATE returns nothing: the number comes back as the statement's insert id."""
    floor = max(issued, seen)
    cursor.execute(
        f"UPDATE {sql_name('TokenRange')} SET ceiling = LAST_INSERT_ID(GREATEST(ceiling, %s) + %s) "
        "WHERE namespace = %s AND space = %s AND GREATEST(ceiling, %s) <= %s AND GREATEST(ceiling, %s) >= %s",
        [floor, size, config.namespace, space, floor, MAX_TOKEN - size, issued, seen - MAX_RAISE],
    )
    return int(cursor.lastrowid) if cursor.rowcount == 1 else None


def _why_not(cursor: Any, config: BackendConfig, space: str, size: int, issued: int, seen: int) -> int:
    """The size with which to try again, or the error that says why nothing was reserved."""
    row = _row(cursor, config)
    if row is None:
        # A test was rolled back, or its database flushed: the store still counts under the id that is known here.
        _insert_row(cursor, config, space)
        return size
    if row[0] != space:
        _namespaces.pop((config.database, config.namespace), None)
        raise MovedError(config.alias, f"namespace {config.namespace!r} was created anew.")
    reserved = max(int(row[2]), issued)
    if seen > reserved + MAX_RAISE:
        detail = f"{reserved} is the highest that namespace {config.namespace!r} has reserved; it was not issued"
        raise InvalidTokenError(seen, detail)
    if max(reserved, seen) >= MAX_TOKEN:
        raise TokensExhaustedError(config.namespace, reserved)
    return size if max(reserved, seen) <= MAX_TOKEN - size else 1


def _row(cursor: Any, config: BackendConfig) -> tuple[str, int, int] | None:
    cursor.execute(
        f"SELECT space, partitions, ceiling FROM {sql_name('TokenRange')} WHERE namespace = %s",
        [config.namespace],
    )
    found: tuple[str, int, int] | None = cursor.fetchone()
    return found


def _insert_row(cursor: Any, config: BackendConfig, space: str) -> None:
    cursor.execute(
        f"INSERT INTO {sql_name('TokenRange')} (namespace, space, partitions, ceiling) "
        f"VALUES (%s, %s, %s, 0) {unless_there(cursor.db, 'namespace')}",
        [config.namespace, space, config.partitions],
    )


def _log_reign(
    connection: BaseDatabaseWrapper, cursor: Any, config: BackendConfig, place: Place, needs: NeedsRange, first: int
) -> None:
    now = connection.ops.adapt_datetimefield_value(timezone.now())
    cursor.execute(
        f"INSERT INTO {sql_name('Reign')} "
        f"(namespace, {connection.ops.quote_name('partition')}, reign, server, first_token, opened_at) "
        f"VALUES (%s, %s, %s, %s, %s, %s) {unless_there(connection, 'namespace')}",
        [config.namespace, place.partition, needs.reign, needs.server, first, now],
    )


@contextmanager
def _another_try(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Let a statement pass that failed because another one came in between, under a strict isolation level."""
    try:
        yield
    except DatabaseProblem as error:
        if connection.in_atomic_block or code_of(error) not in SERIALIZATION_FAILURES:
            raise


@contextmanager
def _database(config: BackendConfig) -> Iterator[BaseDatabaseWrapper]:
    """A connection to the database that owns the numbers, on which each statement commits by itself."""
    try:
        with autocommit(config.database) as connection:
            if (found := kind(connection)) not in DATABASES:
                detail = f"database {config.database!r} is {found}; numbers are kept in PostgreSQL, MariaDB or SQLite."
                raise LeaseBackendError(config.alias, detail)
            yield connection
    except DatabaseProblem as error:
        if is_unmigrated(error):
            detail = f"database {config.database!r}, which owns the numbers, lacks the tables of the app fencing: migrate it."
            raise LeaseBackendError(config.alias, detail) from error
        detail = f"database {config.database!r}, which owns the numbers, refused: {type(error).__name__}: {error}"
        raise LeaseBackendError(config.alias, detail) from error
