"""What only the database backend has to hold: the database's clock, its commits, its crashes, and sleepers in it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext

from fencing import LeaseBackendError, LeaseHeldError, StaleWriteError, lease
from fencing.backends.base import Granted, Held, HolderInfo, Lost, NeedsRange
from fencing.backends.database import DatabaseBackend
from fencing.backends.database_postgresql import PostgreSQL
from fencing.history import collect
from fencing.models import StoredCounter, StoredEvent, StoredLease, TokenGrant
from inventory_demo.models import Stock
from inventory_demo.server_support import wait_for
from tests.backends.stores import NOBODY, Store, config, database_store
from tests.concurrency import BOUND, threads, wait_until, wait_until_expired, waiting_for_locks

committed = pytest.mark.django_db(transaction=True)
on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="a matter of PostgreSQL")

BACKEND = "fencing.backends.database.DatabaseBackend"

CLIENT = """
import json, sys
from django.conf import settings
from tests.mariadb import use_driver
use_driver()
settings.configure(**json.loads(sys.argv[1]), INSTALLED_APPS=["fencing"], USE_TZ=True)
import django
django.setup()
from fencing import lease
rounds, path = int(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
for number in range(rounds):
    with lease("hot", ttl=20, wait=60) as held, open(path, "a") as told:
        told.write(f"{held.token}\\n")
"""


def raw(store: Store, sql: str, *params: Any) -> None:
    with connections[store.backend.config.database].cursor() as cursor:
        cursor.execute(sql, params)


def other_sessions() -> int:
    """How many connections the database has besides this thread's."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


def use_database_backend(settings: Any) -> None:
    """The default alias in the default database, in a namespace that no other test uses."""
    entry = {"BACKEND": BACKEND, "NAMESPACE": f"n-{secrets.token_hex(6)}"}
    settings.FENCING = {"BACKENDS": {"default": entry}}


@contextmanager
def client(alias: str, path: Path, rounds: int, namespace: str) -> Iterator[subprocess.Popen[str]]:
    """A process that takes the lease of "hot" so many times, and notes the tokens in ``path``."""
    names = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    database = {name: connections[alias].settings_dict[name] for name in names}
    given = {
        "DATABASES": {"default": database},
        "FENCING": {"BACKENDS": {"default": {"BACKEND": BACKEND, "NAMESPACE": namespace, "BLOCK": 10}}},
    }
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, json.dumps(given, default=str), str(rounds), str(path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


# --- one statement, the database's clock, its own commits


@committed
@on_postgresql
def test_each_operation_is_one_statement() -> None:
    """A process that slept between two statements of a transaction would keep everybody else from the counter."""
    store = database_store("default")
    store.open()
    place, backend = store.place(), store.backend
    operations: dict[str, Callable[[], object]] = {
        "acquire": lambda: backend.acquire(place, "holder", 30.0, NOBODY),
        "held": lambda: backend.acquire(place, "other", 30.0, NOBODY),
        "renew": lambda: backend.renew(place, "holder", 30.0),
        "advance": lambda: backend.advance(place, "holder"),
        "draw": lambda: backend.draw(place),
        "release": lambda: backend.release(place, "holder", 1),
        "lost": lambda: backend.release(place, "holder", 1),
        "revoke": lambda: backend.revoke(place, 1),
    }
    for name, operation in operations.items():
        with CaptureQueriesContext(connection) as captured:
            assert operation() is not None
        assert len(captured) == 1, name


@pytest.mark.django_db
def test_time_passes_inside_a_transaction() -> None:
    """``now()`` stands still there: a lease would neither end, nor be granted for as long as asked."""
    store = database_store("default")
    store.open()
    store.grant("holder", ttl=0.2)
    store.expire()
    assert store.grant("next", ttl=30.0) == 2
    lease_now = store.backend.peek(store.place())
    assert lease_now is not None and 20 < lease_now.remaining <= 30


@committed
def test_what_is_granted_in_a_transaction_outlives_its_rollback() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("in memory, another connection would wait for the writer")
    store = database_store("default")
    store.open()
    with transaction.atomic():
        Stock.objects.create(sku="rolled back", quantity=1)
        token = store.grant("holder")
        transaction.set_rollback(True)
    found = store.backend.peek(store.place())
    assert found is not None and found.token == token
    assert store.grant("other", "stock:43") == token + 1
    assert not Stock.objects.exists()


@pytest.mark.django_db
@on_postgresql
def test_numbers_wait_for_the_disk() -> None:
    """What a crash forgets would be issued twice."""
    store = database_store("default")
    store.open()
    issues: list[Callable[[], object]] = [
        lambda: store.grant("holder"),
        lambda: store.backend.advance(store.place(), "holder"),
        lambda: store.backend.draw(store.place()),
    ]
    for issue in issues:
        raw(store, "SET LOCAL synchronous_commit = off")
        issue()
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == ("on",)


# --- reigns


def test_another_server_begins_a_new_reign(kept: Store) -> None:
    """A promoted replica, or a backup that is served: its counter may be behind."""
    old = kept.open()
    kept.grant("sleeper")
    raw(kept, "UPDATE fencing_storedcounter SET server = 'another'")
    assert not kept.backend.install(kept.place(), old, 5000, 6000)
    assert kept.backend.advance(kept.place(), "sleeper") == Lost()
    needed = kept.needs_range()
    assert needed.reign != old
    assert needed.next == 2, "what the counter says is still a lower bound"
    kept.open(first=10_001, last=20_000)
    assert kept.backend.advance(kept.place(), "sleeper") == Lost()
    assert isinstance(kept.backend.acquire(kept.place(), "other", 30.0, NOBODY), Held)
    assert kept.grant("other", "stock:43") == 10_001


def test_rows_that_vanished_begin_a_new_reign(kept: Store) -> None:
    old = kept.open()
    kept.grant("sleeper")
    raw(kept, "DELETE FROM fencing_storedcounter")
    assert kept.backend.advance(kept.place(), "sleeper") == Lost()
    assert kept.needs_range().reign != old
    assert not kept.backend.install(kept.place(), old, 5000, 6000)


def test_leases_that_ended_by_themselves_are_removed_with_the_next_range(kept: Store) -> None:
    reign = kept.open()
    for number in range(5):
        kept.grant("sleeper", f"stock:{number}", ttl=0.05)
    kept.grant("holder", "held")
    kept.expire("stock:4")
    assert kept.backend.install(kept.place(), reign, 2000, 3000)
    rows = StoredLease.objects.using(kept.backend.config.database).filter(space=kept.space)
    assert [row.resource for row in rows] == ["held"]


# --- races


@committed
@on_postgresql
def test_two_that_find_the_lease_free_get_it_once() -> None:
    store = database_store("default")
    store.open()
    with threads() as start:
        with transaction.atomic():
            raw(store, "UPDATE fencing_storedcounter SET next = next")
            tries = [start(store.backend.acquire, store.place(), f"h{n}", 30.0, HolderInfo()) for n in range(3)]
            wait_until(lambda: waiting_for_locks() == 3, "all three wait for the counter")
        answers = [one.result(BOUND) for one in tries]
    assert sorted(type(one).__name__ for one in answers) == ["Granted", "Held", "Held"]
    (granted,) = (one for one in answers if isinstance(one, Granted))
    assert {one.token for one in answers if isinstance(one, Held)} == {granted.token}
    assert StoredEvent.objects.filter(space=store.space).count() == 1


@committed
@on_postgresql
def test_an_advance_that_waited_is_lost_when_the_lease_was_revoked_meanwhile() -> None:
    store = database_store("default")
    store.open()
    token = store.grant("sleeper")
    with threads() as start:
        with transaction.atomic():
            raw(store, "UPDATE fencing_storedcounter SET next = next")
            late = start(store.backend.advance, store.place(), "sleeper")
            wait_until(lambda: waiting_for_locks() == 1, "the advance waits for the counter")
            assert start(store.backend.revoke, store.place(), token).result(BOUND)
        assert late.result(BOUND) == Lost()


@committed
@on_postgresql
def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgreSQL, "bound", PostgreSQL.bound.replace("5s", "200ms"))
    store = database_store("default")
    store.open()
    with threads() as start, transaction.atomic():
        raw(store, "UPDATE fencing_storedcounter SET next = next")
        with pytest.raises(LeaseBackendError, match="lock timeout"):
            start(store.grant, "holder").result(BOUND)


@committed
@on_postgresql
def test_serialization_failures_are_tried_again() -> None:
    store = database_store("default")
    store.open()

    def take() -> list[int]:
        raw(store, "SET default_transaction_isolation = 'serializable'")
        return [store.grant(secrets.token_hex(8), secrets.token_hex(8)) for _ in range(20)]

    with threads() as start:
        issued = [token for one in [start(take) for _ in range(3)] for token in one.result(BOUND)]
    assert len(set(issued)) == 60


@pytest.mark.slow
def test_processes_that_contend_are_granted_in_the_order_of_their_tokens(kept: Store, tmp_path: Path) -> None:
    path, namespace = tmp_path / "tokens", f"n-{secrets.token_hex(6)}"
    alias = kept.backend.config.database
    with ExitStack() as stack:
        clients = [stack.enter_context(client(alias, path, 15, namespace)) for _ in range(3)]
        assert [one.wait(timeout=60) for one in clients] == [0, 0, 0]
    tokens = [int(line) for line in path.read_text().split()]
    assert len(tokens) == 45
    assert tokens == sorted(set(tokens))


@pytest.mark.slow
@committed
@on_postgresql
def test_a_process_that_is_stopped_anywhere_keeps_nobody_from_the_counter(tmp_path: Path) -> None:
    store = database_store("default")
    namespace = f"n-{secrets.token_hex(6)}"
    with client("default", tmp_path / "tokens", 100_000, namespace) as busy:
        assert wait_for(lambda: (tmp_path / "tokens").exists(), seconds=20)
        for _ in range(20):
            os.kill(busy.pid, signal.SIGSTOP)
            counter = StoredCounter.objects.exclude(space=store.space).get()
            store.space = counter.space
            began = time.monotonic()
            answer = store.backend.acquire(store.place(secrets.token_hex(8)), "other", 30.0, NOBODY)
            assert isinstance(answer, (Granted, NeedsRange)) and time.monotonic() - began < 4
            store.space = ""
            noted = (tmp_path / "tokens").stat().st_size
            os.kill(busy.pid, signal.SIGCONT)
            wait_until(lambda: (tmp_path / "tokens").stat().st_size > noted, "it goes on")  # noqa: B023


# --- when it does not work


def test_a_database_that_cannot_be_used_is_a_typed_error(django_db_blocker: Any, tmp_path: Path) -> None:
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "missing" / "x.sqlite3")}
    connections.settings["gone"] = connections.configure_settings({"default": {}, "gone": entry})["gone"]
    store = database_store("gone")
    place, backend = store.place(), store.backend
    with django_db_blocker.unblock():
        for call in (
            lambda: backend.acquire(place, "h", 1.0, NOBODY),
            lambda: backend.renew(place, "h", 1.0),
            lambda: backend.advance(place, "h"),
            lambda: backend.release(place, "h", 1),
            lambda: backend.revoke(place, 1),
            lambda: backend.draw(place),
            lambda: backend.install(place, "r", 1, 2),
            lambda: backend.close_reign(place),
            lambda: backend.peek(place),
            lambda: backend.give_up(place, "h"),
            lambda: list(backend.live(store.space, 0, 5)),
            lambda: backend.read_events(store.space, 0, 5),
            lambda: backend.forget_events(store.space, 0, ["1"]),
            lambda: backend.dropped_events(store.space, 0),
        ):
            with pytest.raises(LeaseBackendError, match="'gone'"):
                call()


