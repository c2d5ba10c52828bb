"""What ranges and leases need of MariaDB: its clock, its restarts, names byte by byte, statements that wait for nobody."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import OperationalError, connections, transaction
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext

from fencing import LeaseBackendError, lease, ranges
from fencing.backends import get_backend
from fencing.backends.base import Granted, Held, HolderInfo, Lost, NeedsRange, Place
from fencing.conf import MAX_TOKEN, BackendConfig
from fencing.databases import kind
from fencing.exceptions import InvalidTokenError, TokensExhaustedError
from fencing.history import collect
from fencing.models import StoredCounter, StoredEvent, StoredLease, TokenGrant, TokenRange
from fencing.revocation import revoke
from inventory_demo.server_support import wait_for
from tests.backends.stores import NOBODY, Store, database_store
from tests.backends.test_database import BACKEND, client
from tests.concurrency import BOUND, threads, wait_until

pytestmark = pytest.mark.django_db(databases=["default", "maria"], transaction=True)
in_a_testcase = pytest.mark.django_db(databases=["default", "maria"])


@pytest.fixture
def store() -> Store:
    """A store with the numbers from 1 to 1000."""
    found = database_store("maria")
    found.open()
    return found


@pytest.fixture
def config() -> BackendConfig:
    """A namespace of its own, whose numbers are in MariaDB."""
    return BackendConfig(
        alias="default", backend=BACKEND, database="maria", namespace=f"n-{secrets.token_hex(6)}", block=10
    )


def raw(sql: str, *params: Any) -> list[tuple[Any, ...]]:
    with connections["maria"].cursor() as cursor:
        cursor.execute(sql, params)
        return [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]


def waiting() -> int:
    """How many sessions of the test database wait for a row lock."""
    time.sleep(0.12)  # who looks more often sees what was there at the first look
    found = raw(
        "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist "
        "ON id = trx_mysql_thread_id WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()"
    )
    return int(found[0][0])


def place_in(config: BackendConfig) -> Place:
    return Place(space=ranges.namespace_of(config).space, partition=0, resource="stock:42")


# --- ranges


def test_i1_ranges_rise(config: BackendConfig) -> None:
    place = place_in(config)
    assert ranges.reserve(config, place, 10) == range(1, 11)
    assert ranges.reserve(config, place, 10) == range(11, 21)
    assert ranges.reserve(config, place, 10, issued=500) == range(501, 511)
    assert ranges.reserve(config, place, 10, seen=400) == range(511, 521)
    assert ranges.reserve(config, place, 10, seen=2**39) == range(2**39 + 1, 2**39 + 11)


def test_i1_clients_that_race_for_ranges(config: BackendConfig) -> None:
    place = place_in(config)
    with threads() as start:
        tries = [start(lambda: [ranges.reserve(config, place, 7) for _ in range(15)]) for _ in range(4)]
        reserved = [numbers for one in tries for numbers in one.result(BOUND)]
    issued = [number for numbers in reserved for number in numbers]
    assert sorted(issued) == list(range(1, 4 * 15 * 7 + 1))


def test_a_reservation_survives_the_rollback_of_its_caller(config: BackendConfig) -> None:
    place = place_in(config)
    with transaction.atomic(using="maria"):
        assert ranges.reserve(config, place, 10) == range(1, 11)
        transaction.set_rollback(True, using="maria")
    assert ranges.reserve(config, place, 10) == range(11, 21)


def test_the_end_of_the_numbers(config: BackendConfig) -> None:
    place = place_in(config)
    rows = TokenRange.objects.using("maria").filter(namespace=config.namespace)
    rows.update(ceiling=MAX_TOKEN - 3)
    assert [*ranges.reserve(config, place, 10)] == [MAX_TOKEN - 2]
    rows.update(ceiling=MAX_TOKEN)
    with pytest.raises(TokensExhaustedError):
        ranges.reserve(config, place, 10)


def test_l2_a_number_that_was_invented_raises_nothing(config: BackendConfig) -> None:
    place = place_in(config)
    ranges.reserve(config, place, 10)
    with pytest.raises(InvalidTokenError):
        ranges.reserve(config, place, 10, seen=2**40 + 11)
    assert TokenRange.objects.using("maria").get(namespace=config.namespace).ceiling == 10


def test_a_row_that_was_created_anew_is_noticed(config: BackendConfig) -> None:
    place = place_in(config)
    TokenRange.objects.using("maria").filter(namespace=config.namespace).update(space="another")
    with pytest.raises(ranges.MovedError):
        ranges.reserve(config, place, 10)
    TokenRange.objects.using("maria").filter(namespace=config.namespace).delete()
    assert ranges.reserve(config, place, 10) == range(1, 11)


def test_a_reign_is_logged_once(config: BackendConfig) -> None:
    place, needs = place_in(config), NeedsRange(reign="r", server="s", next=1)
    for _ in range(2):
        ranges.reserve(config, place, 10, reign=needs)
    assert raw("SELECT first_token FROM fencing_reign WHERE namespace = %s", config.namespace) == [(1,)]


def test_mysql_is_not_mariadb(config: BackendConfig, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["maria"], "mysql_is_mariadb", False)
    assert kind(connections["maria"]) == "mysql"
    with pytest.raises(LeaseBackendError, match="is mysql; numbers are kept in PostgreSQL, MariaDB or SQLite"):
        ranges.reserve(config, Place(space="s", partition=0), 10)
    with pytest.raises(LeaseBackendError, match="is mysql; leases are kept in PostgreSQL, MariaDB and SQLite"):
        store.backend.draw(store.place())


# --- names


@pytest.mark.parametrize("other", ["STOCK:a", "stock:A", "stock:a ", "stock:á", "stock:a\t"])
def test_names_compare_byte_by_byte(store: Store, other: str) -> None:
    """The test database has MariaDB's usual collation, which holds all of these for the same."""
    store.grant("first", "stock:a")
    assert store.grant("second", other) == 2
    assert store.backend.peek(store.place("stock:a")) != store.backend.peek(store.place(other))
    assert store.backend.release(store.place("stock:a"), "first", 1)
    assert isinstance(store.backend.acquire(store.place(other), "third", 30.0, NOBODY), Held)


