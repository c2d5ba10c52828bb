"""``python -m benchmarks.leases [--quick] [--json]``: what a lease costs, next to what any lease must cost.

The floor is two EVALSHA round trips by redis-py, on the connection that the backend uses, of the smallest scripts that
give and take back a lease with a number. Against it stands what the backend does for a grant and its release: the check of
the reign, safety when a request is sent twice, and the grant's line in the outbox. Moving that into the database does not
count, which is a chore for whole batches of them. Without a goal, which is that of acquire and release, stand two whole
``with`` statements beside them: ours, which keeps the context, the heartbeat, the signals and the history besides, and that
of redis-py's ``Lock``, which issues no number. Exit status 1 when a goal is missed.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.handover import evenness, handoffs, take_turns
from benchmarks.measure import Row, alternate, arguments, no_chores, ratios, report
from benchmarks.stage import stage

ACQUIRE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local token = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], token, 'PX', ARGV[1])
return token
"""
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
BATCH = 1000


def main() -> int:
    """Measure and print; the exit status says whether every goal is met."""
    given = arguments(__doc__)
    with stage(), no_chores():
        rows = [
            *uncontended(rounds=7 if given.quick else 15, calls=500 if given.quick else 1000),
            *contended(seconds=3.0 if given.quick else 10.0),
            memory(20_000 if given.quick else 100_000),
            keys_left(20_000 if given.quick else 1_000_000),
        ]
    report(rows, as_json=given.json)
    return 0 if all(row.met for row in rows) else 1


def uncontended(*, rounds: int, calls: int) -> list[Row]:
    """Acquire and release with nobody else there: by the backend, and by ``with`` statements with all they do besides."""
    from fencing import lease, tokens
    from fencing.backends import get_backend
    from fencing.backends.base import HolderInfo

    client, backend, holder, info = store(), get_backend(), "0" * 32, HolderInfo()
    acquire, release = client.script_load(ACQUIRE), client.script_load(RELEASE)

    def floor() -> None:
        token = client.execute_command("EVALSHA", acquire, 2, b"floor:lease", b"floor:counter", b"30000")
        client.execute_command("EVALSHA", release, 1, b"floor:lease", token)

    def by_the_backend() -> None:
        place, granted = tokens.acquire(backend, "stock:42", holder, 30.0, info)
        backend.release(place, holder, granted.token)

    def with_statement() -> None:
        with lease("stock:42"):
            pass

    def peers_statement() -> None:
        with client.lock("lock:stock:42", timeout=30):
            pass

    goals = {"acquire and release": 1.15, "with lease()": None, "with redis-py's Lock": None}
    variants = {"floor": floor, **dict(zip(goals, (by_the_backend, with_statement, peers_statement), strict=True))}
    costs = alternate(variants, rounds=rounds, calls=calls)
    return [
        Row(f"{name}: {what}, by two EVALSHA", ratio, goal)
        for name, goal in goals.items()
        for what, ratio in zip(("wall time", "client CPU"), ratios(costs[name], costs["floor"]), strict=True)
    ]


def contended(*, seconds: float) -> list[Row]:
    """Eight processes in turn."""
    turns = take_turns(seconds)
    times = handoffs(turns)
    return [
        Row("release to the next of 8 waiters: p50 in ms", times[len(times) // 2] * 1000, 1.0),
        Row("release to the next of 8 waiters: p99 in ms", times[len(times) * 99 // 100] * 1000, 5.0),
        Row("grants of 8 waiters: Jain's index", evenness(turns), 0.98, at_least=True),
    ]


def memory(leases: int) -> Row:
    """What live leases take in the store; their lines in the outbox are there as well, as nobody collects them here."""
    from fencing import tokens
    from fencing.backends import get_backend
    from fencing.backends.base import HolderInfo

    client, backend = store(), get_backend()
    client.flushdb()
    before = client.info("memory")["used_memory"]
    for number in range(leases):
        tokens.acquire(backend, f"stock:{number:07}", f"{number:032x}", 600.0, HolderInfo())
    used = client.info("memory")["used_memory"] - before
    client.flushdb()
    return Row("100 000 live leases: MB in the store", used / leases * 100_000 / 1e6, 60.0)


def keys_left(resources: int) -> Row:
    """Keys that remain when that many resources have been held once, but for the counter and the outbox."""
    from fencing import tokens
    from fencing.backends import get_backend
    from fencing.backends.base import HolderInfo

    client, backend = store(), get_backend()
    client.flushdb()
    for number in range(resources):
        place, answer = tokens.acquire(backend, f"stock:{number:07}", "holder", 600.0, HolderInfo())
        backend.release(place, "holder", answer.token)
    left = client.dbsize() - sum(bool(client.exists(key)) for key in shared_keys(backend))
    client.flushdb()
    return Row(f"keys left behind by {resources} resources", left, 0)


def shared_keys(backend: Any) -> list[bytes]:
    """The two keys that a namespace has for all its resources."""
    from fencing import tokens

    place = tokens.place_of(backend, "any")
    return [f"{backend._prefix(place.space, place.partition)}{kind}".encode() for kind in ("counter", "events")]


def store() -> Any:
    """The client whose connection the backend uses."""
    from django_redis import get_redis_connection

    return get_redis_connection("leases")


if __name__ == "__main__":
    sys.exit(main())
