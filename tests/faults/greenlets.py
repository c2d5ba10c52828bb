"""Run as a program: leases in a process that gevent has patched, as in a worker with its pool of greenlets."""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402
import threading  # noqa: E402

import django  # noqa: E402
import gevent  # noqa: E402

django.setup()

from django.db import connections  # noqa: E402

from fencing import current_lease, lease  # noqa: E402
from fencing.heartbeat import beats  # noqa: E402

TTL = 2.0
MANY = 10


def work(number: int) -> tuple[int, int]:
    """Hold a lease for longer than its ttl while the other greenlets do the same; tokens of the grant and the write."""
    assert current_lease() is None, "another greenlet's lease"
    try:
        with lease(f"greenlet:{sys.argv[1]}:{number}", ttl=TTL) as held:
            for _ in range(13):
                gevent.sleep(TTL / 10)
                held.ensure_held()
                assert held.remaining() <= TTL
                assert current_lease() is held
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("fencing-heartbeat") == 1, names
            return held.token, held.advance()
    finally:
        connections.close_all()


if __name__ == "__main__":
    greenlets = [gevent.spawn(work, number) for number in range(MANY)]
    gevent.joinall(greenlets, timeout=30, raise_error=True)
    tokens = [token for greenlet in greenlets for token in greenlet.value]
    assert len(set(tokens)) == 2 * MANY, tokens
    assert not beats._entries
    print(*tokens)
