"""Celery tasks that run under a lease: ``fenced_task`` (lease, fence and once) and ``leased_task`` (lease only)."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from time import time
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from celery import Task, current_app, shared_task, signals, states
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from fencing import conf
from fencing.backends.base import HolderInfo
from fencing.exceptions import (
    AlreadyAppliedError,
    InvalidTokenError,
    LeaseHeldError,
    LeaseInsideTransactionError,
    LeaseLostError,
    LeaseRequiredError,
    OperationMismatchError,
    PartialEffectError,
    ResourceMismatchError,
    StaleReadError,
    StaleWriteError,
    TokensExhaustedError,
    WriteRejectedError,
)
from fencing.leases import Lease
from fencing.leasing import lease
from fencing.scope import find_lease, held_leases
from fencing.taskpolicy import Name, TaskCall, TaskPolicy, check_task, make_policy, own_copy, pause
from fencing.taskreport import LISTENED, TaskReport
from fencing.taskrun import Busy, in_own_context, open_body, run_atomic, run_plain

R = TypeVar("R")

logger = logging.getLogger("fencing")

# The write did not land and is still due: the body again, with what is in the database now.
REPEATABLE = (StaleWriteError, StaleReadError, LeaseLostError)
# What a body is not run again for, or not any more.
FINAL = (WriteRejectedError, LeaseLostError, PartialEffectError)
# What another attempt only meets again, and before that it would repeat what a body that is not atomic has committed.
INCURABLE = (
    AlreadyAppliedError,
    InvalidTokenError,
    LeaseInsideTransactionError,
    LeaseRequiredError,
    OperationMismatchError,
    PartialEffectError,
    ResourceMismatchError,
    TokensExhaustedError,
)
# What a request says is to follow the task, and what its body may change.
FOLLOWING = ("callbacks", "errbacks", "chain")


if TYPE_CHECKING:
    CeleryTask = Task[Any, Any]
else:
    CeleryTask = Task  # takes no type arguments before Celery 5.7


class FencedTask(CeleryTask):
    """Base of the tasks that ``fenced_task`` and ``leased_task`` make; ``self`` in a task with ``bind=True``."""

    abstract = True
    fencing: ClassVar[TaskPolicy]
    dont_autoretry_for: ClassVar[tuple[type[BaseException], ...]]

    def __init_subclass__(cls, **options: Any) -> None:
        """Put the lease around the task's body, inside all that Celery puts around it."""
        super().__init_subclass__(**options)
        if (body := cls.__dict__.get("run")) is not None:
            cls.run = _under_lease(body)  # type: ignore[method-assign]

    @classmethod
    def annotate(cls) -> None:
        """Celery's; what the setting ``task_annotations`` says of retries is known from here on.

        Of ``autoretry_for`` Celery takes what the decorator says before that.
        """
        named: Any = cls.__dict__.get("autoretry_for")
        super().annotate()
        if named is None:
            named = getattr(cls, "autoretry_for", ())
        cls.dont_autoretry_for = _not_retried(getattr(cls, "dont_autoretry_for", ()), named)

    @property
    def operation(self) -> str | None:
        """The key under which the present body takes effect once, to be kept with what it writes; None if there is none."""
        transaction = open_body.get()
        return None if transaction is None else transaction.operation

    def retry(
        self, args: Any = None, kwargs: Any = None, exc: Any = None, throw: bool = True, *more: Any, **options: Any
    ) -> Any:
        """Celery's; it undoes what an atomic body has written, so it must leave the body.

        Where its message cannot be sent, Celery would drop the task without a word. It is given back to the broker
        instead, which still has it if it is acknowledged late, and else it fails with the broker's error.

        Raises:
            RuntimeError: ``throw=False`` inside an atomic body.
        """
        if not throw and open_body.get() is not None:
            raise RuntimeError(
                f"{self.name}: retry(throw=False) inside an atomic body would record the operation as done, and its next "
                "attempt would be taken for a duplicate. Let retry() raise, or give the task atomic=False."
            )
        try:
            return super().retry(args, kwargs, exc, throw, *more, **options)
        except Reject as unsent:
            failure = unsent.args[0]
            if unsent is exc or not isinstance(failure, Exception):
                raise
            if self.acks_late:
                raise Reject(failure, requeue=True) from failure
            raise failure from None