def test_every_column_of_a_name_compares_byte_by_byte() -> None:
    tables = {model._meta.db_table for model in apps.get_app_config("fencing").get_models()}
    found = raw(
        "SELECT table_name, collation_name, COUNT(*) FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND table_name IN %s AND collation_name IS NOT NULL GROUP BY 1, 2",
        list(tables),
    )
    assert {row[1] for row in found} == {"utf8mb4_nopad_bin"}
    assert sorted(row[0] for row in found) == sorted(tables)
    assert kind(connections["maria"]) == "mariadb"


def test_names_hold_any_character(store: Store) -> None:
    store.grant("holder", "stock:\U0001f512\\'\"`%s--")
    live = store.backend.peek(store.place("stock:\U0001f512\\'\"`%s--"))
    assert live is not None and live.resource == "stock:\U0001f512\\'\"`%s--"


# --- one statement, the database's clock, its own commits


def test_each_operation_is_one_statement(store: Store) -> None:
    """A process that slept between two statements of a transaction would keep everybody else from the counter."""
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
        with CaptureQueriesContext(connections["maria"]) as captured:
            assert operation() is not None
        assert len(captured) == 1, name
    assert raw("SELECT @@in_transaction, @@time_zone, @@innodb_lock_wait_timeout") == [(0, "SYSTEM", 50)]


