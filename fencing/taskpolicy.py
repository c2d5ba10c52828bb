"""What ``fenced_task`` and ``leased_task`` were asked for: checked once, and applied to each call. Knows no Celery."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.utils.functional import Promise

from fencing import conf
from fencing.conf import MAX_OPERATION_LENGTH
from fencing.naming import NAMEABLE, check_resource, fill, template_fields
from fencing.once import check_operation

ON_BUSY = ("retry", "wait", "skip", "fail")
# Seconds between two attempts at a held lease: the first pause, doubled each time up to 2**LAST_DOUBLING.
FIRST_PAUSE = 1.0
LAST_DOUBLING = 16
# What the history keeps of the id and the name of a task.
MAX_TASK_LENGTH = 255
# Where an object is in the memory of this process stands in the text of many.
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

Name = str | Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """The options of one task, and the signature that its calls are bound to.

    Attributes:
        signature: of a call, so without the task itself that ``bind=True`` passes first.
        resource: a template over the bound arguments, or a callable that is given them.
        ttl: seconds, or None for the backend's.
        operation: a template or callable for the operation's key, or None for the task's name and id.
        atomic: whether the body runs in a fenced transaction, once.
        on_busy: what to do when somebody else holds the lease: one of ``ON_BUSY``.
        busy_wait: seconds to wait for the lease where the task stands, before ``on_busy`` applies.
        busy_timeout: seconds after which a held lease is a failure.
        max_stale_retries: how often the body is run again after a refusal.
        using: alias of the lease backend.
        leased_only: whether it is a ``leased_task``, for work that may happen twice.
    """

    signature: inspect.Signature
    resource: Name
    ttl: float | None
    operation: Name | None
    atomic: bool
    on_busy: str
    busy_wait: float
    busy_timeout: float
    max_stale_retries: int
    using: str
    leased_only: bool = False

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TaskCall:
        """One call; the same however its arguments are written.

        Raises:
            TypeError, ValueError: an argument is missing or too many, or cannot stand in a name.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        name = _filled(self.resource, bound)
        return TaskCall(policy=self, bound=bound, resource=check_resource(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCall:
    """One call of a task: its arguments, with the defaults filled in, and the resource that they name."""

    policy: TaskPolicy
    bound: inspect.BoundArguments
    resource: str

    def operation(self, task_name: str, task_id: str) -> str | None:
        """The key under which the body takes effect once; None for a call that nothing identifies."""
        if self.policy.operation is None:
            return _key_of(f"{task_name}:{task_id}") if task_id else None
        return check_operation(_filled(self.policy.operation, self.bound))

    def digest(self) -> str:
        """What tells this call from others under the same key: a hash of its arguments."""
        return hashlib.sha256(_as_text(self.bound.arguments).encode()).hexdigest()


def _key_of(name: str) -> str:
    """The key for the name and id of a task, which may be longer than a key: then it ends in a hash of both."""
    if len(name) <= MAX_OPERATION_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: MAX_OPERATION_LENGTH - len(digest) - 1]}~{digest}"


def _as_text(value: object) -> str:
    return json.dumps(_with_text_keys(value), sort_keys=True, separators=(",", ":"), default=_text)


