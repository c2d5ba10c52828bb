"""Waiting for a lease, by real processes on a Valkey of their own: first come, first served, and nobody is stuck."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis

from fencing import LeaseHeldError, current_lease, lease
from fencing.acquiring import acquire
from fencing.backends import get_backend
from fencing.backends.base import LiveLease
from fencing.backends.redis import RedisBackend
from fencing.tokens import place_of
from tests.concurrency import BOUND, threads, wait_until
from tests.services import PrivateValkey
from tests.waiters import Waiters

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

RESOURCE = "stock:42"


@pytest.fixture
def server(settings: Any, valkey_server: Callable[..., PrivateValkey]) -> PrivateValkey:
    """The lease store of this test and its processes alone."""
    found = valkey_server()
    settings.CACHES = {**settings.CACHES, "leases": {**settings.CACHES["leases"], "LOCATION": found.url()}}
    return found


@pytest.fixture
def waiters(server: PrivateValkey, process_environment: dict[str, str]) -> Iterator[Waiters]:
    """Processes that use the same store and database."""
    with Waiters({**process_environment, "REDIS_URL": server.url(0)}) as found:
        yield found


@pytest.fixture
def store(server: PrivateValkey) -> Iterator[redis.Redis]:
    """A client of the leases' database."""
    with redis.Redis.from_url(server.url()) as client:
        yield client


def key_of(kind: bytes, resource: str = RESOURCE) -> str:
    backend = get_backend()
    assert isinstance(backend, RedisBackend)
    return backend._keys(place_of(backend, resource), kind)[0].decode()


def queue_up(waiters: Waiters, store: redis.Redis, *names: str, **order: Any) -> None:
    """Let processes wait, one behind the other."""
    for name in names:
        before = store.llen(key_of(b"queue:"))
        waiters.tell(name, resource=RESOURCE, **order)
        wait_until(lambda: store.llen(key_of(b"queue:")) > before, f"{name} queues")  # noqa: B023


def live() -> LiveLease | None:
    backend = get_backend()
    return backend.peek(place_of(backend, RESOURCE))


def names_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["name"] for event in sorted(events, key=lambda event: event["at"])]


def questions(store: redis.Redis) -> int:
    """How many scripts and subscriptions the server was asked for; not the chores that collect the history."""
    found = store.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha", "subscribe"))


def test_twelve_waiters_of_which_four_are_killed_are_served_in_order(waiters: Waiters, store: redis.Redis) -> None:
    """Conclusion 9: a lease that is handed to a dead waiter would sit out its ttl, four times."""
    names = [f"w{number:02}" for number in range(12)]
    dead = {"w00", "w04", "w05", "w11"}
    waiters.start(*names)
    with lease(RESOURCE) as first:
        queue_up(waiters, store, *names, ttl=600, hold=0.01)
        for name in dead:
            waiters.send(name, signal.SIGKILL)
        wait_until(lambda: len(store.pubsub_channels()) == 8, "the server knows that they are dead")
    alive = [name for name in names if name not in dead]
    for name in alive:
        waiters.until(name, "released")
    assert names_of(waiters.said("granted")) == alive
    tokens = [event["token"] for event in sorted(waiters.said("granted"), key=lambda event: event["at"])]
    assert tokens == sorted({first.token, *tokens})[1:]
    assert not store.exists(key_of(b"queue:"), key_of(b"lease:"))


