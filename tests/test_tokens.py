"""I1: tokens rise, whatever the store forgets. On the real database, with a Valkey of our own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import F

from fencing import ranges, tokens
from fencing.backends import LeaseBackend, get_backend
from fencing.backends.base import Granted, Held, HolderInfo, Lost, NeedsRange, Place
from fencing.conf import MAX_TOKEN
from fencing.exceptions import InvalidTokenError, LeaseBackendError, TokensExhaustedError
from fencing.models import Reign, TokenRange
from tests.concurrency import BOUND, threads, wait_until, waiting_for_locks
from tests.services import PrivateValkey

NOBODY = HolderInfo()


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    """A store that tests may flush, but not stop."""
    with PrivateValkey() as server:
        yield server


def configure(settings: Any, url: str, **values: Any) -> LeaseBackend:
    """The default alias on the server at ``url``, in a namespace that no other test uses."""
    settings.CACHES = {**settings.CACHES, "own": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}
    entry = {
        "BACKEND": "fencing.backends.redis.RedisBackend",
        "CACHE": "own",
        "NAMESPACE": f"n-{secrets.token_hex(6)}",
        "BLOCK": 10,
        **values,
    }
    settings.FENCING = {"BACKENDS": {"default": entry}}
    return get_backend()


@pytest.fixture
def backend(valkey: PrivateValkey, settings: Any) -> LeaseBackend:
    """A Redis backend whose ranges are ten numbers."""
    return configure(settings, valkey.url())


def grant(backend: LeaseBackend, resource: str = "stock:42", holder: str = "") -> int:
    """Acquire with a fresh holder, and return the token."""
    place, answer = tokens.acquire(backend, resource, holder or secrets.token_hex(8), 30.0, NOBODY)
    assert place.resource == resource
    assert isinstance(answer, Granted), answer
    return answer.token


def fresh() -> str:
    return f"stock:{secrets.token_hex(6)}"


def row_of(backend: LeaseBackend) -> TokenRange:
    return TokenRange.objects.get(namespace=backend.config.namespace)


def raw(backend: LeaseBackend) -> Any:
    return backend._client.redis  # type: ignore[attr-defined]


def counter(place: Place) -> str:
    return f"fencing:{{{place.space}:{place.partition}}}:counter"


# --- numbers


@pytest.mark.parametrize("value", [True, False, 0, -1, 2**53, 1.0, "1", None, b"1"])
def test_what_is_no_token_is_refused(value: Any) -> None:
    with pytest.raises(InvalidTokenError):
        tokens.check_token(value)


@pytest.mark.parametrize("value", [1, 2**53 - 1])
def test_tokens_are_integers_up_to_what_lua_counts(value: int) -> None:
    assert tokens.check_token(value) == value


@pytest.mark.django_db
def test_i1_tokens_rise_over_many_ranges(backend: LeaseBackend) -> None:
    issued = [grant(backend, fresh()) for _ in range(45)]
    assert issued == list(range(1, 46))
    assert row_of(backend).ceiling == 50


@pytest.mark.django_db
def test_no_database_work_inside_a_range(backend: LeaseBackend, django_assert_num_queries: Any) -> None:
    grant(backend, fresh())
    with django_assert_num_queries(0):
        for _ in range(9):
            grant(backend, fresh())


@pytest.mark.django_db
def test_i1_everything_that_a_store_forgets(backend: LeaseBackend) -> None:
    """C08: cache.clear(), FLUSHALL, an evicted or deleted counter."""
    highest = [grant(backend, fresh()) for _ in range(13)][-1]
    place = tokens.place_of(backend, "stock:42")
    store = raw(backend)
    forgetting: list[Callable[[], Any]] = [
        lambda: store.flushall(),
        lambda: store.flushdb(),
        lambda: store.delete(counter(place)),
        lambda: store.hdel(counter(place), "next", "ceiling"),
        lambda: store.hset(counter(place), mapping={"replid": "0" * 40, "next": 1, "ceiling": 100}),
    ]
    for forget in forgetting:
        forget()
        token = grant(backend, fresh())
        assert token > highest
        highest = grant(backend, fresh())
        assert highest > token


@pytest.mark.django_db
def test_i1_an_empty_restart(valkey_server: Callable[..., PrivateValkey], settings: Any) -> None:
    server = valkey_server()
    backend = configure(settings, server.url())
    before = grant(backend)
    server.kill()
    with pytest.raises(LeaseBackendError):
        grant(backend, fresh())
    server.start()
    assert grant(backend) > before
    reigns = Reign.objects.filter(namespace=backend.config.namespace).order_by("first_token")
    assert [one.first_token for one in reigns] == [1, 11]
    assert len({one.server for one in reigns}) == 2


@pytest.mark.django_db
def test_i1_an_old_dump_does_not_count_on(valkey_server: Callable[..., PrivateValkey], settings: Any) -> None:
    """A server restarted from its last dump has forgotten the newest grants."""
    server = valkey_server(dbfilename="old.rdb")
    backend = configure(settings, server.url())
    grant(backend, fresh())
    raw(backend).save()
    newest = [grant(backend, fresh()) for _ in range(5)][-1]
    server.kill()
    server.start()
    assert raw(backend).exists(counter(tokens.place_of(backend, "x")))
    assert grant(backend, fresh()) > newest


@pytest.mark.django_db
def test_i1_the_database_was_set_back(backend: LeaseBackend) -> None:
    """S11: what the store has issued is a lower bound as well."""
    place, _ = tokens.acquire(backend, fresh(), "holder", 30.0, NOBODY)
    tokens.raise_above(backend, place, 5000)
    highest = grant(backend, fresh())
    TokenRange.objects.filter(namespace=backend.config.namespace).update(ceiling=5)
    for _ in range(25):
        token = grant(backend, fresh())
        assert token > highest
        highest = token
    assert row_of(backend).ceiling >= highest


@pytest.mark.django_db
def test_a_reign_is_logged_once(backend: LeaseBackend) -> None:
    for _ in range(25):
        grant(backend, fresh())
    logged = Reign.objects.get(namespace=backend.config.namespace)
    assert (logged.first_token, logged.partition) == (1, 0)
    assert logged.server == raw(backend).info("replication")["master_replid"]


@pytest.mark.django_db
def test_s3_the_first_acquire_sent_again_after_a_flush(backend: LeaseBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda size: b"\7" * size)
    place = tokens.place_of(backend, "stock:42")
    first = backend.acquire(place, "a", 30.0, NOBODY)
    assert isinstance(first, NeedsRange)
    slow = ranges.reserve(backend.config, place, 10)
    newest = grant(backend, fresh())
    assert newest > slow[-1]
    raw(backend).flushall()
    again = backend.acquire(place, "a", 30.0, NOBODY)
    assert isinstance(again, NeedsRange)
    assert not backend.install(place, first.reign, slow[0], slow[-1])
    assert grant(backend) > newest


@pytest.mark.django_db
def test_s2_a_lease_of_another_reign_is_lost_for_advance(backend: LeaseBackend) -> None:
    place, answer = tokens.acquire(backend, "stock:42", "sleeper", 30.0, NOBODY)
    assert isinstance(answer, Granted)
    raw(backend).hset(counter(place), "replid", "ab" * 20)
    grant(backend, fresh())
    assert tokens.advance(backend, place, "sleeper") == Lost()


@pytest.mark.django_db
def test_advancing_reserves_ranges_too(backend: LeaseBackend) -> None:
    place, answer = tokens.acquire(backend, "stock:42", "holder", 30.0, NOBODY)
    assert isinstance(answer, Granted)
    issued = [tokens.advance(backend, place, "holder") for _ in range(25)]
    assert [one.token for one in issued if isinstance(one, Granted)] == list(range(2, 27))
    assert tokens.advance(backend, place, "other") == Lost()


@pytest.mark.django_db
def test_a_held_lease_is_told(backend: LeaseBackend) -> None:
    token = grant(backend, holder="first")
    _, answer = tokens.acquire(backend, "stock:42", "second", 30.0, NOBODY)
    assert isinstance(answer, Held)
    assert (answer.holder, answer.token) == ("first", token)


# --- races


@pytest.mark.django_db(transaction=True)
def test_i1_clients_that_race_for_ranges(valkey: PrivateValkey, settings: Any) -> None:
    """Ranges of two numbers, several clients, and a flush in the middle: never a number twice."""
    backend = configure(settings, valkey.url(), BLOCK=2)
    issued: list[list[int]] = [[] for _ in range(4)]
    together = threading.Barrier(4)

    def client(mine: list[int]) -> None:
        try:
            together.wait(timeout=20)
            for number in range(40):
                mine.append(grant(backend, fresh()))
                if number == 20:
                    raw(backend).flushall()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=client, args=(mine,)) for mine in issued]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    everything = [token for mine in issued for token in mine]
    assert len(everything) == 160
    assert len(set(everything)) == 160
    assert all(mine == sorted(mine) for mine in issued)
    assert max(everything) <= row_of(backend).ceiling


@pytest.mark.django_db(transaction=True)
def test_a_reservation_survives_the_rollback_of_its_caller(backend: LeaseBackend) -> None:
    with transaction.atomic():
        TokenRange.objects.create(namespace="mine", space="", partitions=1, ceiling=0)
        token = grant(backend)
        transaction.set_rollback(True)
    assert row_of(backend).ceiling == 10
    assert not TokenRange.objects.filter(namespace="mine").exists()
    raw(backend).flushall()
    assert grant(backend) > token


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="a matter of PostgreSQL")
def test_a_reservation_that_collides_is_tried_again(backend: LeaseBackend) -> None:
    """Where the project works under REPEATABLE READ or stricter, the slower of two clients is refused."""
    grant(backend)

    def reserve() -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_isolation = 'repeatable read'")
        place = tokens.place_of(backend, "stock:42")
        return list(ranges.reserve(backend.config, place, 1))

    with threads() as start:
        with transaction.atomic():
            TokenRange.objects.filter(namespace=backend.config.namespace).update(ceiling=F("ceiling") + 5)
            slower = start(reserve)
            wait_until(waiting_for_locks, "the reservation waits")
        assert slower.result(BOUND) == [16]


@pytest.mark.django_db
def test_a_reservation_waits_for_the_disk(backend: LeaseBackend) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL can be told not to wait")
    with connection.cursor() as cursor:
        for given, used in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
            cursor.execute(f"SET LOCAL synchronous_commit = {given}")
            raw(backend).flushall()
            grant(backend)
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == (used,)


# --- the namespace's row


@pytest.mark.django_db
def test_another_number_of_partitions_is_refused(backend: LeaseBackend, valkey: PrivateValkey, settings: Any) -> None:
    grant(backend)
    other = configure(settings, valkey.url(), NAMESPACE=backend.config.namespace, PARTITIONS=4)
    with pytest.raises(LeaseBackendError, match=r"PARTITIONS is 4.* has 1"):
        grant(other)


@pytest.mark.django_db
def test_i1_partitions_reserve_from_one_row(valkey: PrivateValkey, settings: Any) -> None:
    backend = configure(settings, valkey.url(), PARTITIONS=3, BLOCK=5)
    names = [fresh() for _ in range(60)]
    issued = [grant(backend, name) for name in names]
    assert len(set(issued)) == 60
    assert {tokens.place_of(backend, name).partition for name in names} == {0, 1, 2}
    assert Reign.objects.filter(namespace=backend.config.namespace).count() == 3


@pytest.mark.django_db
def test_a_resource_keeps_its_partition_in_every_process(valkey: PrivateValkey, settings: Any) -> None:
    backend = configure(settings, valkey.url(), PARTITIONS=7)
    assert [tokens.place_of(backend, name).partition for name in ("stock:1", "stock:2", "Größe")] == [3, 1, 6]


@pytest.mark.django_db
def test_two_namespaces_share_nothing(valkey: PrivateValkey, settings: Any) -> None:
    first = configure(settings, valkey.url())
    assert [grant(first), grant(first, fresh())] == [1, 2]
    second = configure(settings, valkey.url())
    assert grant(second) == 1, "the same resource is free, and numbers begin anew"
    assert row_of(first).space != row_of(second).space


@pytest.mark.django_db(databases=["default", "lite"])
def test_s12_two_databases_with_the_same_namespace_share_nothing_in_one_store(
    valkey: PrivateValkey, settings: Any
) -> None:
    """Staging and production on one Redis: neither keeps the other from a lease, and neither counts on the other's."""
    production = configure(settings, valkey.url())
    place, answer = tokens.acquire(production, "stock:42", "production", 30.0, NOBODY)
    assert isinstance(answer, Granted)
    staging = configure(settings, valkey.url(), NAMESPACE=production.config.namespace, DATABASE="lite")
    assert grant(staging, holder="staging") == 1, "it is free here"
    assert [one.holder for one in production.live(place.space, 0, 10)] == ["production"]
    raw(staging).delete(counter(tokens.place_of(staging, "stock:42")))
    assert grant(staging, fresh()) == 11
    assert tokens.advance(production, place, "production") == Granted(token=2, reign=answer.reign)


