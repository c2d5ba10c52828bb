"""Fenced writes of many rows, and inserts: the steps of ``writes``, all or nothing in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, QuerySet, Value
from django.db.models.functions import Greatest

from fencing import history
from fencing.databases import locked
from fencing.exceptions import (
    LeaseBackendError,
    LeaseLostError,
    LeaseRequiredError,
    ResourceMismatchError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    WriteRejectedError,
)
from fencing.leases import Lease
from fencing.lifting import lifted
from fencing.manyrows import can_be_one_statement, update_at_once
from fencing.naming import ModelFence, fence_of
from fencing.resources import bound_idling, pass_resource, take_write_lock
from fencing.scope import find_lease, held_leases
from fencing.statements import Verdict, attempt, has_begun, plain
from fencing.writes import numbered, record_unfenced, refused


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
    ) -> None:
        super().__init__(kind, lease, tried, what, passed)
        self.kind = kind
        self.lease = lease
        self.tried = tried
        self.what = what
        self.passed = passed


@contextmanager
def fenced_steps(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """A transaction for the steps of one fenced write; a refusal undoes it first and is recorded then."""
    try:
        with transaction.atomic(using=connection.alias):
            take_write_lock(connection)
            yield
    except RefusalError as refusal:
        verdict = Verdict(seen=refusal.tried.seen, passed=refusal.passed, accepted=False)
        raise refused(refusal.kind, refusal.lease, connection, refusal.tried, verdict, what=refusal.what) from None


def lock_rows(connection: BaseDatabaseWrapper, fence: ModelFence, matched: Any) -> list[LockedRow]:
    """Lock the rows whose keys are in ``matched`` (a list, or a queryset of keys), in the order of their keys."""
    if connection.vendor == "mysql" and isinstance(matched, QuerySet):
        # MariaDB judges a subquery by the transaction's snapshot, but what is sent afterwards by the rows as they are.
        matched = [row["pk"] for row in locked(matched)]
    rows = locked(plain(fence.owner, connection.alias).filter(pk__in=matched).order_by("pk"))
    wanted = tuple(dict.fromkeys(("pk", "last_token", *fence.attributes)))
    name = fence.name if lifted(connection) is None else fence.name_on_record
    return [LockedRow(row["pk"], row["last_token"], name(row)) for row in rows.values(*wanted)]


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
            raise LeaseRequiredError(resource, [other.resource for other in held_leases()], what)
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
    tried = attempt(lease, fence, first.pk, token, action=action, seen=max(row.seen for row in stale or moved or rows))
    if stale:
        raise RefusalError(StaleWriteError, lease, tried, f"{len(stale)} of {len(rows)} rows of {fence.label}")
    if moved:
        raise RefusalError(StaleReadError, lease, tried, f"{len(moved)} of {len(rows)} rows of {fence.label}")
    if not pass_resource(connection, lease, begun=has_begun(connection, lease)):
        raise RefusalError(StaleWriteError, lease, tried, f"{len(rows)} rows of {fence.label}", passed=False)
    return token


def update(queryset: QuerySet[Any], values: Mapping[str, Any]) -> int:
    """``QuerySet.update`` under the leases of the matched rows: in one statement if that can be, or in steps."""
    fence, connection = fence_of(queryset.model), connection_of(queryset)
    number = None
    lease = _only_lease(fence)
    plainly = lifted(connection) is None and not _touches_name(fence, values)
    if lease and plainly and can_be_one_statement(connection, fence, queryset):
        with suppress(LeaseLostError, LeaseBackendError):  # the steps tell, if there is anything to write
            number = lease.unused_number()
        if number is not None:
            count = update_at_once(connection, fence, lease, number, queryset, values)
            if count is not None:
                lease.accepted += bool(count)
                return count
    with fenced_steps(connection):
        return update_rows(queryset, values, number=number)


def _only_lease(fence: ModelFence) -> Lease | None:
    """The lease to write the model's rows under, if only one resource is held and no refusal is to be mended."""
    held = [lease for lease in held_leases() if lease.using == fence.using]
    only = len({lease.resource for lease in held}) == 1 and not held[-1].refused
    return held[-1] if only else None


def update_rows(
    queryset: QuerySet[Any],
    values: Mapping[str, Any],
    pins: dict[Any, int] | None = None,
    *,
    number: int | None = None,
) -> int:
    """``QuerySet.update`` in steps, inside ``fenced_steps``.

    Args:
        queryset: the rows.
        values: what to write.
        pins: the tokens that were read, by key; replaced by the numbers that the rows carry now.
        number: a number that no write under the only lease has carried, if one was taken already.
    """
    fence, connection = fence_of(queryset.model), connection_of(queryset)
    rows = lock_rows(connection, fence, keys_in(queryset))
    if (lifter := lifted(connection)) is not None:
        count = _plain_update(queryset, {**values, "last_token": Greatest(F("last_token"), Value(lifter))})
        record_unfenced(connection, fence, [(row.pk, row.resource) for row in rows], lifter, "update")
        return count
    count = 0
    for lease, group in leases_for(fence, rows, f"QuerySet.update() of {fence.label}"):
        bound_idling(connection, lease)
        token = admit(connection, fence, lease, group, "update", pins, number)
        keys = [row.pk for row in group]
        updated = _plain_update(queryset.filter(pk__in=keys, last_token__lt=token), {**values, "last_token": token})
        if updated != len(group):
            group = _carrying(connection, fence, group, token)
        count += len(group)
        if _touches_name(fence, values):
            _ensure_resource_kept(connection, fence, group)
        record_rows(connection, fence, lease, group, token, "update")
        if pins is not None:
            pins.update((row.pk, token) for row in group)
    return count


