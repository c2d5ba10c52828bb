"""Fenced statements: the one place where they are built and where what the database answered is judged.

A row is locked first, then the resource's row is passed, then the row is written if its ``last_token`` is lower than
the write's number and still the one that was read. On PostgreSQL that is one statement; elsewhere, and where Django
has to build the UPDATE itself, it is the same steps in one transaction. Nothing here asks a clock or the heartbeat:
a write is sent, and the database decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Field, Model, QuerySet, Value, sql
from django.db.models.functions import Greatest
from django.utils import timezone

from fencing import conf, history, signals
from fencing.connections import in_testcase, in_user_transaction
from fencing.exceptions import (
    FencingError,
    LeaseLostError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    WriteRejectedError,
)
from fencing.expressions import Values
from fencing.history import Attempt
from fencing.leases import Lease
from fencing.naming import ModelFence
from fencing.resources import (
    IDLE_BOUND,
    bound_idling,
    milliseconds,
    pass_resource,
    passing,
    seen_token,
    take_write_lock,
)
from fencing.tables import quoted
from fencing.transactions import fenced_transaction

OUTCOMES: dict[type[WriteRejectedError], str] = {
    StaleWriteError: "stale",
    StaleReadError: "stale-read",
    RowMissingError: "missing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWrite:
    """One fenced UPDATE to be.

    Attributes:
        fence: how the model's rows are fenced.
        pk: the row's primary key.
        values: what Django would write, without ``last_token``.
        pin: the ``last_token`` that was read with the row, or None.
        compares: whether the row must still carry ``pin``: False if every value refers to a column.
        returning: fields whose new values Django wants back.
    """

    fence: ModelFence
    pk: Any
    values: Values
    pin: int | None
    compares: bool
    returning: Sequence[Any] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the database answered: None for ``seen`` means that there is no such row."""

    seen: int | None
    passed: bool
    accepted: bool
    rows: Any = True


def update_row(lease: Lease, using: str, write: RowWrite) -> tuple[int, Verdict]:
    """Send one fenced UPDATE and say which number the row carries now, and what the database answered.

    Raises:
        StaleWriteError, StaleReadError, RowMissingError: refused, and recorded.
        LeaseLostError: the row has consumed the lease's numbers and the store gives no further one.
    """
    lease.ensure_mine()
    connection = connections[using]
    if write.compares and write.pin is None:
        raise refused(StaleReadError, lease, connection, attempt_of(lease, write, lease.newest_token, None))
    floor, sent = write.pin or 0, lease.number_sent(connection, write.fence.label, write.pk)
    while True:
        tried = attempt_of(lease, write, lease.newest_token, write.pin)
        token = numbered(lease, connection, tried, partial(lease.number_above, floor, sent))
        verdict = send(connection, lease, write, token)
        if verdict.accepted:
            settle(lease, write.fence, write.pk)
            lease.remember(connection, write.fence.label, write.pk, token)
            return token, verdict
        own = verdict.passed and verdict.seen is not None and verdict.seen >= token and lease.issued(verdict.seen)
        if own and not write.compares:
            floor = verdict.seen or floor
            continue
        raise refused(
            judge(verdict, token, own=own), lease, connection, attempt_of(lease, write, token, verdict.seen), verdict
        )


def judge(verdict: Verdict, token: int, *, own: bool) -> type[WriteRejectedError]:
    """Which refusal a verdict is. A number that the lease itself issued has superseded nobody."""
    if verdict.seen is None:
        return RowMissingError
    if not verdict.passed or (verdict.seen >= token and not own):
        return StaleWriteError
    return StaleReadError


def numbered(lease: Lease, connection: BaseDatabaseWrapper, tried: Attempt, take: Callable[[], int]) -> int:
    """The number that ``take`` gives; that the lease has none left is recorded and remembered before it is raised."""
    try:
        return take()
    except LeaseLostError as error:
        history.record_refusal(connection, dataclasses.replace(tried, outcome="lost"))
        lease.refused[f"{tried.model} {tried.object_pk}"] = error
        raise


