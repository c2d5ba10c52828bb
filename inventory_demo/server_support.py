"""What the servers of the example project need of the system: a safe folder, file locks, bounded waits."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path


class ServerError(RuntimeError):
    """A server cannot be started, reached or stopped; the message says what to do."""


class FileLock:
    """A lock on a file that the kernel takes away from a process which ends, however it ends."""

    SHARED = fcntl.LOCK_SH
    EXCLUSIVE = fcntl.LOCK_EX

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def take(self, kind: int) -> bool:
        """Try to take the lock, or to turn it into the other kind, without waiting; a failure to turn it gives it up."""
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self, kind: int) -> None:
        """Take the lock, however long that takes."""
        fcntl.flock(self.descriptor, kind)

    def close(self) -> None:
        """Give the lock up."""
        os.close(self.descriptor)


def can_take(path: Path, kind: int) -> bool:
    """Tell whether the lock could be taken now."""
    lock = FileLock(path)
    try:
        return lock.take(kind)
    finally:
        lock.close()


def wait_for(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Wait until the condition holds, at most so many seconds; return whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def prepare_runtime(runtime: Path) -> None:
    """Create the run-time folder, or make sure that it is ours: the temporary folder belongs to everybody."""
    try:
        runtime.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        if os.geteuid() == 0:
            runtime.chmod(0o711)  # PostgreSQL runs as another user and has to pass through
    found = runtime.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ServerError(f"{runtime} was made by somebody else: remove it, or set DATABASE_URL and REDIS_URL.")


def package_folder(package: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(f"{package} is not installed: run `make demo`, or set DATABASE_URL and REDIS_URL.")
    return Path(spec.submodule_search_locations[0])
