"""The MariaDB of the tests: a private server from the machine's packages, or the one that `MARIADB_URL` names.

It starts for the first test that needs it and is shared by all processes of this checkout's runs (see
`tests.shared_server`). It listens on no port, and its data go with it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inventory_demo.server_addresses import addresses
from inventory_demo.server_support import ServerError, wait_for
from tests import shared_server
from tests.shared_server import PLACES, program

ALIAS = "maria"
DATABASE = "fencing"
# MariaDB's usual collation, which holds "A" and "a" for the same.
TEST = {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_general_ci"}
# The tests break no power supply, so nothing has to reach the disk.
OPTIONS = (
    "--no-defaults",
    "--skip-networking",
    "--skip-name-resolve",
    "--innodb-flush-method=nosync",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    "--max-connections=100",
)


class MariaDB:
    """A server in a folder of its own; its socket's path is short enough for a socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.socket = folder / "mariadb.sock"
        self.log = folder / "mariadb.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def entry(self) -> dict[str, Any]:
        """The entry for Django's `DATABASES`."""
        return {
            "ENGINE": "django.db.backends.mysql",
            "HOST": str(self.socket),
            "USER": "root",
            "NAME": DATABASE,
            "TEST": dict(TEST),
        }

    def start(self) -> None:
        """Start the server, with new data if there are none, and wait until it answers."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if not self.data.exists():
            self._install()
        command = [program("mariadbd"), *OPTIONS, *_account(), f"--datadir={self.data}", f"--socket={self.socket}"]
        command += [f"--pid-file={self.folder / 'mariadb.pid'}", f"--log-error={self.log}"]
        process = self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        if not wait_for(lambda: self.answers() or process.poll() is not None, seconds=60) or process.poll() is not None:
            raise ServerError(f"mariadbd does not answer: {self.log.read_text()[-2000:] if self.log.exists() else ''}")

    def kill(self) -> None:
        """Kill the server, if it was started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=20)

    def end(self) -> None:
        """Kill the server and remove its data: asked to go, it can be slow, and what it holds is not needed any more."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)  # the whole folder may have been removed meanwhile
        for path in (self.socket, self.log, self.folder / "mariadb.pid"):
            with suppress(FileNotFoundError):
                path.unlink()

    def answers(self) -> bool:
        """Whether the server takes connections: it greets whoever connects."""
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.settimeout(5)
            try:
                attempt.connect(str(self.socket))
                return bool(attempt.recv(1))
            except OSError:
                return False

    def _install(self) -> None:
        # Beside their place, so that a killed start leaves no half of it.
        stage = self.folder / "data.new"
        shutil.rmtree(stage, ignore_errors=True)
        command = [program("mariadb-install-db"), "--no-defaults", *_account(), f"--datadir={stage}", "--skip-test-db"]
        command += ["--auth-root-authentication-method=normal", "--innodb-flush-method=nosync"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise ServerError(f"mariadb-install-db failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        stage.rename(self.data)


def reason_to_lack() -> str:
    """Why there is no MariaDB for the tests, or ""."""
    return "" if os.environ.get("MARIADB_URL") else lacking()


def lacking() -> str:
    """Why no MariaDB can be started here, or ""."""
    absent = [name for name in ("mariadbd", "mariadb-install-db") if shutil.which(name, path=PLACES) is None]
    return f"{' and '.join(absent)} not found (Debian: mariadb-server)" if absent else ""


def use_driver() -> None:
    """Let Django's MySQL backend find PyMySQL where mysqlclient is not installed."""
    if find_spec("MySQLdb") is None:
        import pymysql

        pymysql.install_as_MySQLdb()


def url() -> str:
    """What `MARIADB_URL` has to say so that another checkout uses this one's server."""
    return os.environ.get("MARIADB_URL") or f"mysql://root@localhost/{DATABASE}?unix_socket={_shared().socket}"


def database(name: str) -> dict[str, Any]:
    """The entry for Django's `DATABASES`, with a test database of this name; nothing is started."""
    if url := os.environ.get("MARIADB_URL"):
        import dj_database_url

        entry: dict[str, Any] = dict(dj_database_url.parse(url))
        entry["TEST"] = dict(TEST)
    else:
        entry = _shared().entry
    entry["TEST"]["NAME"] = name
    return entry


@contextmanager
def running() -> Iterator[None]:
    """Have the shared server running inside the block; nothing is done with `MARIADB_URL`."""
    if os.environ.get("MARIADB_URL"):
        yield
        return
    with shared_server.running(_shared()):
        yield


def _shared() -> MariaDB:
    return MariaDB(addresses().runtime / "maria")


def _account() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


if __name__ == "__main__":
    shared_server.watch(MariaDB(Path(sys.argv[1])), int(sys.argv[2]))
