"""Fenced writes of one row: sent, judged by what the database answered, and put on record.

Nothing here asks a clock or the heartbeat: a write is sent, and the database decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Value
from django.db.models.functions import Greatest

from fencing import conf, history, signals
from fencing.databases import locked
from fencing.exceptions import (
    FencingError,
    LeaseLostError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    WriteRejectedError,
)
from fencing.history import Attempt
from fencing.leases import Lease
from fencing.lifting import name_higher, named_token
from fencing.maintenance import number_for
from fencing.naming import ModelFence
from fencing.resources import Way, may_pass_yet, seen_token, take_write_lock
from fencing.rowstatement import send_statement
from fencing.statements import RowWrite, Verdict, attempt_of, has_begun, plain, send_steps

OUTCOMES: dict[type[WriteRejectedError], str] = {
    StaleWriteError: "stale",
    StaleReadError: "stale-read",
    RowMissingError: "missing",
}


def update_row(lease: Lease, connection: BaseDatabaseWrapper, write: RowWrite) -> tuple[int, Verdict]:
    """Send one fenced UPDATE and say which number the row carries now, and what the database answered.

    Raises:
        StaleWriteError, StaleReadError, RowMissingError: refused, and recorded.
        LeaseLostError: the row has consumed the lease's numbers and the store gives no further one.
        LeaseBackendError: it may have, and the store does not answer.
    """
    lease.ensure_mine()
    if write.compares and write.pin is None:
        raise refused(StaleReadError, lease, connection, attempt_of(lease, write, lease.newest_token, None))
    floor, sent = write.pin or 0, lease.number_sent(connection, write.fence.label, write.pk)
    while True:
        tell = partial(attempt_of, lease, write, lease.newest_token, write.pin)
        token = numbered(lease, connection, tell, partial(lease.number_above, floor, sent))
        verdict = send(connection, lease, write, token)
        if verdict.accepted:
            settle(lease, connection, write.fence, write.pk)
            outnumber(connection, lease, token)
            lease.remember(connection, write.fence.label, token, write.pk)
            return token, verdict
        own = verdict.passed and verdict.seen is not None and verdict.seen >= token and lease.issued(verdict.seen)
        if own and not write.compares:
            floor = verdict.seen or floor
            continue
        raise refused(
            judge(verdict, token, own=own), lease, connection, attempt_of(lease, write, token, verdict.seen), verdict
        )


def send(connection: BaseDatabaseWrapper, lease: Lease, write: RowWrite, token: int) -> Verdict:
    """One statement where that can be; steps in one transaction elsewhere, and where Django wants something back."""
    one_column = len(write.fence.keys) == 1
    if connection.vendor == "postgresql" and one_column and not write.returning:
        verdict = send_statement(connection, lease, write, token)
        if verdict.passed or has_begun(connection, lease) or not may_pass_yet(connection, lease):
            return verdict
        # Whatever was passed before: it may have been rolled back, or, by another thread, not be committed yet.
        return send_statement(connection, lease, write, token, Way.RAISE)
    return send_steps(connection, lease, write, token)


def judge(verdict: Verdict, token: int, *, own: bool) -> type[WriteRejectedError]:
    """Which refusal a verdict is. A number that the lease itself issued has superseded nobody."""
    if verdict.seen is None:
        return RowMissingError
    if not verdict.passed or (verdict.seen >= token and not own):
        return StaleWriteError
    return StaleReadError


def numbered(
    lease: Lease, connection: BaseDatabaseWrapper, tell: Callable[[], Attempt], take: Callable[[], int]
) -> int:
    """The number that ``take`` gives; that the lease has none left is recorded and remembered before it is raised."""
    try:
        return take()
    except LeaseLostError as error:
        tried = tell()
        lease.refusals.add(connection, f"{tried.model} {tried.object_pk}", error)
        history.record_refusal(connection, dataclasses.replace(tried, outcome="lost"))
        raise


@contextmanager
def keeps_transaction(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Django marks the open transaction as broken for any exception in a save; a refusal has broken nothing."""
    healthy = not connection.needs_rollback
    try:
        yield
    except FencingError:
        if healthy and connection.in_atomic_block:
            connection.set_rollback(False)
        raise


