"""How long a statement may wait, and an open transaction idle, on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import conf
from fencing.connections import in_testcase

if TYPE_CHECKING:
    from fencing.leases import Lease


def bound_of(setting: str) -> str:
    """The call that bounds a setting of PostgreSQL for the open transaction; a tighter bound of the user's stays."""
    present = f"current_setting('{setting}')"
    tighter = f"{present}::interval BETWEEN interval '1 ms' AND %s::text::interval"
    return f"set_config('{setting}', CASE WHEN {tighter} THEN {present} ELSE %s END, true)"


IDLE_BOUND = bound_of("idle_in_transaction_session_timeout")
LOCK_BOUND = bound_of("lock_timeout")


def bound_idling(connection: BaseDatabaseWrapper, lease: Lease) -> None:
    """Bound how long the open transaction may idle: a holder that sleeps now holds row locks."""
    idle = conf.idle_in_transaction(lease.ttl)
    if idle and connection.vendor == "postgresql" and not in_testcase(connection):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {IDLE_BOUND}", [milliseconds(idle)] * 2)


def milliseconds(seconds: float) -> str:
    """``seconds`` as PostgreSQL takes them: at least 1 ms, because 0 means no bound at all, and 24 days at most."""
    return f"{min(2**31 - 1, max(1, round(seconds * 1000)))}ms"
