"""``python -m tests.debian_postgres [VERSION | FOLDER …] [-- ARGUMENTS OF PYTEST]``: tests on other PostgreSQLs.

The suite has its PostgreSQL from a wheel, which is the newest; this runs what leans on the database on the older ones
that are supported, each on a server of its own, without a port, whose data go with it. A version, such as 15, is that
of Debian's package; a folder, such as ./pg17/bin, has the programs of any PostgreSQL. Without either it takes all of
Debian's that the machine has, and there must be one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from inventory_demo.postgres_server import DATABASE, PORT, USER, Postgres
from inventory_demo.server_addresses import CHECKOUT
from inventory_demo.server_support import ServerError

PACKAGES = Path("/usr/lib/postgresql")
VERSIONS = ("15", "16", "17", "18")
OLDEST = VERSIONS[0]

WHAT_LEANS_ON_THE_DATABASE = (
    "tests/guards",
    "tests/writes",
    "tests/backends/test_database.py",
    "tests/test_connections.py",
    "tests/test_history.py",
    "tests/test_leases.py",
    "tests/test_maintenance.py",
    "tests/test_tokens.py",
    "tests/test_transactions.py",
)


class DebianPostgres(Postgres):
    """A server of a Debian package, or of the programs in a folder; its data are in a folder of its own."""

    locale = ("--locale=C",)
    # The tests break no power supply, so nothing has to reach the disk.
    settings: Mapping[str, object] = MappingProxyType({"fsync": "off", "full_page_writes": "off"})

    def __init__(self, version: str, folder: Path) -> None:
        super().__init__(project=folder / "data", runtime=folder)
        self._binaries = binaries(version)

    def start(self) -> None:
        """Start the server; raises ServerError, also where its programs lack a library, or are closed to its user."""
        program = self._binaries / "postgres"
        if not self._succeeds([str(program), "--version"]):
            who = f" by {self.account.pw_name}" if self.account is not None else ""
            raise ServerError(f"{program} cannot be run{who}.")
        super().start()

    @property
    def url(self) -> str:
        """Its address, for `DATABASE_URL`."""
        return f"postgres://{USER}@{quote(str(self.sockets), safe='')}:{PORT}/{DATABASE}"


def binaries(version: str) -> Path:
    """Where the package puts its programs, installed or not; a path is that place itself."""
    return Path(version).absolute() if "/" in version else PACKAGES / version / "bin"


def lacking(version: str) -> str:
    """Why there is no server of that version, or ""."""
    absent = [name for name in ("initdb", "postgres", "pg_ctl") if not (binaries(version) / name).exists()]
    advice = "" if "/" in version else f" (Debian: postgresql-{version})"
    return f"no {' and '.join(absent)} in {binaries(version)}{advice}" if absent else ""


@contextmanager
def running(version: str) -> Iterator[DebianPostgres]:
    """A server for the block, with an empty database."""
    # pytest's temporary paths are too long for a socket, and closed to the user that PostgreSQL runs as.
    folder = Path(tempfile.mkdtemp(prefix="fencing-pg-", dir="/tmp"))
    folder.chmod(0o755)
    server = DebianPostgres(version, folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def run_tests(server: DebianPostgres, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run pytest on that server, as a run of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FENCING_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=CHECKOUT,
        env={**inherited, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": server.url},
        stdout=None if __name__ == "__main__" else subprocess.PIPE,
        stderr=None if __name__ == "__main__" else subprocess.STDOUT,
        text=True,
        check=False,
    )


def main(arguments: Sequence[str]) -> int:
    """Run the tests on each version; the exit status is pytest's first one that is not 0."""
    given = list(arguments)
    split = given.index("--") if "--" in given else len(given)
    versions, options = given[:split], given[split + 1 :]
    versions = versions or [version for version in VERSIONS if not lacking(version)]
    if reasons := [lacking(version) for version in versions or [OLDEST] if lacking(version)]:
        sys.exit("; ".join(reasons))
    status = 0
    for version in versions:
        with running(version) as server:
            print(f"PostgreSQL {version}", flush=True)
            status = run_tests(server, options or ["-q", *WHAT_LEANS_ON_THE_DATABASE]).returncode or status
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ServerError as error:
        sys.exit(str(error))
