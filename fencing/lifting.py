"""What is told to the guard: the number of a DELETE, and that the fence is lifted; never longer than a transaction.

PostgreSQL keeps it in a setting of the transaction, SQLite asks this process. MariaDB's variables belong to the
connection: they are set back when the block is left, in any case, and before the next statement of anybody who uses
the connection when a block was never left.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from django.dispatch import receiver

from fencing.conf import MAX_TOKEN
from fencing.databases import set_in_any_case, setting_back
from fencing.exceptions import InvalidTokenError
from fencing.guard_sql import SQLITE_FUNCTIONS

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

Setting = Literal["token", "unfenced"]

# What libpq calls a connection inside a transaction that has not failed (PQTRANS_INTRANS).
IN_LIVE_TRANSACTION = 2

NOTHING = "@fencing_token = NULL, @fencing_unfenced = NULL, @fencing_migrating = NULL"


@contextmanager
def naming_token(connection: BaseDatabaseWrapper, token: int) -> Iterator[None]:
    """Name ``token`` to the guard for the DELETEs of this block, in the open transaction.

    A higher one that was named in the block, for what was written there, counts for the block around it as well: that
    may be about to delete the same row.

    Raises:
        InvalidTokenError: no integer from 1 to 2**53 - 1.
        TransactionManagementError: no transaction is open.
    """
    outer = named_token(connection)
    with _told(connection, "token", token, at_least=1):
        yield
        raised = named_token(connection)
    if outer is not None and raised is not None and raised > max(token, outer):
        name_higher(connection, raised)


def named_token(connection: BaseDatabaseWrapper) -> int | None:
    """The number that is named to the guard in this connection's transaction, or None."""
    return _present(connection, "token")


def name_higher(connection: BaseDatabaseWrapper, token: int) -> None:
    """Name a higher number for the rest of the block that has named one."""
    _tell(connection, "token", token)
    _remember(connection, "token", token)


@contextmanager
def lift(connection: BaseDatabaseWrapper, number: int) -> Iterator[None]:
    """Lift the guard for this block, in the open transaction; nests, and is gone with the transaction at the latest.

    On PostgreSQL a statement that does not raise ``last_token`` leaves it at ``number``, if that is higher. On SQLite
    a trigger cannot do so: the statement has to carry the number itself.

    Args:
        connection: whose transaction it is.
        number: a token, or 0 to leave ``last_token`` as it is.

    Raises:
        InvalidTokenError: no integer from 0 to 2**53 - 1.
        TransactionManagementError: no transaction is open.
    """
    with _told(connection, "unfenced", number, at_least=0):
        yield


def lift_higher(connection: BaseDatabaseWrapper, number: int) -> None:
    """Raise the number under which the guard is lifted, for the rest of the block."""
    _tell(connection, "unfenced", number)
    _remember(connection, "unfenced", number)


