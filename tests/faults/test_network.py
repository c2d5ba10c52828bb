"""Replies that are lost, late or cut in half, and servers that refuse or are frozen: no number twice, nothing hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencing import LeaseBackendError, LeaseHeldError, LeaseLostError, lease
from fencing.backends import LeaseBackend, get_backend
from fencing.backends.base import Granted, HolderInfo, Place
from fencing.backends.redis_client import SOCKET_TIMEOUT
from fencing.backends.scripts import ACQUIRE, ADVANCE, INSTALL, RELEASE, RENEW
from fencing.signals import lease_lost
from fencing.tokens import acquire, place_of
from inventory_demo.models import Stock
from tests.concurrency import wait_until
from tests.faults.proxy import Fault, Proxy
from tests.faults.shop import Shop
from tests.services import PrivateValkey

# Seconds that a client waits for a reply: longer than a busy machine takes for one.
TIMEOUT = 1.0
# The same where the server is frozen, and no reply can come.
FROZEN = 0.3
# One timeout to connect, one for the reply, and a machine that is busy.
DEADLINE = 2 * TIMEOUT + 2.0

BROKEN: list[Fault] = ["request lost", "reply lost", "reply halved"]
Proxied = tuple[PrivateValkey, Proxy]


@pytest.fixture
def proxy(proxied: Proxied, shop: Shop) -> Proxy:
    """The way to the shop's store, which has given a range already and knows every script."""
    server, proxy = proxied
    asked_for(TIMEOUT, proxy, shop)
    shop.grants(1)
    with server.client() as client:
        for script in (ACQUIRE, ADVANCE, INSTALL, RELEASE, RENEW):
            client.script_load(script.source)
    return proxy


def asked_for(timeout: float, proxy: Proxy, shop: Shop) -> LeaseBackend:
    """The shop's store as a client asks it that waits so long for a reply."""
    return shop.at(proxy.url(), cache={"OPTIONS": {"SOCKET_TIMEOUT": timeout}})


@pytest.fixture
def lost() -> Iterator[list[str]]:
    """Why leases were lost."""
    reasons: list[str] = []

    def note(reason: str, **_named: Any) -> None:
        reasons.append(reason)

    lease_lost.connect(note)
    yield reasons
    lease_lost.disconnect(note)


def is_free(resource: str) -> bool:
    backend = get_backend()
    return backend.peek(place_of(backend, resource)) is None


@pytest.mark.parametrize("fault", BROKEN)
def test_acquire_on_a_connection_that_breaks_gets_its_own_grant(proxy: Proxy, shop: Shop, fault: Fault) -> None:
    proxy.spoil(ACQUIRE, fault)
    with lease("stock:42") as held:
        shop.note(held.token)
        assert held.token == 2, "the grant that was not heard of is this one"
    assert proxy.spoiled == 1
    assert is_free("stock:42")
    shop.grants(2)


@pytest.mark.parametrize("fault", BROKEN)
def test_acquire_that_fails_for_good_leaves_nothing_behind(proxy: Proxy, shop: Shop, fault: Fault) -> None:
    """The number that nobody heard of is given to nobody else either."""
    proxy.spoil(ACQUIRE, fault, fault)
    with pytest.raises(LeaseBackendError), lease("stock:42"):
        raise AssertionError("entered")
    assert proxy.spoiled == 2
    assert is_free("stock:42")
    assert shop.grants(1)[0] == (2 if fault == "request lost" else 3)


def test_reply_that_comes_too_late_is_nobody_elses(proxy: Proxy, shop: Shop) -> None:
    """The next call must not read the grant of the one before."""
    proxy.spoil(ACQUIRE, "reply held")
    asked = time.monotonic()
    with pytest.raises(LeaseBackendError, match="Timeout"), lease("stock:42"):
        raise AssertionError("entered")
    assert time.monotonic() - asked < DEADLINE
    assert is_free("stock:42")
    proxy.released.set()
    with lease("stock:42") as held, lease("stock:43") as other:
        assert [shop.note(held.token), shop.note(other.token)] == [3, 4]


@pytest.mark.parametrize("fault", BROKEN)
def test_range_whose_installation_was_not_heard_of(proxy: Proxy, shop: Shop, fault: Fault) -> None:
    shop.grants(9)
    proxy.spoil(INSTALL, fault)
    assert shop.grants(1) == [11]
    assert proxy.spoiled == 1
    shop.grants(9)


@pytest.mark.parametrize("fault", BROKEN)
def test_advance_skips_a_number_rather_than_issue_it_twice(proxy: Proxy, shop: Shop, fault: Fault) -> None:
    with lease("stock:42") as held:
        shop.note(held.token)
        proxy.spoil(ADVANCE, fault)
        shop.note(held.advance())
        proxy.spoil(ADVANCE, fault, fault)
        with pytest.raises(LeaseBackendError):
            held.advance()
        assert held.is_held()
        shop.note(held.advance())
    shop.grants(1)


@pytest.mark.parametrize("fault", [*BROKEN, "reply held"])
def test_renewal_that_was_not_heard_of_is_no_lost_lease(
    proxy: Proxy, shop: Shop, lost: list[str], fault: Fault
) -> None:
    """C02 a: also when the whole call fails, the heartbeat tries again in time."""
    with lease("stock:42", ttl=6.0) as held:
        proxy.spoil(RENEW, fault, fault)
        before = held._deadline
        wait_until(lambda: proxy.spoiled == 2 and held._deadline > before, "the heartbeat gets through")
        held.ensure_held()
        with pytest.raises(LeaseBackendError):
            for _ in range(3):  # the heartbeat may come in between
                proxy.spoil(RENEW, fault, fault)
                held.renew()
        assert held.is_held(), "an unanswered question is no refusal"
        shop.note(held.advance())
    assert not lost