def _under_lease(body: Any) -> Callable[..., Any]:
    """The method ``run`` of a task class, for the function that Celery has put there."""
    bound = not isinstance(body, staticmethod)
    function = body if bound else body.__func__

    @functools.wraps(function)
    def run(self: FencedTask, /, *args: Any, **kwargs: Any) -> Any:
        call = self.fencing.call(args, kwargs)
        first = (self,) if bound else ()

        def body() -> Any:
            return function(*first, *own_copy(args), **own_copy(kwargs))

        return _Run(self, call, body).result()

    signature = inspect.signature(function)
    if not bound:
        task = inspect.Parameter("_task", inspect.Parameter.POSITIONAL_ONLY)
        signature = signature.replace(parameters=[task, *signature.parameters.values()])
    run.__signature__ = signature  # type: ignore[attr-defined]
    # Where ``task_annotations`` decorate "@run", Celery decorates what is wrapped, and would leave the lease out.
    del run.__wrapped__
    return run


class _Run:
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
            delay = pause(self.busy.tries, error.retry_after, left)
            self.report.busy(error, f"it tries again in {delay:.1f} s")
            raise Retry(exc=error, when=delay, sig=self._send_again(delay)) from error
        if self.policy.on_busy == "skip" and self._may_be_skipped():
            if self.in_worker and not (self.task.ignore_result or self.request.ignore_result):
                self.task.backend.store_result(self.task_id, None, states.IGNORED, request=self.request)
            self.report.busy(error, "it is skipped")
            raise Ignore from error
        self.report.busy(error, "it fails")
        raise error

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


def fenced_task(
    *,
    resource: Name,
    ttl: float | timedelta | None = None,
    operation: Name | None = None,
    atomic: bool = True,
    on_busy: str = "retry",
    busy_wait: float | timedelta = 1.0,
    busy_timeout: float | timedelta = 300,
    max_stale_retries: int = 3,
    using: str = conf.DEFAULT_ALIAS,
    **celery_options: Any,
) -> Callable[[Callable[..., R]], Task[..., R]]:
    """Make a Celery task whose body runs under the lease of a resource, fenced, and takes effect once.

    A refused body is run again under a new grant, with fresh reads. ``Retry``, ``Ignore``, ``Reject``, a soft time
    limit and every other exception undo what an atomic body wrote, and keep Celery's own outcome. A duplicate of the
    task returns the recorded result, as JSON gives it. ``autoretry_for=(Exception,)`` does not mean the errors that no
    other attempt can cure, such as PartialEffectError: they end the task, unless it names them.

    Args:
        resource: a template over the task's arguments, ``"stock:{sku}"``, or a callable that is given them.
        ttl: seconds that the lease lives without renewal; default: the backend's.
        operation: the key under which the body takes effect once for this task and resource: a template or a
            callable. Default: the task's name and id. A direct call, which has no id, then happens each time.
        atomic: run the body in ``lease.atomic()``. False, for long bodies that call out: row fences only, not once.
        on_busy: what to do while somebody else holds the lease, after ``busy_wait`` seconds in the worker's slot:
            "retry" puts the task back into the queue and fails after ``busy_timeout`` seconds, which does not count
            against ``max_retries``; "wait" stays in the slot for up to ``busy_timeout``; "skip" stores the state
            IGNORED, except in a chain or chord, where it is "fail"; "fail" raises LeaseHeldError. A direct or eager
            call cannot be put back: there "retry" waits.
        busy_wait: seconds.
        busy_timeout: seconds.
        max_stale_retries: how often a refused body is run again.
        using: alias in ``FENCING["BACKENDS"]``.
        celery_options: for Celery's ``shared_task``: ``bind``, ``base``, ``max_retries``, ``queue`` and so on.

    Raises:
        TypeError, ValueError: an option that cannot be, or a placeholder that is no parameter of the function.
    """

    def decorate(function: Callable[..., R]) -> Task[..., R]:
        return _make_task(
            function, celery_options, resource=resource, ttl=ttl, operation=operation, atomic=atomic, on_busy=on_busy,
            busy_wait=busy_wait, busy_timeout=busy_timeout, max_stale_retries=max_stale_retries, using=using,
        )  # fmt: skip

    return decorate


