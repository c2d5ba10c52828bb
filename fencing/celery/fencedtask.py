"""The class of the tasks that run under a lease: the lease around the body, and what Celery does not retry."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task, signals
from celery.exceptions import Reject

from fencing.celery.run import Run
from fencing.exceptions import (
    AlreadyAppliedError,
    InvalidTokenError,
    LeaseInsideTransactionError,
    LeaseRequiredError,
    OperationMismatchError,
    PartialEffectError,
    ResourceMismatchError,
    TokensExhaustedError,
)
from fencing.taskpolicy import TaskPolicy, own_copy
from fencing.taskreport import LISTENED
from fencing.taskrun import open_body

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
        cls.dont_autoretry_for = not_retried(getattr(cls, "dont_autoretry_for", ()), named)

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

        return Run(self, call, body).result()

    signature = inspect.signature(function)
    if not bound:
        task = inspect.Parameter("_task", inspect.Parameter.POSITIONAL_ONLY)
        signature = signature.replace(parameters=[task, *signature.parameters.values()])
    run.__signature__ = signature  # type: ignore[attr-defined]
    # Where ``task_annotations`` decorate "@run", Celery decorates what is wrapped, and would leave the lease out.
    del run.__wrapped__
    return run


def not_retried(excepted: Iterable[Any], named: Iterable[Any]) -> tuple[type[BaseException], ...]:
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