def _with_text_keys(value: object) -> object:
    """The same with the keys of dictionaries as a message has them: JSON has texts only, which it can put in order."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _key(key): _with_text_keys(one) for key, one in value.items()}
    return [_with_text_keys(one) for one in value] if isinstance(value, (list, tuple)) else value


def _key(key: object) -> str:
    return json.dumps(key) if key is None or isinstance(key, (bool, int, float)) else str(_text(key))


def _text(value: object) -> str | list[str]:
    """What stands for an argument that JSON does not know: the same text in every process.

    A UUID or a date is the same argument as its text: which of the two arrives depends on the serializer. So is a text
    that is translated only when it is looked at.
    """
    if isinstance(value, (*NAMEABLE, Promise)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(_as_text, value))
    return ADDRESS.sub("", repr(value))


def _filled(name: Name, bound: inspect.BoundArguments) -> str:
    return name(*bound.args, **bound.kwargs) if callable(name) else fill(name, bound.arguments)


def make_policy(
    function: Callable[..., Any],
    *,
    bind: bool,
    resource: Name,
    ttl: float | timedelta | None,
    operation: Name | None,
    atomic: bool,
    on_busy: str,
    busy_wait: float | timedelta,
    busy_timeout: float | timedelta,
    max_stale_retries: int,
    using: str,
    leased_only: bool = False,
) -> TaskPolicy:
    """Check the options of a task.

    Raises:
        TypeError, ValueError: an option that cannot be, or a placeholder that is no parameter of ``function``.
    """
    if on_busy not in ON_BUSY:
        raise ValueError(f"on_busy must be one of {', '.join(map(repr, ON_BUSY))}, not {on_busy!r}.")
    if isinstance(max_stale_retries, bool) or not isinstance(max_stale_retries, int):
        raise TypeError(f"max_stale_retries must be an integer, not {max_stale_retries!r}.")
    if max_stale_retries < 0:
        raise ValueError(f"max_stale_retries must be 0 or more, not {max_stale_retries!r}.")
    if operation is not None and not atomic:
        raise ValueError("operation= needs atomic=True: only a transaction makes an effect and its key one.")
    if any(prepares(function) for prepares in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)):
        raise TypeError(
            f"{function!r} is a coroutine or a generator: a task would end, and its lease, before the body began."
        )
    signature = signature_of_calls(function, bind=bind)
    _check_name(resource, "resource", signature)
    if operation is not None:
        _check_name(operation, "operation", signature)
    return TaskPolicy(
        signature=signature,
        resource=resource,
        ttl=None if ttl is None else conf.seconds(ttl, "ttl"),
        operation=operation,
        atomic=atomic,
        on_busy=on_busy,
        busy_wait=conf.patience(busy_wait, "busy_wait"),
        busy_timeout=conf.patience(busy_timeout, "busy_timeout"),
        max_stale_retries=max_stale_retries,
        using=using,
        leased_only=leased_only,
    )


def signature_of_calls(function: Callable[..., Any], *, bind: bool) -> inspect.Signature:
    """The signature of ``function`` as its callers see it: ``bind=True`` takes the first parameter for the task."""
    signature = inspect.signature(function)
    # A body may change its default, and the same call would then be another one.
    parameters = [one.replace(default=own_copy(one.default)) for one in signature.parameters.values()]
    return signature.replace(parameters=parameters[1:] if bind else parameters)


def own_copy(value: Any) -> Any:
    """Arguments for one run of a body, which may change its lists, dicts and sets: the next run needs them as they came."""
    kind = type(value)
    if kind is dict:
        return {key: own_copy(one) for key, one in value.items()}
    if kind in (list, tuple):
        return kind(map(own_copy, value))
    return set(value) if kind is set else value


def _check_name(name: object, option: str, signature: inspect.Signature) -> None:
    if callable(name):
        return
    if not isinstance(name, str):
        raise TypeError(f"{option}= must be a template or a callable, not {name!r}.")
    if not name:
        raise ValueError(f"{option}= is empty.")
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = [one.name for one in signature.parameters.values() if one.kind not in several]
    for field in template_fields(name):
        if field not in known:
            raise ValueError(
                f"{option}={name!r} needs {field!r}, which is no parameter of the task; it has: {', '.join(known) or 'none'}."
            )


def check_task(task_id: str, task_name: str) -> str:
    """``task_id``, if the history can keep it and the name; a ValueError before they are told to the store."""
    for what, text in (("id", task_id), ("name", task_name)):
        if len(text) > MAX_TASK_LENGTH or not text.isprintable():
            raise ValueError(
                f"The {what} of a task has at most {MAX_TASK_LENGTH} characters, printable ones only; "
                f"{text[:40]!r} has {len(text)}."
            )
    return task_id


def pause(tries: int, remaining: float, left: float | None = None) -> float:
    """Seconds until a held lease is asked for again.

    Args:
        tries: how often it was asked for in vain before.
        remaining: seconds until the lease ends by itself, if nobody renews it.
        left: seconds until this task's patience ends, or None.
    """
    longest = min(remaining, FIRST_PAUSE * 2.0 ** min(tries, LAST_DOUBLING))
    # Many tasks can wait for one lease: they must not come back all at once.
    spread = longest * random.uniform(0.5, 1.0)  # noqa: S311
    return spread if left is None else min(spread, left)