@contextmanager
def lift_outside_transactions(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """MariaDB: lift the guard for migrations, whose DDL takes no transaction; ``last_token`` stays as it is."""
    with setting_back(connection, "@fencing_unfenced = NULL, @fencing_migrating = NULL"):
        with connection.cursor() as cursor:
            cursor.execute("SET @fencing_unfenced = 0, @fencing_migrating = TRUE")
        yield


def lifted(connection: BaseDatabaseWrapper) -> int | None:
    """The number under which the guard is lifted in this connection's transaction, or None where it stands."""
    return _present(connection, "unfenced")


@contextmanager
def _told(connection: BaseDatabaseWrapper, setting: Setting, number: Any, *, at_least: int) -> Iterator[None]:
    if isinstance(number, bool) or not isinstance(number, int) or not at_least <= number <= MAX_TOKEN:
        raise InvalidTokenError(number)
    if not connection.in_atomic_block:
        raise TransactionManagementError(
            "The guard is told something for one transaction only, and none is open: wrap this in transaction.atomic()."
        )
    before = _present(connection, setting)
    is_mariadb = connection.vendor == "mysql"
    as_before = f"@fencing_{setting} = {'NULL' if before is None else int(before)}"
    try:
        if is_mariadb:
            watch(connection)
        with setting_back(connection, as_before) if is_mariadb else nullcontext():
            _tell(connection, setting, number)
            _remember(connection, setting, number)
            yield
    finally:
        _remember(connection, setting, before)
        if is_mariadb:
            if not getattr(connection, _RECORD):
                unwatch(connection)
        elif _can_tell(connection):
            _tell(connection, setting, before)


def _tell(connection: BaseDatabaseWrapper, setting: Setting, number: int | None) -> None:
    """PostgreSQL's guard reads a setting of the transaction, MariaDB's one of the connection; SQLite's asks this process."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            value = "" if number is None else str(number)
            cursor.execute("SELECT set_config(%s, %s, true)", (f"fencing.{setting}", value))
    elif connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET @fencing_{setting} = %s", [number])


def _can_tell(connection: BaseDatabaseWrapper) -> bool:
    """Whether the transaction still takes statements. One that does not will be undone, and the setting with it."""
    if connection.vendor != "postgresql":
        return True
    info = getattr(connection.connection, "info", None)
    return not connection.needs_rollback and getattr(info, "transaction_status", None) == IN_LIVE_TRANSACTION


# What a connection was told stands on the connection itself, because django.db.connection is a proxy of it.
_RECORD = "_fencing_told"


def _remember(connection: BaseDatabaseWrapper, setting: Setting, number: int | None) -> None:
    record = dict(getattr(connection, _RECORD, {}))
    record.pop(setting, None)
    if number is not None and connection.in_atomic_block:
        record[setting] = (connection.atomic_blocks[0], number)
    setattr(connection, _RECORD, record)


def _present(connection: BaseDatabaseWrapper, setting: Setting) -> int | None:
    """What the guard was told in the present transaction; a record of another transaction does not count."""
    transaction, number = getattr(connection, _RECORD, {}).get(setting, (None, None))
    if number is None or not connection.in_atomic_block or connection.atomic_blocks[0] is not transaction:
        return None
    return int(number)


def watch(connection: BaseDatabaseWrapper) -> None:
    """MariaDB: let what a block has told end with its transaction, also if nobody ever leaves the block."""
    if _set_back_first not in connection.execute_wrappers:
        # In front: who has appended a wrapper of his own is going to take the last one off.
        connection.execute_wrappers.insert(0, _set_back_first)


def unwatch(connection: BaseDatabaseWrapper) -> None:
    """The block was left."""
    if _set_back_first in connection.execute_wrappers:
        connection.execute_wrappers.remove(_set_back_first)


def _set_back_first(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    connection = context["connection"]
    if any(_present(connection, setting) is None for setting in getattr(connection, _RECORD, {})):
        setattr(connection, _RECORD, {})
        unwatch(connection)
        set_in_any_case(connection, NOTHING)
    return execute(sql, params, many, context)


@receiver(connection_created)
def _clean_mariadb(connection: BaseDatabaseWrapper, **_kwargs: Any) -> None:
    """A pool below Django may hand a connection on as somebody left it."""
    if connection.vendor == "mysql":
        set_in_any_case(connection, NOTHING)


@receiver(connection_created)
def _teach_sqlite(connection: BaseDatabaseWrapper, **_kwargs: Any) -> None:
    """Give a new SQLite connection the functions that its guards call.

    Any other program's connection lacks them, so its UPDATE or DELETE of a fenced table fails: closed, not open.
    """
    if connection.vendor != "sqlite":
        return
    # SQLite keeps the functions out of the garbage collector's sight: a strong reference would never be freed.
    reference = weakref.ref(connection)

    def answer(setting: Setting) -> int | None:
        asked = reference()
        return None if asked is None else _present(asked, setting)

    connection.connection.create_function(SQLITE_FUNCTIONS["token"], 0, lambda: answer("token"))
    connection.connection.create_function(SQLITE_FUNCTIONS["unfenced"], 0, lambda: answer("unfenced"))
