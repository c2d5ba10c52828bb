"""How the body of a task runs once its lease is held, and what one attempt tells the next. Knows no Celery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from time import time
from typing import Any

from fencing import conf
from fencing.backends.base import HolderInfo
from fencing.connections import initialized
from fencing.leases import Lease
from fencing.logs import task_fields
from fencing.scope import held_leases, holder_info, keep_only
from fencing.taskpolicy import TaskCall
from fencing.transactions import FencedTransaction, abandon_transactions

# Message header in which a task that found its lease held tells its next attempt about that.
HEADER = "fencing_busy"

# The transaction that the innermost atomic body of this context runs in; ``in_own_context`` puts back what was before.
open_body: ContextVar[FencedTransaction | None] = ContextVar("fencing_open_body", default=None)


@dataclass(slots=True)
class Busy:
    """How long a task has found its lease held, and how often; it travels in the message's headers.

    Attributes:
        since: when that began, in seconds since 1970: the attempts run in different processes.
        tries: attempts in vain so far.
        stale: how often the body has been refused before.
    """

    since: float
    tries: int = 0
    stale: int = 0

    @classmethod
    def taken_from(cls, headers: dict[str, Any] | None) -> Busy:
        """What the message brought; it is taken out, so that a retry of the user's begins afresh."""
        return cls(**((headers or {}).pop(HEADER, None) or {"since": time()}))

    def headers_of_next(self, headers: Mapping[str, Any] | None) -> dict[str, Any]:
        """The headers of the next attempt."""
        return {**(headers or {}), HEADER: {"since": self.since, "tries": self.tries + 1, "stale": self.stale}}


def in_own_context(run: Callable[[], Any], info: HolderInfo, limit: type[Exception]) -> Any:
    """Call ``run``, and let neither the name of the holder, nor a lease, nor a transaction outlive it.

    Args:
        run: what takes the leases.
        info: who their holder is.
        limit: what can strike anywhere: while a lease is being released, which the heartbeat would then renew for ever,
            or while a transaction ends, which would stay open for whatever this process does next.
    """
    before = held_leases(), holder_info.get(), task_fields.get(), open_body.get()
    others = [one.alias for one in initialized() if one.in_atomic_block]
    try:
        holder_info.set(info)
        task_fields.set({"task_id": info.task_id, "task_name": info.task_name})
        result = run()
        _restore_context(*before)
    except BaseException as error:
        if isinstance(error, limit) or not isinstance(error, Exception):
            abandon_transactions(others)
        _restore_context(*before)
        raise
    return result


def _restore_context(
    held: tuple[Lease, ...], info: HolderInfo, fields: Mapping[str, str], body: FencedTransaction | None
) -> None:
    holder_info.set(info)
    task_fields.set(fields)
    open_body.set(body)
    for lease in held_leases():
        if lease not in held:
            lease.release()
    keep_only(held)


def run_atomic(held: Lease, call: TaskCall, task_name: str, task_id: str, body: Callable[[], Any]) -> Any:
    """Run the body in a fenced transaction, at most once for its operation, and return the recorded result."""
    operation = call.operation(task_name, task_id)
    transaction = FencedTransaction(
        held,
        operation=operation,
        using=conf.backend_config(call.policy.using).database,
        task=task_name,
        digest=call.digest() if operation else "",
    )
    open_body.set(transaction)
    return transaction.call(body)


def run_plain(held: Lease, body: Callable[[], Any]) -> Any:
    """Run the body, each of its statements for itself; a refusal that it swallowed is raised at its end."""
    earlier = held.refusals.unmended()
    result = body()
    held.refusals.raise_unmended(earlier)
    return result