@pytest.mark.django_db
def test_a_row_that_vanished_comes_back_with_the_same_id(backend: LeaseBackend) -> None:
    """What the end of a test does to a process that goes on."""
    place, _ = tokens.acquire(backend, "stock:42", "holder", 30.0, NOBODY)
    TokenRange.objects.all().delete()
    issued = [grant(backend, fresh()) for _ in range(12)]
    assert issued == list(range(2, 14))
    row = row_of(backend)
    assert row.space == place.space
    assert row.ceiling >= 13


@pytest.mark.django_db
def test_a_row_that_was_created_anew_is_used_from_the_next_range_on(backend: LeaseBackend) -> None:
    place, _ = tokens.acquire(backend, "stock:42", "holder", 30.0, NOBODY)
    TokenRange.objects.filter(namespace=backend.config.namespace).update(space="other", ceiling=500)
    issued = [grant(backend, fresh()) for _ in range(12)]
    assert issued == [*range(2, 11), *range(501, 504)]
    assert tokens.place_of(backend, "stock:42").space == "other"
    assert tokens.advance(backend, place, "holder") == Lost()


# --- the end of the numbers, and numbers that nobody issued


@pytest.mark.django_db
def test_the_last_number_is_issued_and_none_after_it(backend: LeaseBackend) -> None:
    tokens.place_of(backend, "stock:42")
    TokenRange.objects.filter(namespace=backend.config.namespace).update(ceiling=MAX_TOKEN - 3)
    issued = [grant(backend, fresh()) for _ in range(3)]
    assert issued == [MAX_TOKEN - 2, MAX_TOKEN - 1, MAX_TOKEN]
    for _ in range(2):
        with pytest.raises(TokensExhaustedError):
            grant(backend, fresh())
    assert row_of(backend).ceiling == MAX_TOKEN
    raw(backend).flushall()
    with pytest.raises(TokensExhaustedError):
        grant(backend, fresh())


