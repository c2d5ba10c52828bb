"""``python -m tests.writes.racers PK PROCESSES ROUNDS``: processes that write one crate, live and superseded, at once.

Each adds 1 by every kind of write in turn, and says at the end how its attempts ended: one JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import nullcontext
from random import Random

import django

django.setup()

from django.db import DatabaseError, connections  # noqa: E402
from django.db.models import F  # noqa: E402

from fencing import FencingError, lease  # noqa: E402
from fencing.acquiring import acquire  # noqa: E402
from fencing.leases import Lease  # noqa: E402
from fencing.scope import holding  # noqa: E402
from tests.shop.models import Crate  # noqa: E402


def add_one(pk: int, kind: int, held: Lease) -> None:
    """One attempt."""
    with held.atomic() if kind % 2 else nullcontext(), holding(held):
        row = Crate.objects.get(pk=pk)
        if kind < 4:
            row.weight += 1
            row.save() if kind < 2 else Crate.objects.bulk_update([row], ["weight"])
        else:
            assert Crate.objects.filter(pk=pk).update(weight=F("weight") + 1) == 1


def overtaken(resource: str) -> Lease:
    """A lease whose next holder may have come already."""
    held = acquire(resource, ttl=30, give_up=None, using="default", allow_in_transaction=False)
    held._backend.revoke(held._place, held.token)
    return held


def race(pk: int, number: int, rounds: int) -> Counter[str]:
    """All attempts of one process."""
    lot, ends, resource = Random(number), Counter[str](), Crate.objects.get(pk=pk).fence_name()  # noqa: S311
    for turn in range(rounds):
        live = lot.random() < 0.5
        how = "live" if live else "late"
        try:
            with lease(resource, ttl=30, wait=None) if live else nullcontext(overtaken(resource)) as held:
                add_one(pk, turn % 6, held)
            ends[f"{how} accepted"] += 1
        except (FencingError, DatabaseError) as error:
            ends[f"{how} {type(error).__name__}"] += 1
    return ends


def main(pk: int, processes: int, rounds: int) -> int:
    """Fork, let all begin together, and wait for each."""
    connections.close_all()
    waiting, start = os.pipe()
    children = []
    for number in range(processes):
        if (pid := os.fork()) == 0:
            os.close(start)
            os.read(waiting, 1)
            ends = race(pk, number, rounds)
            # In one piece, because all processes share the pipe.
            os.write(1, (json.dumps(ends) + "\n").encode())
            os._exit(0)
        children.append(pid)
    os.close(start)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
