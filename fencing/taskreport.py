"""What a run of a task tells its operator: headers of its request, and log lines. Knows no Celery.

A message carries none of it when it is sent; a retry takes along what its last attempt had.
"""

from __future__ import annotations

import logging
from typing import Any

from fencing.exceptions import FencingError, LeaseHeldError, PartialEffectError
from fencing.leases import Lease
from fencing.logs import tell_task

# Header of the request in which a run shows its resource, and the token and holder of its last grant.
HEADER = "fencing"
# Header by which the worker's main process, which alone knows it, says that somebody listens to events of tasks.
LISTENED = "fencing_events"


class TaskReport:
    """What one run has to tell.

    Attributes:
        grant: the resource; token and holder, too, once there was a grant.
        listened: whether somebody listens to events of tasks.
    """

    __slots__ = ("grant", "listened")

    def __init__(self, request: Any, resource: str) -> None:
        headers = dict(request.headers or ())
        self.listened = headers.pop(LISTENED, False)
        self.grant: dict[str, Any] = {"resource": resource}
        headers[HEADER] = self.grant
        request.headers = headers

    def granted(self, held: Lease) -> None:
        """Show the present grant to whoever reads the request's headers: the body, and receivers of signals."""
        self.grant.update(token=held.token, holder=held.holder)

    def busy(self, error: LeaseHeldError, note: str) -> None:
        """Log that somebody else holds the lease, and what this task does about that."""
        text = f"found the lease of {error.resource!r} held by {error.holder}"
        tell_task(logging.INFO, "busy", text, resource=error.resource, holder=error.holder, note=note)

    def repeated(self, refusal: FencingError, note: str) -> None:
        """Log that the body was refused and runs again."""
        self._tell(logging.INFO, "repeated", refusal, note)

    def failed(self, error: FencingError) -> None:
        """Log that this run ends without the effect that it was asked for."""
        self._tell(logging.WARNING, "failed", error, "its body is not run again here")

    def _tell(self, level: int, event: str, error: FencingError, note: str) -> None:
        refusal = error.__cause__ if isinstance(error, PartialEffectError) else error
        token, seen = getattr(refusal, "token", None), getattr(refusal, "seen", None)
        resource, holder = self.grant["resource"], self.grant.get("holder")
        numbers = "".join(
            f", {name} {one}" for name, one in (("token", token), ("last token", seen)) if one is not None
        )
        text = f"was refused ({type(error).__name__}) under {resource!r}{numbers}"
        tell_task(level, event, text, resource=resource, holder=holder, token=token, seen=seen, note=note)
