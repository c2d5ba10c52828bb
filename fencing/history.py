"""History: what was attempted on fenced rows (``FencedWrite``), and the grants from the stores' outboxes (``TokenGrant``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any
from weakref import WeakKeyDictionary

from django.db import DatabaseError, Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic
from django.utils import timezone

from fencing import conf
from fencing.backends import get_backend
from fencing.collector import merge
from fencing.connections import (
    autocommit,
    in_test_environment,
    in_testcase,
    in_user_transaction,
    initialized,
    testcase_block,
)
from fencing.databases import is_busy
from fencing.exceptions import FencingError
from fencing.heartbeat import chores
from fencing.logs import tell_attempt
from fencing.tables import sql_name
from fencing.tokens import place_of

logger = logging.getLogger("fencing")

ACCEPTED = "accepted"
MAX_PK_LENGTH = 200
COLLECT_EVERY = 1.0
COLLECT_BATCH = 500

# Each with the transaction of the ``TestCase`` that it was tried in, if any.
_waiting: WeakKeyDictionary[BaseDatabaseWrapper, list[tuple[Attempt, Atomic | None]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One row of ``FencedWrite`` to be; its fields are the table's columns, but for the time."""

    namespace: str
    token: int
    grant_token: int
    resource: str
    model: str = ""
    object_pk: str = ""
    action: str
    outcome: str
    seen: int | None = None
    operation: str = ""
    note: str = ""

    def row(self) -> tuple[Any, ...]:
        """The values in the order of ``columns()``, with texts cut to what the columns hold."""
        return (
            self.namespace, self.token, self.grant_token, self.resource, self.model, self.object_pk[:MAX_PK_LENGTH],
            self.action, self.outcome, self.seen, self.operation, self.note[:400],
        )  # fmt: skip


_NAMES = tuple(field.name for field in fields(Attempt))


def columns() -> str:
    """The columns of ``FencedWrite`` that a row of an attempt fills, the time last."""
    return ", ".join((*_NAMES, "at"))


def inserting_accepted(source: str, model: str, action: str, **columns_of: str) -> str:
    """PostgreSQL: the INSERT of an accepted write for each row of ``source``.

    The values stand in it by the names of their columns, but for those that the text decides.

    Args:
        source: what follows FROM.
        model: the model's label.
        action: what was done.
        columns_of: SQL for the columns whose values come from ``source``.
    """
    fixed = {
        "model": f"'{model}'",
        "action": f"'{action}'",
        "outcome": f"'{ACCEPTED}'",
        "operation": "''",
        "note": "''",
    }
    values = [{**fixed, **columns_of}.get(name, f"%({name})s") for name in (*_NAMES, "at")]
    return f"INSERT INTO {sql_name('FencedWrite')} ({columns()}) SELECT {', '.join(values)} FROM {source}"


def wanted(outcome: str) -> bool:
    """Whether the setting RECORD keeps attempts with this outcome."""
    kept = conf.record()
    return kept == "all" or (kept == "refused" and outcome != ACCEPTED)


def record(connection: BaseDatabaseWrapper, attempts: Iterable[Attempt]) -> None:
    """Write attempts on ``connection``, in whatever transaction is open there."""
    attempts = list(attempts)
    for attempt in attempts:
        if attempt.outcome == "unfenced":
            tell_attempt(attempt)
    rows = [attempt.row() for attempt in attempts if wanted(attempt.outcome)]
    if not rows:
        return
    now = connection.ops.adapt_datetimefield_value(timezone.now())
    marks = ", ".join(["%s"] * (len(_NAMES) + 1))
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {sql_name('FencedWrite')} ({columns()}) VALUES ({marks})", [(*row, now) for row in rows]
        )


