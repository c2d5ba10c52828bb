"""Forgetting what is older than the settings keep, in short transactions, so that nothing forgotten opens a door.

A line of history goes as a whole. An operation keeps its key and loses its result: a key that was gone could take
effect again. A resource's row goes once no lease can be as old as its token, and leaves the floor behind
(``fencing.floors``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, router, transaction
from django.db.models import Max, QuerySet
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from fencing import conf
from fencing.backends import LeaseBackend, get_backend
from fencing.backends.base import LiveLease
from fencing.connections import open_transactions
from fencing.floors import raise_floor
from fencing.reigns import databases_of
from fencing.resources import take_write_lock
from fencing.tables import table
from fencing.tokens import draw_from_store, place_of

BATCH = 1000
# As many live leases as any store can have.
EVERY = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was forgotten of one table, or would be.

    Attributes:
        database: alias of the database.
        what: "writes", "grants", "results" (of operations) or "resources".
        rows: how many rows.
        floor: for resources: tokens up to this one are refused to unknown resources; else None.
    """

    database: str
    what: str
    rows: int
    floor: int | None = None


def prune(*, dry_run: bool = False, batch: int = BATCH) -> Iterator[Pruned]:
    """Forget what the settings RETENTION and OPERATION_RETENTION do not keep, step by step as the result is read.

    Each batch is a transaction of its own; rows that others have locked are left for the next time. Several at once,
    and holders at work, do not disturb one another.

    Args:
        dry_run: only count.
        batch: at most so many rows in a transaction.

    Yields:
        What was done in each table, once it is done.

    Raises:
        LeaseBackendError: a lease store did not answer, without which it is not known who holds a lease. What needs no
            store is done before.
        OperationalError: a transaction that holds the floor did not end in time.
        TransactionManagementError: a transaction is open.
    """
    if aliases := sorted({*open_transactions()} & {*databases()}):
        raise TransactionManagementError(
            f"A transaction is open on {', '.join(aliases)}; what prune() forgets is committed batch by batch, so call it "
            "outside."
        )
    now = timezone.now()
    history = _before(now, conf.retention())
    operations = _before(now, conf.operation_retention())
    forget = _count if dry_run else _forgetter(batch)
    for alias in databases():
        if history is not None:
            writes = _rows("FencedWrite", alias).filter(at__lt=history)
            yield Pruned(database=alias, what="writes", rows=forget(writes.order_by("at"), _delete))
        if operations is not None:
            results = _rows("Operation", alias).filter(applied_at__lt=operations, result__isnull=False)
            yield Pruned(database=alias, what="results", rows=forget(results.order_by("applied_at"), _forget_result))
    for alias in conf.backend_aliases():
        backend = get_backend(alias)
        if history is not None:
            yield _prune_grants(backend, history, forget)
        if operations is not None:
            yield from _prune_resources(backend, now, operations, forget, dry_run=dry_run)


def databases() -> list[str]:
    """The databases in which the app's tables are used: where models write, and those that own numbers."""
    aliases = conf.backend_aliases()
    used = {DEFAULT_DB_ALIAS, *(conf.backend_config(alias).database for alias in aliases)}
    used.update(database for alias in aliases for database in databases_of(alias))
    return sorted(alias for alias in used if router.allow_migrate_model(alias, table("FencedWrite")))


def _prune_grants(backend: LeaseBackend, before: datetime, forget: Callable[..., int]) -> Pruned:
    """Forget grants that have ended, and those that nobody told of the end of, unless the store has their lease."""
    config = backend.config
    grants = _rows("TokenGrant", config.database).filter(namespace=config.namespace)
    ended = grants.filter(ended_at__lt=before).order_by("token")
    rows: int = forget(ended, _delete)
    never_told = grants.filter(ended="", granted_at__lt=before)
    if newest := never_told.aggregate(highest=Max("token"))["highest"]:
        live = [lease.token for lease in _live(backend) if lease.token <= newest]
        rows += forget(never_told.exclude(token__in=live).order_by("token"), _delete)
    return Pruned(database=config.database, what="grants", rows=rows)


