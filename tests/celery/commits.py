"""Commits that take long, so that a test can strike in the middle of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def slow_commit(sku: str, seconds: int = 3) -> Iterator[None]:
    """Let each commit of a change of this stock take so long."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON inventory_demo_stock DEFERRABLE INITIALLY DEFERRED "
            f"FOR EACH ROW WHEN (NEW.sku = '{sku}') EXECUTE FUNCTION slow()"
        )
        try:
            yield
        finally:
            cursor.execute("DROP FUNCTION slow CASCADE")


def commits() -> int:
    """How many sessions of the test database are in the middle of their commit."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND state = 'active' AND upper(query) = 'COMMIT'"
        )
        return int(cursor.fetchone()[0])