def refused(
    kind: type[WriteRejectedError],
    lease: Lease,
    connection: BaseDatabaseWrapper,
    tried: Attempt,
    verdict: Verdict | None = None,
    *,
    what: str = "",
    rows: Iterable[Any] = (),
) -> WriteRejectedError:
    """The refusal to raise, after it was recorded, announced and remembered by the lease.

    Args:
        tried: the row that an acceptance would have left in the history.
        verdict: what the database answered; None if nothing was sent.
        what: what was refused; default: the row.
        rows: the keys of the rows that spoke against it, where there are several: what writes all of them makes it good.
    """
    seen = verdict.seen if verdict is not None else tried.seen
    if verdict is not None and not verdict.passed:
        seen = seen_token(connection, lease)
    what = what or f"{tried.model} {tried.object_pk}"
    error = kind(lease.resource, tried.token, seen, what)
    # First: what the log or a signal raises instead, and the body swallows, must not let the transaction commit.
    for one in [f"{tried.model} {key}" for key in rows] or [what]:
        lease.refusals.add(connection, one, error)
    history.record_refusal(connection, dataclasses.replace(tried, outcome=OUTCOMES[kind], seen=seen))
    signals.announce(signals.write_rejected, Lease, lease=lease, error=error)
    if kind is StaleWriteError and seen is not None:
        lease.catch_up(seen, what)
    return error


def settle(lease: Lease, connection: BaseDatabaseWrapper, fence: ModelFence, pk: Any) -> None:
    """An accepted write mends an earlier refusal of the same row."""
    lease.accepted += 1
    lease.refusals.mend(connection, f"{fence.label} {pk}")


def outnumber(connection: BaseDatabaseWrapper, lease: Lease, token: int) -> None:
    """Let a delete under way name a number above ``token`` to the guard: a receiver of its signals has written with that.

    The row may be one of those that are to be deleted, and have been judged already.
    """
    named = named_token(connection)
    if named is not None and named <= token:
        name_higher(connection, lease.unused_number())


def update_unfenced(resource: str, connection: BaseDatabaseWrapper, write: RowWrite) -> tuple[int, Any]:
    """Write a row of ``resource`` with the fence lifted, carrying a number, so that a holder who read before notices.

    Returns:
        The number, and what Django's UPDATE returned.
    """
    take_write_lock(connection)
    row = locked(plain(write.fence.owner, connection.alias).filter(pk=write.pk))
    seen = row.values_list("last_token", flat=True).first() or 0
    number = number_for(connection, write.fence.using, resource, seen)
    column = write.fence.owner._meta.get_field("last_token")
    values = [*write.values, (column, None, Greatest(F("last_token"), Value(number)))]
    more = (list(write.returning),) if write.returning else ()
    rows = plain(write.fence.owner, connection.alias).filter(pk=write.pk)._update(values, *more)  # type: ignore[attr-defined]
    if rows:
        record_unfenced(connection, write.fence, [(write.pk, resource)], number, "update")
    return number, rows


def record_unfenced(
    connection: BaseDatabaseWrapper, fence: ModelFence, rows: Iterable[tuple[Any, str]], number: int, action: str
) -> None:
    """Record writes of rows, given as (pk, resource), that were made with the fence lifted."""
    namespace = conf.backend_config(fence.using).namespace
    history.record(
        connection,
        [
            Attempt(
                namespace=namespace,
                token=number,
                grant_token=number,
                resource=resource,
                model=fence.label,
                object_pk=str(pk),
                action=action,
                outcome="unfenced",
            )
            for pk, resource in rows
        ],
    )
