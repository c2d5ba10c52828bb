"""Queues at the store's side (fencing.backends): who is served, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis.crc import key_slot

from fencing.backends.base import Granted, Held, HolderInfo, LeaseBackend, NeedsRange, Waiter
from fencing.backends.wire import text
from fencing.exceptions import LeaseBackendError
from tests.backends.stores import NOBODY, PrivateRedis, Store, memory_store, redis_store
from tests.backends.test_redis import client_of, slot
from tests.concurrency import wait_until
from tests.faults.cluster import CACHE, Cluster
from tests.faults.servers import KINDS, Servers, asked
from tests.services import PrivateValkey

Queue = Callable[..., Waiter]


@pytest.fixture(params=["memory", "valkey", "redis_server"])
def store(request: pytest.FixtureRequest, settings: Any) -> Store:
    """Each store that has queues; the database is asked every now and then."""
    if request.param == "memory":
        found = memory_store()
    else:
        found = redis_store(settings, request.getfixturevalue(request.param).url())
    found.open()
    return found


@pytest.fixture
def queue(store: Store) -> Iterator[Queue]:
    """A function that puts a holder into the queue of a held lease."""
    with ExitStack() as stack:

        def enter(holder: str, ttl: float = 30.0, info: HolderInfo = NOBODY) -> Waiter:
            waiter = stack.enter_context(store.backend.waiter(holder, ttl, info))
            assert isinstance(waiter.ask(store.place()), Held)
            return waiter

        yield enter


def told(store: Store, waiter: Waiter, seconds: float = 5.0) -> Granted | None:
    """What a waiter is told, if anything."""
    return waiter.sleep(Held(holder="somebody", token=1, remaining=seconds), seconds)


def told_nothing(store: Store, waiter: Waiter) -> bool:
    """Whether a waiter has not been told anything; what it is told is there at once."""
    return told(store, waiter, 0.05) is None


def let_expire(store: Store, holder: str) -> None:
    """End the lease of a holder by its time, which may have been long until now."""
    assert store.backend.renew(store.place(), holder, 0.05)
    store.expire()


def holder_of(store: Store) -> str:
    lease = store.backend.peek(store.place())
    return lease.holder if lease else ""


def kill(waiter: Waiter) -> None:
    """Close a waiter's connection, as its death does."""
    waiter._listener.close()  # type: ignore[attr-defined]


def test_releasing_hands_over_in_the_order_of_arrival(store: Store, queue: Queue) -> None:
    token = store.grant("first")
    waiters = {name: queue(name) for name in ("second", "third", "fourth")}
    for before, (name, waiter) in zip(["first", "second", "third"], waiters.items(), strict=True):
        assert told_nothing(store, waiter)
        assert store.backend.release(store.place(), before, token)
        granted = told(store, waiter)
        assert granted is not None and granted.token == token + 1
        assert holder_of(store) == name
        token = granted.token
        again = waiter.ask(store.place())
        assert isinstance(again, Granted)
        assert (again.token, again.reign) == (granted.token, granted.reign)
        assert again.remaining is not None and 0 < again.remaining <= 30
    assert [kind for kind, *_ in store.events()] == ["granted", "released"] * 3 + ["granted"]


def test_what_was_told_before_the_last_question_is_no_grant(store: Store, queue: Queue) -> None:
    """A waiter that heard of it too late asks again, and finds somebody else."""
    token = store.grant("first")
    waiter = queue("second")
    store.backend.release(store.place(), "first", token)
    assert told(store, waiter) is not None
    let_expire(store, "second")
    store.grant("third")
    assert isinstance(waiter.ask(store.place()), Held)
    assert told_nothing(store, waiter)
    assert holder_of(store) == "third"


def test_handed_lease_is_the_waiters(store: Store, queue: Queue) -> None:
    token = store.grant("first", ttl=500.0, info=HolderInfo(task_id="1"))
    info = HolderInfo(task_id='odd "id" {}', task_name="läger.zählen x")
    queue("second", 12.5, info)
    store.backend.release(store.place(), "first", token)
    lease = store.backend.peek(store.place())
    assert lease is not None and lease.info == info
    assert 0 < lease.remaining <= 12.5
    event = store.backend.read_events(store.space, 0, 10)[-1]
    assert (event.kind, event.holder, event.token, event.ttl, event.info) == ("granted", "second", 2, 12.5, info)


