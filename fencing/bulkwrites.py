"""``QuerySet.update`` and ``bulk_update`` under the leases of the matched rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, QuerySet, Value
from django.db.models.functions import Greatest

from fencing.bounds import bound_idling
from fencing.exceptions import (
    LeaseBackendError,
    LeaseLostError,
    ResourceMismatchError,
    RowMissingError,
    StaleReadError,
    WriteRejectedError,
)
from fencing.leases import Lease
from fencing.lifting import lifted
from fencing.lockedrows import (
    LockedRow,
    RefusalError,
    admit,
    connection_of,
    fenced_steps,
    keys_in,
    leases_for,
    lock_rows,
    record_rows,
)
from fencing.maintenance import number_for
from fencing.manyrows import can_be_one_statement, update_at_once
from fencing.naming import ModelFence, fence_of, key_as_read
from fencing.scope import find_lease, held_leases, lease_required
from fencing.statements import attempt, plain
from fencing.writes import outnumber, record_unfenced


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
                lease.remember(connection, fence.label, number)
                outnumber(connection, lease, number)
                return count
    with fenced_steps(connection):
        return update_rows(queryset, values, number=number)


def _only_lease(fence: ModelFence) -> Lease | None:
    """The lease to write the model's rows under, if only one resource is held and no refusal is to be mended."""
    held = [lease for lease in held_leases() if lease.using == fence.using]
    only = len({lease.resource for lease in held}) == 1 and held[-1].refusals.is_empty()
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
    if lifted(connection) is not None:
        newest = max(rows, key=lambda row: row.seen, default=LockedRow(None, 0, ""))
        lifter = number_for(connection, fence.using, newest.resource, newest.seen)
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
        for row in group:
            lease.remember(connection, fence.label, token, row.pk)
        outnumber(connection, lease, token)
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
        key = key_of(one)
        if not blind and (one._fence_pin is None or one._fence_is_unread(fence)):
            raise _refused_object(fence, one, StaleReadError)
        # Of two objects that have read one row at different times, Django writes the first, and one of them is late.
        if pins.setdefault(key, one._fence_pin) != one._fence_pin:
            raise _refused_object(fence, one, StaleReadError, seen=max(pins[key], one._fence_pin))
    there = {row.pk: row.seen for row in lock_rows(connection, fence, list(pins))}
    for one in objects:
        if key_of(one) not in there:
            missing = len(pins) - len(there)
            raise _refused_object(fence, one, RowMissingError, f"{missing} of {len(pins)} rows of {fence.label}")
    return there if blind else pins


def key_of(instance: Any) -> Any:
    """An object's primary key, as a read gives it."""
    return key_as_read(type(instance), instance.pk)


def _refused_object(
    fence: ModelFence, instance: Any, kind: type[WriteRejectedError], what: str = "", *, seen: int | None = None
) -> Exception:
    """The refusal of one object of a ``bulk_update``, under the lease of its resource if that is held."""
    resource = instance._fence_name_on_record(fence)
    lease = find_lease(resource, fence.using) or next(iter(held_leases()), None)
    if lease is None:
        return lease_required([resource], fence.template, f"bulk_update() of {fence.label}")
    tried = attempt(lease, fence, instance.pk, lease.newest_token, action="update", seen=seen)
    return RefusalError(kind, lease, tried, what, rows=[key_of(instance)])


def _plain_update(queryset: QuerySet[Any], values: Mapping[str, Any]) -> int:
    return QuerySet.update(queryset, **values)