def test_a_commit_that_sqlite_refuses_leaves_no_transaction_open(file_store: Store) -> None:
    """It waits for those who read, and gives up; nobody could write any more."""
    file_store.open()
    connection = connections[file_store.backend.config.database]
    connection.close_at = None
    raw(file_store, "PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM sqlite_master").fetchall()
        with pytest.raises(LeaseBackendError, match="locked"):
            file_store.grant("holder")
        other.execute("COMMIT")
        assert file_store.grant("holder") == 1
        other.execute("CREATE TABLE mine (a)")
        other.execute("DROP TABLE mine")


@committed
@on_postgresql
def test_a_connection_that_broke_is_replaced() -> None:
    """The heartbeat has no request after which Django would do so."""
    store = database_store("default")
    store.open()
    store.grant("holder")
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    with threads() as start:
        start(raw, store, "SELECT pg_terminate_backend(%s)", pid).result(BOUND)
    with pytest.raises(LeaseBackendError):
        store.backend.renew(store.place(), "holder", 30.0)
    assert store.backend.renew(store.place(), "holder", 30.0)


@pytest.mark.django_db
def test_other_databases_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = DatabaseBackend(config(BACKEND))
    assert backend.check() == []
    assert DatabaseBackend(config(BACKEND, database="unknown")).check() == [], "that is E004's"
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    (found,) = backend.check()
    assert found.id == "fencing.E023" and "oracle" in found.msg and found.hint
    with pytest.raises(LeaseBackendError, match="oracle"):
        backend.draw(Store(backend).place())