def leased_task(
    *,
    resource: Name,
    ttl: float | timedelta | None = None,
    on_busy: str = "retry",
    busy_wait: float | timedelta = 1.0,
    busy_timeout: float | timedelta = 300,
    using: str = conf.DEFAULT_ALIAS,
    **celery_options: Any,
) -> Callable[[Callable[..., R]], Task[..., R]]:
    """Make a Celery task whose body runs under a lease and nothing more; arguments as for :func:`fenced_task`.

    For work that may happen twice, such as refreshing a cache: a worker that sleeps past its ttl wakes up beside the
    next holder, and a redelivered task runs again.
    """
    if fence_only := sorted({"operation", "atomic", "max_stale_retries"} & celery_options.keys()):
        raise TypeError(f"leased_task takes no {', '.join(fence_only)}: use fenced_task.")

    def decorate(function: Callable[..., R]) -> Task[..., R]:
        return _make_task(
            function, celery_options, resource=resource, ttl=ttl, operation=None, atomic=False, on_busy=on_busy,
            busy_wait=busy_wait, busy_timeout=busy_timeout, max_stale_retries=0, using=using, leased_only=True,
        )  # fmt: skip

    return decorate


def _make_task(function: Callable[..., R], celery_options: dict[str, Any], **policy: Any) -> Task[..., R]:
    """A shared task whose class is made of ``FencedTask`` and the user's base."""
    options = dict(celery_options)
    base: Any = options.pop("base", None) or current_app.Task
    members = {"abstract": True, "fencing": make_policy(function, bind=options.get("bind", False), **policy)}
    # Refusals are expected: Celery logs them in one line. It takes one class as well as several.
    expected = options.get("throws", base.throws)
    options["throws"] = (*([expected] if isinstance(expected, type) else expected), WriteRejectedError)
    if "dont_autoretry_for" in options:
        named = options.get("autoretry_for", getattr(base, "autoretry_for", ()))
        options["dont_autoretry_for"] = _not_retried(options["dont_autoretry_for"], named)
    bases = (base,) if issubclass(base, FencedTask) else (FencedTask, base)
    make: Any = shared_task(base=type(base.__name__, bases, members), **options)
    task: Task[..., R] = make(function)
    return task


def _not_retried(excepted: Iterable[Any], named: Iterable[Any]) -> tuple[type[BaseException], ...]:
    """What Celery's ``autoretry_for`` does not mean: what the user has excepted, and the incurable that it does not name."""
    # Celery itself lets a message that goes back to the broker be retried, which drops it where nothing can be sent.
    ours, named = (*INCURABLE, Reject), {*named}
    return (*excepted, *[error for error in ours if error not in named])


@signals.task_received.connect
def _say_whether_events_are_wanted(*, sender: Any, request: Any, **_named: Any) -> None:
    """Give a message to its child with word that monitors listen: events are switched on and off in the main process."""
    events = sender.event_dispatcher
    wanted = events and events.enabled and (not events.groups or "task" in events.groups)
    if wanted and isinstance(request.task, FencedTask) and request.task.send_events:
        request.request_dict[LISTENED] = True