def send(connection: BaseDatabaseWrapper, lease: Lease, write: RowWrite, token: int) -> Verdict:
    """One statement where that can be, steps in one transaction where Django must build the UPDATE."""
    one_column = len(write.fence.keys) == 1
    if connection.vendor == "postgresql" and one_column and not write.returning:
        return send_statement(connection, lease, write, token)
    return send_steps(connection, lease, write, token)


def send_statement(connection: BaseDatabaseWrapper, lease: Lease, write: RowWrite, token: int) -> Verdict:
    """PostgreSQL: lock, pass, write and record in one statement, atomic by itself."""
    owner = write.fence.owner
    quote = connection.ops.quote_name
    table, pk = quote(owner._meta.db_table), quote(owner._meta.pk.column or "")
    pk_value = owner._meta.pk.get_db_prep_value(write.pk, connection)
    update, update_params = compiled_update(connection, write, token)
    parts: list[str] = []
    params: list[Any] = []

    def part(text: str, values: Iterable[Any] = ()) -> None:
        parts.append(text)
        params.extend(values)

    bound = bounds_idling(connection)
    if bound:
        part(f"bound AS MATERIALIZED (SELECT {IDLE_BOUND})", [milliseconds(conf.idle_in_transaction(lease.ttl))] * 2)
    part(
        f"old AS MATERIALIZED (SELECT t.last_token AS seen FROM {table} t{', bound' if bound else ''} "
        f"WHERE t.{pk} = %s FOR NO KEY UPDATE OF t)",
        [pk_value],
    )
    part(*passing(lease, begun=has_begun(connection, lease)))
    compare = " AND old.seen = %s" if write.compares else ""
    part(
        f"fenced AS ({update} AND EXISTS (SELECT 1 FROM old WHERE old.seen < %s{compare}) "
        "AND EXISTS (SELECT 1 FROM passed) RETURNING 1)",
        [*update_params, token, *([write.pin] if write.compares else [])],
    )
    accepted = attempt_of(lease, write, token, None)
    if history.wanted(accepted.outcome):
        part(
            f"history AS (INSERT INTO {quoted('FencedWrite')} ({history.columns()}) "
            f"SELECT {', '.join(['%s'] * len(history.columns().split(',')))} FROM fenced)",
            [*accepted.row(), timezone.now()],
        )
    statement = (
        f"WITH {', '.join(parts)} SELECT seen, EXISTS (SELECT 1 FROM passed), EXISTS (SELECT 1 FROM fenced) FROM old"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        answer = cursor.fetchone()
    if answer is None:
        return Verdict(seen=None, passed=True, accepted=False)
    return Verdict(seen=answer[0], passed=answer[1], accepted=answer[2])


def compiled_update(connection: BaseDatabaseWrapper, write: RowWrite, token: int) -> tuple[str, tuple[Any, ...]]:
    """Django's own UPDATE of one row by its key; what the fence adds is appended to it as text."""
    query = plain(write.fence.owner, connection.alias).filter(pk=write.pk).query.chain(sql.UpdateQuery)
    query.add_update_fields(with_token(write, token))  # type: ignore[attr-defined]
    text, params = query.get_compiler(connection=connection).as_sql()
    return text, tuple(params)


def send_steps(connection: BaseDatabaseWrapper, lease: Lease, write: RowWrite, token: int) -> Verdict:
    """The same as ``send_statement``, as steps in one transaction; a refusal undoes them."""
    try:
        with transaction.atomic(using=connection.alias):
            seen = lock_row(connection, lease, write)
            passed = seen is not None and pass_resource(connection, lease, begun=has_begun(connection, lease))
            rows: Any = 0
            if passed:
                condition = {"last_token": write.pin} if write.compares else {}
                matched = plain(write.fence.owner, connection.alias).filter(
                    pk=write.pk, last_token__lt=token, **condition
                )
                more = (list(write.returning),) if write.returning else ()
                rows = matched._update(with_token(write, token), *more)  # type: ignore[attr-defined]
            verdict = Verdict(seen=seen, passed=passed or seen is None, accepted=bool(rows), rows=rows)
            if not verdict.accepted:
                raise _UndoError(verdict)
            history.record(connection, [attempt_of(lease, write, token, None)])
    except _UndoError as undo:
        return undo.verdict
    return verdict


class _UndoError(Exception):
    """Leaves a transaction so that Django undoes it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


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


def lock_row(connection: BaseDatabaseWrapper, lease: Lease, write: RowWrite) -> int | None:
    """Lock one row and answer the ``last_token`` that it carries, None if it is gone."""
    take_write_lock(connection)
    bound_idling(connection, lease)
    tokens = plain(write.fence.owner, connection.alias).filter(pk=write.pk).values_list("last_token", flat=True)
    return tokens.select_for_update(no_key=True).first()


def has_begun(connection: BaseDatabaseWrapper, lease: Lease) -> bool:
    """Whether the open transaction is the lease's own fenced one."""
    return fenced_transaction(connection, lease) is not None


def bounds_idling(connection: BaseDatabaseWrapper) -> bool:
    """Whether the open transaction must be kept from idling with locks: the user's own, on a database that can."""
    return connection.vendor == "postgresql" and not in_testcase(connection) and in_user_transaction(connection)


def plain(model: type[Model], using: str) -> QuerySet[Any]:
    """Every row of the model's own table, whatever its managers hide."""
    return QuerySet(model=model, using=using)


def with_token(write: RowWrite, token: int) -> list[tuple[Field[Any, Any], None, Any]]:
    """The values that the statement writes, ``last_token`` included, whatever ``update_fields`` said."""
    column = write.fence.owner._meta.get_field("last_token")
    return [(field, None, value) for field, _model, value in write.values] + [(column, None, token)]  # type: ignore[list-item]


def attempt_of(lease: Lease, write: RowWrite, token: int, seen: int | None) -> Attempt:
    """The history row of an accepted UPDATE of one row; a refusal changes its outcome."""
    return attempt(lease, write.fence, write.pk, token, action="update", seen=write.pin if seen is None else seen)


def attempt(lease: Lease, fence: ModelFence, pk: Any, token: int, *, action: str, seen: int | None) -> Attempt:
    """The history row of an accepted write under ``lease``."""
    return Attempt(
        namespace=lease.namespace,
        token=token,
        grant_token=lease.token,
        resource=lease.resource,
        model=fence.label,
        object_pk=str(pk),
        action=action,
        outcome=history.ACCEPTED,
        seen=seen,
    )


def refused(
    kind: type[WriteRejectedError],
    lease: Lease,
    connection: BaseDatabaseWrapper,
    tried: Attempt,
    verdict: Verdict | None = None,
    *,
    what: str = "",
) -> WriteRejectedError:
    """The refusal to raise, after it was recorded, announced and remembered by the lease.

    Args:
        tried: the row that an acceptance would have left in the history.
        verdict: what the database answered; None if nothing was sent.
        what: what was refused; default: the row.
    """
    seen = verdict.seen if verdict is not None else tried.seen
    if verdict is not None and not verdict.passed:
        seen = seen_token(connection, lease)
    what = what or f"{tried.model} {tried.object_pk}"
    error = kind(lease.resource, tried.token, seen, what)
    history.record_refusal(connection, dataclasses.replace(tried, outcome=OUTCOMES[kind], seen=seen))
    lease.refused[what] = error
    signals.announce(signals.write_rejected, Lease, lease=lease, error=error)
    if kind is StaleWriteError and seen is not None:
        lease.catch_up(seen)
    return error


def settle(lease: Lease, fence: ModelFence, pk: Any) -> None:
    """An accepted write mends an earlier refusal of the same row."""
    lease.accepted += 1
    lease.refused.pop(f"{fence.label} {pk}", None)


def update_unfenced(resource: str, number: int, connection: BaseDatabaseWrapper, write: RowWrite) -> Any:
    """Write a row of ``resource`` with the fence lifted, carrying the number, so that a holder who read before notices."""
    column = write.fence.owner._meta.get_field("last_token")
    values = [*write.values, (column, None, Greatest(F("last_token"), Value(number)))]
    more = (list(write.returning),) if write.returning else ()
    rows = plain(write.fence.owner, connection.alias).filter(pk=write.pk)._update(values, *more)  # type: ignore[attr-defined]
    if rows:
        record_unfenced(connection, write.fence, [(write.pk, resource)], number, "update")
    return rows


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