@pytest.mark.django_db
@pytest.mark.parametrize("seen", [1, 5, 10, 11, 5000, 2**40])
def test_l2_the_next_number_is_above_what_was_seen(backend: LeaseBackend, seen: int) -> None:
    place, _ = tokens.acquire(backend, "stock:42", "holder", 30.0, NOBODY)
    tokens.raise_above(backend, place, seen)
    answer = tokens.advance(backend, place, "holder")
    assert isinstance(answer, Granted)
    assert answer.token > seen
    assert row_of(backend).ceiling >= answer.token
    assert grant(backend, fresh()) > answer.token


@pytest.mark.django_db
def test_l2_raising_reserves_nothing_without_need(backend: LeaseBackend) -> None:
    place, _ = tokens.acquire(backend, "stock:42", "holder", 30.0, NOBODY)
    tokens.raise_above(backend, place, 1)
    assert row_of(backend).ceiling == 10


@pytest.mark.django_db
@pytest.mark.parametrize("seen", [2**40 + 11, MAX_TOKEN])
def test_l2_a_number_that_was_invented_raises_nothing(backend: LeaseBackend, seen: int) -> None:
    place, _ = tokens.acquire(backend, "stock:42", "holder", 30.0, NOBODY)
    with pytest.raises(InvalidTokenError, match=str(seen)):
        tokens.raise_above(backend, place, seen)
    assert row_of(backend).ceiling == 10
    assert grant(backend, fresh()) <= 10


