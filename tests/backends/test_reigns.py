"""I1 at the store's side: a server that forgot, moved or was replaced never counts on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencing.backends.base import Granted, Lost, NeedsRange
from fencing.backends.memory import MemoryBackend
from tests.backends.stores import NOBODY, Store, memory_store, redis_store
from tests.backends.test_redis import client_of
from tests.services import PrivateValkey


def counter(store: Store) -> str:
    return f"fencing:{{{store.space}:0}}:counter"


def another_server(store: Store) -> None:
    """What a promoted replica finds: the hash of another server."""
    client_of(store).hset(counter(store), "replid", "ab" * 20)


@pytest.fixture
def own(server: PrivateValkey, settings: Any) -> Store:
    """A store on each kind of server, with nothing installed."""
    return redis_store(settings, server.url())


def test_a_hash_of_another_server_begins_a_new_reign(own: Store) -> None:
    old = own.open()
    own.grant("a", "a")
    another_server(own)
    answer = own.backend.acquire(own.place(), "holder", 30.0, NOBODY)
    assert isinstance(answer, NeedsRange)
    assert answer.reign != old
    assert answer.next == 2, "what the hash says is still a lower bound"
    assert own.backend.peek(own.place()) is None


def test_a_deleted_counter_begins_a_new_reign(own: Store) -> None:
    old = own.open()
    own.grant("a", "a")
    client_of(own).delete(counter(own))
    assert own.needs_range().reign != old


def test_drawing_and_installing_make_the_same_test(own: Store) -> None:
    old = own.open()
    another_server(own)
    assert not own.backend.install(own.place(), old, 5000, 6000), "the hash is not this server's"
    assert isinstance(own.backend.draw(own.place()), NeedsRange)


def test_a_slow_installer_of_an_old_reign_is_refused(own: Store) -> None:
    slow = own.needs_range().reign
    client_of(own).delete(counter(own))
    new = own.open(first=100, last=200)
    assert not own.backend.install(own.place(), slow, 201, 300)
    assert own.backend.draw(own.place()) == Granted(token=100, reign=new)


def test_the_same_offer_twice_makes_two_reigns(own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: redis-py sends the first acquire again after everything was flushed; its reign must not come back."""
    monkeypatch.setattr("os.urandom", lambda size: b"\7" * size)
    first = own.needs_range().reign
    client_of(own).delete(counter(own))
    again = own.needs_range().reign
    assert first != again
    assert not own.backend.install(own.place(), first, 1, 2)


def test_a_lease_that_came_back_from_another_reign_never_advances(own: Store) -> None:
    """S2: it blocks others until its ttl, but its holder may be superseded long since."""
    own.open()
    own.grant("sleeper")
    another_server(own)
    own.open(first=10_001, last=20_000)
    assert own.backend.advance(own.place(), "sleeper") == Lost()
    assert own.backend.draw(own.place()).token == 10_001  # type: ignore[union-attr]
    assert not isinstance(own.backend.acquire(own.place(), "other", 30.0, NOBODY), Granted)


def test_a_lease_of_another_server_never_advances_before_the_new_reign_either(own: Store) -> None:
    own.open()
    own.grant("sleeper")
    another_server(own)
    assert own.backend.advance(own.place(), "sleeper") == Lost()


def test_a_restart_is_a_new_reign_even_with_all_data(
    valkey_server: Callable[..., PrivateValkey], settings: Any
) -> None:
    server = valkey_server(appendonly="yes", appendfsync="always")
    store = redis_store(settings, server.url())
    old = store.open()
    token = store.grant("holder")
    server.kill()
    server.start()
    lease = store.backend.peek(store.place())
    assert lease is not None
    assert lease.token == token
    needed = store.needs_range()
    assert needed.reign != old
    assert needed.next == token + 1


def test_the_memory_backend_starts_anew_like_a_store_that_forgot() -> None:
    store = memory_store()
    old = store.open()
    store.grant("holder")
    assert isinstance(store.backend, MemoryBackend)
    store.backend._start()
    assert store.needs_range().reign != old
    assert store.backend.advance(store.place(), "holder") == Lost()
    assert not store.backend.install(store.place(), old, 2000, 3000)
