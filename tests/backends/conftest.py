"""Each store of the contract tests, and servers for tests that break them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connections

from tests.backends.stores import PrivateRedis, Store, database_store, memory_store, redis_store
from tests.services import PrivateValkey


@pytest.fixture(scope="session")
def valkey() -> Iterator[PrivateValkey]:
    """A Valkey that tests may flush, but not stop."""
    with PrivateValkey() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[PrivateRedis]:
    """The machine's own Redis, which tests may flush, but not stop."""
    with PrivateRedis() as server:
        yield server


@pytest.fixture(params=["valkey", "redis_server"])
def server(request: pytest.FixtureRequest) -> PrivateValkey:
    """Each kind of server that speaks Redis."""
    found: PrivateValkey = request.getfixturevalue(request.param)
    return found


FILE = "file"


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> str:
    """The alias of an SQLite database in a file, with the app's tables: unlike one in memory, threads may share it."""
    path: Path = tmp_path_factory.mktemp("sqlite") / "leases.sqlite3"
    # The tests break no power supply, so nothing has to reach the disk.
    options = {"init_command": "PRAGMA synchronous=OFF"}
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}
    connections.settings[FILE] = connections.configure_settings({"default": {}, FILE: entry})[FILE]
    with django_db_blocker.unblock(), connections[FILE].schema_editor() as editor:
        for model in (one for one in apps.get_app_config("fencing").get_models() if not one._meta.proxy):
            editor.create_model(model)
    return FILE


@pytest.fixture
def file_store(sqlite_file: str, django_db_blocker: Any) -> Iterator[Store]:
    """A store in the SQLite database."""
    with django_db_blocker.unblock():
        yield database_store(sqlite_file)
        connections[sqlite_file].close()


DEFAULT = pytest.param("default", marks=pytest.mark.django_db(transaction=True))
MARIA = pytest.param("maria", marks=pytest.mark.django_db(databases=["default", "maria"], transaction=True))


@pytest.fixture(params=[DEFAULT, MARIA, FILE])
def kept(request: pytest.FixtureRequest) -> Store:
    """A store in each kind of database, with nothing installed."""
    found: Store = request.getfixturevalue("file_store") if request.param == FILE else database_store(request.param)
    return found


@pytest.fixture(
    params=[
        "memory",
        "valkey",
        "redis_server",
        DEFAULT,
        MARIA,
        FILE,
    ]
)
def store(request: pytest.FixtureRequest, settings: Any) -> Store:
    """Each store that keeps the contract, with a range of numbers from 1 to 1000."""
    if request.param == "memory":
        found = memory_store()
    elif request.param == FILE:
        found = request.getfixturevalue("file_store")
    elif request.param in ("default", "maria"):
        found = database_store(request.param)
    else:
        found = redis_store(settings, request.getfixturevalue(request.param).url())
    found.open()
    return found
