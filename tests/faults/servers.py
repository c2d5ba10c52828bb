"""Several servers of one kind: replicas that are cut off, promoted and demoted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from tests.backends.stores import PrivateRedis
from tests.concurrency import wait_until
from tests.services import HOST, PrivateValkey, free_port

KINDS: dict[str, type[PrivateValkey]] = {"valkey": PrivateValkey, "redis": PrivateRedis}


class Servers:
    """Starts servers of one kind that listen on TCP as well, for one another."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        self.kind = kind
        self._stack = stack

    def start(self, **options: str) -> PrivateValkey:
        """A server of its own; its port is among its options."""
        # Without the delay a replica waits 5 s for others to join it.
        common = {"port": str(free_port()), "bind": HOST, "repl-diskless-sync-delay": "0"}
        return self._stack.enter_context(KINDS[self.kind](**{**common, **options}))

    def pair(self) -> tuple[PrivateValkey, PrivateValkey]:
        """A primary and its replica."""
        primary, replica = self.start(), self.start()
        follow(replica, primary)
        return primary, replica


def port_of(server: PrivateValkey) -> int:
    """Where the server listens on TCP."""
    return int(server.options["port"])


@contextmanager
def asked(server: PrivateValkey) -> Iterator[redis.Redis]:
    """A client of the server, closed afterwards."""
    with server.client() as client:
        yield client


def replication(server: PrivateValkey) -> dict[str, Any]:
    """What the server says about its role."""
    with asked(server) as client:
        return dict(client.info("replication"))


def role(server: PrivateValkey) -> str:
    """Primary ("master") or replica ("slave"); empty at the moment when a Sentinel ends its connections to change it."""
    try:
        return str(replication(server)["role"])
    except redis.ConnectionError:
        return ""


def follow(replica: PrivateValkey, primary: PrivateValkey) -> None:
    """Make a server the replica of another, and wait until it is up to date."""
    with asked(replica) as client:
        client.replicaof(HOST, port_of(primary))
    wait_until(lambda: caught_up(replica, primary), "the replica is up to date")


def caught_up(replica: PrivateValkey, primary: PrivateValkey) -> bool:
    """Whether the replica has all that the primary has written."""
    there, here = replication(primary), replication(replica)
    return bool(
        here["role"] == "slave"
        and here["master_link_status"] == "up"
        and here["slave_repl_offset"] == there["master_repl_offset"]
        and there.get("slave0", {}).get("state") == "online"
    )


def cut_off(primary: PrivateValkey) -> None:
    """Let the primary's replicas get nothing any more, while its clients go on.

    Not SIGSTOP of the replica: when it wakes up it may read what waits in its socket.
    """
    with asked(primary) as client:
        client.acl_setuser(
            "default", enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=["-psync", "-sync"]
        )
        client.client_kill_filter(_type="replica")


def promote(replica: PrivateValkey) -> None:
    """Make a replica a primary."""
    with asked(replica) as client:
        client.replicaof("NO", "ONE")
