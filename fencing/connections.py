"""Database connections for statements that must commit by themselves, whatever transaction the caller is in."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.core import mail
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

# Seconds to wait for the one own connection of an alias. Its users run a statement or two, so this is ample.
PATIENCE = 2.0

# What libpq calls a connection in a transaction, one that has failed among them (PQTRANS_INTRANS, PQTRANS_INERROR), and
# MariaDB's flag for it.
IN_TRANSACTION = (2, 3)
SERVER_STATUS_IN_TRANS = 1

_turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def in_user_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether a statement on ``connection`` would belong to a transaction that somebody else has to commit.

    Autocommit switched off counts. The transaction that Django's ``TestCase`` opens around a test does not, as with
    ``atomic(durable=True)``. One that was begun in SQL, past Django, counts where the driver knows of it.
    """
    if connection.in_atomic_block:
        return any(not _is_from_testcase(block) for block in connection.atomic_blocks)
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit or _has_begun(connection)


def _has_begun(connection: BaseDatabaseWrapper) -> bool:
    """Whether the server says that a transaction is open: a ``BEGIN`` that was executed is not known to Django.

    Drivers have the server's last word on it, but for mysqlclient, which keeps that to itself.
    """
    raw: Any = connection.connection
    if connection.vendor == "sqlite":
        return bool(raw.in_transaction)
    if connection.vendor == "postgresql":
        # Not raw.info, which both psycopgs have: every write would pay for the object that tells.
        status = raw.pgconn.transaction_status if hasattr(raw, "pgconn") else raw.get_transaction_status()
        return status in IN_TRANSACTION
    return bool((getattr(raw, "server_status", None) or 0) & SERVER_STATUS_IN_TRANS)


def in_testcase(connection: BaseDatabaseWrapper) -> bool:
    """Whether ``connection`` is inside the transaction that Django's ``TestCase`` opens around a test."""
    return testcase_block(connection) is not None


def testcase_block(connection: BaseDatabaseWrapper) -> Atomic | None:
    """The innermost transaction on ``connection`` that Django's ``TestCase`` has opened, or None."""
    return next(filter(_is_from_testcase, reversed(connection.atomic_blocks)), None)


def open_transactions() -> list[str]:
    """The aliases of this thread's connections that are in a transaction (see ``in_user_transaction``)."""
    return [one.alias for one in initialized() if in_user_transaction(one)]


def initialized() -> list[BaseDatabaseWrapper]:
    """This thread's connections, as ``connections.all(initialized_only=True)``, which looks each of them up twice.

    Every lease would pay for that.
    """
    known = connections._connections  # type: ignore[attr-defined]
    return [one for alias in connections if (one := getattr(known, alias, None)) is not None]


def in_test_environment() -> bool:
    """Whether Django's test environment is set up in this process, so that nothing may run in the background."""
    return hasattr(mail, "outbox")


@contextmanager
def autocommit(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """A connection to database ``alias`` on which each statement commits by itself.

    It is the caller's own where that is in no transaction, and inside a ``TestCase`` always, because a second one
    would neither see the test's rows nor be rolled back with them. Else it is one opened for this use and closed
    after it, at most one per process and alias at a time; the caller's transaction is left alone.

    Raises:
        OperationalError: another thread kept the extra connection for more than two seconds, or none can be opened.
    """
    callers = connections[alias]
    if in_testcase(callers) or not in_user_transaction(callers):
        yield callers
        return
    turn = _turns[alias]
    if not turn.acquire(timeout=PATIENCE):
        raise OperationalError(f"the extra connection to database {alias!r} was in use for more than {PATIENCE:g} s")
    try:
        with _opened(alias) as own:
            yield own
    finally:
        turn.release()


def stop_statement(connection: BaseDatabaseWrapper) -> None:
    """End the statement that an interrupted caller has left running on PostgreSQL; its locks would outlive the lease.

    psycopg does so itself for a ``KeyboardInterrupt``; other drivers are not interrupted inside a statement.
    """
    raw: Any = connection.connection
    if hasattr(raw, "cancel_safe") and raw.info.transaction_status.name == "ACTIVE":
        with suppress(connection.Database.Error):  # type: ignore[attr-defined]
            raw.cancel_safe(timeout=PATIENCE)


def _is_from_testcase(block: Atomic) -> bool:
    marked: bool = block._from_testcase  # type: ignore[attr-defined]
    return marked


@contextmanager
def _opened(alias: str) -> Iterator[BaseDatabaseWrapper]:
    own = connections.create_connection(alias)
    try:
        own.ensure_connection()
        if not own.autocommit:
            own.set_autocommit(True)
        yield own
    finally:
        # Not own.close(): for an SQLite database in memory that does nothing, and the connection would leak.
        BaseDatabaseWrapper.close(own)


def _forget_turns() -> None:
    """A thread that had its turn at the moment of a fork does not exist in the child, and never ends it."""
    _turns.clear()


os.register_at_fork(after_in_child=_forget_turns)
