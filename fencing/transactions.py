"""``lease.atomic()``: transactions that take effect only if no newer holder has begun, and operations that happen once.

The *begin* passes the resource's row in a statement of its own, before the transaction opens: from then on nothing
older lands, so what the body reads stays true, and no lock is held until the body's first write. The *end* holds the
resource's row, before the commit, where holder and count of begins are still this transaction's, and inserts the
operation's key. Both decide in the database; nothing here looks at a clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.db import DatabaseError, Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import history, signals
from fencing.borders import enter, leave, limits_waits
from fencing.connections import autocommit, in_user_transaction, initialized, stop_statement
from fencing.exceptions import (
    AlreadyAppliedError,
    FencingError,
    LeaseInsideTransactionError,
    OperationMismatchError,
    StaleWriteError,
)
from fencing.history import Attempt
from fencing.mariadb import ensure_marked, forget_mark, mark_transaction
from fencing.once import Operation, Recorded, as_json, check_operation, recorded
from fencing.refusals import Refusal
from fencing.resources import pass_to_begin, seen_token
from fencing.snapshots import ensure_first_statement, snapshot_level
from fencing.timeleft import TimeLeft

if TYPE_CHECKING:
    from fencing.leases import Lease

_open: WeakKeyDictionary[BaseDatabaseWrapper, list[FencedTransaction]] = WeakKeyDictionary()

# What is refused at a begin or an end.
WHOLE = "transaction"


class FencedTransaction:
    """A context manager; ``lease.atomic()`` makes it.

    Attributes:
        lease: the lease that it runs under.
        operation: the key, or None.
        result: what later callers of the same operation get; set it in the body. JSON must hold it.
        is_committed: whether a refusal that comes out of it is that of a receiver of its commit: it has taken effect.
    """

    _time: TimeLeft

    def __init__(
        self, lease: Lease, *, operation: str | None = None, using: str | None = None, task: str = "", digest: str = ""
    ) -> None:
        self.lease = lease
        self.operation = None if operation is None else check_operation(operation)
        self.result: Any = None
        self.is_committed = False
        self._using = using or lease.database
        self._task = task
        self._digest = digest
        self._begins = 0
        self._applied: AlreadyAppliedError | None = None
        self._joined = False
        self._mark = ""
        self._earlier: list[Refusal] = []
        self._accepted_before = 0
        self._atomic: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> FencedTransaction:
        self.lease.ensure_mine()
        self._earlier = self.lease.refusals.unmended()
        self._accepted_before = self.lease.accepted
        self._time = TimeLeft(self.lease)
        connection = connections[self._using]
        outer = fenced_transaction(connection, self.lease)
        if outer is not None:
            self._joined = True
            self._begins = outer._begins
        else:
            self._begin(connection)
        if not limits_waits(connection):
            self._refuse_repetition(connection)
        self._atomic = transaction.atomic(using=self._using)
        self._atomic.__enter__()
        _open.setdefault(connection, []).append(self)
        try:
            found = self._enter(connection)
        except BaseException as error:
            self._close(connection, error)
            raise
        if found is not None:
            self._leave(connection, AlreadyAppliedError(self.operation or ""))
            raise self._duplicate(connection, found)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = connections[self._using]
        if error is None:
            try:
                with self._time.telling():
                    self._end(connection)
            except BaseException as refusal:
                self._close(connection, refusal)
                raise self._after_rollback(connection, refusal) from refusal.__cause__
        # Whether a commit that got no answer has happened can be seen later by its operation only.
        with self._time.telling(in_doubt=error is None and self.operation is None):
            self._close(connection, error)
            if isinstance(error, DatabaseError):
                raise error
        if error is None:
            self.lease.refusals.mend(connection, self._whole())

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` in this transaction, at most once per operation, and return the recorded result."""
        try:
            with self:
                self.result = function(*args, **kwargs)
        except AlreadyAppliedError as applied:
            if applied is not self._applied or not applied.kept:
                raise  # of another operation, which the body came upon, or there is no result to return
            return applied.result
        return self.result

    def _begin(self, connection: BaseDatabaseWrapper) -> None:
        """Pass the resource's row, on the connection on which that must happen."""
        with self._begin_connection(connection) as beginning:
            with self._time.telling():
                begins = self._pass(beginning)
            seen = seen_token(beginning, self.lease) if begins is None else None
        if begins is None:
            raise self._refused(connection, seen, "begin")
        self._begins = begins

    def _begin_connection(self, connection: BaseDatabaseWrapper) -> AbstractContextManager[BaseDatabaseWrapper]:
        if not in_user_transaction(connection):
            return nullcontext(connection)
        if not (self.lease.allow_in_transaction or _open.get(connection)):
            raise LeaseInsideTransactionError(self.lease.resource, f"a transaction is open on {self._using!r}")
        ensure_first_statement(connection, self.lease.resource)
        if _open.get(connection) and connection.vendor != "sqlite":
            # Another lease's transaction is open: its lock must not last as long as that one's.
            return autocommit(self._using)
        return nullcontext(connection)

    def _pass(self, beginning: BaseDatabaseWrapper) -> int | None:
        """Pass the resource's row; where a snapshot comes with that, only once nobody older has to be waited for."""
        if in_user_transaction(beginning) and snapshot_level(beginning):
            with autocommit(self._using) as own:
                if pass_to_begin(own, self.lease) is None:
                    return None
        return pass_to_begin(beginning, self.lease)

    def _refuse_repetition(self, connection: BaseDatabaseWrapper) -> None:
        """Raise AlreadyAppliedError if the operation is recorded: early, the end decides."""
        if self.operation is None:
            return
        found = recorded(connection, self.lease, task=self._task, key=self.operation)
        if found is not None:
            raise self._duplicate(connection, found)

    def _duplicate(self, connection: BaseDatabaseWrapper, found: Recorded) -> Exception:
        operation = self.operation or ""
        if found.digest != self._digest:
            return OperationMismatchError(operation, found.digest, self._digest, self._task)
        # It took effect after all, whoever did it.
        self.lease.refusals.mend(connection, self._whole())
        history.record_refusal(connection, self._attempt("duplicate", None, "once"))
        self._applied = AlreadyAppliedError(operation, found.result, found.kept)
        return self._applied

    def _whole(self) -> str:
        """Under which name a refusal of all of it is remembered: another operation does not make it good."""
        return f"{WHOLE} {self._task} {self.operation}" if self.operation else WHOLE

    def _enter(self, connection: BaseDatabaseWrapper) -> Recorded | None:
        """Nobody waits inside for longer than the lease has. How long it may idle is bounded with its first lock."""
        if limits_waits(connection):
            return enter(connection, self.lease, self._key())
        if connection.vendor == "mysql":
            self._mark = mark_transaction(connection, self.lease, len(_open[connection]))
        return None

    def _end(self, connection: BaseDatabaseWrapper) -> None:
        """Hold the resource's row as it was at the begin, and take the operation's key; raise if either is refused."""
        result = as_json(self.result)
        self.lease.refusals.raise_unmended(self._earlier)
        if self._mark:
            ensure_marked(connection, self._mark)
        held, taken = leave(connection, self.lease, self._begins, self._key(result))
        if not held:
            raise StaleWriteError(self.lease.resource, self.lease.token, None, WHOLE)
        if not taken:
            raise AlreadyAppliedError(self.operation or "")
        self.result = json.loads(result)

    def _key(self, result: str = "null") -> Operation | None:
        """The operation with its result so far, if there is one."""
        if self.operation is None:
            return None
        return Operation(task=self._task, key=self.operation, digest=self._digest, result=result)

    def _after_rollback(self, connection: BaseDatabaseWrapper, refusal: BaseException) -> BaseException:
        """The refusal with what a fresh look says about it, recorded; other errors as they are."""
        if isinstance(refusal, AlreadyAppliedError):
            found = recorded(connection, self.lease, task=self._task, key=refusal.operation)
            return self._duplicate(connection, found) if found else refusal
        if isinstance(refusal, StaleWriteError) and refusal.what == WHOLE:
            return self._refused(connection, seen_token(connection, self.lease), "end")
        return refusal

    def _refused(self, connection: BaseDatabaseWrapper, seen: int | None, action: str) -> StaleWriteError:
        error = StaleWriteError(self.lease.resource, self.lease.token, seen, WHOLE)
        self.lease.refusals.add(connection, self._whole(), error)
        history.record_refusal(connection, self._attempt("stale", seen, action))
        signals.announce(signals.write_rejected, type(self.lease), lease=self.lease, error=error)
        if seen is not None:
            self.lease.catch_up(seen, f"the row of resource {self.lease.resource!r}")
        return error

    def _attempt(self, outcome: str, seen: int | None, action: str) -> Attempt:
        lease = self.lease
        return Attempt(
            namespace=lease.namespace,
            token=lease.token,
            grant_token=lease.token,
            resource=lease.resource,
            action=action,
            outcome=outcome,
            seen=seen,
            operation=self.operation or "",
        )

    def _close(self, connection: BaseDatabaseWrapper, error: BaseException | None) -> None:
        """``_leave``; what was accepted inside is undone with all the rest. What was refused stays so."""
        if not self._joined and error is not None:
            self.lease.accepted = self._accepted_before
        self._leave(connection, error)

    def _leave(self, connection: BaseDatabaseWrapper, error: BaseException | None) -> None:
        """Commit, or roll back for ``error``, and write what waited for that."""
        _open[connection].remove(self)
        if error is not None:
            stop_statement(connection)
        try:
            self._atomic.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except Error as failure:
            if (interruption := _interruption(connection, failure, error)) is None:
                raise
            raise interruption  # noqa: B904  (the failure is its context already)
        except FencingError:
            # No commit raises it: the function that ``on_commit()`` was given does, or one inside of that.
            self.is_committed = True
            raise
        finally:
            if self._mark:
                forget_mark(connection, self._mark)
            history.write_waiting(connection)


def _interruption(connection: Any, failure: BaseException, error: BaseException | None) -> BaseException | None:
    """What struck while a transaction was ended, if the database's ``failure`` only follows from that.

    A soft time limit that strikes before the commit leaves Django a connection on which autocommit cannot be switched
    on again; the outcome is still the limit's.
    """
    cause: BaseException | None = failure
    while isinstance(cause, (Error, connection.Database.Error)):
        cause = cause.__context__
    return None if cause is error else cause


def fenced_transaction(connection: BaseDatabaseWrapper, lease: Lease) -> FencedTransaction | None:
    """The open transaction of ``lease`` on ``connection``: row statements in it need no lock, its end decides."""
    return next((one for one in _open.get(connection, ()) if one.lease is lease), None)


def abandon_transactions(kept: Collection[str]) -> None:
    """Drop this thread's connections, but those of the aliases in ``kept``: what struck may have left anything open.

    The database rolls back what is not committed.
    """
    for connection in initialized():
        if connection.alias not in kept:
            _open.pop(connection, None)
            stop_statement(connection)
            connection.in_atomic_block = False  # else Django would keep the dead connection, and open no other
            connection.close()