# --- under lease()


@committed
def test_the_heartbeat_renews_and_keeps_no_connection(settings: Any) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("a connection to memory is never closed")
    use_database_backend(settings)
    with lease("stock:42", ttl=2.0) as held:

        def renewed() -> bool:
            row = StoredLease.objects.get(resource="stock:42")
            return row.deadline_ms - row.granted_ms > 4000

        wait_until(renewed, "it lives twice as long as its ttl")
        assert held.is_held()
        wait_until(lambda: other_sessions() == 0, "the heartbeat's connection is closed")


@committed
def test_leases_writes_and_history(settings: Any) -> None:
    use_database_backend(settings)
    stock = Stock.objects.create(sku="42", quantity=10)
    with lease(stock, ttl=30) as held:
        with pytest.raises(LeaseHeldError), threads() as start:
            start(lambda: lease(stock).__enter__()).result(BOUND)
        stock.quantity = 9
        stock.save()
        stock.quantity = 8
        stock.save()
        assert held.newest_token > held.token
    with lease(stock) as again:
        assert again.token > held.newest_token
    collect()
    grants = TokenGrant.objects.filter(namespace=held.namespace).order_by("token")
    assert [(one.token, one.ended) for one in grants] == [(held.token, "released"), (again.token, "released")]


@committed
@on_postgresql
def test_a_second_save_in_a_fenced_transaction_takes_the_next_number(settings: Any) -> None:
    use_database_backend(settings)
    stock = Stock.objects.create(sku="42", quantity=10)
    with lease(stock, ttl=30) as held, held.atomic():
        for quantity in (9, 8, 7):
            stock.quantity = quantity
            stock.save()
    stock.refresh_from_db()
    assert (stock.quantity, stock.last_token) == (7, held.newest_token)


