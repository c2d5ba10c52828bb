"""``python -m benchmarks.writes [--quick] [--json]``: what a fenced write costs, next to the same write without a fence.

Both sides write the same values to tables of the same shape, on the same connection and in autocommit, in short turns.
Every fenced save is the first of its row under its lease, as in a task, and leaves its row in the history; taking the
lease is not counted here (see ``benchmarks.leases``), nor is the wait for the disk at each commit, which both have
alike. Exit status 1 when a goal is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

from benchmarks.measure import Row, alternate, arguments, no_chores, ratios, report
from benchmarks.stage import stage

SHELF = "shelf:1"


def main() -> int:
    """Measure and print; the exit status says whether every goal is met."""
    given = arguments(__doc__)
    rounds = 60 if given.quick else 200
    with stage(), no_chores():
        fill(10_000)
        rows = [
            *saves(rounds=rounds, calls=25),
            *many_rows(rounds=3 if given.quick else 9),
            *statements(),
            *raw_updates(rounds=rounds, calls=50),
        ]
    report(rows, as_json=given.json)
    return 0 if all(row.met for row in rows) else 1


def fill(rows: int) -> None:
    """As many rows on both sides, and no wait for the disk from here on."""
    from django.db import connection

    from benchmarks.models import Item, PlainItem

    Item.objects.bulk_create(Item(shelf=1, label=f"item {number}") for number in range(rows))
    PlainItem.objects.bulk_create(PlainItem(shelf=1, label=f"item {number}") for number in range(rows))
    with connection.cursor() as cursor:
        # Everything but triggers.
        cursor.execute(f"CREATE TABLE unguarded (LIKE {Item._meta.db_table} INCLUDING ALL)")
        cursor.execute(f"INSERT INTO unguarded SELECT * FROM {Item._meta.db_table}")
        cursor.execute("SET synchronous_commit = off")
    tidy()


def tidy() -> None:
    """Take out what earlier writes left, so that no side pays for the other's, or for its own of before."""
    from django.db import connection

    from benchmarks.models import Item, PlainItem
    from fencing.models import FencedWrite

    tables = [model._meta.db_table for model in (Item, PlainItem, FencedWrite)]
    with connection.cursor() as cursor:
        for table in (*tables, "unguarded"):
            cursor.execute(f"VACUUM ANALYZE {table}")


@contextmanager
def newest_lease() -> Iterator[Any]:
    """Yield a function that takes the shelf's lease anew: with a number that none of its rows has seen."""
    from contextlib import ExitStack

    from fencing import lease

    with ExitStack() as held:

        def renew() -> None:
            held.close()
            held.enter_context(lease(SHELF))

        yield renew


def saves(*, rounds: int, calls: int) -> list[Row]:
    """One row at a time, by ``save()``."""
    from benchmarks.models import BareItem, Item, PlainItem

    found = []
    models: dict[str, Any] = {"floor": PlainItem, "bare": BareItem, "ours": Item}
    read: dict[str, Iterator[Any]] = {}
    for kind, fields in (("save(update_fields=…)", ["quantity"]), ("save()", None)):
        with newest_lease() as renew:

            def before(name: str, renew: Any = renew, fields: list[str] | None = fields) -> None:
                renew()
                if name == "bare":
                    BareItem.sent = sent_by_save(fields)
                read[name] = iter(list(models[name].objects.order_by("pk")[:calls]))

            def save(name: str, fields: list[str] | None = fields) -> None:
                item = next(read[name])
                item.quantity += 1
                item.save(update_fields=fields)

            costs = alternate({name: partial(save, name) for name in models}, rounds=rounds, calls=calls, before=before)
        wall, cpu = ratios(costs["ours"], costs["floor"])
        bare, _cpu = ratios(costs["bare"], costs["floor"])
        found += [
            Row(f"fenced {kind} with history: wall time, by Django's own", wall, 0.9),
            Row("beside it, its statement in Django's own, and nothing else: the same", bare, None),
            Row(f"fenced {kind} with history: client CPU, by Django's own", cpu, 0.9),
        ]
    return found


