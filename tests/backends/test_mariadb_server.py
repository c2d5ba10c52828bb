"""The database backend when MariaDB restarts, or is gone: on a server of the test's own."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from fencing.backends.base import Lost
from fencing.models import StoredCounter, StoredEvent, StoredLease
from inventory_demo.server_support import wait_for
from tests.backends.stores import database_store
from tests.mariadb import MariaDB, lacking
from tests.services import missing

OWN = "own"


class Server:
    """A server that tests may kill and start again."""

    def __init__(self, folder: Path) -> None:
        self.mariadb = MariaDB(folder)
        self.started = 0

    def start(self) -> None:
        """Start it in another second than the last time: MariaDB tells its starts apart by whole seconds."""
        assert wait_for(lambda: int(time.time()) > self.started, seconds=10)
        self.mariadb.start()
        self.started = int(time.time())

    def kill(self) -> None:
        """Kill it as a crash would; the connections of this thread are gone with it."""
        connections[OWN].close()
        self.mariadb.kill()


@pytest.fixture
def server(django_db_blocker: Any) -> Iterator[Server]:
    """A running server under the alias "own", with the tables of the database backend."""
    if reason := lacking():
        missing(reason)
    folder = Path(tempfile.mkdtemp(prefix="fencing-maria-", dir="/tmp"))
    found = Server(folder)
    entry = {**found.mariadb.entry, "NAME": "mysql"}
    connections.settings[OWN] = connections.configure_settings({"default": {}, OWN: entry})[OWN]
    try:
        found.start()
        with django_db_blocker.unblock():
            with connections[OWN].schema_editor() as editor:
                for model in (StoredCounter, StoredLease, StoredEvent):
                    editor.create_model(model)
            yield found
    finally:
        found.kill()
        del connections[OWN], connections.settings[OWN]
        shutil.rmtree(folder)


@pytest.mark.slow
def test_a_restart_begins_a_new_reign(server: Server) -> None:
    """What the crash forgot would be issued twice."""
    store = database_store(OWN)
    old = store.open()
    assert store.grant("holder") == 1
    connections[OWN].close()
    assert store.grant("other", "stock:43") == 2, "another connection is no other server"
    server.kill()
    server.start()
    assert store.backend.advance(store.place(), "holder") == Lost()
    needed = store.needs_range()
    assert needed.reign != old
    assert needed.next == 3