@pytest.mark.django_db
def test_raising_above_in_a_store_that_forgot(backend: LeaseBackend) -> None:
    place, _ = tokens.acquire(backend, "stock:42", "holder", 30.0, NOBODY)
    raw(backend).flushall()
    tokens.raise_above(backend, place, 300)
    assert grant(backend, fresh()) == 301


# --- without the store, without the database


@pytest.mark.django_db
def test_drawing_takes_the_stores_next_number(backend: LeaseBackend) -> None:
    assert [tokens.draw(backend, "stock:42") for _ in range(12)] == list(range(1, 13))


@pytest.mark.django_db
def test_drawing_without_the_store_takes_a_number_from_the_database(
    valkey_server: Callable[..., PrivateValkey], settings: Any
) -> None:
    server = valkey_server()
    backend = configure(settings, server.url())
    before = grant(backend)
    server.kill()
    drawn = [tokens.draw(backend, "stock:42"), tokens.draw(backend, "stock:42")]
    assert drawn == [11, 12]
    server.start()
    assert grant(backend) > max(before, *drawn)


@pytest.mark.django_db
def test_a_store_that_keeps_no_range_ends_in_an_error(backend: LeaseBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(backend), "install", lambda *args: False)
    with pytest.raises(LeaseBackendError, match="kept none"):
        grant(backend)


