"""Forgetting what is older than the settings keep, in short transactions, so that nothing forgotten opens a door.

A line of history goes as a whole; the newest grant of each resource stays, and every one that has not ended. A grant
that ended by itself, which nobody has told, is ended first. An operation keeps its key and loses its result: a key that
was gone could take effect again. A resource's row goes once no lease can be as old as its token, and leaves the floor
behind (``fencing.floors``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS, router
from django.db.models import Max, OuterRef, Q, QuerySet, Subquery
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from fencing import conf
from fencing.backends import LeaseBackend, get_backend
from fencing.backends.base import LiveLease
from fencing.batches import BATCH, MOST_KEYS, in_batches
from fencing.connections import open_transactions
from fencing.exceptions import LeaseBackendError
from fencing.expiry import end_expired
from fencing.floors import raise_floor
from fencing.reigns import databases_of
from fencing.tables import table
from fencing.tokens import draw_from_store, place_of

logger = logging.getLogger("fencing")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far pruning has come in one table.

    Attributes:
        database: alias of the database.
        what: as in ``Pruned``.
        done: rows that were looked at.
        whole: how many there are to look at, as counted at the beginning.
    """

    database: str
    what: str
    done: int
    whole: int


def prune(
    *, dry_run: bool = False, batch: int = BATCH, progress: Callable[[Progress], None] | None = None
) -> Iterator[Pruned]:
    """Forget what the settings RETENTION and OPERATION_RETENTION do not keep, step by step as the result is read.

    Each batch is a transaction of its own; rows that others have locked are left for the next time. Several at once,
    and holders at work, do not disturb one another.

    Args:
        dry_run: only count.
        batch: at most so many rows in a transaction.
        progress: told after each batch; then the rows of each table are counted first.

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
    forget = _count if dry_run else _forgetter(batch, progress)
    for alias in databases():
        if history is not None:
            writes = _rows("FencedWrite", alias).filter(at__lt=history)
            yield Pruned(database=alias, what="writes", rows=forget("writes", writes, "at", _delete))
        if operations is not None:
            results = _rows("Operation", alias).filter(applied_at__lt=operations, result__isnull=False)
            rows = forget("results", results, "applied_at", _forget_result)
            yield Pruned(database=alias, what="results", rows=rows)
    for alias in conf.backend_aliases():
        backend = get_backend(alias)
        if history is not None:
            if not dry_run:
                _end_expired(backend)
            yield _prune_grants(backend, history, forget)
        if operations is not None:
            yield from _prune_resources(backend, operations, forget, dry_run=dry_run)


def databases() -> list[str]:
    """The databases in which the app's tables are used: where models write, and those that own numbers."""
    aliases = conf.backend_aliases()
    used = {DEFAULT_DB_ALIAS, *(conf.backend_config(alias).database for alias in aliases)}
    used.update(database for alias in aliases for database in databases_of(alias))
    return sorted(alias for alias in used if router.allow_migrate_model(alias, table("FencedWrite")))


def _end_expired(backend: LeaseBackend) -> None:
    """End all grants that ended by themselves; with a store that cannot tell they stay open until the next time."""
    config = backend.config
    grants = _rows("TokenGrant", config.database).filter(namespace=config.namespace, ended="").order_by("pk")
    written, last = databases(), 0
    try:
        while rows := list(grants.filter(pk__gt=last)[:MOST_KEYS]):
            end_expired(backend, rows, written)
            last = rows[-1].pk
    except LeaseBackendError:
        logger.warning(
            "Grants whose holders were killed stay open: backend %r did not answer", config.alias, exc_info=True
        )


def _prune_grants(backend: LeaseBackend, before: datetime, forget: Callable[..., int]) -> Pruned:
    """Forget grants that have ended, but for the newest of each resource, which tells who had it last."""
    config = backend.config
    grants = _rows("TokenGrant", config.database).filter(namespace=config.namespace)
    newest = grants.filter(resource=OuterRef("resource")).order_by("-token").values("token")[:1]
    followed = Q(token__lt=Subquery(newest))
    ended = grants.filter(ended_at__lt=before).exclude(ended="")
    # Of some only the end was told, so that they stand at no time in the index.
    rows = forget("grants", ended.filter(granted_at__lt=before), "granted_at", _delete, only=followed)
    rows += forget("grants", ended.filter(granted_at=None), "pk", _delete, only=followed)
    return Pruned(database=config.database, what="grants", rows=rows)


def _prune_resources(
    backend: LeaseBackend, before: datetime, forget: Callable[..., int], *, dry_run: bool
) -> Iterator[Pruned]:
    """Forget the rows whose token is older than ``before`` and than every live lease, once the floor refuses it."""
    config = backend.config
    if not dry_run:
        _leave_mark(backend, before)
    floor = _oldest_needed(backend, before)
    for database in databases_of(config.alias):
        forgotten = _rows("FencedResource", database).filter(namespace=config.namespace, last_token__lte=floor)
        if not dry_run and forgotten.exists():
            raise_floor(database, config.namespace, floor)
        rows = forget("resources", forgotten, "pk", _delete)
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


def _leave_mark(backend: LeaseBackend, before: datetime) -> None:
    """Note how far every counter of the namespace has come by now, for a later time that asks what is older than that.

    The time is that after the look: pruning may have begun long before, and what was issued since is younger. Of the
    marks from before ``before`` the last one says all.
    """
    config = backend.config
    counted = min(draw_from_store(backend, place)[1] for place in _one_name_for_each_counter(backend))
    marks = _rows("TokenMark", config.database).filter(namespace=config.namespace)
    marks.create(namespace=config.namespace, token=counted, at=timezone.now())
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


def _count(_what: str, rows: QuerySet[Any], _by: str, _forget: Callable[..., int], only: Q | None = None) -> int:
    return (rows if only is None else rows.filter(only)).count()


def _forgetter(batch: int, progress: Callable[[Progress], None] | None) -> Callable[..., int]:
    """A function that forgets rows batch by batch, and tells how far it is."""

    def forget(what: str, rows: QuerySet[Any], by: str, forget_batch: Callable[..., int], only: Q | None = None) -> int:
        whole, passed, forgotten = rows.count() if progress else 0, 0, 0
        for looked_at, gone in in_batches(rows, by, forget_batch, only=only, batch=batch):
            passed, forgotten = passed + looked_at, forgotten + gone
            if progress and whole:
                progress(Progress(database=rows.db, what=what, done=min(passed, whole), whole=whole))
        return forgotten

    return forget


def _delete(rows: QuerySet[Any]) -> int:
    return rows.delete()[0]


def _forget_result(rows: QuerySet[Any]) -> int:
    # SQL's NULL, which no result of an operation is: None is kept as JSON's null.
    return rows.update(result=None)
