"""What a fenced transaction needs of MariaDB: that it is the same at its end, and how long it may wait and idle.

InnoDB rolls a whole transaction back when it was the victim of a deadlock, and DDL commits one, while the connection
stays open: the next statement begins another transaction, and a body that swallowed the error would be half done. A
savepoint from the beginning tells, because it is gone with its transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import conf
from fencing.connections import in_testcase
from fencing.databases import as_it_was, set_in_any_case, whole_seconds

if TYPE_CHECKING:
    from fencing.leases import Lease

WAIT = "@@innodb_lock_wait_timeout"
IDLE = "@@idle_write_transaction_timeout"
DEADLOCK = 1213
NO_SUCH_SAVEPOINT = 1305


def mark_transaction(connection: BaseDatabaseWrapper, lease: Lease, depth: int) -> str:
    """Mark the open transaction, and bound its waits for locks by the lease's remaining time; the mark's name.

    Once it has written, it may idle for as long as ``IDLE_IN_TRANSACTION`` says: then it holds locks.
    """
    mark = f"fencing_{depth}"
    idle = 0.0 if in_testcase(connection) else conf.idle_in_transaction(lease.ttl)
    idle_bound = f"LEAST(COALESCE(NULLIF({IDLE}, 0), {whole_seconds(idle)}), {whole_seconds(idle)})" if idle else IDLE
    with connection.cursor() as cursor:
        cursor.execute(f"SAVEPOINT {mark}")
        # The user's own bounds stay if they are the tighter ones.
        cursor.execute(
            f"SET @{mark} = {WAIT}, @{mark}_idle = {IDLE}, "
            f"innodb_lock_wait_timeout = LEAST({WAIT}, {whole_seconds(lease.remaining())}), "
            f"idle_write_transaction_timeout = {idle_bound}"
        )
    return mark


def ensure_marked(connection: BaseDatabaseWrapper, mark: str) -> None:
    """Raise an OperationalError, a serialization failure, if the open transaction is not the one that was marked."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(f"RELEASE SAVEPOINT {mark}")
        except OperationalError as error:
            if error.args[0] != NO_SUCH_SAVEPOINT:
                raise
            what = "the database ended the transaction before its end: a deadlock rolled it back, or DDL committed it"
            raise OperationalError(DEADLOCK, f"{what}; nothing after that takes effect") from error


def forget_mark(connection: BaseDatabaseWrapper, mark: str) -> None:
    """Give the connection its own bounds back; one that was opened meanwhile has them."""
    set_in_any_case(
        connection,
        f"{as_it_was('innodb_lock_wait_timeout', mark)}, "
        f"{as_it_was('idle_write_transaction_timeout', f'{mark}_idle')}, @{mark} = NULL, @{mark}_idle = NULL",
    )
