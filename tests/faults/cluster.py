"""A small cluster of real nodes, and how django-redis reaches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django_redis.pool import ConnectionFactory
from redis.cluster import RedisCluster

from tests.concurrency import wait_until
from tests.faults.servers import Servers, asked, port_of
from tests.services import HOST, PrivateValkey, free_port

SLOTS = 16384


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]  # django-redis' own type parameters
    """What a project writes to use a cluster through django-redis (see docs/howto.md)."""

    def connect(self, url: str) -> RedisCluster:
        """One client per cache; it keeps its own pools, one for each node."""
        client: RedisCluster = RedisCluster.from_url(url, **self.redis_client_cls_kwargs)
        return client


CACHE: dict[str, Any] = {
    "OPTIONS": {
        "CONNECTION_FACTORY": "tests.faults.cluster.ClusterConnectionFactory",
        "REDIS_CLIENT_KWARGS": {"socket_timeout": 1, "socket_connect_timeout": 1},
    }
}


class Cluster:
    """Three primaries, each with a third of the slots."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.primaries = [self._start() for _ in range(3)]
        bounds = [0, SLOTS // 3, 2 * SLOTS // 3, SLOTS]
        for number, node in enumerate(self.primaries):
            with asked(node) as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)  # type: ignore[no-untyped-call]
                client.execute_command("CONFIG SET", "cluster-node-timeout", 1500)  # type: ignore[no-untyped-call]
            self._join(node)
        wait_until(lambda: all(self._knows_all(node) for node in self.primaries), "the cluster forms")

    def url(self) -> str:
        """An address that a client begins with."""
        return f"redis://{HOST}:{port_of(self.primaries[0])}"

    def owner(self, slot: int) -> PrivateValkey:
        """The primary that has a slot."""
        bounds = [SLOTS // 3, 2 * SLOTS // 3, SLOTS]
        return next(node for node, end in zip(self.primaries, bounds, strict=True) if slot < end)

    def add_replica(self, primary: PrivateValkey) -> PrivateValkey:
        """A replica of a primary, up to date."""
        replica = self._start()
        self._join(replica)
        primary_id = node_id(primary)
        wait_until(lambda: primary_id in nodes(replica), "the replica knows its primary")
        with asked(replica) as client:
            client.execute_command("CLUSTER REPLICATE", primary_id)  # type: ignore[no-untyped-call]
        replica_id = node_id(replica)
        for node in self.primaries:
            wait_until(lambda node=node: "slave" in nodes(node).get(replica_id, ""), "everybody knows the replica")  # type: ignore[misc]
        return replica

    def move(self, slot: int, source: PrivateValkey, target: PrivateValkey, keys: list[str]) -> None:
        """Move a slot with the keys named; others are lost."""
        with asked(source) as there, asked(target) as here:
            here.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", node_id(source))  # type: ignore[no-untyped-call]
            there.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", node_id(target))  # type: ignore[no-untyped-call]
            there.execute_command("MIGRATE", HOST, port_of(target), "", 0, 5000, "KEYS", *keys)  # type: ignore[no-untyped-call]
            for client in (here, there):
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", node_id(target))  # type: ignore[no-untyped-call]

    @contextmanager
    def moving(self, slot: int, source: PrivateValkey, target: PrivateValkey) -> Iterator[Callable[[], list[bytes]]]:
        """A slot on its way, as with redis-cli; the function moves one of the keys at the source and returns the rest."""
        with asked(source) as there, asked(target) as here:

            def carry() -> list[bytes]:
                keys: list[bytes] = there.execute_command("CLUSTER GETKEYSINSLOT", slot, 100)  # type: ignore[no-untyped-call]
                if keys:
                    there.execute_command("MIGRATE", HOST, port_of(target), keys[0], 0, 5000)  # type: ignore[no-untyped-call]
                return keys[1:]

            here.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", node_id(source))  # type: ignore[no-untyped-call]
            there.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", node_id(target))  # type: ignore[no-untyped-call]
            yield carry
            while carry():
                pass
            for client in (here, there):
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", node_id(target))  # type: ignore[no-untyped-call]

    def refusals(self) -> dict[str, int]:
        """How often the nodes sent clients elsewhere or put them off, by the error's name: ASK, MOVED, TRYAGAIN, …"""
        counts: Counter[str] = Counter()
        for node in self.primaries:
            with asked(node) as client:
                for name, found in client.info("errorstats").items():
                    counts[name.removeprefix("errorstat_")] += found["count"]
        return dict(counts)

    def serves(self, node: PrivateValkey) -> bool:
        """Whether a node thinks that every slot is served."""
        return info_of(node)["cluster_state"] == "ok"

    def _knows_all(self, node: PrivateValkey) -> bool:
        return self.serves(node) and info_of(node)["cluster_known_nodes"] == str(len(self.primaries))

    def _start(self) -> PrivateValkey:
        options = {"cluster-enabled": "yes", "cluster-port": str(free_port()), "cluster-replica-validity-factor": "0"}
        return self._servers.start(**options)

    def _join(self, node: PrivateValkey) -> None:
        first = self.primaries[0] if hasattr(self, "primaries") else node
        if node is not first:
            with asked(node) as client:
                client.execute_command("CLUSTER MEET", HOST, port_of(first), first.options["cluster-port"])  # type: ignore[no-untyped-call]


def info_of(node: PrivateValkey) -> dict[str, str]:
    """What a node says about the cluster."""
    with asked(node) as client:
        return dict(client.execute_command("CLUSTER INFO"))  # type: ignore[no-untyped-call]


def node_id(node: PrivateValkey) -> str:
    """The name of a node inside the cluster."""
    with asked(node) as client:
        found = client.execute_command("CLUSTER MYID")  # type: ignore[no-untyped-call]
    return found.decode() if isinstance(found, bytes) else str(found)


def nodes(node: PrivateValkey) -> dict[str, str]:
    """The flags of each node, by its name, as one node sees them."""
    with asked(node) as client:
        found = client.execute_command("CLUSTER NODES")  # type: ignore[no-untyped-call]
    return {one["node_id"]: one["flags"] for one in found.values()}
