"""Where a benchmark runs: a Valkey of its own on TCP loopback, and a database of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django
import redis

from inventory_demo.server_support import ServerError, wait_for
from inventory_demo.servers import running
from inventory_demo.valkey_server import Valkey


@contextmanager
def stage(database: str | None = None, *, keep: bool = False) -> Iterator[None]:
    """Have servers, settings and an empty database for the block; processes started in it find the same ones.

    Args:
        database: its name, instead of one of this process's own.
        keep: leave it, to be looked at.
    """
    with running(), valkey() as url:
        os.environ.update(DJANGO_SETTINGS_MODULE="benchmarks.settings", BENCHMARK_STORE=url)
        django.setup()
        from django.db import connection

        connection.settings_dict["TEST"]["NAME"] = database or f"benchmark_{os.getpid()}"
        os.environ["BENCHMARK_DATABASE"] = connection.creation.create_test_db(verbosity=0, autoclobber=True)
        try:
            yield
        finally:
            connection.close()
            if not keep:
                # A thread that collects may still be connected.
                name = connection.ops.quote_name(os.environ["BENCHMARK_DATABASE"])
                with connection._nodb_cursor() as cursor:
                    cursor.execute(f"DROP DATABASE {name} (FORCE)")


@contextmanager
def valkey() -> Iterator[str]:
    """Start a Valkey that keeps nothing on disk, and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir="/tmp") as folder:  # a socket's path is short
        command = Valkey(Path(folder)).command(port=str(port), bind="127.0.0.1")
        process = subprocess.Popen(command)  # noqa: S603
        try:
            if not wait_for(lambda: answers(port), seconds=20):
                raise ServerError("valkey-server does not answer.")
            yield f"redis://127.0.0.1:{port}/1"
        finally:
            process.terminate()
            process.wait(timeout=20)


def answers(port: int) -> bool:
    """Tell whether a server answers there."""
    try:
        with redis.Redis(port=port) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
