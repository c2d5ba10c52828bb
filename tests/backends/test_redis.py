"""What is special to the Redis backend: its keys, its clients, and servers that misbehave."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.sentinel

from fencing.backends.base import Granted, Held, HolderInfo
from fencing.backends.redis import RedisBackend
from fencing.backends.redis_client import _connection
from fencing.backends.scripts import DRAW, Script
from fencing.exceptions import LeaseBackendError
from tests.backends.stores import NOBODY, PrivateRedis, Store, config, redis_store
from tests.faults.cluster import CACHE as CLUSTER_CACHE
from tests.services import PrivateValkey, free_port

ROOT = Path(__file__).parents[2]


def keys_of(server: PrivateValkey, store: Store) -> list[str]:
    with redis.Redis.from_url(server.url()) as client:
        return sorted(key.decode() for key in client.scan_iter(f"*{store.space}*"))


def client_of(store: Store) -> redis.Redis:
    """The store's own client."""
    client: redis.Redis = store.backend._client.redis  # type: ignore[attr-defined]
    return client


def lose_the_next_reply(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let the store's next reply be lost and its connection cut; what it was comes into the list."""
    connections: Any = client_of(store).connection_pool.connection_class
    lost: list[Any] = []
    read: Callable[..., Any] = connections.read_response

    def lose_the_first(connection: Any, *args: Any, **options: Any) -> Any:
        answer = read(connection, *args, **options)
        if not lost:
            lost.append(answer)
            connection.disconnect()
            raise redis.ConnectionError("cut")
        return answer

    monkeypatch.setattr(connections, "read_response", lose_the_first)
    return lost


def slot(key: str) -> int:
    """The slot of a cluster, by the rule of the specification: the part between the first braces, if any."""
    tag = re.search(r"\{([^}]+)\}", key)
    hashed = (tag.group(1) if tag else key).encode()
    crc = 0
    for byte in hashed:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
    return (crc & 0xFFFF) % 16384


def test_no_key_is_left_behind_for_a_resource(server: PrivateValkey, settings: Any) -> None:
    store = redis_store(settings, server.url())
    store.open()
    for number in range(50):
        token = store.grant("holder", f"stock:{number}")
        store.backend.release(store.place(f"stock:{number}"), "holder", token)
    prefix = f"fencing:{{{store.space}:0}}:"
    assert keys_of(server, store) == [prefix + "counter", prefix + "events"]


@pytest.mark.parametrize("name", ["plain", "a{b}c", "{", "}{", "{}", "a b", "Größe"])
def test_all_keys_of_a_grant_are_in_one_slot(server: PrivateValkey, settings: Any, name: str) -> None:
    store = redis_store(settings, server.url(), KEY_PREFIX="shop")
    store.open()
    store.grant("holder", name)
    keys = keys_of(server, store)
    assert len(keys) == 3
    assert len({slot(key) for key in keys}) == 1


def test_prefixes_are_independent_and_versions_are_not(server: PrivateValkey, settings: Any) -> None:
    store = redis_store(settings, server.url(), KEY_PREFIX="a[1]*")
    store.open()
    token = store.grant("holder")
    other = redis_store(settings, server.url(), KEY_PREFIX="b")
    other.space = store.space
    other.open()
    assert other.grant("other") == 1
    assert [one.holder for one in other.backend.live(store.space, 0, 10)] == ["other"]
    bumped = redis_store(settings, server.url(), KEY_PREFIX="a[1]*", VERSION=2)
    bumped.space = store.space
    assert [one.token for one in bumped.backend.live(store.space, 0, 10)] == [token]
    assert bumped.grant("next", "stock:43") > token


@pytest.mark.parametrize("decoded", [False, True])
def test_clients_that_decode_and_that_do_not(server: PrivateValkey, settings: Any, decoded: bool) -> None:
    options = {"CONNECTION_POOL_KWARGS": {"decode_responses": decoded}}
    store = redis_store(settings, server.url(), OPTIONS=options)
    place = store.place("Größe {4}")
    store.open()
    token = store.grant("holder", place.resource, info=HolderInfo(task_id="4711", task_name="zählen"))
    assert store.backend.acquire(place, "other", 1.0, NOBODY).token == token  # type: ignore[union-attr]
    assert store.backend.renew(place, "holder", 20.0)
    assert store.backend.advance(place, "holder").token == token + 1  # type: ignore[union-attr]
    [live] = store.backend.live(store.space, 0, 10)
    assert (live.token, live.info.task_name) == (token, "zählen")
    assert store.backend.peek(place).token == token  # type: ignore[union-attr]
    assert store.backend.release(place, "holder", token)
    events = store.backend.read_events(store.space, 0, 10)
    assert [one.kind for one in events] == ["granted", "released"]
    store.backend.forget_events(store.space, 0, [one.id for one in events])
    assert store.backend.dropped_events(store.space, 0) == 0
    assert store.backend.read_events(store.space, 0, 10) == []


@pytest.mark.parametrize("ttl", [0.0004, 0.5, 1.5, 2, 1.0001])
def test_a_ttl_is_rounded_up_to_milliseconds(server: PrivateValkey, settings: Any, ttl: float) -> None:
    store = redis_store(settings, server.url())
    store.open()
    store.grant("holder", ttl=ttl)
    key = f"fencing:{{{store.space}:0}}:lease:stock:42"
    assert client_of(store).pttl(key) in (-2, *range(int(ttl * 1000) + 2)), "never without an end"
    store.grant("keeper", "stock:43", ttl=30.0)
    assert store.backend.renew(store.place("stock:43"), "keeper", ttl)
    left = client_of(store).pttl(key.replace("42", "43"))
    assert left in (-2, *range(int(ttl * 1000) + 2))


def test_scripts_are_sent_again_to_a_server_that_forgot_them(server: PrivateValkey, settings: Any) -> None:
    store = redis_store(settings, server.url())
    store.open()
    client_of(store).script_flush()
    token = store.grant("holder")
    client_of(store).script_flush()
    assert store.backend.release(store.place(), "holder", token)


def test_a_reply_that_was_lost_does_not_lose_the_grant(
    server: PrivateValkey, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = redis_store(settings, server.url())
    store.open()
    lost = lose_the_next_reply(store, monkeypatch)
    token = store.grant("holder")
    assert [bytes(answer).split()[1] for answer in lost] == [str(token).encode()]
    assert store.grant("other", "stock:43") == token + 1


def test_a_release_whose_reply_was_lost_is_one(
    server: PrivateValkey, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else finished work would be told that its lease was lost."""
    store = redis_store(settings, server.url())
    store.open()
    token = store.grant("holder")
    lost = lose_the_next_reply(store, monkeypatch)
    assert store.backend.release(store.place(), "holder", token)
    assert lost == [1]
    assert not store.backend.release(store.place(), "holder", token)


def test_a_forked_child_uses_no_connection_of_its_parents(server: PrivateValkey, settings: Any) -> None:
    """C11: both would read from one socket, each the other's answers."""
    store = redis_store(settings, server.url())
    store.open()
    [parents] = store.backend._client._idle  # type: ignore[attr-defined]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if store.grant("child", "stock:child") == 1 and parents not in store.backend._client._idle:  # type: ignore[attr-defined]
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.grant("parent") == 2


def test_a_server_that_is_silent_is_not_asked_again(
    server: PrivateValkey, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call would else take as long as two; and the first one may still take effect."""
    store = redis_store(settings, server.url())
    store.open()
    connections: Any = client_of(store).connection_pool.connection_class
    asked: list[object] = []

    def silent(connection: Any, *_args: Any, **_options: Any) -> None:
        asked.append(connection)
        raise redis.TimeoutError("Timeout reading from socket")

    with monkeypatch.context() as patch, pytest.raises(LeaseBackendError, match="Timeout"):
        patch.setattr(connections, "read_response", silent)
        store.grant("holder")
    assert len(asked) == 1
    assert store.grant("holder") == 1, "its own grant, now that it hears"


@pytest.fixture
def idle() -> Callable[[Store, int], list[Any]]:
    """Lets so many connections wait for their next use, as many threads would leave them."""

    def make(store: Store, count: int) -> list[Any]:
        client = store.backend._client  # type: ignore[attr-defined]
        pool = client.redis.connection_pool
        client._idle += [_connection(pool) for _ in range(count - len(client._idle))]
        return list(client._idle)

    return make


Idle = Callable[[Store, int], list[Any]]


def test_connections_that_the_server_closed_are_made_again(server: PrivateValkey, settings: Any, idle: Idle) -> None:
    """All of them broke: who asks again must not be given another one of them."""
    store = redis_store(settings, server.url())
    store.open()
    closed = idle(store, 3)
    with redis.Redis.from_url(server.url()) as client:
        assert client.client_kill_filter(_type="normal", skipme=True) >= len(closed)
    assert store.grant("holder") == 1
    assert not set(closed) & set(idle(store, 0))


def test_a_server_that_was_restarted_is_asked_at_once(
    valkey_server: Callable[..., PrivateValkey], settings: Any, idle: Idle
) -> None:
    server = valkey_server()
    store = redis_store(settings, server.url())
    store.open()
    idle(store, 3)
    server.kill()
    server.start()
    store.open(1001, 2000)
    assert store.grant("holder") == 1001


def test_connections_to_a_primary_that_a_sentinel_has_replaced_are_dropped(
    valkey_server: Callable[..., PrivateValkey], settings: Any, idle: Idle
) -> None:
    """The old one may be cut off and still answer: whoever makes a connection hears of it for the whole process."""
    old, new = (valkey_server(port=str(free_port())) for _ in range(2))
    store = redis_store(settings, old.url())
    sentinel = SayingPrimary(int(old.options["port"]))
    pool: Any = redis.sentinel.SentinelConnectionPool("shop", sentinel)  # type: ignore[no-untyped-call]
    store.backend._client.redis = redis.Redis(connection_pool=pool)  # type: ignore[attr-defined]
    store.open(1, 10)
    idle(store, 3)
    assert store.grant("holder") == 1
    sentinel.port = int(new.options["port"])
    assert store.grant("holder", "stock:43") == 2, "nobody has asked the Sentinel since"
    assert client_of(store).ping()
    store.open(11, 20)
    assert [store.grant("holder"), store.grant("other", "stock:43")] == [11, 12]
    pool.disconnect()


class SayingPrimary:
    """What a pool asks of its Sentinels."""

    def __init__(self, port: int) -> None:
        self.port = port

    def discover_master(self, _service: str) -> tuple[str, int]:
        return ("127.0.0.1", self.port)


def test_an_interrupted_read_leaves_its_answer_to_nobody(
    server: PrivateValkey, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a soft time limit of Celery, or by Ctrl+C."""
    store = redis_store(settings, server.url())
    store.open()
    connections: Any = client_of(store).connection_pool.connection_class

    def interrupted(*_args: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(connections, "read_response", interrupted)
        store.grant("holder")
    assert not store.backend.renew(store.place(), "other", 30.0)
    assert store.grant("holder") == 1


def test_releasing_works_without_memory(valkey_server: Callable[..., PrivateValkey], settings: Any) -> None:
    server = valkey_server(**{"maxmemory-policy": "noeviction"})
    store = redis_store(settings, server.url())
    store.open()
    token = store.grant("holder")
    with server.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(LeaseBackendError, match="OutOfMemory"):
            store.grant("other", "stock:43")
        assert store.backend.release(store.place(), "holder", token)
        client.config_set("maxmemory", 0)
    assert store.backend.peek(store.place()) is None


@pytest.mark.parametrize("kind", [PrivateValkey, PrivateRedis])
def test_a_user_who_may_not_read_info_is_told_so(kind: type[PrivateValkey], settings: Any) -> None:
    with kind() as server, server.client() as client:
        client.acl_setuser("shop", enabled=True, passwords=["+s3cret"], keys=["*"], categories=["+@all", "-@dangerous"])
        url = server.url().replace("unix://", "unix://shop:s3cret@")
        store = redis_store(settings, url)
        with pytest.raises(LeaseBackendError, match=r"\+info") as caught:
            store.backend.draw(store.place())
        assert "s3cret" not in str(caught.value)
        client.acl_setuser("shop", commands=["+info"])
        store.open()
        token = store.grant("holder")
        assert store.backend.release(store.place(), "holder", token)


def test_the_user_of_the_how_to_may_do_everything(server: PrivateValkey, settings: Any) -> None:
    [rule] = re.findall(r"^ACL SETUSER shop .*$", (ROOT / "docs" / "howto.md").read_text(), re.MULTILINE)
    with server.client() as client:
        client.execute_command(*rule.split(" "))
        url = server.url().replace("unix://", "unix://shop:password@")
        store = redis_store(settings, url)
        store.open()
        place = store.place()
        token = store.grant("holder")
        assert store.backend.renew(place, "holder", 30.0)
        assert isinstance(store.backend.advance(place, "holder"), Granted)
        with store.backend.waiter("waiter", 30.0, NOBODY) as waiter:
            assert isinstance(waiter.ask(place), Held)
            assert store.backend.release(place, "holder", token)
            handed = waiter.sleep(Held(holder="holder", token=token, remaining=10.0), 10.0)
        assert handed is not None
        assert store.backend.revoke(place, handed.token)
        store.backend.give_up(place, "waiter")
        assert isinstance(store.backend.draw(place), Granted)
        lease = store.grant("other")
        assert [one.token for one in store.backend.live(store.space, 0, 10)] == [lease]
        events = store.backend.read_events(store.space, 0, 10)
        store.backend.forget_events(store.space, 0, [one.id for one in events])
        assert store.events() == []
        assert store.backend.dropped_events(store.space, 0) == 0
        closed = store.backend.close_reign(place)
        assert store.backend.install(place, closed.reign, 5000, 6000)
        with pytest.raises(redis.exceptions.NoPermissionError):
            client_of(store).set("page:1", "not its own")
        client.acl_deluser("shop")


def test_a_server_without_a_replid_of_its_own_is_refused(
    server: PrivateValkey, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = redis_store(settings, server.url())
    store.open()
    hidden = DRAW.source.replace(b"'master_replid:", b"'redis_mode:")
    assert hidden != DRAW.source
    monkeypatch.setattr("fencing.backends.redis.DRAW", Script(hidden, b"0" * 40))
    with pytest.raises(LeaseBackendError, match="master_replid"):
        store.backend.draw(store.place())


def told_with(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all that a traceback shows before it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def test_an_unreachable_server_is_a_typed_error(valkey_server: Callable[..., PrivateValkey], settings: Any) -> None:
    server = valkey_server()
    store = redis_store(settings, server.url())
    store.open()
    token = store.grant("holder")
    server.kill()
    place = store.place()
    for call in (
        lambda: store.backend.acquire(place, "h", 1.0, NOBODY),
        lambda: store.backend.renew(place, "holder", 1.0),
        lambda: store.backend.advance(place, "holder"),
        lambda: store.backend.release(place, "holder", token),
        lambda: store.backend.revoke(place, token),
        lambda: store.backend.draw(place),
        lambda: store.backend.install(place, "r", 1, 2),
        lambda: store.backend.close_reign(place),
        lambda: store.backend.peek(place),
        lambda: store.backend.give_up(place, "holder"),
        lambda: list(store.backend.live(store.space, 0, 5)),
        lambda: store.backend.read_events(store.space, 0, 5),
        lambda: store.backend.forget_events(store.space, 0, ["1-1"]),
        lambda: store.backend.dropped_events(store.space, 0),
    ):
        with pytest.raises(LeaseBackendError, match="'default'") as caught:
            call()
        assert not any(isinstance(error, IndexError) for error in told_with(caught.value)), (
            "nothing of the client's own"
        )


def test_an_unreachable_cluster_is_a_typed_error(settings: Any) -> None:
    """redis-py's errors of a cluster are not all of one kind."""
    store = redis_store(settings, "redis://127.0.0.1:1?db=0", **CLUSTER_CACHE)
    with pytest.raises(LeaseBackendError, match=r"did not answer.*RedisClusterException"):
        store.backend.draw(store.place())
    with pytest.raises(LeaseBackendError, match=r"did not answer.*RedisClusterException"):
        store.backend.peek(store.place())


def test_a_malformed_address_does_not_show_its_password(settings: Any) -> None:
    store = redis_store(settings, "redis://:s3cret/x@localhost:6379/1")
    with pytest.raises(LeaseBackendError) as caught:
        store.backend.draw(store.place())
    assert "s3cret" not in str(caught.value)
    assert "LOCATION" in str(caught.value)


def test_the_check_names_a_cache_that_cannot_be_used(settings: Any) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "odd": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://localhost", "KEY_PREFIX": "a{"},
        "good": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://localhost"},
    }

    def found(cache: str) -> list[str | None]:
        return [one.id for one in RedisBackend(config("x", cache=cache)).check()]

    assert found("missing") == ["fencing.E020"]
    assert found("default") == ["fencing.E021"]
    assert found("odd") == ["fencing.E022"]
    assert found("good") == []
    with pytest.raises(LeaseBackendError, match="missing"):
        Store(RedisBackend(config("x", cache="missing"))).needs_range()
    with pytest.raises(LeaseBackendError, match="not a django-redis cache"):
        Store(RedisBackend(config("x", cache="default"))).needs_range()


def test_something_else_under_the_key_is_a_typed_error(server: PrivateValkey, settings: Any) -> None:
    store = redis_store(settings, server.url())
    store.open()
    client_of(store).set(f"fencing:{{{store.space}:0}}:lease:stock:42", "something else")
    with pytest.raises(LeaseBackendError, match="something else"):
        store.grant("holder")
    with pytest.raises(LeaseBackendError, match="something else"):
        store.backend.peek(store.place())