def test_revoking_hands_over(store: Store, queue: Queue) -> None:
    token = store.grant("first")
    waiter = queue("second")
    assert store.backend.revoke(store.place(), token)
    assert told(store, waiter) == store.backend.acquire(store.place(), "second", 30.0, NOBODY)
    assert holder_of(store) == "second"


def test_a_newcomer_does_not_overtake_those_who_wait(store: Store, queue: Queue) -> None:
    store.grant("first")
    second, third = queue("second"), queue("third")
    let_expire(store, "first")
    answer = store.backend.acquire(store.place(), "newcomer", 30.0, NOBODY)
    assert isinstance(answer, Held) and answer.holder == "second"
    assert told(store, second) is not None and told_nothing(store, third)


def test_the_head_of_the_queue_serves_itself(store: Store, queue: Queue) -> None:
    store.grant("first")
    second, third = queue("second"), queue("third")
    let_expire(store, "first")
    answer = third.ask(store.place())
    assert isinstance(answer, Held) and answer.holder == "second"
    granted = second.ask(store.place())
    assert isinstance(granted, Granted)
    assert store.backend.release(store.place(), "second", granted.token)
    assert holder_of(store) == "third"


def test_asking_again_keeps_the_place(store: Store, queue: Queue) -> None:
    token = store.grant("first")
    second, third = queue("second"), queue("third")
    for _ in range(3):
        second.ask(store.place())
        third.ask(store.place())
    store.backend.release(store.place(), "first", token)
    assert store.backend.release(store.place(), "second", token + 1)
    assert store.backend.release(store.place(), "third", token + 2)
    assert holder_of(store) == "", "nobody is in the queue twice"


def test_giving_up_leaves_the_queue_or_hands_on(store: Store, queue: Queue) -> None:
    token = store.grant("first")
    queue("second"), queue("third"), queue("fourth")
    store.backend.give_up(store.place(), "third")
    store.backend.give_up(store.place(), "nobody")
    assert holder_of(store) == "first"
    store.backend.release(store.place(), "first", token)
    assert holder_of(store) == "second"
    store.backend.give_up(store.place(), "second")
    assert holder_of(store) == "fourth"
    store.backend.give_up(store.place(), "fourth")
    assert holder_of(store) == ""
    ends = [line[3] for line in store.events() if line[0] == "released"]
    assert ends == ["first", "second", "fourth"]


def test_without_a_number_the_first_is_woken_and_keeps_its_place(store: Store, queue: Queue) -> None:
    token = store.grant("first")
    second, third = queue("second"), queue("third")
    drawn = store.backend.draw(store.place())
    assert isinstance(drawn, Granted)
    assert store.backend.install(store.place(), drawn.reign, 2000, 1999)
    assert store.backend.release(store.place(), "first", token)
    assert holder_of(store) == ""
    assert told_nothing(store, second)
    assert isinstance(second.ask(store.place()), NeedsRange)
    assert isinstance(store.backend.acquire(store.place(), "newcomer", 30.0, NOBODY), NeedsRange)
    assert store.backend.install(store.place(), drawn.reign, 2000, 2001)
    answer = third.ask(store.place())
    assert isinstance(answer, Held) and answer.holder == "second", "whoever asks serves the first"
    assert second.ask(store.place()) == Granted(token=2000, reign=drawn.reign)


def test_a_store_without_a_queue_is_asked_every_now_and_then(store: Store) -> None:
    token = store.grant("first")
    with LeaseBackend.waiter(store.backend, "second", 30.0, NOBODY) as waiter:
        held = waiter.ask(store.place())
        assert isinstance(held, Held)
        assert waiter.sleep(held, 0.001) is None
        store.backend.release(store.place(), "first", token)
        assert waiter.ask(store.place()) == store.backend.acquire(store.place(), "second", 30.0, NOBODY)
    LeaseBackend.give_up(store.backend, store.place(), "other")
    assert holder_of(store) == "second"
    LeaseBackend.give_up(store.backend, store.place(), "second")
    assert holder_of(store) == ""


@pytest.fixture
def own(server: PrivateValkey, settings: Any) -> Store:
    """A store on each kind of server, with a range."""
    found = redis_store(settings, server.url(), KEY_PREFIX="a shop")
    found.open()
    return found


