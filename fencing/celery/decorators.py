"""``fenced_task`` (lease, fence and once) and ``leased_task`` (lease only): a task of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

from celery import Task, current_app, shared_task

from fencing import conf
from fencing.celery.fencedtask import FencedTask, not_retried
from fencing.exceptions import WriteRejectedError
from fencing.taskpolicy import Name, make_policy

R = TypeVar("R")
D = TypeVar("D", bound=Callable[..., Any])

# How near to a name of ours a name is that only a slip of the keyboard makes.
NEAR = 0.8


def _by_keywords(decorator: D) -> D:
    """Let a decorator that takes keywords only show the right form to whoever wrote it bare, or the resource alone."""

    @wraps(decorator)
    def checked(*misplaced: Any, **options: Any) -> Any:
        if misplaced:
            name, first = decorator.__name__, misplaced[0]
            if callable(first):
                wrong, resource = f"@{name} stands alone above {getattr(first, '__qualname__', first)}", "stock:{sku}"
            else:
                wrong, resource = f"{name}() takes keywords only", first
            raise TypeError(f"{wrong}: write @{name}(resource={resource!r}), the name made of the task's arguments.")
        return decorator(**options)

    return cast("D", checked)


@_by_keywords
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


@_by_keywords
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
    _refuse_misspelt([name for name in options if not hasattr(base, name)], policy)
    members = {"abstract": True, "fencing": make_policy(function, bind=options.get("bind", False), **policy)}
    # Refusals are expected: Celery logs them in one line. It takes one class as well as several.
    expected = options.get("throws", base.throws)
    options["throws"] = (*([expected] if isinstance(expected, type) else expected), WriteRejectedError)
    if "dont_autoretry_for" in options:
        named = options.get("autoretry_for", getattr(base, "autoretry_for", ()))
        options["dont_autoretry_for"] = not_retried(options["dont_autoretry_for"], named)
    bases = (base,) if issubclass(base, FencedTask) else (FencedTask, base)
    make: Any = shared_task(base=type(base.__name__, bases, members), **options)
    task: Task[..., R] = make(function)
    return task


def _refuse_misspelt(unknown: Iterable[str], ours: Iterable[str]) -> None:
    """Celery makes an attribute of an option that it does not know; one that is nearly ours would have no effect."""
    for name in unknown:
        for meant in get_close_matches(name, ours, n=1, cutoff=NEAR):
            raise TypeError(f"There is no option {name!r}; did you mean {meant!r}?")
