"""Rows that are to be written by steps in one transaction: locked, judged, passed and recorded, all or nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from fencing import history
from fencing.bounds import bound_idling
from fencing.databases import locked
from fencing.exceptions import (
    ResourceMismatchError,
    StaleReadError,
    StaleWriteError,
    WriteRejectedError,
)
from fencing.guards import guard_name_of
from fencing.leases import Lease
from fencing.lifting import lifted
from fencing.naming import ModelFence, key_as_read
from fencing.resources import pass_resource, seen_token, take_write_lock
from fencing.scope import find_lease, held_leases, lease_required
from fencing.statements import Verdict, attempt, has_begun, plain
from fencing.writes import numbered, refused


@dataclass(frozen=True, slots=True)
class LockedRow:
    """A matched row, locked until the end of the transaction."""

    pk: Any
    seen: int
    resource: str


class RefusalError(Exception):
    """Undoes the open steps; ``fenced_steps`` turns it into the public error once nothing of them is left."""

    def __init__(
        self,
        kind: type[WriteRejectedError],
        lease: Lease,
        tried: history.Attempt,
        what: str = "",
        *,
        passed: bool = True,
        rows: Sequence[Any] = (),
    ) -> None:
        super().__init__(kind, lease, tried, what, passed, rows)
        self.kind = kind
        self.lease = lease
        self.tried = tried
        self.what = what
        self.passed = passed
        self.rows = rows


@contextmanager
def fenced_steps(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """A transaction for the steps of one fenced write; a refusal undoes it first and is recorded then."""
    try:
        with transaction.atomic(using=connection.alias):
            take_write_lock(connection)
            yield
    except RefusalError as refusal:
        verdict = Verdict(seen=refusal.tried.seen, passed=refusal.passed, accepted=False)
        raise refused(
            refusal.kind, refusal.lease, connection, refusal.tried, verdict, what=refusal.what, rows=refusal.rows
        ) from None


def lock_rows(connection: BaseDatabaseWrapper, fence: ModelFence, matched: Any) -> list[LockedRow]:
    """Lock the rows whose keys are in ``matched`` (a list, or a queryset of keys), in the order of their keys."""
    if connection.vendor == "mysql" and isinstance(matched, QuerySet):
        # MariaDB judges a subquery by the transaction's snapshot, but what is sent afterwards by the rows as they are.
        matched = [row["pk"] for row in locked(matched)]
    rows = locked(plain(fence.owner, connection.alias).filter(pk__in=matched).order_by("pk"))
    wanted = tuple(dict.fromkeys(("pk", "last_token", *fence.attributes)))
    name = fence.name if lifted(connection) is None else fence.name_on_record
    return [LockedRow(row["pk"], row["last_token"], name(row)) for row in rows.values(*wanted)]


def lock_matching(connection: BaseDatabaseWrapper, fence: ModelFence, matched: QuerySet[Any]) -> list[Any]:
    """Lock the rows whose keys a queryset gives, and give the keys of those that it matches as they are now."""
    keys = [row.pk for row in lock_rows(connection, fence, matched)]
    if connection.vendor != "postgresql":
        return keys  # they were judged and locked in one
    # PostgreSQL judges the subquery by the statement's view: a row may have stopped to match while it was waited for.
    still = {row["pk"] for row in matched.using(connection.alias)}
    return [key for key in keys if key in still]


def leases_for(fence: ModelFence, rows: Sequence[LockedRow], what: str) -> list[tuple[Lease, list[LockedRow]]]:
    """The held lease of each resource that the rows belong to, with its rows, in the order of the names.

    Raises:
        LeaseRequiredError: no lease of the model's backend is held.
        ResourceMismatchError: one of the rows belongs to a resource that is not held.
    """
    groups: defaultdict[str, list[LockedRow]] = defaultdict(list)
    for row in rows:
        groups[row.resource].append(row)
    held = [lease for lease in held_leases() if lease.using == fence.using]
    chosen = []
    for resource in sorted(groups):
        lease = find_lease(resource, fence.using)
        if lease is None and not held:
            raise lease_required(groups, fence.template, what)
        if lease is None:
            detail = f"{len(groups[resource])} of {len(rows)} matched rows"
            raise ResourceMismatchError(", ".join(one.resource for one in held), resource, detail)
        chosen.append((lease, groups[resource]))
    return chosen


def admit(
    connection: BaseDatabaseWrapper,
    fence: ModelFence,
    lease: Lease,
    rows: Sequence[LockedRow],
    action: str,
    pins: Mapping[Any, int] | None = None,
    number: int | None = None,
) -> int:
    """Judge locked rows and pass their resource; the number that they may be written with.

    Args:
        connection: the database of the rows.
        fence: how they are fenced.
        lease: the lease of their resource.
        rows: the rows.
        action: what is to be done, for the history.
        pins: the tokens that were read, by key; None to compare with nothing.
        number: a number that no write has carried, if one was taken already.

    Raises:
        RefusalError: one of the rows is stale, or is not the one that was read, or a newer holder came first.
    """
    tell = partial(attempt, lease, fence, rows[0].pk, lease.newest_token, action=action, seen=rows[0].seen)
    token = number or numbered(lease, connection, tell, lease.unused_number)
    stale = [row for row in rows if row.seen >= token]
    moved = [row for row in rows if pins is not None and pins[row.pk] != row.seen]
    first = (stale or moved or list(rows))[0]
    against = [row.pk for row in stale or moved]
    tried = attempt(lease, fence, first.pk, token, action=action, seen=max(row.seen for row in stale or moved or rows))
    if stale:
        raise RefusalError(
            StaleWriteError, lease, tried, f"{len(stale)} of {len(rows)} rows of {fence.label}", rows=against
        )
    if moved:
        raise RefusalError(
            StaleReadError, lease, tried, f"{len(moved)} of {len(rows)} rows of {fence.label}", rows=against
        )
    if not pass_resource(connection, lease, begun=has_begun(connection, lease)):
        raise RefusalError(StaleWriteError, lease, tried, f"{len(rows)} rows of {fence.label}", passed=False)
    return token


@contextmanager
def fenced_insert(
    connection: BaseDatabaseWrapper, fence: ModelFence, keys: Mapping[Lease, Sequence[Any]], *, over: bool = False
) -> Iterator[dict[Lease, int]]:
    """The steps of an INSERT under leases: the block gets the number of each, inserts, and calls ``pass_inserted``.

    The rows first, as everywhere: an INSERT may wait for a row that is equal in a unique key, and who has that row is
    going to pass the resource.

    Args:
        connection: the database of the rows.
        fence: how they are fenced.
        keys: the primary keys of the rows by lease, as far as they are preset.
        over: the INSERT may become an UPDATE of a row, so the number must be one that no write has carried.
    """
    tokens: dict[Lease, int] = {}
    try:
        with fenced_steps(connection):
            for lease in sorted(keys, key=lambda one: one.resource):
                bound_idling(connection, lease)
                tokens[lease] = _number_to_insert(connection, fence, lease, keys[lease], over=over)
            yield tokens
    except IntegrityError as error:
        for lease, token in tokens.items():
            seen = seen_token(connection, lease)
            overtaken = seen is not None and seen > lease.token
            if overtaken or guard_name_of(error):
                verdict = Verdict(seen=None, passed=not overtaken, accepted=False)
                what = f"upsert of {len(keys[lease])} rows of {fence.label}" if over else ""
                tried = _insertion(fence, lease, keys[lease], token, "upsert" if over else "insert")
                raise refused(StaleWriteError, lease, connection, tried, verdict, what=what) from error
        raise


def pass_inserted(
    connection: BaseDatabaseWrapper, fence: ModelFence, lease: Lease, keys: Sequence[Any], token: int
) -> None:
    """Pass the resource after an INSERT, inside ``fenced_insert``, and before its history: lines come in this order."""
    if not pass_resource(connection, lease, begun=has_begun(connection, lease)):
        raise RefusalError(StaleWriteError, lease, _insertion(fence, lease, keys, token), passed=False)


def _number_to_insert(
    connection: BaseDatabaseWrapper, fence: ModelFence, lease: Lease, keys: Sequence[Any], *, over: bool
) -> int:
    sent = max(lease.number_sent(connection, fence.label, key_as_read(fence.owner, key)) for key in keys)
    take = lease.unused_number if over else partial(lease.number_above, 0, sent)
    return numbered(lease, connection, partial(_insertion, fence, lease, keys, lease.newest_token), take)


def _insertion(
    fence: ModelFence, lease: Lease, keys: Sequence[Any], token: int, action: str = "insert"
) -> history.Attempt:
    return attempt(lease, fence, keys[0] if len(keys) == 1 else "", token, action=action, seen=None)


def record_rows(
    connection: BaseDatabaseWrapper, fence: ModelFence, lease: Lease, rows: Iterable[LockedRow], token: int, action: str
) -> None:
    """Put accepted writes of locked rows on record; each mends an earlier refusal of its row."""
    rows = list(rows)
    lease.accepted += bool(rows)
    history.record(connection, [attempt(lease, fence, row.pk, token, action=action, seen=row.seen) for row in rows])
    for row in rows:
        lease.refusals.mend(connection, f"{fence.label} {row.pk}")


def connection_of(queryset: QuerySet[Any]) -> BaseDatabaseWrapper:
    """The connection that a queryset is written through."""
    queryset._for_write = True  # type: ignore[attr-defined]
    return connections[queryset.db]


def keys_in(queryset: QuerySet[Any]) -> QuerySet[Any]:
    """The keys of the matched rows, as a subquery."""
    return queryset.order_by().values("pk")
