"""Have the example project's PostgreSQL and Valkey running while somebody needs them.

`addresses()` only computes where they are. `running()` starts them, or adopts those that another command of this checkout
started, and stops them when nobody uses them any more. Servers named by `DATABASE_URL` and `REDIS_URL` are left alone.

Every user holds a shared lock on one file; whoever can turn it exclusive when it leaves is the last and stops the
servers. A watchdog process waits for the same lock, so that the servers end also when the last user was killed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inventory_demo.postgres_server import Postgres
from inventory_demo.server_addresses import CHECKOUT, Addresses, addresses
from inventory_demo.server_support import FileLock, ServerError, can_take, prepare_runtime, wait_for
from inventory_demo.valkey_server import Valkey

__all__ = ["Addresses", "ServerError", "addresses", "clean", "ensure_running", "running"]


class _Use:
    """One process's use of the servers, from `begin` to `end`."""

    def __init__(self, where: Addresses) -> None:
        self.where = where
        self.process = os.getpid()
        self.postgres = Postgres(project=where.data, runtime=where.runtime)
        self.valkey = Valkey(where.runtime)
        self.needed: list[Postgres | Valkey] = []
        if not where.database_url:
            self.needed.append(self.postgres)
        if not where.redis_url:
            self.needed.append(self.valkey)

    def begin(self) -> None:
        """Count as a user, and start what does not run yet."""
        if not self.needed:
            return
        prepare_runtime(self.where.runtime)
        self.users = FileLock(self.where.runtime / "users.lock")
        # Only somebody who is just stopping the servers can be in the way.
        if not wait_for(lambda: self.users.take(FileLock.SHARED), seconds=60):
            raise ServerError(f"The servers of {self.where.checkout} are stopping since a minute.")
        try:
            self._start()
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        starting = FileLock(self.where.runtime / "start.lock")
        try:
            if not wait_for(lambda: starting.take(FileLock.EXCLUSIVE), seconds=180):
                raise ServerError(f"Another command is starting the servers of {self.where.checkout} since 3 minutes.")
            self._start_watchdog()
            for server in self.needed:
                if not server.is_ready():
                    server.start()
        finally:
            starting.close()

    def _start_watchdog(self) -> None:
        """Start a process that stops the servers when the last user is gone, however it went; one is enough."""
        lock = FileLock(self.where.runtime / "watchdog.lock")
        try:
            if lock.take(FileLock.EXCLUSIVE):
                # The lock is handed down, so there is no moment without it.
                command = [
                    sys.executable,
                    "-m",
                    "inventory_demo.servers",
                    "watch",
                    str(lock.descriptor),
                    str(self.where.checkout),
                ]
                watchdog = subprocess.Popen(  # noqa: S603
                    command,
                    cwd=CHECKOUT,
                    pass_fds=[lock.descriptor],
                    start_new_session=True,  # a Ctrl-C in the terminal is not for it
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                _watchdogs.append(watchdog)
        finally:
            lock.close()

    def end(self) -> None:
        """Leave; the last user stops the servers and waits until they are gone."""
        if not self.needed or os.getpid() != self.process:  # a forked child used them on its parent's account
            return
        try:
            if self.users.take(FileLock.EXCLUSIVE):
                self.stop()
        finally:
            self.users.close()
        wait_for(lambda: self._is_unwatched() or self._has_users(), seconds=30)
        for watchdog in _watchdogs:
            watchdog.poll()

    def stop(self) -> None:
        """Stop both servers, as an earlier user may have needed both; only for who holds the users' lock exclusively."""
        try:
            self.postgres.stop()
        finally:
            self.valkey.stop()

    def _is_unwatched(self) -> bool:
        return can_take(self.where.runtime / "watchdog.lock", FileLock.SHARED)

    def _has_users(self) -> bool:
        path = self.where.runtime / "users.lock"
        return not can_take(path, FileLock.EXCLUSIVE) and can_take(path, FileLock.SHARED)


# Children that may outlive their use in this process: kept, as forgetting a running child is a warning.
_watchdogs: list[subprocess.Popen[bytes]] = []


@contextmanager
def running(where: Addresses | None = None) -> Iterator[Addresses]:
    """Have the servers running inside the block.

    Args:
        where: Which servers; None means this checkout's.

    Raises:
        ServerError: They cannot be started; the message says what to do.
    """
    use = _Use(where or addresses())
    use.begin()
    try:
        yield use.where
    finally:
        use.end()


def ensure_running(where: Addresses | None = None) -> Addresses:
    """Have the servers running until this process ends; see `running`."""
    use = _Use(where or addresses())
    use.begin()
    atexit.register(use.end)
    return use.where


def _watch(descriptor: int, where: Addresses) -> None:
    """Stop the servers once the last user is gone; `descriptor` is the lock that tells that somebody watches."""
    use = _Use(where)
    users = FileLock(where.runtime / "users.lock")
    users.wait(FileLock.EXCLUSIVE)
    try:
        use.stop()
    finally:
        # In this order, and nothing after it: a newcomer that is let in must see that nobody watches any more.
        os.close(descriptor)
        os._exit(0)


def clean(where: Addresses) -> None:
    """Remove the servers' data, sockets and lock files.

    Raises:
        ServerError: Somebody uses the servers.
    """
    if where.runtime.exists():
        _remove(where)


def _remove(where: Addresses) -> None:
    use = _Use(where)
    users = FileLock(where.runtime / "users.lock")
    if not wait_for(lambda: users.take(FileLock.EXCLUSIVE), seconds=10):  # somebody may just be leaving
        users.close()
        raise ServerError("The servers are in use: end the commands that use them first.")
    use.stop()
    users.close()
    shutil.rmtree(where.runtime)
    if where.data.exists():
        shutil.rmtree(where.data)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["watch", number, folder]:
            _watch(int(number), addresses(Path(folder)))
        case ["clean"]:
            try:
                clean(addresses())
            except ServerError as error:
                sys.exit(str(error))
        case _:
            sys.exit("usage: python -m inventory_demo.servers clean")
