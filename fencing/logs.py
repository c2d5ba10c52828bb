"""Structured lines on the logger ``fencing``: what happened, with named fields (``extra``) for programs to read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencing.history import Attempt
    from fencing.leases import Lease

logger = logging.getLogger("fencing")

# A duplicate is no refusal, nor is what was written on purpose with the fence lifted.
EVENTS = {"duplicate": "duplicate", "unfenced": "unfenced"}

# The Celery task that this context works for, as fields of each line.
NO_TASK: Mapping[str, str] = MappingProxyType({"task_id": "", "task_name": ""})
task_fields: ContextVar[Mapping[str, str]] = ContextVar("fencing_task_fields", default=NO_TASK)


def tell_lease(level: int, event: str, lease: Lease, text: str, *args: Any) -> None:
    """Log what became of a lease: ``granted``, ``released`` or ``lost``."""
    if logger.isEnabledFor(level):
        fields = {"event": event, "resource": lease.resource, "token": lease.token, "holder": lease.holder}
        fields |= {"namespace": lease.namespace, "backend": lease.using}
        # A loss is often noticed by the heartbeat, which has none of the task's context.
        logger.log(level, text, *args, extra={**fields, **lease.task_fields})


def tell_attempt(attempt: Attempt) -> None:
    """Log an attempt that was not simply accepted: ``refused``, ``duplicate`` or ``unfenced``."""
    if not logger.isEnabledFor(logging.INFO):
        return
    fields = {
        "event": EVENTS.get(attempt.outcome, "refused"),
        "outcome": attempt.outcome,
        "namespace": attempt.namespace,
        "resource": attempt.resource,
        "token": attempt.token,
        "grant_token": attempt.grant_token,
        "seen": attempt.seen,
        "model": attempt.model,
        "object_pk": attempt.object_pk,
        "action": attempt.action,
        "operation": attempt.operation,
        "note": attempt.note,
        **task_fields.get(),
    }
    what = f"{attempt.model} {attempt.object_pk}".strip() or attempt.operation or "transaction"
    logger.info(
        "%s: %s of %s under %r with token %d", fields["event"], attempt.action, what, attempt.resource, attempt.token,
        extra=fields,
    )  # fmt: skip


def tell_task(
    level: int,
    event: str,
    text: str,
    *,
    resource: str,
    holder: str | None = None,
    token: int | None = None,
    seen: int | None = None,
    note: str = "",
) -> None:
    """Log what the present task does about its lease or its refusal: ``busy``, ``repeated`` or ``failed``.

    Args:
        level: as in ``logging``.
        event: what happened.
        text: what a person reads after the task's name and id.
        resource: what the task needs the lease of.
        holder: who holds the lease; of a refused task its own last grant's.
        token: the number that was refused, or of the lease that was lost.
        seen: the last token that the database had.
        note: what the task does now.
    """
    if logger.isEnabledFor(level):
        task = task_fields.get()
        fields = {"event": event, "resource": resource, "holder": holder, "token": token, "seen": seen, "note": note}
        logger.log(
            level, "Task %s[%s] %s: %s", task["task_name"], task["task_id"], text, note, extra={**fields, **task}
        )