def test_stopped_waiter_costs_the_others_its_ttl_and_no_more(waiters: Waiters, store: redis.Redis) -> None:
    """L5: it counts as a subscriber, so it is given the lease; the others wake when its time is over."""
    waiters.start("sleeper", "second", "third")
    with lease(RESOURCE):
        queue_up(waiters, store, "sleeper", ttl=1, hold=None)
        queue_up(waiters, store, "second", "third", ttl=600, hold=0.01)
        waiters.send("sleeper", signal.SIGSTOP)
    stopped = time.monotonic()
    waiters.until("third", "released")
    assert names_of(waiters.said("granted")) == ["second", "third"]
    assert waiters.said("granted", "second")[0]["at"] - stopped < 5, "not when the first holder's time would be over"
    waiters.send("sleeper", signal.SIGCONT)
    newest = waiters.until("sleeper", "granted")
    assert newest["token"] > waiters.said("granted", "third")[0]["token"], "its first grant is over, and it knows"
    waiters.tell("sleeper")
    waiters.until("sleeper", "released")
    assert live() is None


def test_expiry_of_a_killed_holder_wakes_and_nobody_barges(waiters: Waiters, store: redis.Redis) -> None:
    waiters.start("holder", "dead", "first", "second")
    waiters.tell("holder", resource=RESOURCE, ttl=3)
    waiters.until("holder", "granted")
    queue_up(waiters, store, "dead", "first", "second", ttl=600)
    waiters.send("dead", signal.SIGKILL)
    wait_until(lambda: len(store.pubsub_channels()) == 2, "the server knows")
    # Those who wait would ask a moment later; a newcomer is faster.
    waiters.send("first", signal.SIGSTOP)
    waiters.send("second", signal.SIGSTOP)
    waiters.send("holder", signal.SIGKILL)
    wait_until(lambda: not store.exists(key_of(b"lease:")), "the lease expires")
    with pytest.raises(LeaseHeldError), lease(RESOURCE):
        raise AssertionError("barged")
    waiters.send("second", signal.SIGCONT)
    waiters.send("first", signal.SIGCONT)
    waiters.until("first", "granted")
    assert not waiters.said("granted", "second")
    waiters.tell("first")
    waiters.until("second", "granted")


def test_revoking_hands_over(waiters: Waiters, store: redis.Redis) -> None:
    waiters.start("first", "second")
    held = acquire(RESOURCE, ttl=600, give_up=0, using="default", allow_in_transaction=False)
    queue_up(waiters, store, "first", "second", ttl=600)
    assert held._backend.revoke(held._place, held.token)
    granted = waiters.until("first", "granted")
    assert granted["token"] > held.token and not waiters.said("granted", "second")
    events = [(one.kind, one.token) for one in held._backend.read_events(held._place.space, 0, 100)]
    assert [("revoked", held.token), ("granted", granted["token"])] == events[-2:]


@pytest.mark.parametrize("how", ["range is used up", "another server", "counter is gone"])
def test_release_without_a_number_wakes_the_first(waiters: Waiters, store: redis.Redis, how: str) -> None:
    """L5: it acquires by itself, and gets the store a range; the place in the queue is kept meanwhile."""
    waiters.start("first", "second")
    with lease(RESOURCE):
        queue_up(waiters, store, "first", "second", ttl=600, hold=0.01)
        if how == "range is used up":
            counter = store.hgetall(key_of(b"counter"))
            store.hset(key_of(b"counter"), "next", int(counter[b"ceiling"]) + 1)
        elif how == "another server":
            store.hset(key_of(b"counter"), "replid", "ab" * 20)
        else:
            store.delete(key_of(b"counter"))
    released = time.monotonic()
    waiters.until("second", "released")
    granted = waiters.said("granted")
    assert names_of(granted) == ["first", "second"]
    assert granted[0]["at"] - released < 5, "nobody waited until it was time to ask again"


def test_store_that_forgets_everything_strands_nobody(waiters: Waiters, store: redis.Redis) -> None:
    waiters.start("first", "second", "third")
    held = acquire(RESOURCE, ttl=4, give_up=0, using="default", allow_in_transaction=False)
    queue_up(waiters, store, "first", "second", "third", ttl=600, hold=0.01)
    store.flushall()
    for name in ("first", "second", "third"):
        waiters.until(name, "released")
    tokens = [event["token"] for event in sorted(waiters.said("granted"), key=lambda event: event["at"])]
    assert held.token < tokens[0] < tokens[1] < tokens[2]
    held.release()
    assert live() is None


