"""Run as a program: greenlets that wait for a lease while others work, all in one thread of a patched process."""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402
from time import monotonic  # noqa: E402

import django  # noqa: E402
import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

django.setup()

from django.db import connections  # noqa: E402

from fencing import lease  # noqa: E402
from fencing.backends import get_backend  # noqa: E402
from fencing.tokens import place_of  # noqa: E402
from tests.concurrency import wait_until  # noqa: E402

# Far longer than the test: nobody gets the lease because a time is over.
TTL = 60.0
WAITING = 5
# Seconds; a hand-over takes one or two milliseconds, and a greenlet that blocks the others does so for ten seconds.
PROMPT = 3.0
NAME = f"greenlet:{sys.argv[1]}"

entered: list[tuple[int, int, float]] = []
longest_pause = 0.0


def hold(until: Event) -> int:
    """Hold the lease until told."""
    try:
        with lease(NAME, ttl=TTL) as held:
            until.wait(timeout=30)
            return held.token
    finally:
        connections.close_all()


def wait(number: int) -> None:
    """Wait for the lease, and note who got it when."""
    try:
        with lease(NAME, ttl=TTL, wait=30) as held:
            entered.append((number, held.token, monotonic()))
    finally:
        connections.close_all()


def work(until: Event) -> None:
    """What the others do: it notes for how long it did not get on."""
    global longest_pause
    last = monotonic()
    while not until.is_set():
        gevent.sleep(0.005)
        longest_pause = max(longest_pause, monotonic() - last)
        last = monotonic()


def waiting() -> int:
    """How many stand in the queue."""
    backend = get_backend()
    place = place_of(backend, NAME)
    key = backend._keys(place, b"queue:")[0]  # type: ignore[attr-defined]
    return int(backend._client.redis.llen(key))  # type: ignore[attr-defined]


if __name__ == "__main__":
    released, done = Event(), Event()
    holder = gevent.spawn(hold, released)
    backend = get_backend()
    wait_until(lambda: backend.peek(place_of(backend, NAME)), "the lease is held")
    waiters = []
    for number in range(WAITING):
        waiters.append(gevent.spawn(wait, number))
        wait_until(lambda number=number: waiting() == number + 1, "it stands in the queue")  # type: ignore[misc]
    worker = gevent.spawn(work, done)
    gevent.sleep(1.0)  # they wait, and the worker works
    assert not entered
    at = monotonic()
    released.set()
    gevent.joinall([holder, *waiters], timeout=30, raise_error=True)
    done.set()
    worker.join(timeout=5)
    assert [number for number, _, _ in entered] == list(range(WAITING)), entered
    assert entered[-1][2] - at < PROMPT, "each was woken when its turn came"
    assert longest_pause < PROMPT / 2, f"the others stood still for {longest_pause} s"
    tokens = [holder.value, *(token for _, token, _ in entered)]
    assert tokens == sorted(set(tokens)), tokens
    print(*tokens)
