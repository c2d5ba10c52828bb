"""``python -m tests.writes.racers ALIAS PK PROCESSES ROUNDS``: processes write one crate, live and superseded, at once.

Each adds 1 by every kind of write in turn, and says at the end how its attempts ended: one JSON object a line. With
`RACERS_FILE` set, that file is the database `lite`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random

import django

django.setup()

from django.db import DatabaseError, connections, transaction  # noqa: E402
from django.db.models import F  # noqa: E402

from fencing import FencingError, history, lease  # noqa: E402
from fencing.acquiring import acquire  # noqa: E402
from fencing.leases import Lease  # noqa: E402
from fencing.scope import holding  # noqa: E402
from tests.concurrency import wait_until  # noqa: E402
from tests.shop.models import Crate  # noqa: E402

# What a write and the read before it happen in.
SURROUNDINGS: dict[str, Callable[[str, Lease], AbstractContextManager[object]]] = {
    "alone": lambda _alias, _held: nullcontext(),
    "fenced": lambda alias, held: held.atomic(using=alias),
    "atomic": lambda alias, _held: transaction.atomic(using=alias),
}
KINDS = [(surrounding, write) for write in ("save", "bulk_update", "update") for surrounding in SURROUNDINGS]


def add_one(alias: str, pk: int, kind: tuple[str, str], held: Lease) -> None:
    """One attempt."""
    rows, (surrounding, write) = Crate.objects.using(alias), kind
    with SURROUNDINGS[surrounding](alias, held), holding(held):
        row = rows.get(pk=pk)
        row.weight += 1
        match write:
            case "save":
                row.save()
            case "bulk_update":
                rows.bulk_update([row], ["weight"])
            case _:
                assert rows.filter(pk=pk).update(weight=F("weight") + 1) == 1


def overtaken(resource: str) -> Lease:
    """A lease whose next holder may have come already."""
    held = acquire(resource, ttl=30, give_up=None, using="default", allow_in_transaction=False)
    held._backend.revoke(held._place, held.token)
    return held


def race(alias: str, pk: int, number: int, rounds: int) -> Counter[str]:
    """All attempts of one process."""
    lot, ends, resource = Random(number), Counter[str](), Crate.objects.using(alias).get(pk=pk).fence_name()  # noqa: S311
    for turn in range(rounds):
        live, kind = lot.random() < 0.5, KINDS[turn % len(KINDS)]
        how = "live" if live else "late"
        try:
            with lease(resource, ttl=30, wait=None) if live else nullcontext(overtaken(resource)) as held:
                add_one(alias, pk, kind, held)
            ends[f"{how} accepted"] += 1
        except FencingError as error:
            ends[f"{how} {type(error).__name__}"] += 1
        except DatabaseError as error:
            detail = getattr(error.__cause__, "sqlite_errorname", "")
            ends[f"{type(error).__name__} {detail} {kind[0]}"] += 1
    wait_until(nothing_waits, "the last refusals are on record")
    return ends


def nothing_waits() -> bool:
    """Whether every refusal of this process is in the history, also those that had to wait for the others."""
    history.write_all_waiting()
    return not history._waiting


def main(alias: str, pk: int, processes: int, rounds: int) -> int:
    """Fork, let all begin together, and wait for each."""
    if file := os.environ.get("RACERS_FILE"):
        # The tests break no power supply, so nothing has to reach the disk.
        options = {"timeout": 5, "init_command": "PRAGMA synchronous=OFF"}
        connections.settings["lite"].update(NAME=file, OPTIONS=options)
    connections.close_all()
    waiting, start = os.pipe()
    children = []
    for number in range(processes):
        if (pid := os.fork()) == 0:
            os.close(start)
            os.read(waiting, 1)
            ends = race(alias, pk, number, rounds)
            # In one piece, because all processes share the pipe.
            os.write(1, (json.dumps(ends) + "\n").encode())
            os._exit(0)
        children.append(pid)
    os.close(start)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
