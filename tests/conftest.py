"""The servers of the whole run, and what tests in every folder share.

Each xdist worker has a database of its own (by pytest-django) and a namespace of its own (by `tests.settings`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext

import django
import pytest
import redis
from django.conf import settings
from django.db import connection

from fencing.scope import held_leases, let_go
from inventory_demo.servers import running
from tests import mariadb, no_skips
from tests.services import PrivateValkey, missing

_servers = pytest.StashKey[ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers before any worker exists, so that the workers only adopt them."""
    if no_skips.in_force():
        config.pluginmanager.register(no_skips)
    config.stash[_servers] = stack = ExitStack()
    stack.enter_context(running())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the servers; the last process of the run stops them."""
    config.stash[_servers].close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose database this machine lacks; in CI it fails."""
    if _needs_mariadb(item) and (reason := mariadb.reason_to_lack()):
        missing(reason)


def _needs_mariadb(item: pytest.Item) -> bool:
    return item.get_closest_marker("mariadb") is not None or mariadb.ALIAS in _databases_of(item)


def _databases_of(item: pytest.Item) -> Iterable[str]:
    """The aliases that a test names, besides the default one."""
    mark = item.get_closest_marker("django_db")
    named: Iterable[str] = (mark.kwargs.get("databases") if mark else None) or ()
    return settings.DATABASES if named == "__all__" else named


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    request: pytest.FixtureRequest, django_db_modify_db_settings_parallel_suffix: None
) -> Iterator[None]:
    """Have MariaDB running before the test databases are created, if a test needs it, until they are dropped."""
    needed = any(map(_needs_mariadb, request.session.items))
    with mariadb.running() if needed and not mariadb.reason_to_lack() else nullcontext():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browsers last: from the first on, Playwright keeps an event loop in the thread, which Django would refuse."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


def pytest_report_header() -> str:
    """Name the versions under test."""
    return f"servers: {_database_version()}, {_store_version()}; Django {django.get_version()}"


def _database_version() -> str:
    if connection.vendor != "postgresql":
        return f"SQLite {sqlite3.sqlite_version}"
    # A connection of our own: the test database does not exist yet.
    raw = connection.get_new_connection(connection.get_connection_params())
    try:
        return f"PostgreSQL {raw.execute('SHOW server_version').fetchone()[0]}"
    finally:
        raw.close()


def _store_version() -> str:
    with redis.Redis.from_url(settings.CACHES["leases"]["LOCATION"]) as client:
        info = client.info("server")
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"


@pytest.fixture
def valkey_server() -> Iterator[Callable[..., PrivateValkey]]:
    """Return a function that starts a Valkey for this test alone, for tests that flush, stop or freeze the store."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(PrivateValkey(**options))


@pytest.fixture
def process_environment(django_db_setup: None) -> dict[str, str]:
    """Return the environment for Django programs that a test starts: same test database, store, namespace and queue.

    They see committed data only, so such a test needs `transactional_db`.
    """
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "FENCING_TEST_DATABASE": str(connection.settings_dict["NAME"]),
    }


@pytest.fixture(autouse=True)
def _no_lease_left_in_the_context() -> Iterator[None]:
    """A lease that a test leaves in its context would be held by every test after it."""
    yield
    left = held_leases()
    for held in left:
        let_go(held)
    assert not left, f"the test left {left} in its context"