def _prune_resources(
    backend: LeaseBackend, now: datetime, before: datetime, forget: Callable[..., int], *, dry_run: bool
) -> Iterator[Pruned]:
    """Forget the rows whose token is older than ``before`` and than every live lease, once the floor refuses it."""
    config = backend.config
    if not dry_run:
        _leave_mark(backend, now, before)
    floor = _oldest_needed(backend, before)
    for database in databases_of(config.alias):
        forgotten = _rows("FencedResource", database).filter(namespace=config.namespace, last_token__lte=floor)
        if not dry_run and forgotten.exists():
            raise_floor(database, config.namespace, floor)
        rows = forget(forgotten.order_by("pk"), _delete)
        kept = _rows("ResourceFloor", database).filter(namespace=config.namespace).aggregate(highest=Max("token"))
        yield Pruned(database=database, what="resources", rows=rows, floor=kept["highest"] or 0)


def _oldest_needed(backend: LeaseBackend, before: datetime) -> int:
    """The highest token that was issued before ``before`` while no lease has it, or a lower one, any more; 0 if none."""
    config = backend.config
    marks = _rows("TokenMark", config.database).filter(namespace=config.namespace, at__lt=before)
    issued = marks.aggregate(highest=Max("token"))["highest"] or 0
    if config.partitions == 1:
        # One counter: every grant tells how far it was at that time, also before anybody had pruned.
        grants = _rows("TokenGrant", config.database).filter(namespace=config.namespace, granted_at__lt=before)
        issued = max(issued, grants.aggregate(highest=Max("token"))["highest"] or 0)
    if not issued:
        return 0
    # Looked at now, not before: a lease that is granted from now on has a higher number than any that was issued then.
    return min([issued, *(lease.token - 1 for lease in _live(backend))])


def _leave_mark(backend: LeaseBackend, now: datetime, before: datetime) -> None:
    """Note how far every counter of the namespace has come, for a later time that asks what is older than ``now``.

    Of the marks from before ``before`` the last one says all.
    """
    config = backend.config
    counted = min(draw_from_store(backend, place)[1] for place in _one_name_for_each_counter(backend))
    marks = _rows("TokenMark", config.database).filter(namespace=config.namespace)
    marks.create(namespace=config.namespace, token=counted, at=now)
    older = marks.filter(at__lt=before)
    older.filter(token__lt=older.aggregate(highest=Max("token"))["highest"] or 0).delete()


def _one_name_for_each_counter(backend: LeaseBackend) -> list[str]:
    """A resource's name in each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < backend.config.partitions:
        found.setdefault(place_of(backend, f"prune:{number}").partition, f"prune:{number}")
        number += 1
    return list(found.values())


def _live(backend: LeaseBackend) -> Iterator[LiveLease]:
    space = place_of(backend, "prune").space
    for partition in range(backend.config.partitions):
        yield from backend.live(space, partition, EVERY)


def _rows(name: str, using: str) -> QuerySet[Any]:
    return table(name)._base_manager.using(using)


def _before(now: datetime, seconds: float | None) -> datetime | None:
    """The time from before which nothing is kept; None where everything is, for ever or for longer than the calendar."""
    try:
        return None if seconds is None else now - timedelta(seconds=seconds)
    except OverflowError:
        return None


def _count(rows: QuerySet[Any], _forget: Callable[..., int]) -> int:
    return rows.count()


def _forgetter(batch: int) -> Callable[[QuerySet[Any], Callable[[QuerySet[Any]], int]], int]:
    """A function that forgets rows batch by batch, each in a transaction of its own; those that are locked stay."""

    def forget(rows: QuerySet[Any], forget_batch: Callable[[QuerySet[Any]], int]) -> int:
        connection, forgotten = connections[rows.db], 0
        while True:
            with transaction.atomic(using=rows.db, durable=True):
                take_write_lock(connection)
                locked = rows.select_for_update(skip_locked=connection.features.has_select_for_update_skip_locked)
                keys = list(locked.values_list("pk", flat=True)[:batch])
                if not keys:
                    return forgotten
                # With its condition again: SQLite locks nothing.
                forgotten += forget_batch(rows.order_by().filter(pk__in=keys))

    return forget


def _delete(rows: QuerySet[Any]) -> int:
    return rows.delete()[0]


def _forget_result(rows: QuerySet[Any]) -> int:
    # SQL's NULL, which no result of an operation is: None is kept as JSON's null.
    return rows.update(result=None)
