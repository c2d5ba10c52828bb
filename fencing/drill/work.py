"""What a process of a drill does to a row under a lease: the same with the fence, and without it.

save        reads, works out the new value, saves
expression  saves ``F()`` expressions
update      ``QuerySet.update()``
once        a fenced transaction with an operation's key; without the fence an ordinary transaction
raw         an UPDATE of another program, which the guard alone holds back
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from time import monotonic
from typing import Any

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import F, Model

from fencing.drill.faults import Faults
from fencing.drill.journal import Journal
from fencing.drill.plan import Fault, Job, Plan
from fencing.exceptions import (
    AlreadyAppliedError,
    FencingError,
    LeaseBackendError,
    LeaseHeldError,
    LeaseLostError,
    StaleReadError,
    StaleWriteError,
)
from fencing.guards import guard_name_of
from fencing.leases import Lease
from fencing.leasing import lease

OUTCOMES: tuple[tuple[type[Exception], str], ...] = (
    (StaleWriteError, "stale"),
    (StaleReadError, "stale-read"),
    (AlreadyAppliedError, "duplicate"),
    (LeaseBackendError, "failed"),
    (LeaseLostError, "lost"),
    (FencingError, "odd"),
    (DatabaseError, "failed"),
)


class Work:
    """Does jobs, each under a lease of its own, and notes what came of them.

    Args:
        plan: the drill.
        model: its scratch model.
        journal: where everything is noted.
        faults: lets things happen meanwhile.
    """

    def __init__(self, plan: Plan, model: type[Model], journal: Journal, faults: Faults) -> None:
        self._plan = plan
        self._model = model
        self._journal = journal
        self._faults = faults
        self._rows = model._base_manager.using(plan.database)

    def do(self, attempt: str, job: Job, dawdle: Fault | None) -> str:
        """Do a job and say what came of it: "accepted", "held", or how it was refused.

        Args:
            attempt: its name.
            job: what to do.
            dawdle: what happens if the lease came from a holder who did not give it back, and the job has no fault.
        """
        pauses = job.fault is not None and job.fault.what == "pause"
        asked = monotonic()
        self._journal.note(
            "asks", attempt, key=job.key, kind=job.kind, resource=job.resource, row=job.row, delta=job.delta
        )
        entered = lease(
            job.resource, ttl=self._plan.ttl, wait=self._plan.ttl * 10, using=self._plan.name,
            renew=not (pauses and self._plan.cooperative),
        )  # fmt: skip
        try:
            with entered as held:
                self._journal.note("granted", attempt, token=held.token, until=monotonic() + held.remaining())
                if job.fault is None and monotonic() - asked > self._plan.ttl / 2:
                    job = replace(job, fault=dawdle)
                outcome = self._under(held, attempt, job)
                self._journal.note("releases", attempt)
        except LeaseHeldError:
            outcome = "held"
            self._journal.note("held", attempt)
        except LeaseBackendError as error:
            outcome = "failed"
            self._journal.note("failed", attempt, error=str(error))
        return outcome

    def _under(self, held: Lease, attempt: str, job: Job) -> str:
        kinds: dict[str, Callable[[Lease, str, Job], None]] = {
            "save": self._save, "expression": self._expression, "update": self._update, "once": self._once,
            "raw": self._raw,
        }  # fmt: skip
        try:
            self._faults.at("granted", attempt, job)
            kinds[job.kind](held, attempt, job)
        except (FencingError, DatabaseError) as error:
            outcome = _outcome(error, job)
            self._journal.note(outcome, attempt, error=f"{type(error).__name__}: {error}")
            connections[self._plan.database].close_if_unusable_or_obsolete()
            return outcome
        self._journal.note("accepted", attempt, number=held.newest_token)
        if job.kind != "once":
            self._faults.at("written", attempt, job)
        self._read(attempt, job)
        return "accepted"

    def _save(self, held: Lease, attempt: str, job: Job) -> None:
        row = self._read(attempt, job)
        self._faults.at("read", attempt, job)
        self._write_from(row, held, attempt, job)

    def _write_from(self, row: Any, held: Lease, attempt: str, job: Job) -> None:
        """Write what is worked out from what was read: it must still be there."""
        row.previous, row.quantity, row.count = row.last_token, row.quantity + job.delta, row.count + 1
        self._number(row, held)
        self._sends(attempt, job)
        row.save(using=self._plan.database)

    def _expression(self, held: Lease, attempt: str, job: Job) -> None:
        row = self._read(attempt, job)
        self._faults.at("read", attempt, job)
        for name, value in self._changes(job).items():
            setattr(row, name, value)
        self._number(row, held)
        names = ["quantity", "count", "previous", *([] if self._plan.fenced else ["last_token"])]
        self._sends(attempt, job)
        row.save(using=self._plan.database, update_fields=names)

    def _update(self, held: Lease, attempt: str, job: Job) -> None:
        self._faults.at("read", attempt, job)
        number = {} if self._plan.fenced else {"last_token": held.token}
        self._sends(attempt, job)
        self._model._default_manager.using(self._plan.database).filter(pk=job.row).update(
            **self._changes(job), **number
        )

    def _once(self, held: Lease, attempt: str, job: Job) -> None:
        self._sends(attempt, job, "begin")
        with self._transaction(held, job):
            if self._plan.fenced:
                self._journal.note("begun", attempt)
            self._save(held, attempt, job)
            self._faults.at("written", attempt, job)
            self._sends(attempt, job, "end")

    def _raw(self, held: Lease, attempt: str, job: Job) -> None:
        connection = connections[self._plan.database]
        table, quote = connection.ops.quote_name(self._plan.table), connection.ops.quote_name
        self._faults.at("read", attempt, job)
        self._sends(attempt, job)
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {table} SET previous = last_token, last_token = %s, quantity = quantity + %s, "
                f"{quote('count')} = {quote('count')} + 1 WHERE id = %s",
                [held.token, job.delta, job.row],
            )

    def _transaction(self, held: Lease, job: Job) -> AbstractContextManager[Any]:
        if self._plan.fenced:
            return held.atomic(operation=job.key, using=self._plan.database)
        return transaction.atomic(using=self._plan.database)

    def _changes(self, job: Job) -> dict[str, Any]:
        return {"quantity": F("quantity") + job.delta, "count": F("count") + 1, "previous": F("last_token")}

    def _number(self, row: Any, held: Lease) -> None:
        """Without the fence nobody but the writer sets the number."""
        if not self._plan.fenced:
            row.last_token = held.token

    def _read(self, attempt: str, job: Job) -> Any:
        row: Any = self._rows.get(pk=job.row)
        self._journal.note(
            "reads", attempt, version=row.last_token, previous=row.previous, quantity=row.quantity, count=row.count
        )
        return row

    def _sends(self, attempt: str, job: Job, step: str = "write") -> None:
        self._journal.note("sends", attempt, step=step)
        if step != "begin":
            self._faults.at("sent", attempt, job)


def _outcome(error: Exception, job: Job) -> str:
    """The word for what refused a write."""
    if isinstance(error, IntegrityError) and guard_name_of(error) is not None:
        # The guard is there for those who go past the ORM: a fenced model's own write never comes to it.
        return "guard" if job.kind == "raw" else "odd"
    return next(word for kind, word in OUTCOMES if isinstance(error, kind))
