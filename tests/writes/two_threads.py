"""Two threads with database connections of their own, for many runs of two holders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from django.db import connections

from tests.concurrency import BOUND


@contextmanager
def sqlite_file(path: Path) -> Iterator[None]:
    """The test database in a file: one in memory is no database for two connections. Nobody waits there."""
    in_memory, settings = connections["lite"], connections.settings["lite"]
    with in_memory.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(path)])
    before = {key: settings[key] for key in ("NAME", "OPTIONS")}
    settings.update(NAME=str(path), OPTIONS={"timeout": 0})
    connections["lite"] = connections.create_connection("lite")
    try:
        yield
    finally:
        connections["lite"].close()
        connections["lite"] = in_memory
        settings.update(before)


# For both connections; a deadlock is looked for at once.
PREPARE = {
    "default": ("SET default_transaction_isolation = '{level}'", "SET deadlock_timeout = '10ms'"),
    "maria": ("SET SESSION TRANSACTION ISOLATION LEVEL {level}",),
    "lite": (),
}


@contextmanager
def two_threads(alias: str, level: str) -> Iterator[Sequence[Executor]]:
    """A thread for each of the two, whose connection is at an isolation level."""

    def prepare() -> None:
        with connections[alias].cursor() as cursor:
            for statement in PREPARE[alias]:
                cursor.execute(statement.format(level=level))

    with ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(max_workers=1)) for _ in range(2)]
        for pool in pools:
            pool.submit(prepare).result(BOUND)
            stack.callback(wait_for_end, pool)
        yield pools


def wait_for_end(pool: Executor) -> None:
    """Close the connections of a thread."""
    pool.submit(connections.close_all).result(BOUND)