def test_connection_that_is_cut_is_made_again_and_keeps_its_place(waiters: Waiters, store: redis.Redis) -> None:
    waiters.start("first", "second")
    with lease(RESOURCE):
        queue_up(waiters, store, "first", "second", ttl=600, hold=0.01)
        store.client_kill_filter(_type="pubsub")
        wait_until(lambda: len(store.pubsub_channels()) == 2, "both listen again")
        assert store.llen(key_of(b"queue:")) == 2
    waiters.until("second", "released")
    assert names_of(waiters.said("granted")) == ["first", "second"]


def test_message_that_is_lost_costs_time_only(
    server: PrivateValkey, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiter asks again, and finds its own grant; its time counts from the grant."""
    monkeypatch.setattr("fencing.backends.waiting.LOOK_AGAIN", 0.5)
    monkeypatch.setattr("fencing.backends.waiting.Listener.hear", deaf)
    with threads() as start:
        with lease(RESOURCE):
            waiting = start(lambda: lease(RESOURCE, ttl=30, wait=None, renew=False).__enter__())
            wait_until(lambda: store.llen(key_of(b"queue:")), "it waits")
        found = live()
        held = waiting.result(BOUND)
    assert found is not None and found.token == held.token
    left = live()
    assert left is not None and 20 < held.remaining() <= left.remaining + 0.001
    held.release()


def test_lease_that_was_handed_over_long_ago_is_renewed_at_once(
    server: PrivateValkey, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiter slept meanwhile: what is left is less than the third of a ttl after which a fresh lease is renewed."""
    monkeypatch.setattr("fencing.backends.waiting.LOOK_AGAIN", 4.5)
    monkeypatch.setattr("fencing.backends.waiting.Listener.hear", deaf)
    with threads() as start:
        with lease(RESOURCE):
            waiting = start(lambda: lease(RESOURCE, ttl=6, wait=None).__enter__())
            wait_until(lambda: store.llen(key_of(b"queue:")), "it waits")
        held = waiting.result(BOUND)
    end = held._deadline
    wait_until(lambda: held._lost or held._deadline > end, "it is renewed, or lost")
    assert held.is_held()
    held.release()


def deaf(_listener: Any, _holder: str, seconds: float) -> None:
    time.sleep(seconds)


def test_giving_up_leaves_the_queue(server: PrivateValkey, store: redis.Redis) -> None:
    with lease(RESOURCE, ttl=600), threads() as start:
        with pytest.raises(LeaseHeldError) as caught:
            start(lambda: lease(RESOURCE, wait=0.2).__enter__()).result(BOUND)
        assert 500 < caught.value.retry_after <= 600
        assert not store.exists(key_of(b"queue:"))
    assert live() is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_wait_that_ends_in_the_moment_of_the_grant_leaves_nothing(
    waiters: Waiters, store: redis.Redis, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """L5, C07: the grant goes to the next one."""
    waiters.start("next")
    holder = acquire(RESOURCE, ttl=600, give_up=0, using="default", allow_in_transaction=False)

    def granted_and_interrupted(*_args: Any) -> Any:
        queue_up(waiters, store, "next", ttl=600)
        holder.release()
        found = live()
        assert found is not None and found.token == holder.token + 1
        raise error

    monkeypatch.setattr("fencing.backends.waiting.QueueWaiter.sleep", granted_and_interrupted)
    with pytest.raises(error), lease(RESOURCE, wait=None):
        raise AssertionError("entered")
    assert waiters.until("next", "granted")["token"] == holder.token + 2
    assert not store.exists(key_of(b"queue:")) and current_lease() is None


def test_refused_at_once_never_queues(server: PrivateValkey, store: redis.Redis) -> None:
    with lease(RESOURCE), threads() as start, pytest.raises(LeaseHeldError):
        start(lambda: lease(RESOURCE, wait=0).__enter__()).result(BOUND)
    assert "cmdstat_subscribe" not in store.info("commandstats")


def test_list_of_leases_waits_for_each_and_gives_up_all(server: PrivateValkey, store: redis.Redis) -> None:
    def take_both(wait: float | None) -> None:
        with lease([RESOURCE, "stock:41"], wait=wait) as (b, a):
            assert (b.resource, a.resource) == (RESOURCE, "stock:41")
            with lease(RESOURCE, wait=None) as again:
                assert again is b

    with threads() as start:
        with lease(RESOURCE):
            with pytest.raises(LeaseHeldError):
                start(take_both, 0.2).result(BOUND)
            assert not store.exists(key_of(b"queue:"), key_of(b"lease:", "stock:41"))
            waiting = start(take_both, None)
            wait_until(lambda: store.llen(key_of(b"queue:")), "it waits")
        waiting.result(BOUND)
    assert not store.exists(key_of(b"queue:"), key_of(b"lease:"), key_of(b"lease:", "stock:41"))


def test_waiting_asks_nothing(waiters: Waiters, store: redis.Redis) -> None:
    waiters.start("first", "second")
    with lease(RESOURCE, renew=False):
        queue_up(waiters, store, "first", "second", ttl=600, hold=0.01)
        before = questions(store)
        # Not a wait for a condition: this is the time in which nothing must happen.
        store.blpop(["nothing"], timeout=1)
        assert questions(store) == before
    waiters.until("second", "released")


def test_connection_stays_for_the_next_wait(waiters: Waiters, store: redis.Redis) -> None:
    waiters.start("only")
    made = []
    for turn in (1, 2, 3):
        with lease(RESOURCE):
            queue_up(waiters, store, "only", ttl=600, hold=0)
        waiters.until("only", "done", turn)
        made.append(store.pubsub_channels())
    assert len(made[0]) == 1 and made[0] == made[1] == made[2]


def test_forked_child_listens_for_itself(server: PrivateValkey, store: redis.Redis) -> None:
    backend = get_backend()
    assert isinstance(backend, RedisBackend)
    listener = backend._listeners.take()
    listener.listen(b"of the parent", backend._client.redis.connection_pool)
    backend._listeners.put_back(listener)
    if (child := os.fork()) == 0:
        os._exit(0 if backend._listeners.take() is not listener else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.pubsub_numsub("of the parent") == [(b"of the parent", 1)], "the child ended nothing of it"
    assert backend._listeners.take() is listener
    listener.close()


def test_processes_take_turns(waiters: Waiters, store: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    """Each gets its share, whatever the others do; prints the time from a release to the next grant."""
    names = [f"p{number}" for number in range(8)]
    waiters.start(*names)
    with lease(RESOURCE):
        queue_up(waiters, store, *names, ttl=30, hold=0.002, rounds=40, rest=0.005)
    for name in names:
        waiters.until(name, "done", seconds=60)
    granted = sorted(waiters.said("granted"), key=lambda event: event["token"])
    released = {event["token"]: event["at"] for event in waiters.said("released")}
    # The first ones to end would make the rest look unfair.
    shares = Counter(event["name"] for event in granted[:200])
    fairness = sum(shares.values()) ** 2 / (len(names) * sum(share**2 for share in shares.values()))
    gaps = [after["at"] - released[before["token"]] for before, after in pairwise(granted)]
    contended = sorted(gap * 1000 for gap in gaps[:200])
    with capsys.disabled():
        print(
            f"\nhandoff, 8 processes: p50 {statistics.median(contended):.2f} ms, "
            f"p99 {contended[-2]:.2f} ms; Jain {fairness:.3f}"
        )
    assert all(gap >= 0 for gap in gaps), "two held it at once"
    assert fairness >= 0.98
