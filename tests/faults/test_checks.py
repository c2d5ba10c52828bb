"""System checks of stores with several servers: each that issues numbers is asked, and named."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from redis.crc import key_slot

from fencing.checks import check_stores
from tests.concurrency import wait_until
from tests.faults.cluster import CACHE, Cluster
from tests.faults.sentinel import Sentinel
from tests.faults.servers import Servers, asked, caught_up, port_of
from tests.services import HOST, PrivateValkey

pytestmark = pytest.mark.django_db(databases="__all__")


def let_evict(server: PrivateValkey) -> None:
    with asked(server) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")


def told() -> list[tuple[str, str]]:
    """The id of each message, and which server it names."""
    found = []
    for message in check_stores():
        assert message.msg.startswith("The lease store of 'default'")
        _, _, rest = message.msg.partition(" at ")
        found.append((str(message.id).removeprefix("fencing."), rest.partition(" ")[0]))
    return sorted(found)


def test_every_primary_of_a_cluster_is_asked(servers: Servers, settings: Any) -> None:
    cluster = Cluster(servers)
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": cluster.url(), **CACHE}
    settings.CACHES = {**settings.CACHES, "store": entry}
    backend = {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "store", "PARTITIONS": 16}
    settings.FENCING = {"BACKENDS": {"default": backend}}
    assert told() == []

    # The one that is asked whether the store answers at all stays as it is.
    asked_first = cluster.owner(key_slot(b"check:0"))
    second, third = (node for node in cluster.primaries if node is not asked_first)
    names = {node: f"{HOST}:{port_of(node)}" for node in cluster.primaries}
    let_evict(second)
    assert told() == [("W010", names[second])]
    with asked(third) as client:
        client.acl_setuser("default", enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=["-info"])
    assert told() == [("E012", names[third]), ("W010", names[second])]

    for node in cluster.primaries:
        with asked(node) as client:
            client.config_set("cluster-require-full-coverage", "no")
    third.kill()
    assert told() == [("E011", names[third]), ("W010", names[second])]


def test_the_primary_that_a_sentinel_names_is_asked(servers: Servers, settings: Any) -> None:
    primary, replica = servers.pair()
    with Sentinel(primary, f"shop-{secrets.token_hex(4)}") as sentinel:
        location, cache = sentinel.cache()
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, **cache}
        settings.CACHES = {**settings.CACHES, "store": entry}
        settings.FENCING = {
            "BACKENDS": {"default": {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "store"}}
        }
        let_evict(replica)
        assert told() == []
        wait_until(lambda: caught_up(replica, primary), "the replica may take over")
        primary.kill()
        wait_until(lambda: sentinel.state().get("port") == port_of(replica), "clients are told")
        assert told() == [("W010", f"{HOST}:{port_of(replica)}")]