@pytest.fixture
def end_of_summer() -> Iterator[str]:
    """A time zone that put its clocks back ten minutes ago: the same local times come a second time."""
    name, now = f"Test/{secrets.token_hex(4)}", int(time.time())
    raw("INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
    (number,) = raw("SELECT LAST_INSERT_ID()")[0]
    raw("INSERT INTO mysql.time_zone_name VALUES (%s, %s)", name, number)
    raw(
        "INSERT INTO mysql.time_zone_transition_type VALUES (%s, 0, 7200, 1, 'S'), (%s, 1, 3600, 0, 'W')", *[number] * 2
    )
    summer, winter = (number, now - 864_000, 0), (number, now - 600, 1)
    raw("INSERT INTO mysql.time_zone_transition VALUES %s, %s", summer, winter)
    yield name
    raw("SET time_zone = 'SYSTEM'")
    for table in ("time_zone_transition", "time_zone_transition_type", "time_zone_name", "time_zone"):
        raw(f"DELETE FROM mysql.{table} WHERE Time_zone_id = %s", number)  # noqa: S608


def test_clocks_that_are_put_back_change_nothing(store: Store, end_of_summer: str) -> None:
    """Leases would live an hour longer than their holders believe, and be granted while others hold them."""
    store.grant("holder", ttl=30.0)
    raw("SET time_zone = %s", end_of_summer)
    found = store.backend.peek(store.place())
    assert found is not None and 20 < found.remaining <= 30
    store.grant("other", "stock:43")
    found = store.backend.peek(store.place("stock:43"))
    assert found is not None and abs(found.granted_at.timestamp() - time.time()) < 30


@in_a_testcase
def test_time_passes_inside_a_transaction(store: Store) -> None:
    store.grant("holder", ttl=0.2)
    store.expire(ttl=0.2)
    assert store.grant("next", ttl=30.0) == 2
    lease_now = store.backend.peek(store.place())
    assert lease_now is not None and 20 < lease_now.remaining <= 30


@pytest.mark.slow
def test_a_renewal_that_waited_past_the_end_is_refused(store: Store) -> None:
    """NOW() would be the moment before it waited."""
    store.grant("sleeper", ttl=3.0)
    with threads() as start:
        with transaction.atomic(using="maria"):
            raw("SELECT 1 FROM fencing_storedlease WHERE space = %s FOR UPDATE", store.space)
            late = start(store.backend.renew, store.place(), "sleeper", 30.0)
            wait_until(lambda: waiting() == 1, "the renewal waits")
            assert store.backend.peek(store.place()) is not None, "it must begin to wait before the end"
            store.expire(ttl=3.0)
        assert not late.result(BOUND)


def test_what_is_granted_in_a_transaction_outlives_its_rollback(store: Store) -> None:
    with transaction.atomic(using="maria"):
        token = store.grant("holder")
        transaction.set_rollback(True, using="maria")
    found = store.backend.peek(store.place())
    assert found is not None and found.token == token
    assert store.grant("other", "stock:43") == token + 1


# --- races


def test_two_that_find_the_lease_free_get_it_once(store: Store) -> None:
    with threads() as start:
        with transaction.atomic(using="maria"):
            raw("SELECT 1 FROM fencing_storedcounter WHERE space = %s FOR UPDATE", store.space)
            tries = [start(store.backend.acquire, store.place(), f"h{n}", 30.0, HolderInfo()) for n in range(3)]
            wait_until(lambda: waiting() == 3, "all three wait for the counter")
        answers = [one.result(BOUND) for one in tries]
    assert sorted(type(one).__name__ for one in answers) == ["Granted", "Held", "Held"]
    (granted,) = (one for one in answers if isinstance(one, Granted))
    assert {one.token for one in answers if isinstance(one, Held)} == {granted.token}
    assert StoredEvent.objects.using("maria").filter(space=store.space).count() == 1


def test_an_advance_that_waited_is_lost_when_the_lease_was_revoked_meanwhile(store: Store) -> None:
    token = store.grant("sleeper")
    with threads() as start:
        with transaction.atomic(using="maria"):
            raw("SELECT 1 FROM fencing_storedcounter WHERE space = %s FOR UPDATE", store.space)
            late = start(store.backend.advance, store.place(), "sleeper")
            wait_until(lambda: waiting() == 1, "the advance waits for the counter")
            assert start(store.backend.revoke, store.place(), token).result(BOUND)
        assert late.result(BOUND) == Lost()


def test_nobody_waits_for_ever(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from fencing.backends import database_mariadb as module

    monkeypatch.setattr(module, "STATEMENT", module.STATEMENT.replace("timeout = 5", "timeout = 1"))
    with threads() as start, transaction.atomic(using="maria"):
        raw("SELECT 1 FROM fencing_storedcounter WHERE space = %s FOR UPDATE", store.space)
        with pytest.raises(LeaseBackendError, match="1205"):
            start(store.grant, "holder").result(BOUND)


def test_many_resources_at_once(store: Store) -> None:
    """Deadlocks between new rows are tried again."""

    def take(level: str) -> list[int]:
        raw(f"SET SESSION tx_isolation = '{level}'")
        return [store.grant(secrets.token_hex(8), secrets.token_hex(8)) for _ in range(25)]

    levels = ("REPEATABLE-READ", "READ-COMMITTED", "SERIALIZABLE")
    with threads() as start:
        issued = [token for one in [start(take, level) for level in levels] for token in one.result(BOUND)]
    assert sorted(issued) == list(range(1, 76))


@pytest.mark.slow
def test_a_process_that_is_stopped_anywhere_keeps_nobody_from_the_counter(store: Store, tmp_path: Path) -> None:
    told, namespace = tmp_path / "tokens", f"n-{secrets.token_hex(6)}"
    with client("maria", told, 100_000, namespace) as busy:
        assert wait_for(told.exists, seconds=20)
        counter = StoredCounter.objects.using("maria").exclude(space=store.space).get()
        busy_store = Store(store.backend, space=counter.space)
        for _ in range(20):
            os.kill(busy.pid, signal.SIGSTOP)
            began = time.monotonic()
            answer = store.backend.acquire(busy_store.place(secrets.token_hex(8)), "other", 30.0, NOBODY)
            assert isinstance(answer, (Granted, NeedsRange)) and time.monotonic() - began < 4
            noted = told.stat().st_size
            os.kill(busy.pid, signal.SIGCONT)
            wait_until(lambda: told.stat().st_size > noted, "it goes on")  # noqa: B023


# --- under lease()


@pytest.fixture
def default_in_maria(settings: Any) -> None:
    """The default alias keeps leases, ranges and grants in MariaDB."""
    entry = {"BACKEND": BACKEND, "NAMESPACE": f"n-{secrets.token_hex(6)}", "DATABASE": "maria"}
    settings.FENCING = {"BACKENDS": {"default": entry}}


def test_grants_are_collected(default_in_maria: None) -> None:
    with lease("stock:42") as first:
        pass
    with lease("stock:42") as second:
        collect()
        backend = get_backend()
        backend.revoke(second._place, second.token)
    with lease("stock:42") as third:
        collect()
        collect()
    rows = TokenGrant.objects.using("maria").filter(namespace=first.namespace).order_by("token")
    # A release that finds the lease revoked tells of a loss, which is none.
    assert [(one.token, one.ended) for one in rows] == [
        (first.token, "released"),
        (second.token, "revoked"),
        (third.token, ""),
    ]
    assert all(one.granted_at is not None for one in rows)


def test_several_collectors_at_a_time(default_in_maria: None) -> None:
    for number in range(40):
        with lease(f"stock:{number % 3}") as held:
            pass
    with threads() as start:
        collected = sum(one.result(BOUND) for one in [start(collect) for _ in range(4)])
    assert collected >= 80
    rows = TokenGrant.objects.using("maria").filter(namespace=held.namespace)
    assert rows.count() == 40 and set(rows.values_list("ended", flat=True)) == {"released"}


def test_the_heartbeat_renews(default_in_maria: None) -> None:
    with lease("stock:42", ttl=2.0) as held:

        def renewed() -> bool:
            row = StoredLease.objects.using("maria").get(resource="stock:42")
            return row.deadline_ms - row.granted_ms > 4000

        wait_until(renewed, "it lives twice as long as its ttl")
        assert held.is_held()


def test_a_revocation_raises_the_resources_row(default_in_maria: None) -> None:
    with lease("stock:42") as held:
        done = revoke("stock:42", "it hangs", databases=["maria"])
    assert done.removed and done.token > held.token
    assert raw("SELECT last_token, holder, begins FROM fencing_resource WHERE name = 'stock:42'") == [
        (done.token, "revoked", 0)
    ]


def test_a_revocation_waits_for_statements_in_flight_but_not_for_ever(
    default_in_maria: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencing.revocation.LOCK_BOUND", 0.5)
    revoke("stock:42", "first", databases=["maria"])
    with threads() as start, transaction.atomic(using="maria"):
        raw("SELECT 1 FROM fencing_resource WHERE name = 'stock:42' FOR UPDATE")
        with pytest.raises(LeaseBackendError, match="1205"):
            start(lambda: revoke("stock:42", "second", databases=["maria"])).result(BOUND)


@override_settings(
    FENCING={"BACKENDS": {"default": {"BACKEND": BACKEND, "NAMESPACE": "testcase", "DATABASE": "maria"}}}
)
class InTestCase(TestCase):
    """Twice, because what the first test took must be free again for the second."""

    databases = {"default", "maria"}

    def take(self) -> None:
        assert not StoredLease.objects.using("maria").exists()
        with lease("stock:42") as held:
            assert held.advance() == held.token + 1
        with transaction.atomic(using="maria"), lease("left", allow_in_transaction=True) as held:
            held.renew()
        assert raw("SELECT @@in_transaction") == [(1,)], "a compound statement has not committed the test's transaction"

    def test_once(self) -> None:
        self.take()

    def test_again(self) -> None:
        self.take()


def test_a_connection_that_broke_is_replaced(store: Store) -> None:
    """The heartbeat has no request after which Django would do so."""
    store.grant("holder")
    (number,) = raw("SELECT CONNECTION_ID()")[0]
    with threads() as start:
        start(raw, f"KILL {number}").result(BOUND)
    with pytest.raises(LeaseBackendError):
        store.backend.renew(store.place(), "holder", 30.0)
    assert store.backend.renew(store.place(), "holder", 30.0)
    with pytest.raises(OperationalError):
        raw("SELECT no_such_column")
