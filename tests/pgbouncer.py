"""A PgBouncer of one test, in transaction mode, on a Unix socket of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inventory_demo.postgres_server import unprivileged_account
from inventory_demo.server_support import ServerError, wait_for
from tests.shared_server import PLACES

PORT = 6432  # names the socket file only: no TCP port is opened

CONFIGURATION = """\
[databases]
{name} = host={host} port={port} user={user}{password}

[pgbouncer]
unix_socket_dir = {folder}
listen_port = {listen}
pool_mode = transaction
default_pool_size = {size}
server_round_robin = 1
auth_type = trust
auth_file = {folder}/users
logfile = {folder}/pgbouncer.log
"""


def lacking() -> str:
    """Why no PgBouncer can be started here, or ""."""
    return "" if shutil.which("pgbouncer", path=PLACES) else "pgbouncer not found (Debian: pgbouncer)"


@contextmanager
def running(database: Mapping[str, Any], size: int) -> Iterator[Path]:
    """Have one before a server for the block; the folder of its socket.

    Args:
        database: the server's entry in Django's `DATABASES`.
        size: how many connections to the server its clients share; who comes next gets the one unused for longest.
    """
    # pytest's temporary paths are too long for a socket, and closed to the user that it runs as: it refuses root.
    folder = Path(tempfile.mkdtemp(prefix="fencing-pgb-", dir="/tmp"))
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        CONFIGURATION.format(
            host=database["HOST"] or "127.0.0.1",
            port=database["PORT"] or 5432,
            user=database["USER"] or "postgres",
            name=database["NAME"],
            password=f" password={database['PASSWORD']}" if database.get("PASSWORD") else "",
            folder=folder,
            listen=PORT,
            size=size,
        )
    )
    (folder / "users").write_text(f'"{database["USER"]}" ""\n')
    account = unprivileged_account() if os.geteuid() == 0 else None
    manner: dict[str, Any] = {}
    if account is not None:
        manner.update(user=account.pw_uid, group=account.pw_gid, extra_groups=[])
        for path in (folder, *folder.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
    program = shutil.which("pgbouncer", path=PLACES)
    if program is None:
        raise ServerError(lacking())
    process = subprocess.Popen(
        [program, "-q", str(configuration)], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **manner
    )
    try:
        answers = wait_for(lambda: _listens(folder) or process.poll() is not None, seconds=20)
        if not answers or process.poll() is not None:
            log = folder / "pgbouncer.log"
            raise ServerError(f"pgbouncer does not answer: {log.read_text()[-2000:] if log.exists() else ''}")
        yield folder
    finally:
        process.kill()
        process.wait(20)
        shutil.rmtree(folder)


def _listens(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as attempt:
        try:
            attempt.connect(str(folder / f".s.PGSQL.{PORT}"))
        except OSError:
            return False
        return True
