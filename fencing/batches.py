"""Rows that go batch by batch: each batch is a short transaction of its own, which waits for nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.db import connections, transaction
from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL

from fencing.resources import take_write_lock

BATCH = 20_000
# Where the keys of a batch have to travel, it has no more.
MOST_KEYS = 5000


def in_batches(
    rows: QuerySet[Any], by: str, forget: Callable[[QuerySet[Any]], int], *, only: Q | None = None, batch: int = BATCH
) -> Iterator[tuple[int, int]]:
    """Go through rows once, in the order of ``by`` and the key, and forget those that nobody has locked.

    What has been passed is not looked at again, so what stays costs no batch after the first, and rows that others have
    locked, or that come late, are left for the next time.

    Args:
        rows: what is gone through.
        by: the column that leads an index, or "pk".
        forget: forgets the rows of a queryset, and says how many.
        only: which of them are forgotten; the others are passed. It may be dear: it is asked once for each row.
        batch: at most so many rows in a transaction.

    Yields:
        After each batch, how many rows it has passed at most, and how many of them were forgotten.
    """
    connection, order, last = connections[rows.db], [*dict.fromkeys((by, "pk"))], None
    if connection.vendor != "postgresql":
        batch = min(batch, MOST_KEYS)
    while True:
        with transaction.atomic(using=rows.db, durable=True):
            take_write_lock(connection)
            left = rows.order_by(*order) if last is None else rows.order_by(*order).filter(_after(by, last))
            end = left.values_list(by, "pk")[batch - 1 : batch].first()
            part = left.order_by() if end is None else left.order_by().filter(_up_to(by, end))
            locked = (part if only is None else part.filter(only)).select_for_update(
                skip_locked=connection.features.has_select_for_update_skip_locked
            )
            # With its condition again: SQLite locks nothing.
            forgotten = forget(rows.order_by().filter(_among(locked)))
        yield batch, forgotten
        if end is None:
            return
        last = end


def _after(by: str, place: tuple[Any, Any]) -> Q:
    """The rows behind a place in the order of ``by`` and the key."""
    value, key = place
    if by == "pk":
        return Q(pk__gt=key)
    # The first condition is the one that an index answers.
    return Q(**{f"{by}__gte": value}) & (Q(**{f"{by}__gt": value}) | Q(pk__gt=key))


def _up_to(by: str, place: tuple[Any, Any]) -> Q:
    """The rows up to a place, likewise."""
    value, key = place
    if by == "pk":
        return Q(pk__lte=key)
    return Q(**{f"{by}__lte": value}) & (Q(**{f"{by}__lt": value}) | Q(pk__lte=key))


def _among(locked: QuerySet[Any]) -> Any:
    """The condition that a row is one of ``locked``, for which those get locked."""
    if connections[locked.db].vendor != "postgresql":
        return Q(pk__in=list(locked.values_list("pk", flat=True)))
    # By where they are: keys would go to the client and back, and each would be looked up in the index, for a third of
    # the speed or less.
    places, values = locked.values_list(RawSQL("ctid", ())).query.get_compiler(locked.db).as_sql()
    return RawSQL(f"ctid = ANY (ARRAY({places}))", values, output_field=BooleanField())  # noqa: S611  Django wrote it