def queue_in(store: Store, holder: str, ttl: float = 30.0, resource: str = "stock:42") -> Waiter:
    waiter = store.backend.waiter(holder, ttl, NOBODY)
    assert isinstance(waiter.ask(store.place(resource)), Held)
    return waiter


def only_listen(store: Store, count: int) -> None:
    """Wait until the server has noticed whose connections are closed: it may read another's request first."""
    pattern = f"*{store.space}*"
    wait_until(lambda: len(client_of(store).pubsub_channels(pattern)) == count, f"{count} connections listen")


def queue_key(store: Store) -> str:
    return f"a shopfencing:{{{store.space}:0}}:queue:stock:42"


def test_a_dead_waiter_is_skipped_also_where_somebody_hears_everything(own: Store) -> None:
    """PUBLISH would count who subscribed to a pattern."""
    token = own.grant("first")
    dead, alive = queue_in(own, "dead"), queue_in(own, "alive")
    with client_of(own).pubsub() as monitor:  # type: ignore[no-untyped-call]
        monitor.psubscribe("*")
        assert monitor.get_message(timeout=5) is not None
        kill(dead)
        only_listen(own, 1)
        own.backend.release(own.place(), "first", token)
    assert holder_of(own) == "alive"
    assert told(own, alive) is not None
    kill(alive)


def test_a_dead_head_does_not_block_after_an_expiry(own: Store) -> None:
    own.grant("first")
    kill(queue_in(own, "dead"))
    only_listen(own, 0)
    let_expire(own, "first")
    assert own.grant("newcomer") == 2
    assert not client_of(own).exists(queue_key(own))


def test_no_key_is_left_when_everybody_dies(own: Store) -> None:
    token = own.grant("first")
    kill(queue_in(own, "dead"))
    only_listen(own, 0)
    assert 0 < client_of(own).pttl(queue_key(own)) <= 60_000
    own.backend.release(own.place(), "first", token)
    assert len(keys_of_all(own)) == 2


def keys_of_all(store: Store) -> list[Any]:
    return list(client_of(store).scan_iter(f"*{store.space}*"))


@pytest.mark.parametrize("name", ["plain", "a{b}c", "}{", "a b"])
def test_queue_and_channel_are_in_the_slot_of_the_lease(own: Store, name: str) -> None:
    own.grant("first", name)
    waiter = queue_in(own, "second", resource=name)
    keys = [key.decode() for key in keys_of_all(own)]
    channels = [text(found) for found in client_of(own).pubsub_channels(f"*{own.space}*")]
    assert len(keys) == 4 and len(channels) == 1
    assert len({slot(key) for key in (*keys, *channels)}) == 1
    kill(waiter)


def test_a_waiter_asks_again_before_the_time_of_one_ahead_can_be_over(own: Store) -> None:
    """Handed to the one ahead, the lease may end long before the present holder's time."""
    own.grant("first", ttl=500.0)
    ahead = own.backend.waiter("ahead", 0.7, NOBODY)
    behind = own.backend.waiter("behind", 30.0, NOBODY)
    for waiter, unchanged in ((ahead, 60.0), (behind, 0.7), (ahead, 60.0), (behind, 0.7)):
        answer = waiter.ask(own.place())
        assert isinstance(answer, Held) and answer.unchanged == unchanged and answer.remaining > 400
    kill(ahead)
    kill(behind)


def test_what_is_no_entry_is_dropped(own: Store) -> None:
    token = own.grant("first")
    client_of(own).rpush(queue_key(own), "nonsense")
    waiter = queue_in(own, "second")
    own.backend.release(own.place(), "first", token)
    assert holder_of(own) == "second"
    kill(waiter)


def test_handing_over_works_without_memory(own: Store) -> None:
    token = own.grant("first")
    waiter = queue_in(own, "second")
    client = client_of(own)
    client.config_set("maxmemory", 1)
    try:
        assert own.backend.release(own.place(), "first", token)
    finally:
        client.config_set("maxmemory", 0)
    assert holder_of(own) == "second"
    kill(waiter)


