"""Real services for tests that must not share them: stores that are flushed, stopped, frozen or killed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import pytest
import redis

from inventory_demo.server_support import ServerError, wait_for
from inventory_demo.valkey_server import Valkey

HOST = "127.0.0.1"
# Below those that the system gives to connections: by the time a slow server listens, one of them could be somebody's.
PORTS = range(10_000, 32_768)


def missing(reason: str) -> NoReturn:
    """Skip a test whose service this machine lacks; where CI is set nothing may be lacking, so there it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing in CI: {reason}")
    pytest.skip(reason)


def free_port() -> int:
    """A port of this machine's loopback that nobody listens on now."""
    while True:
        port = secrets.choice(PORTS)  # not of random, which tests seed
        with suppress(OSError), socket.create_server((HOST, port)):
            return port


class PrivateValkey:
    """A Valkey of one test, with an empty store, on a Unix socket of its own.

    Args:
        options: Settings of its configuration file, for example `maxmemory="10mb"`; they win over the defaults
            (no TCP port, nothing kept on disk) and hold for every start.
    """

    def __init__(self, **options: str) -> None:
        # pytest's temporary paths are too long for a socket.
        self.folder = Path(tempfile.mkdtemp(prefix="fencing-valkey-", dir="/tmp"))
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self._server = Valkey(self.folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.folder)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self.process is None:
            raise ServerError("This server is not running.")
        return self.process.pid

    def url(self, database: int = 1) -> str:
        """Return the URL of a database for django-redis' LOCATION and for redis-py."""
        return f"unix://{self._server.socket}?db={database}"

    def client(self) -> redis.Redis:
        """Return a client of database 0 that never repeats a command."""
        return self._server.client()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.process = subprocess.Popen(self._server.command(**self.options))
        if not wait_for(self._server.is_ready, seconds=20):
            raise ServerError(f"valkey-server does not answer: {self._server.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Stop the server in order; without options that keep data on disk its store is gone."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server, frozen or not; one that does not run is fine."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the process without ending it: connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=20)
            self.process = None
