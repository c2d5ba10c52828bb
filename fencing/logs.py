"""Structured lines on the logger ``fencing``: what happened, with named fields (``extra``) for programs to read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencing.history import Attempt
    from fencing.leases import Lease

logger = logging.getLogger("fencing")

# A duplicate is no refusal, nor is what was written on purpose with the fence lifted.
EVENTS = {"duplicate": "duplicate", "unfenced": "unfenced"}


def tell_lease(level: int, event: str, lease: Lease, text: str, *args: Any) -> None:
    """Log what became of a lease: ``granted``, ``released`` or ``lost``."""
    if logger.isEnabledFor(level):
        fields = {"event": event, "resource": lease.resource, "token": lease.token, "holder": lease.holder}
        logger.log(level, text, *args, extra={**fields, "namespace": lease.namespace, "backend": lease.using})


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
    }
    what = f"{attempt.model} {attempt.object_pk}".strip() or attempt.operation or "transaction"
    logger.info(
        "%s: %s of %s under %r with token %d", fields["event"], attempt.action, what, attempt.resource, attempt.token,
        extra=fields,
    )  # fmt: skip