@pytest.mark.parametrize("kind", [PrivateValkey, PrivateRedis])
def test_a_user_without_channels_is_told_so(kind: type[PrivateValkey], settings: Any) -> None:
    with kind() as server, server.client() as client:
        client.acl_setuser("shop", enabled=True, passwords=["+s3cret"], keys=["*"], categories=["+@all"])
        client.execute_command("ACL", "SETUSER", "shop", "resetchannels")
        store = redis_store(settings, server.url().replace("unix://", "unix://shop:s3cret@"))
        store.open()
        token = store.grant("first")
        with store.backend.waiter("second", 30.0, NOBODY) as waiter:
            with pytest.raises(LeaseBackendError, match=r"&fencing:\*"):
                waiter.ask(store.place())
            client.execute_command("ACL", "SETUSER", "shop", "&fencing:*")
            assert isinstance(waiter.ask(store.place()), Held)
            assert store.backend.release(store.place(), "first", token)
            assert told(store, waiter) is not None


def test_a_server_that_went_away_is_a_typed_error(valkey_server: Callable[..., PrivateValkey], settings: Any) -> None:
    server = valkey_server()
    store = redis_store(settings, server.url())
    store.open()
    store.grant("first")
    waiter = queue_in(store, "second")
    server.kill()
    assert told_nothing(store, waiter)
    with pytest.raises(LeaseBackendError):
        waiter.ask(store.place())
    with pytest.raises(LeaseBackendError):
        store.backend.give_up(store.place(), "second")
    server.start()
    store.open()
    store.grant("third")
    held = waiter.ask(store.place())
    assert isinstance(held, Held) and held.holder == "third"
    kill(waiter)


def test_a_connection_that_died_between_two_waits_is_made_again(
    valkey_server: Callable[..., PrivateValkey], settings: Any
) -> None:
    server = valkey_server()
    store = redis_store(settings, server.url())
    store.open()
    token = store.grant("first")
    with queue_in(store, "second") as waiter:
        store.backend.release(store.place(), "first", token)
        assert told(store, waiter) is not None
    server.kill()
    server.start()
    store.open()
    token = store.grant("third")
    with queue_in(store, "fourth") as again:
        assert again._listener is waiter._listener  # type: ignore[attr-defined]
        store.backend.release(store.place(), "third", token)
        assert told(store, again) is not None


def test_a_waiter_that_could_not_give_up_counts_as_dead(own: Store) -> None:
    token = own.grant("first")
    with pytest.raises(RuntimeError), queue_in(own, "second"):
        raise RuntimeError
    only_listen(own, 0)
    own.backend.release(own.place(), "first", token)
    assert holder_of(own) == ""


def test_a_release_that_is_sent_again_disturbs_nobody(store: Store, queue: Queue) -> None:
    """redis-py sends it again when the reply is lost; the lease is the next one's by then."""
    token = store.grant("first")
    queue("second"), queue("third")
    assert store.backend.release(store.place(), "first", token)
    assert not store.backend.release(store.place(), "first", token)
    assert holder_of(store) == "second"


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_cluster_hands_over_on_the_node_of_the_slot(kind: str, settings: Any) -> None:
    """A node knows its own subscribers only; a waiter follows the slot when it asks again."""
    with ExitStack() as stack:
        cluster = Cluster(Servers(kind, stack))
        store = redis_store(settings, cluster.url() + "?db=0", **CACHE)
        prefix = f"fencing:{{{store.space}:0}}:"
        home = cluster.owner(key_slot(prefix.encode()))
        store.open()
        token = store.grant("first")
        dead, alive = queue_in(store, "dead"), queue_in(store, "alive")
        kill(dead)
        with asked(home) as client:
            wait_until(lambda: len(client.pubsub_channels()) == 1, "the node knows who is dead")
        store.backend.release(store.place(), "first", token)
        assert holder_of(store) == "alive"
        assert told(store, alive) is not None

        behind = queue_in(store, "behind")
        away = next(node for node in cluster.primaries if node is not home)
        cluster.move(key_slot(prefix.encode()), home, away, [prefix + kind for kind in ("counter", "events")])
        # The lease and its queue were left behind: another client's lease, in a new reign.
        store.open(first=2000, last=3000)
        token = store.grant("third")
        assert isinstance(behind.ask(store.place()), Held)
        store.backend.release(store.place(), "third", token)
        assert holder_of(store) == "behind"
        assert told(store, behind) is not None
        kill(behind)
