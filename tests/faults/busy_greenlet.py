"""Run as a program: a greenlet that computes without a pause, so that the heartbeat's greenlet never has its turn."""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402
import sys  # noqa: E402

import django  # noqa: E402
import gevent  # noqa: E402

django.setup()

from django.db import connections  # noqa: E402

from fencing import StaleWriteError, lease  # noqa: E402
from inventory_demo.models import Stock  # noqa: E402

TTL = 1.0


def work(sku: str, flag: str) -> str:
    """Read, compute until somebody else has written (the file ``flag`` says so), and write what was worked out."""
    try:
        with lease(f"stock:{sku}", ttl=TTL) as held:
            stock = Stock.objects.get(sku=sku)
            print(held.token, flush=True)
            while not os.path.exists(flag):
                sum(range(1000))
            believed = held.is_held()
            stock.quantity = 9
            try:
                stock.save()
            except StaleWriteError as error:
                return f"{error.token} refused by {error.seen}, believed: {believed}"
            return "accepted"
    finally:
        connections.close_all()


if __name__ == "__main__":
    worker = gevent.spawn(work, *sys.argv[1:])
    worker.join(timeout=60)
    print(worker.get(block=False))
