"""Run as a program: tasks that `gevent.Timeout` interrupts wherever they are, as Celery's hard time limit does there."""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import random  # noqa: E402
import sys  # noqa: E402
from statistics import median  # noqa: E402
from time import monotonic  # noqa: E402

import django  # noqa: E402
import gevent  # noqa: E402

django.setup()

from django.db import DatabaseError, connections  # noqa: E402

from fencing import current_lease  # noqa: E402
from fencing.celery import fenced_task  # noqa: E402
from fencing.heartbeat import beats  # noqa: E402
from fencing.scope import holder_info  # noqa: E402
from inventory_demo.models import Stock  # noqa: E402

TTL = 1.0
MANY = 60
PATIENCE = 30.0


@fenced_task(resource="stock:{sku}", ttl=TTL, busy_timeout=20, name="tests.interrupted")
def take(sku: str) -> None:
    """Take a piece."""
    stock = Stock.objects.get(sku=sku)
    stock.quantity -= 1
    stock.save()


def seconds_of_a_run() -> float:
    """How long the task takes in peace."""
    began = monotonic()
    interrupted(PATIENCE)
    return monotonic() - began


def interrupted(seconds: float) -> str:
    """Run the task for so long; says how it ended."""
    before = holder_info.get()
    try:
        with gevent.Timeout(seconds):
            take(sys.argv[1])
        return "done"
    except (
        gevent.Timeout,
        DatabaseError,
    ):  # the latter where a commit was interrupted: Django cannot end the transaction
        return "interrupted"
    finally:
        assert current_lease() is None
        assert holder_info.get() is before
        connections.close_all()


if __name__ == "__main__":
    chance = random.Random(7)  # noqa: S311
    interrupted(PATIENCE)
    # The middle one of several, as a machine that does other things may hold up any of them.
    whole = median(seconds_of_a_run() for _ in range(5))
    ends = [interrupted(chance.uniform(0, whole)) for _ in range(MANY)]
    assert not beats._entries, "the heartbeat goes on for a lease that nobody holds"
    print(ends.count("interrupted"), interrupted(PATIENCE))