@committed
def test_a_sleeper_is_refused(settings: Any) -> None:
    use_database_backend(settings)
    stock = Stock.objects.create(sku="42", quantity=10)

    def overtake() -> None:
        with lease("stock:42", wait=5):
            Stock.objects.filter(pk=stock.pk).update(quantity=5)

    with lease(stock, ttl=0.2, renew=False):
        wait_until_expired("stock:42")
        with threads() as start:
            start(overtake).result(BOUND)
        stock.quantity = 9
        with pytest.raises(StaleWriteError):
            stock.save()
    stock.refresh_from_db()
    assert stock.quantity == 5


@override_settings(FENCING={"BACKENDS": {"default": {"BACKEND": BACKEND, "NAMESPACE": "testcase"}}})
class InTestCase(TestCase):
    """Twice, because what the first test took must be free again for the second."""

    def take(self) -> None:
        assert not StoredLease.objects.exists()
        stock = Stock.objects.create(sku="42", quantity=10)
        with lease(stock) as held:
            stock.quantity = 1
            stock.save()
            with held.atomic():
                stock.quantity = 2
                stock.save()
        assert not StoredLease.objects.exists()
        # Left in the store to the end of the test, by somebody else than this context.
        copy_context().run(lease("left").__enter__)

    def test_once(self) -> None:
        self.take()

    def test_again(self) -> None:
        self.take()