def sent_by_save(fields: list[str] | None) -> tuple[str, dict[str, Any]]:
    """What the second save under the present lease sends, which finds its resource raised."""
    from benchmarks.models import Item
    from fencing.prepared import fetch_one

    with patch("fencing.rowstatement.fetch_one", wraps=fetch_one) as sending:
        for item in Item.objects.order_by("-pk")[:2]:
            item.save(update_fields=fields)
    _connection, text, params = sending.call_args.args
    return text, params


def raw_updates(*, rounds: int, calls: int) -> list[Row]:
    """A raw UPDATE that the guard lets pass."""
    from django.db import connection

    from benchmarks.models import Item

    guarded = Item._meta.db_table

    def update(table: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET quantity = %s, last_token = last_token + 1 WHERE id = %s", [1, 1])

    variants = {"floor": lambda: update("unguarded"), "ours": lambda: update(guarded)}
    costs = alternate(variants, rounds=rounds, calls=calls)
    wall, _cpu = ratios(costs["ours"], costs["floor"])
    return [Row("allowed raw UPDATE with the guard: wall time, by the same without", wall, 1.05)]


def many_rows(*, rounds: int) -> list[Row]:
    """All rows at once."""
    from django.db import connection

    from benchmarks.models import Item, PlainItem

    objects = list(PlainItem.objects.all())
    keys, quantities = [one.pk for one in objects], list(range(len(objects)))
    tokens = count(1)

    def unnest() -> None:
        token = next(tokens)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE unguarded AS t SET quantity = new.quantity, last_token = %s "
                "FROM unnest(%s::bigint[], %s::int[]) AS new (id, quantity) WHERE t.id = new.id AND last_token < %s",
                [token, keys, quantities, token],
            )

    def bulk_update() -> None:
        for number, one in enumerate(objects):
            one.quantity = number
        PlainItem.objects.bulk_update(objects, ["quantity"])

    def ours() -> None:
        Item.objects.filter(shelf=1).update(quantity=7)

    with newest_lease() as renew:

        def before(_name: str) -> None:
            renew()
            tidy()

        variants = {"unnest": unnest, "bulk_update": bulk_update, "ours": ours}
        costs = alternate(variants, rounds=rounds, calls=1, before=before)
    by_floor, _cpu = ratios(costs["ours"], costs["unnest"])
    faster, _cpu = ratios(costs["bulk_update"], costs["ours"])
    what = f"{len(objects)} rows by a fenced update() with history"
    return [
        Row(f"{what}: wall time, by UPDATE … FROM unnest", by_floor, 2.0),
        Row(f"{what}: times faster than bulk_update()", faster, 20.0, at_least=True),
    ]


def statements() -> list[Row]:
    """How many statements each takes; BEGIN and COMMIT are among those of ``atomic()``."""
    from django.db import transaction

    from benchmarks.models import Item
    from fencing import lease

    item = Item.objects.earliest("pk")
    with lease(SHELF) as held:
        saved = count_of(item.save)
        updated = count_of(lambda: Item.objects.update(quantity=8))
        plain = count_of(lambda: inside(transaction.atomic()))
        fenced = count_of(lambda: inside(held.atomic(operation="order-7")))
    return [
        Row("statements of a fenced save()", saved, 1),
        Row("statements of a fenced update() of many rows", updated, 1),
        Row("statements that lease.atomic(operation=…) adds to atomic()", fenced - plain, 3),
    ]


def inside(block: Any) -> None:
    """Enter and leave."""
    with block:
        pass


def count_of(call: Any) -> int:
    """How many statements ``call`` sends."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as sent:
        call()
    return len(sent)


if __name__ == "__main__":
    sys.exit(main())
