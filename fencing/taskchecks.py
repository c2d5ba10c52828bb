"""System checks of Celery tasks: what would happen twice, wait for nothing, or end without anybody knowing.

``fencing.checks`` registers them; each id is explained in ``docs/checks.md``. Tasks are looked at as far as this process
has imported them: a check imports neither Celery nor anybody's tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.core.exceptions import ImproperlyConfigured

from fencing import conf

HINTS = {
    "W030": "Lower its ttl: a lease is renewed for as long as its task runs, so it need not last as long as that.",
    "W031": "Raise busy_timeout above the ttl, or lower the ttl.",
    "W032": "Raise visibility_timeout in the broker's transport options, or set a lower time_limit (or ttl).",
    "W033": "Let it be atomic, so that it takes effect once; or acknowledge early, or let a repetition do no harm.",
    "W034": "Set task_always_eager in tests only.",
    "W035": "Name a result_backend and give the task ignore_result=False, or choose another on_busy.",
}

# Seconds after which these brokers deliver again what was not acknowledged; others wait for the connection to end.
VISIBILITY_TIMEOUTS = {"redis": 3600, "rediss": 3600, "sentinel": 3600, "sqs": 1800}


def of_tasks() -> Iterator[CheckMessage]:
    """Every fenced and leased task of the present Celery application that was imported."""
    for task in fenced_tasks():
        yield from _check_ttl(task)
        yield from _check_visibility(task)
        yield from _check_repetition(task)
        yield from _check_outcome(task)


def of_eager_mode() -> Iterator[CheckMessage]:
    """Whether tasks would run where they are sent, in a deployment."""
    app = _configured_app()
    if app is not None and app.conf.task_always_eager and not settings.DEBUG:
        what = "task_always_eager is on: tasks run where they are sent, wait for leases there, and are refused in transactions"
        yield _warning("W034", f"{what}.")


def _configured_app() -> Any:
    """The Celery application if this process uses ``fencing.celery``, and says where its messages go; else None."""
    if "fencing.celery" not in sys.modules:
        return None
    app = sys.modules["celery"].current_app
    told = app.conf.broker_url or app.conf.broker_read_url or app.conf.broker_write_url or app.conf.task_always_eager
    return app if told else None


def fenced_tasks() -> Iterator[Any]:
    """The fenced and leased tasks of the present Celery application, as far as they were imported, by name."""
    app = _configured_app()
    if app is not None and (app.finalized or app.autofinalize):
        kind = sys.modules["fencing.celery"].FencedTask
        for _name, task in sorted(app.tasks.items()):
            if isinstance(task, kind):
                yield task


def _check_ttl(task: Any) -> Iterator[CheckMessage]:
    policy, limit = task.fencing, _time_limit(task)
    if policy.ttl is not None and limit is not None and policy.ttl > limit:
        text = f"has a ttl of {policy.ttl:g} s and a time limit of {limit:g} s: killed there, it keeps others away long after"
        yield _warning("W030", f"{text} any run could have ended.", task)
    ttl = _ttl(task)
    if policy.on_busy in ("retry", "wait") and policy.busy_timeout <= ttl:
        text = f"has a ttl of {ttl:g} s and gives up after {policy.busy_timeout:g} s: whoever waits for a worker that died fails"
        yield _warning("W031", f"{text}, although its lease ends by itself.", task)


def _check_visibility(task: Any) -> Iterator[CheckMessage]:
    """What a message that is away for long does to tasks that take effect each time; once makes it harmless."""
    timeout = _visibility_timeout(task.app)
    if timeout is None or task.fencing.atomic:
        return
    limit, ttl = _time_limit(task), _ttl(task)
    if task.acks_late and (limit is None or limit > timeout):
        may = "has no time limit" if limit is None else f"may run for {limit:g} s"
    elif task.fencing.on_busy == "retry" and ttl > timeout:
        may = f"may go back into the queue for its ttl of {ttl:g} s"
    else:
        return
    text = f"{may}, and after {timeout:g} s (visibility_timeout) the broker delivers its message a second time"
    yield _warning("W032", f"{text}: it runs once more, each time.", task)


def _check_repetition(task: Any) -> Iterator[CheckMessage]:
    # A leased_task is for what may happen twice.
    if task.acks_late and not task.fencing.atomic and not task.fencing.leased_only:
        text = "acknowledges late and is not atomic: delivered again, it repeats what it had committed already"
        yield _warning("W033", f"{text}.", task)


def _check_outcome(task: Any) -> Iterator[CheckMessage]:
    """Only on_busy="fail" leaves the decision to the sender; whatever else is not kept is told by the log."""
    told = task.app.conf
    # By the task alone, against the project's setting: that is meant.
    on_purpose = task.ignore_result and not told.task_ignore_result
    if task.fencing.on_busy != "fail" or task.store_errors_even_if_ignored or on_purpose:
        return
    if task.ignore_result or told.result_backend in (None, "disabled", "disabled://"):
        text = 'has on_busy="fail", and its outcome is not kept: its sender, who is to decide then, cannot learn of it'
        yield _warning("W035", f"{text}.", task)


def _time_limit(task: Any) -> float | None:
    limit: float | None = task.time_limit or task.app.conf.task_time_limit
    return limit


def _ttl(task: Any) -> float:
    """Seconds; 0 for an alias that does not exist, which fails by itself."""
    if task.fencing.ttl is not None:
        return float(task.fencing.ttl)
    try:
        return conf.backend_config(task.fencing.using).ttl
    except ImproperlyConfigured:
        return 0.0


def _visibility_timeout(app: Any) -> float | None:
    address = app.conf.broker_read_url or app.conf.broker_url or ""
    first = address if isinstance(address, str) else next(iter(address), "")
    kind = first.partition(":")[0].partition("+")[0]
    if kind not in VISIBILITY_TIMEOUTS:
        return None
    return float(app.conf.broker_transport_options.get("visibility_timeout") or VISIBILITY_TIMEOUTS[kind])


def _warning(number: str, text: str, task: Any = None) -> CheckMessage:
    name = getattr(task, "name", None)
    message = f"The task {name} {text}" if name else text
    return Warning(message, hint=HINTS[number], obj=name, id=f"fencing.{number}")
