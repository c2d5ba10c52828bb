"""A server that all processes of this checkout's runs share, from the first test that needs it to the last process.

Each process holds a shared lock on one file. A watchdog waits for that lock and ends the server, so it goes with the
last of them, also when that one was killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from inventory_demo.server_addresses import CHECKOUT
from inventory_demo.server_support import FileLock, ServerError, can_take, prepare_runtime, wait_for

# Servers are often outside an ordinary user's PATH.
PLACES = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def program(name: str) -> str:
    """Where a program is; raises ServerError."""
    found = shutil.which(name, path=PLACES)
    if found is None:
        raise ServerError(f"{name} is not installed.")
    return found


class SharedServer(Protocol):
    """A server whose module is a program that calls `watch`; `folder` is all that two objects of one server share."""

    folder: Path

    def start(self) -> None:
        """Start it and wait until it answers; raises ServerError."""

    def answers(self) -> bool:
        """Whether it takes connections."""

    def end(self) -> None:
        """Kill what `start` of this object has started, and remove its data."""


@contextmanager
def running(server: SharedServer) -> Iterator[None]:
    """Have the server running inside the block."""
    prepare_runtime(server.folder.parent)
    server.folder.mkdir(mode=0o700, exist_ok=True)
    users = FileLock(_users(server))
    # Only the watchdog, which just ends the server, can be in the way.
    if not wait_for(lambda: users.take(FileLock.SHARED), seconds=60):
        raise ServerError(f"The server in {server.folder} is stopping since a minute.")
    try:
        starting = FileLock(server.folder / "start.lock")
        try:
            starting.wait(FileLock.EXCLUSIVE)
            if not server.answers():
                _start_with_watchdog(server)
        finally:
            starting.close()
        yield
    finally:
        users.close()
        path = _users(server)
        for watchdog in _watchdogs:
            wait_for(lambda: watchdog.poll() is not None or _is_shared(path), seconds=20)  # noqa: B023


def watch(server: SharedServer, told: int) -> None:
    """Start the server, tell so through a pipe, and end it when the last user is gone."""
    with os.fdopen(told, "w") as pipe:
        try:
            server.start()
        except ServerError as error:
            server.end()
            pipe.write(str(error))
            return
        pipe.write("ready")
    FileLock(_users(server)).wait(FileLock.EXCLUSIVE)
    server.end()


def _users(server: SharedServer) -> Path:
    return server.folder / "users.lock"


def _is_shared(path: Path) -> bool:
    return not can_take(path, FileLock.EXCLUSIVE) and can_take(path, FileLock.SHARED)


def _start_with_watchdog(server: SharedServer) -> None:
    read, write = os.pipe()
    watchdog = subprocess.Popen(
        [sys.executable, "-m", type(server).__module__, str(server.folder), str(write)],
        cwd=CHECKOUT,
        pass_fds=[write],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # what it has inherited would stay open as long as it lives
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    if said != "ready":
        raise ServerError(said or f"The watchdog of the server in {server.folder} died.")
    _watchdogs.append(watchdog)


# Children that outlive their use in this process: kept, as forgetting a running child is a warning.
_watchdogs: list[subprocess.Popen[bytes]] = []
