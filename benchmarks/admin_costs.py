"""What a history of that size costs those who write it, and how fast it goes."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import count

from benchmarks.admin_data import DAYS
from benchmarks.measure import Row, alternate, ratios

# Of the history, what is pruned: its oldest tenth.
KEPT = DAYS * 9 // 10
EMPTY = "empty"


def inserts(rows: int, *, rounds: int, calls: int) -> list[Row]:
    """One line of history in autocommit, into the filled tables and into empty ones of the same shape, in turn."""
    from django.db import connection
    from django.utils import timezone

    from fencing import history
    from fencing.backends import get_backend
    from fencing.backends.base import GrantEvent, HolderInfo
    from fencing.collector import merge
    from fencing.history import Attempt

    namespace, numbers = get_backend().config.namespace, count(2**40)
    _make_empty_tables()

    def write() -> None:
        token = next(numbers)
        attempt = Attempt(
            namespace=namespace, token=token, grant_token=token, resource=f"stock:{token * 7919 % 50_000}",
            model="inventory_demo.Stock", object_pk=str(token), action="update", outcome="accepted",
            operation=f"order-{token}",
        )  # fmt: skip
        history.record(connection, [attempt])

    def grant() -> None:
        token = next(numbers)
        info = HolderInfo(task_id=f"{token * 2654435761 % 2**64:036x}", task_name="inventory.tasks.recount")
        event = GrantEvent(
            id=str(token), kind="granted", token=token, resource=f"stock:{token * 7919 % 50_000}",
            holder=f"{token:032x}", at=timezone.now(), ttl=30.0, info=info,
        )  # fmt: skip
        merge(connection, namespace, [event])

    found = []
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        for what, insert in (("write", write), ("grant", grant)):
            costs = alternate(
                {"public": insert, EMPTY: insert}, rounds=rounds, calls=calls,
                before=lambda name: cursor.execute(f"SET search_path = {name}"),
            )  # fmt: skip
            wall, _cpu = ratios(costs["public"], costs[EMPTY])
            found.append(Row(f"history of a {what}, one insert: {rows} rows by none", wall, 1.2))
        cursor.execute("RESET search_path")
        cursor.execute("RESET synchronous_commit")
        cursor.execute(f"DROP SCHEMA {EMPTY} CASCADE")
    return found


def _make_empty_tables() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {EMPTY}")
        for table in ("fencing_fencedwrite", "fencing_tokengrant"):
            cursor.execute(f"CREATE TABLE {EMPTY}.{table} (LIKE public.{table} INCLUDING ALL)")


def pruning() -> list[Row]:
    """Forget the oldest tenth."""
    from django.conf import settings
    from django.test import override_settings

    from fencing.pruning import prune

    found, rows, whole = [], 0, 0.0
    with override_settings(FENCING={**settings.FENCING, "RETENTION": timedelta(days=KEPT)}):
        begun = time.perf_counter()
        for one in prune():
            now = time.perf_counter()
            found.append(Row(f"prune: {one.rows} {one.what}: rows in a second", one.rows / (now - begun), None))
            rows, whole, begun = rows + one.rows, whole + now - begun, now
    return [Row(f"prune: {rows} rows of history: rows in a second", rows / whole, 100_000.0, at_least=True), *found]