@pytest.mark.django_db
@pytest.mark.parametrize("where", ["backend", "on_sqlite"])
def test_a_database_without_the_tables_is_a_typed_error(
    where: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: LeaseBackend = request.getfixturevalue(where)
    monkeypatch.setattr(ranges, "sql_name", lambda name: '"no_such_table"')
    with (
        pytest.raises(LeaseBackendError, match="lacks the tables of the app fencing: migrate it"),
        transaction.atomic(),
    ):
        grant(found)


@pytest.mark.django_db
def test_another_database_is_a_typed_error(backend: LeaseBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    with pytest.raises(LeaseBackendError, match="oracle"):
        grant(backend)


# --- on SQLite


@pytest.fixture
def on_sqlite(django_db_blocker: Any, tmp_path: Path, valkey: PrivateValkey, settings: Any) -> Iterator[LeaseBackend]:
    """A backend whose numbers are kept in an SQLite file; no other database is used."""
    entry = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "numbers"}
    connections.settings["numbers"] = {**entry, "OPTIONS": {"timeout": 1}}
    try:
        with django_db_blocker.unblock():
            with connections["numbers"].schema_editor() as editor:
                editor.create_model(TokenRange)
                editor.create_model(Reign)
            yield configure(settings, valkey.url(), DATABASE="numbers")
    finally:
        connections["numbers"].close()
        del connections["numbers"], connections.settings["numbers"]


def test_i1_ranges_on_sqlite(on_sqlite: LeaseBackend) -> None:
    issued = [grant(on_sqlite, fresh()) for _ in range(25)]
    raw(on_sqlite).flushall()
    with transaction.atomic("numbers"):
        issued.append(grant(on_sqlite))
    assert issued == [*range(1, 26), 31]
    rows = Reign.objects.using("numbers").filter(namespace=on_sqlite.config.namespace)
    assert sorted(one.first_token for one in rows) == [1, 31]


def test_the_end_of_the_numbers_on_sqlite(on_sqlite: LeaseBackend) -> None:
    place, _ = tokens.acquire(on_sqlite, "stock:42", "holder", 30.0, NOBODY)
    tokens.raise_above(on_sqlite, place, 2**40)
    assert grant(on_sqlite, fresh()) == 2**40 + 1
    with pytest.raises(InvalidTokenError):
        tokens.raise_above(on_sqlite, place, MAX_TOKEN)
    TokenRange.objects.using("numbers").update(ceiling=MAX_TOKEN - 1)
    raw(on_sqlite).flushall()
    assert grant(on_sqlite) == MAX_TOKEN
    with pytest.raises(TokensExhaustedError):
        grant(on_sqlite, fresh())


def test_a_writer_in_the_way_is_a_typed_error_on_sqlite(on_sqlite: LeaseBackend) -> None:
    tokens.place_of(on_sqlite, "stock:42")
    with transaction.atomic("numbers"):
        TokenRange.objects.using("numbers").create(namespace="mine", space="", partitions=1, ceiling=0)
        with pytest.raises(LeaseBackendError, match="locked"):
            grant(on_sqlite)
    assert TokenRange.objects.using("numbers").filter(namespace="mine").exists()
