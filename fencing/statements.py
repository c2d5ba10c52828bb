"""What one fenced UPDATE is, and how it is sent in steps.

The row is locked first, then the resource's row is passed, then the row is written if its ``last_token`` is lower than
the write's number and still the one that was read. On PostgreSQL that is one statement (``rowstatement``); elsewhere,
and where Django wants something back, it is these steps in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, Model, QuerySet

from fencing import conf, history
from fencing.bounds import bound_idling
from fencing.connections import in_testcase, in_user_transaction
from fencing.databases import locked
from fencing.expressions import Values
from fencing.history import Attempt
from fencing.leases import Lease
from fencing.naming import ModelFence
from fencing.resources import Way, pass_resource, take_write_lock
from fencing.transactions import fenced_transaction


@dataclass(slots=True, kw_only=True)
class RowWrite:
    """One fenced UPDATE to be.

    Attributes:
        fence: how the model's rows are fenced.
        pk: the row's primary key.
        values: what Django would write, without ``last_token``.
        pin: the ``last_token`` that was read with the row, or None.
        compares: whether the row must still carry ``pin``: False if every value refers to a column.
        returning: fields whose new values Django wants back.
        named: what else the row must still hold, by attribute, where ``pin`` does not tell: what its name is made of.
    """

    fence: ModelFence
    pk: Any
    values: Values
    pin: int | None
    compares: bool
    returning: Sequence[Any] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What the database answered: None for ``seen`` means that there is no such row."""

    seen: int | None
    passed: bool
    accepted: bool
    rows: Any = True


def send_steps(connection: BaseDatabaseWrapper, lease: Lease, write: RowWrite, token: int) -> Verdict:
    """Lock, pass, write and record as steps in one transaction; a refusal undoes them."""
    try:
        with transaction.atomic(using=connection.alias):
            seen = lock_row(connection, lease, write)
            passed = seen is not None and pass_resource(connection, lease, begun=has_begun(connection, lease))
            rows: Any = 0
            if passed and keeps_name(connection, write):
                condition = {"last_token": write.pin} if write.compares else {}
                matched = plain(write.fence.owner, connection.alias).filter(
                    pk=write.pk, last_token__lt=token, **condition
                )
                more = (list(write.returning),) if write.returning else ()
                rows = matched._update(with_token(write, token), *more)  # type: ignore[attr-defined]
            verdict = Verdict(seen=seen, passed=passed or seen is None, accepted=wrote(rows), rows=rows)
            if not verdict.accepted:
                raise _UndoError(verdict)
            history.record(connection, [attempt_of(lease, write, token, None)])
    except _UndoError as undo:
        return undo.verdict
    return verdict


def wrote(rows: Any) -> bool:
    """Whether an UPDATE of one row has matched it: a driver's -1, for "unknown", is no yes."""
    return bool(rows) if isinstance(rows, list) else rows is not None and rows > 0


class _UndoError(Exception):
    """Leaves a transaction so that Django undoes it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


def lock_row(connection: BaseDatabaseWrapper, lease: Lease, write: RowWrite) -> int | None:
    """Lock one row and answer the ``last_token`` that it carries, None if it is gone."""
    take_write_lock(connection)
    bound_idling(connection, lease)
    tokens = plain(write.fence.owner, connection.alias).filter(pk=write.pk).values_list("last_token", flat=True)
    return locked(tokens).first()


def keeps_name(connection: BaseDatabaseWrapper, write: RowWrite) -> bool:
    """Whether a locked row still holds what is named: compared here, because a collation may take other text for equal."""
    if not write.named:
        return True
    row = locked(plain(write.fence.owner, connection.alias).filter(pk=write.pk).values(*write.named)).first()
    return row == dict(write.named)


def has_begun(connection: BaseDatabaseWrapper, lease: Lease) -> bool:
    """Whether the open transaction is the lease's own fenced one."""
    return fenced_transaction(connection, lease) is not None


def way_to_pass(connection: BaseDatabaseWrapper, lease: Lease) -> Way:
    """How the next statement of the lease passes its resource's row."""
    if has_begun(connection, lease):
        return Way.READ
    return Way.SHARE if connection.alias in lease.passed else Way.RAISE


def bounds_idling(connection: BaseDatabaseWrapper, lease: Lease) -> bool:
    """Whether the open transaction must be kept from idling with locks: the user's own, unless a setting says never."""
    is_users = connection.vendor == "postgresql" and not in_testcase(connection) and in_user_transaction(connection)
    return is_users and conf.idle_in_transaction(lease.ttl) > 0


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
