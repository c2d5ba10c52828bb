"""Redis Cluster through django-redis: failover to a lagging replica, and a slot that moves and moves back."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from fencing import lease
from fencing.backends import LeaseBackend
from fencing.backends.base import Lost
from fencing.models import Reign
from fencing.tokens import place_of
from tests.concurrency import wait_until
from tests.faults.cluster import CACHE, Cluster
from tests.faults.servers import Servers, asked, caught_up, cut_off, role
from tests.faults.shop import Shop

PARTITIONS = 4


def tag(backend: LeaseBackend, resource: str) -> str:
    place = place_of(backend, resource)
    return f"{{{place.space}:{place.partition}}}"


@pytest.mark.slow
def test_cluster_whose_slot_moves_and_whose_primary_fails(servers: Servers, shop: Shop) -> None:
    cluster = Cluster(servers)
    backend = shop.at(cluster.url(), cache=CACHE, PARTITIONS=PARTITIONS)
    # Each partition counts in ranges of its own, so numbers of different ones are unique and in no order.
    shop.grants(20, rising=False)
    assert Reign.objects.filter(namespace=shop.namespace).values("partition").distinct().count() == PARTITIONS
    shop.sell(rising=False)

    slot = key_slot(tag(backend, shop.resource).encode())
    home = cluster.owner(slot)
    away = next(node for node in cluster.primaries if node is not home)
    keys = [f"fencing:{tag(backend, shop.resource)}:{kind}" for kind in ("counter", "events")]

    def reigns() -> int:
        return Reign.objects.filter(
            namespace=shop.namespace, partition=place_of(backend, shop.resource).partition
        ).count()

    for source, target in ((home, away), (away, home)):
        before, top = reigns(), max(shop.issued)
        cluster.move(slot, source, target, keys)
        assert shop.sell(rising=False) > top, "a new reign, above everything"
        assert reigns() == before + 1
        shop.sell(tries=1, rising=False)

    replica = cluster.add_replica(home)
    wait_until(lambda: caught_up(replica, home), "the replica is online")
    shop.sell(rising=False)
    sleeper = shop.sleeper(shop.resource, ttl=4.0, rising=False)
    wait_until(lambda: caught_up(replica, home), "the replica has the lease")
    cut_off(home)
    backend.release(sleeper.place, sleeper.holder, sleeper.token)
    shop.sell(rising=False)
    shop.grants(8, rising=False)
    home.kill()
    wait_until(lambda: role(replica) == "master" and cluster.serves(replica), "the replica takes over")
    with asked(replica) as client:
        assert client.hget(keys[0], "reign"), "with an older counter"

    top = max(shop.issued)
    with lease(shop.resource, wait=20) as held:
        assert shop.note(held.token) > top
        assert shop.advance(sleeper) == Lost()
    shop.sell(rising=False)
    shop.grants(8, rising=False)
