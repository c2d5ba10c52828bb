"""One run of a task: it takes the lease or waits for it, and repeats a refused body."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any, NoReturn

from celery import states
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.utils.time import maybe_iso8601, maybe_make_aware

from fencing.backends.base import HolderInfo
from fencing.exceptions import (
    LeaseHeldError,
    LeaseLostError,
    PartialEffectError,
    StaleReadError,
    StaleWriteError,
    WriteRejectedError,
)
from fencing.leases import Lease
from fencing.leasing import lease
from fencing.scope import find_lease, held_leases
from fencing.taskpolicy import TaskCall, check_task, own_copy, pause
from fencing.taskreport import TaskReport
from fencing.taskrun import Busy, in_own_context, open_body, run_atomic, run_plain

if TYPE_CHECKING:
    from fencing.celery.fencedtask import FencedTask

logger = logging.getLogger("fencing")

# The write did not land and is still due: the body again, with what is in the database now.
REPEATABLE = (StaleWriteError, StaleReadError, LeaseLostError)
# What a body is not run again for, or not any more.
FINAL = (WriteRejectedError, LeaseLostError, PartialEffectError)
# What a request says is to follow the task, and what its body may change.
FOLLOWING = ("callbacks", "errbacks", "chain")


class Run:
    """One run of a task: in a worker, eagerly, or called like a function."""

    def __init__(self, task: FencedTask, call: TaskCall, body: Callable[[], Any]) -> None:
        self.task = task
        self.policy = task.fencing
        self.call = call
        self.body = body
        self.request = task.request
        # Celery takes a UUID for an id, too.
        task_id = str(self.request.id or "")
        # A call inside its own body is given the request of the run that it is in.
        self.called_directly = self.request.called_directly or _is_at_work(task.name, task_id)
        self.task_id = check_task("" if self.called_directly else task_id, task.name)
        self.in_worker = not (self.called_directly or self.request.is_eager)
        self.report = TaskReport(self.request, call.resource)
        self.busy = Busy.taken_from(self.request.headers)

    def result(self) -> Any:
        """Run the body under the lease, again after a refusal, and leave nothing behind in this context."""
        # Under a lease that somebody further out took there is no new grant to repeat the body under.
        most = self.policy.max_stale_retries if find_lease(self.call.resource, self.policy.using) is None else 0
        info = HolderInfo(task_id=self.task_id, task_name=self.task.name)
        return in_own_context(functools.partial(self._attempts, most), info, SoftTimeLimitExceeded)

    def _attempts(self, most: int) -> Any:
        """Run the body, and at most so many times again."""
        while True:
            following = {one: own_copy(getattr(self.request, one)) for one in FOLLOWING}
            try:
                return self._attempt()
            except FINAL as error:
                if not isinstance(error, REPEATABLE) or self.busy.stale >= most:
                    self.report.failed(error)
                    raise
                # The time that the body took was no waiting.
                self.busy = Busy(since=time(), stale=self.busy.stale + 1)
                self.request.update(following)
                self.report.repeated(error, f"the body runs again, {self.busy.stale} of {most}")

    def _attempt(self) -> Any:
        with ExitStack() as stack:
            held = self._take(stack)
            before = _accepted()
            try:
                return self._run_body(held)
            except REPEATABLE as refusal:
                accepted = _accepted() - before
                ran = open_body.get()
                # By its transaction, and then ``on_commit()`` was refused; or one by one.
                committed = ran is not None and ran.is_committed if self.policy.atomic else accepted
                if committed and self.policy.max_stale_retries:
                    raise PartialEffectError(held.resource, accepted) from refusal
                raise

    def _take(self, stack: ExitStack) -> Lease:
        policy = self.policy
        try:
            held: Lease = stack.enter_context(
                lease(self.call.resource, ttl=policy.ttl, wait=self._patience(), using=policy.using)
            )
        except LeaseHeldError as error:
            self._answer_held(error)
        self.report.granted(held)
        if self.report.listened:
            self._send_event()
        return held

    def _send_event(self) -> None:
        """Tell monitors of the grant; the standard events are the main process's, which knows nothing of it."""
        grant = self.report.grant
        # Flower shows no fields but Celery's own; until there is a result, that field is free.
        shown = f"lease of {grant['resource']}, token {grant['token']}"
        try:
            self.task.send_event("task-granted", retry=False, result=shown, **grant)
        except SoftTimeLimitExceeded:
            raise
        except Exception:  # each transport has errors of its own
            logger.warning("The event of a grant could not be sent", exc_info=True)

    def _run_body(self, held: Lease) -> Any:
        if self.policy.atomic:
            return run_atomic(held, self.call, self.task.name, self.task_id, self.body)
        return run_plain(held, self.body)

    def _patience(self) -> float:
        """Seconds to wait here: only a worker can put the task back into the queue instead."""
        if self.policy.on_busy == "wait" or (self.policy.on_busy == "retry" and not self.in_worker):
            return self.policy.busy_timeout
        return min(self.policy.busy_wait, self.policy.busy_timeout)

    def _answer_held(self, error: LeaseHeldError) -> NoReturn:
        if self.in_worker and self.task_id and error.task_id == self.task_id:
            # An earlier delivery of this very task is at work: its outcome is the outcome, so nothing is stored here.
            delay: Any = pause(self.busy.tries, error.retry_after)
            self.report.busy(error, f"an earlier delivery of this task, so it looks again in {delay:.1f} s")
            self._send_again(delay, is_copy=True)
            raise Ignore from error
        left = self.busy.since + self.policy.busy_timeout - time()
        if self.in_worker and self.policy.on_busy == "retry" and left > 0:
            if self._has_expired():
                self._end_expired(error)
            delay = pause(self.busy.tries, error.retry_after, left)
            self.report.busy(error, f"it tries again in {delay:.1f} s")
            raise Retry(exc=error, when=delay, sig=self._send_again(delay)) from error
        if self.policy.on_busy == "skip" and self._may_be_skipped():
            if self.in_worker and self._keeps_result():
                self.task.backend.store_result(self.task_id, None, states.IGNORED, request=self.request)
            self.report.busy(error, "it is skipped")
            raise Ignore from error
        self.report.busy(error, "it fails")
        raise error

    def _has_expired(self) -> bool:
        """Whether what its sender said of ``expires`` is over by now."""
        came: Any = self.request.expires
        expires = maybe_iso8601(came)
        return expires is not None and maybe_make_aware(expires, self.task.app.timezone) <= datetime.now(UTC)

    def _end_expired(self, error: LeaseHeldError) -> NoReturn:
        """End it as Celery ends an expired task.

        Its next message would be dropped at once, and this attempt's RETRY stored over that end, for ever.
        """
        self.task.backend.mark_as_revoked(
            self.task_id, "expired", request=self.request, store_result=self._keeps_result()
        )
        self.report.busy(error, "it has expired")
        raise Ignore from error

    def _keeps_result(self) -> bool:
        return not (self.task.ignore_result or self.request.ignore_result)

    def _may_be_skipped(self) -> bool:
        """Not where others wait for the outcome for ever: in a chain, in a chord; and a caller wants an answer."""
        return not (self.called_directly or self.request.chain or self.request.chord)

    def _send_again(self, delay: float, *, is_copy: bool = False) -> Any:
        """Put this very task back into the queue; unlike ``retry()`` that is not counted against ``max_retries``."""
        request = self.request
        headers = self.busy.headers_of_next(request.headers)
        # Who sent it may hide arguments from logs and monitors, which Celery's own retries show.
        shown = {one: request.get(one) for one in ("argsrepr", "kwargsrepr")}
        again = self.task.signature_from_request(
            request, countdown=delay, retries=request.retries, headers=headers, **shown
        )
        try:
            again.apply_async()
        except SoftTimeLimitExceeded:
            raise
        except Exception as failure:  # each transport has errors of its own
            if not (self.task.acks_late or is_copy):
                raise
            # The broker still has the message, or, of a copy, the earlier delivery is at work: nothing is lost.
            raise Reject(failure, requeue=True) from failure
        return again


def _is_at_work(task_name: str, task_id: str) -> bool:
    """Whether this very run of a task holds a lease further out in this context."""
    return any(held.task_fields == {"task_id": task_id, "task_name": task_name} for held in held_leases())


def _accepted() -> int:
    """How many writes were accepted under what this context holds, and under the leases that ended inside of that."""
    return sum(held.accepted for held in held_leases())
