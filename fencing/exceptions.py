"""Everything that django-fencing raises.

    FencingError
    ├── LeaseError
    │   ├── LeaseHeldError               somebody else holds the lease
    │   ├── LeaseLostError               the lease is no longer this holder's
    │   ├── LeaseRequiredError           a fenced write with no lease
    │   ├── LeaseInsideTransactionError  a lease that would end before the commit
    │   └── ResourceMismatchError        a lease of another resource
    ├── WriteRejectedError
    │   ├── StaleWriteError              superseded: final for this grant
    │   ├── StaleReadError               the row changed since it was read: read again
    │   └── RowMissingError              the row is gone
    ├── AlreadyAppliedError              the operation took effect before
    ├── OperationMismatchError           one key for two different operations
    ├── PartialEffectError               committed parts forbid a repetition
    ├── InvalidTokenError                not an integer from 1 to 2**53 - 1
    ├── TokensExhaustedError             no number is left below 2**53
    └── LeaseBackendError                the lease store is unreachable or misconfigured

None of them derives from ``DatabaseError``: callers treat that as "the transaction is broken" or "try again",
and a refusal is neither. Every argument is positional and handed to ``Exception``, so that each one survives
pickling on its way through a Celery result backend.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class FencingError(Exception):
    """Base of everything that this package raises."""


class LeaseError(FencingError):
    """Something is wrong with a lease, as opposed to with a write."""


class LeaseHeldError(LeaseError):
    """Somebody else holds the lease.

    Args:
        resource: the name of what is protected.
        holder: the id of the present holder.
        retry_after: seconds until the lease ends by itself, if nobody renews it.
        task_id: the Celery task that holds it, or "".
    """

    def __init__(self, resource: str, holder: str, retry_after: float, task_id: str = "") -> None:
        super().__init__(resource, holder, retry_after, task_id)
        self.resource = resource
        self.holder = holder
        self.retry_after = retry_after
        self.task_id = task_id

    def __str__(self) -> str:
        task = f" (task {self.task_id})" if self.task_id else ""
        return (
            f"The lease of {self.resource!r} is held by {self.holder}{task}; it ends in {self.retry_after:.3f} s "
            "unless it is renewed. Try again later, or pass wait= to wait for it."
        )


class LeaseLostError(LeaseError):
    """The lease is no longer this holder's: it expired, was revoked, was released, or belongs to another process.

    Args:
        resource: the name of what is protected.
        token: the token of the grant that was lost.
        reason: how it was lost, in words.
    """

    def __init__(self, resource: str, token: int, reason: str = "it expired or was revoked") -> None:
        super().__init__(resource, token, reason)
        self.resource = resource
        self.token = token
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"The lease of {self.resource!r} with token {self.token} is lost: {self.reason}. "
            "Take a new lease and read again before writing."
        )


class LeaseRequiredError(LeaseError):
    """A fenced row was to be written and no lease of its resource is held in this context.

    Args:
        resource: the resource of the row, or "" when there were several, or none has a name yet.
        held: the resources that *are* held here.
        what: what was attempted.
        template: how the rows' resources are named (``"stock:{sku}"``), where ``resource`` is "".
    """

    def __init__(
        self, resource: str, held: Iterable[str] = (), what: str = "writing a fenced row", template: str = ""
    ) -> None:
        self.held = tuple(held)
        super().__init__(resource, self.held, what, template)
        self.resource = resource
        self.what = what
        self.template = template

    def __str__(self) -> str:
        held = ", ".join(map(repr, self.held)) or "none"
        needed = f"the lease of {self.resource!r}" if self.resource else "the lease of its row"
        if self.template:
            needed = f"the leases of its rows, each named like {self.template!r}"
        if self.resource in self.held:
            held += " (but from another backend than the model's `fence_using`)"
        return (
            f"{self.what} needs {needed}; held here: {held}. Wrap it in `with lease(...)`, decorate the "
            'task with `fenced_task`, or use `unfenced("reason")` for maintenance.'
        )


class LeaseInsideTransactionError(LeaseError):
    """The lease would end before the transaction commits, so it would not protect it.

    Args:
        resource: the name of what is protected.
        detail: what exactly is in the way.
    """

    def __init__(self, resource: str, detail: str = "a transaction is open") -> None:
        super().__init__(resource, detail)
        self.resource = resource
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"The lease of {self.resource!r} cannot be used here: {self.detail}, and the lease would end before the "
            "commit. Take the lease outside `transaction.atomic()` (with ATOMIC_REQUESTS: mark the view "
            "`non_atomic_requests`), or pass allow_in_transaction=True and use `lease.atomic()`."
        )


class ResourceMismatchError(LeaseError):
    """A lease of one resource was to be used for a row of another; their numbers must never meet.

    Args:
        lease_resource: the resource of the lease.
        row_resource: the resource of the row.
        detail: more about the rows, or "".
    """

    def __init__(self, lease_resource: str, row_resource: str, detail: str = "") -> None:
        super().__init__(lease_resource, row_resource, detail)
        self.lease_resource = lease_resource
        self.row_resource = row_resource
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return (
            f"A lease of {self.lease_resource!r} cannot write a row of {self.row_resource!r}{detail}. "
            "Nothing was written. Take the lease of the row's own resource."
        )


class WriteRejectedError(FencingError):
    """The database refused a fenced write; nothing was written.

    Args:
        resource: the resource of the row.
        token: the number that the write carried.
        seen: the number that the database holds, or None when it holds none.
        what: what was refused: a row, or a transaction.
    """

    why = "The database refused the write"
    remedy = "Take a new lease, read again and repeat."

    def __init__(self, resource: str, token: int, seen: int | None, what: str = "") -> None:
        super().__init__(resource, token, seen, what)
        self.resource = resource
        self.token = token
        self.seen = seen
        self.what = what

    def __str__(self) -> str:
        return f"{self.why}: {self._where()}. {self.remedy}"

    def _where(self) -> str:
        """The resource, the row and the numbers, as far as there are any."""
        what = f" ({self.what})" if self.what else ""
        parts = [f"resource {self.resource!r}{what}" if self.resource else self.what]
        if self.token:
            parts.append(f"token {self.token}")
        if self.seen is not None:
            parts.append(f"last token {self.seen}")
        return ", ".join(filter(None, parts))


class StaleWriteError(WriteRejectedError):
    """A newer holder has written or begun: the token is not higher than the last one. Final for this grant."""

    why = "Stale write refused, a newer holder came first"


class StaleReadError(WriteRejectedError):
    """The row changed since it was read, or was not read (``seen`` is None); the lease may well be good still."""

    why = "Write refused, the row is no longer the one that was read"
    remedy = "Read the row again and repeat; the lease can still be good."

    def __str__(self) -> str:
        if self.seen is not None:
            return super().__str__()
        return (
            "Write refused, this instance did not read the row, or not all of it, so its values can be compared with "
            f'nothing: {self._where()}. Get the row first, change that and save it, or write expressions (`F("…") + 1`) '
            "only, by `save(update_fields=…)`."
        )


class RowMissingError(WriteRejectedError):
    """The row is gone. A fenced save never inserts it again."""

    why = "Write refused, the row no longer exists"
    remedy = "It was deleted; create a new row if that is what is wanted."


class AlreadyAppliedError(FencingError):
    """The operation took effect before; its recorded result is ``result``.

    Args:
        operation: the key.
        result: what the operation recorded, as JSON gave it back.
        kept: False if the result was older than FENCING["OPERATION_RETENTION"] and was pruned; ``result`` is None then.
    """

    def __init__(self, operation: str, result: Any = None, kept: bool = True) -> None:
        super().__init__(operation, result, kept)
        self.operation = operation
        self.result = result
        self.kept = kept

    def __str__(self) -> str:
        if not self.kept:
            return f"Operation {self.operation!r} took effect before; its result is no longer kept."
        return f"Operation {self.operation!r} took effect before; its recorded result is {self.result!r}."


class OperationMismatchError(FencingError):
    """The task took effect under this key before, with other arguments; it is not replayed.

    Args:
        operation: the key.
        recorded: the digest of the arguments that it took effect with.
        asked: the digest of the arguments that it was called with now.
        task: the name of the task, or "".
    """

    def __init__(self, operation: str, recorded: str, asked: str, task: str = "") -> None:
        super().__init__(operation, recorded, asked, task)
        self.operation = operation
        self.recorded = recorded
        self.asked = asked
        self.task = task

    def __str__(self) -> str:
        task = f" of task {self.task!r}" if self.task else ""
        return (
            f"Operation {self.operation!r}{task} took effect before, with other arguments than this call's (defaults "
            "count); nothing was written. Make its key of what tells the operations of the task apart."
        )


class PartialEffectError(FencingError):
    """A refused body has already committed something, so repeating it would apply that part twice.

    Args:
        resource: the name of what is protected.
        accepted: how many writes were accepted before the refusal.
    """

    def __init__(self, resource: str, accepted: int) -> None:
        super().__init__(resource, accepted)
        self.resource = resource
        self.accepted = accepted

    def __str__(self) -> str:
        return (
            f"The body for {self.resource!r} had {self.accepted} write(s) accepted before one was refused; it is not "
            "repeated. Use atomic=True, or make the remaining work idempotent and start it by hand."
        )


class InvalidTokenError(FencingError, ValueError):
    """A token is an integer from 1 to 2**53 - 1, the largest that Redis' Lua counts exactly.

    Args:
        value: what was given instead, as text.
        detail: where it came from, or "".
    """

    def __init__(self, value: object, detail: str = "") -> None:
        super().__init__(repr(value) if not isinstance(value, str) else value, detail)
        self.value: str = self.args[0]
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.value} is not a token{detail}: a token is an integer from 1 to 2**53 - 1."


class TokensExhaustedError(FencingError):
    """No number is left below 2**53 in this namespace.

    Args:
        namespace: the namespace.
        ceiling: the highest number that is reserved already.
    """

    def __init__(self, namespace: str, ceiling: int) -> None:
        super().__init__(namespace, ceiling)
        self.namespace = namespace
        self.ceiling = ceiling

    def __str__(self) -> str:
        return f"Namespace {self.namespace!r} has reserved {self.ceiling} tokens and none is left below 2**53."


class LeaseBackendError(FencingError):
    """The lease store is unreachable or misconfigured. No lease was granted, except perhaps one that ends by itself.

    Args:
        alias: the alias in ``FENCING["BACKENDS"]``.
        detail: what happened.
    """

    def __init__(self, alias: str, detail: str) -> None:
        super().__init__(alias, detail)
        self.alias = alias
        self.detail = detail

    def __str__(self) -> str:
        return f"Lease backend {self.alias!r}: {self.detail}"
