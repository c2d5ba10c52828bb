"""Redis Cluster through django-redis: failover to a lagging replica, and slots that move while calls are made."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from redis.crc import key_slot

from fencing import LeaseBackendError, LeaseLostError, lease
from fencing.backends import LeaseBackend
from fencing.backends.base import Lost
from fencing.models import Reign
from fencing.reigns import MARGIN
from fencing.tokens import place_of
from tests.concurrency import BOUND, threads, wait_until
from tests.faults.cluster import CACHE, Cluster
from tests.faults.servers import Servers, asked, caught_up, cut_off, role
from tests.faults.shop import Shop

PARTITIONS = 4
# How many calls each client ends, well or not, before the next thing happens to the slot.
CALLS = 3


def tag(backend: LeaseBackend, resource: str) -> str:
    place = place_of(backend, resource)
    return f"{{{place.space}:{place.partition}}}"


def kept(cluster: Cluster, backend: LeaseBackend) -> int:
    """How many keys of the namespace all nodes have together."""
    found = 0
    for node in cluster.primaries:
        with asked(node) as client:
            found += len(client.keys(f"fencing:{{{place_of(backend, 'any').space}:*"))
    return found


@pytest.mark.slow
def test_cluster_whose_slot_moves_and_whose_primary_fails(servers: Servers, shop: Shop) -> None:
    cluster = Cluster(servers)
    backend = shop.at(cluster.url(), cache=CACHE, PARTITIONS=PARTITIONS)
    # Each partition counts in ranges of its own, so numbers of different ones are unique and in no order.
    shop.grants(20, rising=False)
    assert Reign.objects.filter(namespace=shop.namespace).values("partition").distinct().count() == PARTITIONS
    assert kept(cluster, backend) > PARTITIONS
    backend.forget(place_of(backend, shop.resource).space)
    assert kept(cluster, backend) == 0, "on every node"
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
    # An election that gets too few votes in time, on a busy machine, is held again some seconds later.
    wait_until(lambda: role(replica) == "master" and cluster.serves(replica), "the replica takes over", seconds=60.0)
    with asked(replica) as client:
        assert client.hget(keys[0], "reign"), "with an older counter"

    top = max(shop.issued)
    with lease(shop.resource, wait=20) as held:
        assert shop.note(held.token) > top
        assert shop.advance(sleeper) == Lost()
    shop.sell(rising=False)
    shop.grants(8, rising=False)


class Caller:
    """A client that never stops: what it was issued, in order, and what its calls ended with."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.issued: list[int] = []
        self.ended = 0
        self.stop = False

    def run(self) -> None:
        while not self.stop:
            try:
                with lease(self.resource, ttl=2, wait=BOUND, renew=False) as held:
                    self.issued.append(held.token)
                    self.issued.append(held.advance())
            except (LeaseBackendError, LeaseLostError):
                pass  # the keys were at two nodes; or a new reign began under the lease
            self.ended += 1


@pytest.mark.slow
def test_slot_that_moves_and_moves_back_while_calls_are_made(servers: Servers, shop: Shop) -> None:
    """TRYAGAIN while its keys are at two nodes, ASK and MOVED: each call is answered or ends in a typed error."""
    cluster = Cluster(servers)
    backend = shop.at(cluster.url(), cache=CACHE)
    shop.grants(3)
    slot = key_slot(tag(backend, "any").encode())
    home = cluster.owner(slot)
    away = next(node for node in cluster.primaries if node is not home)
    # Two of them wait for each other.
    callers = [Caller(name) for name in ("stock:1", "stock:2", "stock:shared", "stock:shared")]

    def go_on(what: str) -> None:
        """Until each client has ended some calls more."""
        goals = [caller.ended + CALLS for caller in callers]
        wait_until(
            lambda: all(caller.ended >= goal for caller, goal in zip(callers, goals, strict=True)), what, seconds=60
        )

    with threads() as start:
        runs = [start(caller.run) for caller in callers]
        try:
            go_on("before anything moves")
            for source, target in ((home, away), (away, home)):
                with cluster.moving(slot, source, target) as carry:
                    go_on("the slot is on its way, all keys where they were")
                    carry()
                    go_on("the keys are at both nodes")
                    while carry():
                        pass
                    go_on("all keys have moved")
                granted = [len(caller.issued) for caller in callers]
                wait_until(
                    lambda granted=granted: all(  # type: ignore[misc]
                        len(caller.issued) > count for caller, count in zip(callers, granted, strict=True)
                    ),
                    "everybody is granted something where the slot is now",
                    seconds=60,
                )
        finally:
            for caller in callers:
                caller.stop = True
        for run in runs:
            run.result(BOUND)
    for caller in callers:
        assert caller.issued == sorted(caller.issued), "each of them counts upwards"
    issued = [*shop.issued, *(token for caller in callers for token in caller.issued)]
    assert len(set(issued)) == len(issued), "a number was issued twice"
    assert cluster.refusals().keys() >= {"TRYAGAIN", "ASK", "MOVED"}
    assert Reign.objects.filter(namespace=shop.namespace).count() >= 3


@pytest.mark.slow
def test_every_partition_of_a_cluster_is_opened_and_one_that_is_away_is_named(servers: Servers, shop: Shop) -> None:
    """S11; a node that does not answer, and slots that nobody serves, are typed errors."""
    cluster = Cluster(servers)
    backend = shop.at(cluster.url(), cache=CACHE, PARTITIONS=PARTITIONS)
    top = max(shop.grants(20, rising=False))
    call_command("fencing", "reigns", "--open")
    assert min(shop.grants(20, rising=False)) > top + MARGIN
    with asked(cluster.owner(key_slot(tag(backend, shop.resource).encode()))) as client:
        client.shutdown(nosave=True)
    with pytest.raises(LeaseBackendError), lease(shop.resource):
        raise AssertionError("nobody serves it")
    shop.at(cluster.url() + "?client_name=new", cache=CACHE, PARTITIONS=PARTITIONS)
    with pytest.raises(LeaseBackendError), lease(shop.resource):
        raise AssertionError("nobody serves it, and the client was made after that")
