"""The time that a lease has left for a transaction: what the database ends for want of it is told as a lost lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from django.db import DatabaseError

from fencing.databases import LOCK_TIMEOUTS, code_of, is_cut_off
from fencing.exceptions import LeaseLostError

if TYPE_CHECKING:
    from fencing.leases import Lease

# PostgreSQL's idle_in_transaction_session_timeout.
IDLE_TOO_LONG = "25P03"

# Seconds by which a bound in milliseconds can be shorter than what it stands for.
ROUNDING = 0.001


class TimeLeft:
    """What a lease has left as its transaction begins: nobody waits in it for longer."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._until = monotonic() + lease.remaining() - ROUNDING

    @contextmanager
    def telling(self, *, in_doubt: bool = False) -> Iterator[None]:
        """Tell the ends that the database puts to waiting and idling in the words of the lease.

        Its last word before it closes the connection, that the transaction idled for too long, does not always arrive.
        Then the lease being over says the same, unless what was sent last is ``in_doubt``.
        """
        try:
            yield
        except DatabaseError as error:
            was_cut_off = is_cut_off(error) and not self._lease.is_held() and not in_doubt
            if not (self._is_over(error) or was_cut_off):
                raise
            reason = f"its time ran out inside the transaction ({error})"
            raise LeaseLostError(self._lease.resource, self._lease.token, reason) from error

    def _is_over(self, error: DatabaseError) -> bool:
        """Whether a bound of the lease's own has ended it: not the user's NOWAIT, or a tighter bound on waiting."""
        if code_of(error) in LOCK_TIMEOUTS:
            return not self._lease.is_held() or monotonic() >= self._until
        return code_of(error) == IDLE_TOO_LONG