def test_store_that_stays_away_ends_the_lease_at_its_deadline(proxy: Proxy, lost: list[str]) -> None:
    """Closed on doubt: nobody believes to hold what the store may have given to somebody else."""
    with lease("stock:42", ttl=1.0) as held:
        proxy.refuse()
        wait_until(lambda: lost, "the holder is told")
        assert not held.is_held()
        for refused in (held.ensure_held, held.renew, held.advance):
            with pytest.raises(LeaseLostError):
                refused()
        proxy.accept_again()
    with lease("stock:42", wait=5):
        pass


@pytest.mark.parametrize("fault", BROKEN)
def test_release_that_was_not_heard_of_is_a_release(proxy: Proxy, shop: Shop, lost: list[str], fault: Fault) -> None:
    proxy.spoil(RELEASE, fault)
    shop.sell()
    assert proxy.spoiled == 1
    assert is_free(shop.resource)
    assert not lost, "it was not lost, it was given back"
    shop.sell()


@pytest.mark.parametrize("fault", [*BROKEN, "reply held"])
def test_release_that_fails_does_not_make_finished_work_look_failed(
    proxy: Proxy, shop: Shop, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    with lease(shop.resource, ttl=1.0) as held:
        stock = Stock.objects.get(pk=shop.stock.pk)
        stock.quantity -= 1
        stock.save()
        proxy.spoil(RELEASE, fault, fault)
    assert "could not be released" in caplog.text
    assert "Traceback" not in caplog.text, "one line says it all"
    stock.refresh_from_db()
    assert (stock.quantity, stock.last_token) == (999, held.token)
    shop.sold += 1
    shop.sell()


def test_connection_that_is_refused_is_a_typed_error_and_passes(proxy: Proxy, shop: Shop) -> None:
    proxy.refuse()
    with pytest.raises(LeaseBackendError), lease("stock:42"):
        raise AssertionError("entered")
    proxy.accept_again()
    shop.grants(1)
    shop.sell()


def calls_of(backend: LeaseBackend, place: Place, holder: str, token: int) -> dict[str, Callable[[], object]]:
    return {
        "acquire": lambda: backend.acquire(place, "other", 1.0, HolderInfo()),
        "renew": lambda: backend.renew(place, holder, 30.0),
        "advance": lambda: backend.advance(place, holder),
        "release": lambda: backend.release(place, holder, token),
        "revoke": lambda: backend.revoke(place, token),
        "draw": lambda: backend.draw(place),
        "install": lambda: backend.install(place, "reign", 1, 2),
        "close_reign": lambda: backend.close_reign(place),
        "peek": lambda: backend.peek(place),
        "live": lambda: list(backend.live(place.space, 0, 5)),
        "read_events": lambda: backend.read_events(place.space, 0, 5),
        "forget_events": lambda: backend.forget_events(place.space, 0, ["1-1"]),
        "dropped_events": lambda: backend.dropped_events(place.space, 0),
    }


def test_every_call_ends_at_its_deadline_when_the_server_is_frozen(proxied: Proxied, proxy: Proxy, shop: Shop) -> None:
    """SIGSTOP: connections stand, or are accepted by the kernel, and nothing ever comes."""
    server, _proxy = proxied
    backend = asked_for(FROZEN, proxy, shop)
    sleeper = shop.sleeper("stock:42")
    server.freeze()
    try:
        for name, call in calls_of(backend, sleeper.place, sleeper.holder, sleeper.token).items():
            asked = time.monotonic()
            with pytest.raises(LeaseBackendError, match="Timeout"):
                call()
            assert time.monotonic() - asked < DEADLINE, name
    finally:
        server.thaw()
    backend = asked_for(TIMEOUT, proxy, shop)
    assert backend.renew(sleeper.place, sleeper.holder, 30.0)
    shop.note(shop.advance(sleeper).token)  # type: ignore[union-attr]
    shop.sell()


def test_holder_of_a_frozen_server_gets_its_own_grant_when_it_asks_again(proxied: Proxied, shop: Shop) -> None:
    """The grant is made when the server wakes up, after its client has given up: the same holder is told its number."""
    server, proxy = proxied
    backend = asked_for(TIMEOUT, proxy, shop)
    shop.grants(1)
    server.freeze()
    with pytest.raises(LeaseBackendError):
        acquire(backend, "stock:42", "holder", 30.0, HolderInfo())
    server.thaw()
    place = place_of(backend, "stock:42")
    wait_until(lambda: backend.peek(place) is not None, "the request is answered late")
    with pytest.raises(LeaseHeldError), lease("stock:42"):
        raise AssertionError("never in two hands")
    _place, answer = acquire(backend, "stock:42", "holder", 30.0, HolderInfo())
    assert isinstance(answer, Granted)
    assert shop.note(answer.token) == 2
    shop.grants(1)


def test_settings_without_a_timeout_get_one(proxied: Proxied, shop: Shop) -> None:
    """Older redis-py waits for ever, and so does a pool that was told to."""
    _server, proxy = proxied
    options = {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}}
    backend = shop.at(proxy.url(), cache={"OPTIONS": options})
    shop.grants(1)
    pool = backend._client.redis.connection_pool  # type: ignore[attr-defined]
    connection = pool.get_connection()
    try:
        assert connection.socket_timeout == SOCKET_TIMEOUT
    finally:
        pool.release(connection)