def _carrying(
    connection: BaseDatabaseWrapper, fence: ModelFence, rows: Sequence[LockedRow], token: int
) -> list[LockedRow]:
    """Those of the locked rows that were updated: one may have stopped to match while it was waited for."""
    keys = [row.pk for row in rows]
    there = plain(fence.owner, connection.alias).filter(pk__in=keys, last_token=token)
    updated = set(there.values_list("pk", flat=True))
    return [row for row in rows if row.pk in updated]


def _touches_name(fence: ModelFence, values: Mapping[str, Any]) -> bool:
    """Whether an ``update()`` writes a field that a resource's name is made of."""
    meta = fence.owner._meta
    names = {name for one in fence.attributes for name in (one, meta.get_field(one).name)}
    return not names.isdisjoint(values) or "pk" in values


def _ensure_resource_kept(connection: BaseDatabaseWrapper, fence: ModelFence, rows: Sequence[LockedRow]) -> None:
    """Undo an update that moved a row to another resource; looked at afterwards, because it may be an expression."""
    now = {row.pk: row.resource for row in lock_rows(connection, fence, [row.pk for row in rows])}
    moved = [row for row in rows if now.get(row.pk) != row.resource]
    if moved:
        detail = f"{len(moved)} of {len(rows)} matched rows would move"
        raise ResourceMismatchError(moved[0].resource, now.get(moved[0].pk, "another"), detail)


def pins_of(queryset: QuerySet[Any], objects: Sequence[Any], *, blind: bool = False) -> dict[Any, int]:
    """The tokens that were read with the objects of a ``bulk_update``, by key; their rows are locked now.

    Args:
        queryset: what the rows belong to.
        objects: the objects.
        blind: they were never read, and what is written does not come from a read: the rows as they are now count.

    Raises:
        LeaseRequiredError: no lease is held.
        RefusalError: an object was not read, or its row is gone.
    """
    fence, connection = fence_of(queryset.model), connection_of(queryset)
    pins: dict[Any, Any] = {}
    for one in objects:
        pins[key_of(one)] = one._fence_pin
        if not blind and (one._fence_pin is None or one._fence_is_unread(fence)):
            raise _refused_object(fence, one, StaleReadError)
    there = {row.pk: row.seen for row in lock_rows(connection, fence, list(pins))}
    for one in objects:
        if key_of(one) not in there:
            missing = len(pins) - len(there)
            raise _refused_object(fence, one, RowMissingError, f"{missing} of {len(pins)} rows of {fence.label}")
    return there if blind else pins


def key_of(instance: Any) -> Any:
    """An object's primary key, as a read gives it."""
    return instance._meta.pk.to_python(instance.pk)


def _refused_object(fence: ModelFence, instance: Any, kind: type[WriteRejectedError], what: str = "") -> Exception:
    """The refusal of one object of a ``bulk_update``, under the lease of its resource if that is held."""
    resource = instance._fence_name_on_record(fence)
    lease = find_lease(resource, fence.using) or next(iter(held_leases()), None)
    if lease is None:
        return LeaseRequiredError(resource, (), f"bulk_update() of {fence.label}")
    tried = attempt(lease, fence, instance.pk, lease.newest_token, action="update", seen=None)
    return RefusalError(kind, lease, tried, what)


def admit_insert(
    connection: BaseDatabaseWrapper, fence: ModelFence, lease: Lease, keys: Sequence[Any], *, over: bool = False
) -> int:
    """Pass the resource for an INSERT under ``lease``, inside ``fenced_steps``; the number that the rows get.

    Args:
        keys: the primary keys of the rows, as far as they are preset.
        over: the INSERT may become an UPDATE of a row, so the number must be one that no write has carried.
    """
    bound_idling(connection, lease)
    pk = keys[0] if len(keys) == 1 else ""
    tell = partial(attempt, lease, fence, pk, lease.newest_token, action="insert", seen=None)
    sent = max(lease.number_sent(connection, fence.label, key) for key in keys)
    take = lease.unused_number if over else partial(lease.number_above, 0, sent)
    token = numbered(lease, connection, tell, take)
    if not pass_resource(connection, lease, begun=has_begun(connection, lease)):
        raise RefusalError(StaleWriteError, lease, tell(), passed=False)
    return token


def record_rows(
    connection: BaseDatabaseWrapper, fence: ModelFence, lease: Lease, rows: Iterable[LockedRow], token: int, action: str
) -> None:
    """Put accepted writes of locked rows on record; each mends an earlier refusal of its row."""
    lease.accepted += 1
    history.record(connection, [attempt(lease, fence, row.pk, token, action=action, seen=row.seen) for row in rows])
    for row in rows:
        lease.refused.pop(f"{fence.label} {row.pk}", None)


def connection_of(queryset: QuerySet[Any]) -> BaseDatabaseWrapper:
    """The connection that a queryset is written through."""
    queryset._for_write = True  # type: ignore[attr-defined]
    return connections[queryset.db]


def keys_in(queryset: QuerySet[Any]) -> QuerySet[Any]:
    """The keys of the matched rows, as a subquery."""
    return queryset.order_by().values("pk")


def _plain_update(queryset: QuerySet[Any], values: Mapping[str, Any]) -> int:
    return QuerySet.update(queryset, **values)
