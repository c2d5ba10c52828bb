"""What goes into the statements of the database backend, and how its rows are read."""

from __future__ import annotations

from typing import Any

from fencing.backends.base import GrantEvent, HolderInfo, LiveLease, Place
from fencing.backends.wire import milliseconds, moment

NOBODY = HolderInfo()


def values_of(
    place: Place, *, holder: str = "", token: int = 0, ttl: float = 0.0, info: HolderInfo = NOBODY, **others: Any
) -> dict[str, Any]:
    """The parameters of the statements, by name."""
    return {
        "space": place.space,
        "partition": place.partition,
        "resource": place.resource,
        "holder": holder,
        "token": token,
        "ttl": milliseconds(ttl) if ttl else 0,
        "task_id": info.task_id,
        "task_name": info.task_name,
        **others,
    }


def live_lease(
    resource: str, holder: str, token: int, left: int, granted: int, task_id: str, task_name: str
) -> LiveLease:
    """A row of ``StoredLease``, with the milliseconds that are left instead of the deadline."""
    return LiveLease(
        resource=resource,
        holder=holder,
        token=token,
        remaining=max(left, 0) / 1000,
        granted_at=moment(str(granted)),
        info=HolderInfo(task_id=task_id, task_name=task_name),
    )


def grant_event(
    line: int, kind: Any, token: int, resource: str, holder: str, at: int, ttl: int, task_id: str, task_name: str
) -> GrantEvent:
    """A row of ``StoredEvent``."""
    return GrantEvent(
        id=str(line),
        kind=kind,
        token=token,
        resource=resource,
        holder=holder,
        at=moment(str(at)),
        ttl=ttl / 1000,
        info=HolderInfo(task_id=task_id, task_name=task_name),
    )
