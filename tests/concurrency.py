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
