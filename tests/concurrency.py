"""Threads with database connections of their own, and waits for conditions instead of for time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import connection, connections

from fencing.backends import get_backend
from fencing.tokens import place_of

T = TypeVar("T")
BOUND = 20.0


@contextmanager
def threads() -> Iterator[Callable[..., Future[Any]]]:
    """A function that starts a callable in a thread; its connections are closed when it ends."""
    with ThreadPoolExecutor(max_workers=16) as pool:

        def start(function: Callable[..., T], *args: Any) -> Future[T]:
            def run() -> T:
                try:
                    return function(*args)
                finally:
                    connections.close_all()

            return pool.submit(run)

        yield start


def wait_until(condition: Callable[[], object], what: str, seconds: float = BOUND) -> None:
    """Wait for a condition, at most ``seconds``; then fail by name."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain: {what}")
        time.sleep(0.01)


def wait_until_expired(resource: str) -> None:
    """Wait until the default alias's store says that a lease has ended by itself."""
    backend = get_backend()
    wait_until(lambda: backend.peek(place_of(backend, resource)) is None, f"the lease of {resource} expires")


def waiting_for_locks() -> int:
    """How many PostgreSQL sessions of the test database wait for a lock now."""
    with connection.cursor() as cursor:
        # Inside a transaction the view would else show what it showed before.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(cursor.fetchone()[0])


def blocked_sessions(alias: str) -> int:
    """How many sessions of a test database wait for a lock at this very moment; on SQLite nobody waits."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            # Not the wait event, which stays until the session has woken up.
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
            )
            return int(cursor.fetchone()[0])
        if connection.vendor == "sqlite":
            return 0
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
        ours = [f"MariaDB thread id {session}," for (session,) in cursor.fetchall()]
        # innodb_trx would show what was there up to 0.1 s ago.
        cursor.execute("SHOW ENGINE INNODB STATUS")
        transactions = cursor.fetchone()[2].split("---TRANSACTION")[1:]
    waiting = [one for one in transactions if "LOCK WAIT" in one]
    return sum(any(session in one for session in ours) for one in waiting)
