"""Commands that prepare the database do so one after the other: two at once would create the same tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.core.management import CommandError
from django.db import connection

from inventory_demo.server_support import wait_for

# Seconds for another command's migrations, which take a few.
PATIENCE = 120.0
# Any number: the name of a lock in the database, which frees it when its holder's connection ends, however it ends.
LOCK = 0x1A7E57


@contextmanager
def alone(tell: Callable[[str], object]) -> Iterator[None]:
    """Keep every other command of this database that asks for the same out of the block; PostgreSQL only.

    Args:
        tell: called with a line if somebody else has to be waited for.

    Raises:
        CommandError: another command has been at it for two minutes.
    """
    if connection.vendor != "postgresql":
        yield
        return
    if not _asks("pg_try_advisory_lock"):
        tell("Another command is preparing the database: waiting for it.")
        if not wait_for(lambda: _asks("pg_try_advisory_lock"), seconds=PATIENCE):
            raise CommandError(f"Another command has been preparing the database for {PATIENCE:g} s: try again later.")
    try:
        yield
    finally:
        _asks("pg_advisory_unlock")


def _asks(function: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s)", [LOCK])
        return bool(cursor.fetchone()[0])