def record_refusal(connection: BaseDatabaseWrapper, attempt: Attempt) -> None:
    """Write a refused attempt so that it survives the caller's rollback, and never raise for it.

    On a database with a single writer, and inside a ``TestCase``, whose connection is the only one that sees the
    test's rows, it waits until the connection is outside a transaction. Where another writer, or a reader on SQLite,
    keeps it out until then, it is tried again at the end of the next fenced transaction, lease or request of this
    thread.
    """
    # First of all: a filter or a handler of the log that raises may not cost the history its row.
    if wanted(attempt.outcome):
        _record_outside(connection, attempt)
    tell_attempt(attempt)


def _record_outside(connection: BaseDatabaseWrapper, attempt: Attempt) -> None:
    if (connection.vendor == "sqlite" or in_testcase(connection)) and in_user_transaction(connection):
        _wait(connection, attempt)
        return
    try:
        with autocommit(connection.alias) as own:
            record(own, [attempt])
    except (Error, FencingError, ValueError) as error:  # a ValueError: a driver that cannot encode a text
        if is_busy(error):
            # Somebody else's transaction is in the way; it is tried again like what waits for one's own.
            _wait(connection, attempt)
            return
        logger.exception("A refused write could not be recorded: %r", attempt)
        if isinstance(error, (OperationalError, InterfaceError)) and in_user_transaction(connection):
            # There was no connection besides; the caller's own can take it once its transaction is over.
            _wait(connection, attempt)


def _wait(connection: BaseDatabaseWrapper, attempt: Attempt) -> None:
    _waiting.setdefault(connection, []).append((attempt, testcase_block(connection)))


def write_waiting(connection: BaseDatabaseWrapper) -> None:
    """Write the refusals that waited for the end of this connection's transaction, if it has ended."""
    if not in_user_transaction(connection) and (attempts := _waiting.pop(connection, None)):
        try:
            while attempts:
                attempt, test = attempts.pop(0)
                # A test that is over was rolled back with all it did: the next one has refused nothing.
                if test is None or test in connection.atomic_blocks:
                    _record_outside(connection, attempt)
        finally:
            if attempts:  # what interrupts this costs the others nothing
                _waiting.setdefault(connection, []).extend(attempts)


def write_all_waiting() -> None:
    """``write_waiting`` for every connection of this thread."""
    if _waiting:
        for connection in initialized():
            write_waiting(connection)


def collect(using: str = conf.DEFAULT_ALIAS, *, batch: int = COLLECT_BATCH, most: int | None = None) -> int:
    """Move the grant events of one lease backend into ``TokenGrant``; say how many there were.

    Read, insert or merge by (namespace, token), commit, then delete: several collectors at a time and crashes in
    between only repeat themselves.

    Args:
        using: alias of the lease backend.
        batch: how many events to move at a time.
        most: stop after about as many; None for all that wait.
    """
    backend = get_backend(using)
    config = backend.config
    place = place_of(backend, "collect")
    collected = 0
    for partition in range(config.partitions):
        while events := backend.read_events(place.space, partition, batch):
            with autocommit(config.database) as connection:
                merge(connection, config.namespace, events)
            backend.forget_events(place.space, partition, [event.id for event in events])
            collected += len(events)
            if len(events) < batch or (most is not None and collected >= most):
                break
        if dropped := backend.dropped_events(place.space, partition):
            logger.warning("%d grant events of backend %r were dropped at the outbox's cap", dropped, using)
    return collected


def collect_soon(using: str) -> None:
    """Collect in the background in a moment; never in Django's test environment, whose databases come and go."""
    if ("collect", using) not in chores and not in_test_environment():
        chores.add(("collect", using), lambda: _collect_quietly(using), COLLECT_EVERY)


def _collect_quietly(using: str) -> None:
    # First: for what ends while this is at work, which may have read already, there is a next time.
    chores.remove(("collect", using))
    try:
        collect(using)
    except (DatabaseError, FencingError):
        logger.warning(
            "Grant events of backend %r could not be collected now; they stay in the store", using, exc_info=True
        )
    finally:
        # No request or task ends in this thread, after which Django would drop a connection, dead or alive.
        connections.close_all()
