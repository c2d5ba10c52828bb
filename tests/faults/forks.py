"""Run as a program: a process that holds a lease and forks, as a prefork worker does."""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep

import django

django.setup()

from django.db import connections  # noqa: E402

from fencing import current_lease, lease  # noqa: E402
from fencing.heartbeat import beats  # noqa: E402

TTL = 2.0
CHILDREN = 4
TIMES = 50


def child(number: int, out: int) -> None:
    """Take and release an own resource many times; then outlive a ttl by this process's own heartbeat."""
    connections.close_all()  # what a prefork pool does, too: a database connection must not be shared
    assert current_lease() is None
    assert not beats._entries
    name = f"fork:{sys.argv[1]}:{number}"
    tokens = []
    for _ in range(TIMES):
        with lease(name) as held:
            tokens.append(held.token)
    assert tokens == sorted(tokens)
    with lease(name, ttl=TTL) as held:
        tokens.append(held.token)
        until = monotonic() + 1.3 * TTL
        while monotonic() < until:
            held.ensure_held()
            sleep(TTL / 20)
    os.write(out, " ".join(map(str, [*tokens, ""])).encode())


if __name__ == "__main__":
    with lease(f"fork:{sys.argv[1]}:parent", ttl=TTL) as mine:
        # The store's connection and the heartbeat's thread are in use when the children are made.
        read, write = os.pipe()
        children = []
        for number in range(CHILDREN):
            if (pid := os.fork()) == 0:
                status = 1
                try:
                    child(number, write)
                    mine.release()  # not the child's to give back
                    status = 0
                finally:
                    os._exit(status)
            children.append(pid)
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * CHILDREN
        os.close(write)
        mine.ensure_held()
        mine.renew()
        with os.fdopen(read) as pipe:
            print(mine.token, pipe.read())
