"""``unfenced()``: the only way round the fence, for maintenance; in a transaction, and on record."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import conf, history, tokens
from fencing.backends import get_backend
from fencing.exceptions import InvalidTokenError
from fencing.history import Attempt
from fencing.lifting import lift, lift_higher, lifted

F = TypeVar("F", bound=Callable[..., Any])

MAX_REASON = 300
# Of a user's name: with the longest reason it has to fit into the note.
MAX_NAME = 60


def _with_reason(lift_fence: F) -> F:
    """Look at the reason before the block begins: a bare ``@unfenced`` has none, and would never run its function."""

    @wraps(lift_fence)
    def checked(reason: Any, **options: Any) -> Any:
        if not isinstance(reason, str) or not 0 < len(reason.strip()) <= MAX_REASON:
            raise ValueError(f"unfenced() needs a reason of 1 to {MAX_REASON} characters, not {reason!r}.")
        return lift_fence(reason, **options)

    return cast("F", checked)


@_with_reason
@contextmanager
def unfenced(
    reason: str, *, by: object = None, using: str = conf.DEFAULT_ALIAS, database: str = DEFAULT_DB_ALIAS
) -> Iterator[int]:
    """Lift the fence for the block, in a transaction: ``with unfenced("correct the stock after the audit"):``

    ORM writes in the block need no lease and carry the namespace's next number, which the block gets, so that a
    holder who read before notices; from a row on that a holder has written since, a newer one. Nested blocks share the
    outer one's number.

    Args:
        reason: why; it goes to the history with who did it: this process and its user.
        by: who wanted it, for the history as well: ``request.user``, or any name.
        using: alias of the lease backend whose number is taken. With the store unreachable, the database gives one.
        database: alias of the database whose rows are written.

    Raises:
        ValueError: no reason.
    """
    connection = connections[database]
    outer = lifted(connection)
    backend = get_backend(using)
    number = outer if outer else tokens.draw(backend, "unfenced")
    with transaction.atomic(using=database), lift(connection, number):
        history.record(
            connection,
            [
                Attempt(
                    namespace=backend.config.namespace,
                    token=number,
                    grant_token=number,
                    resource="unfenced",
                    action="unfenced",
                    outcome="unfenced",
                    note=f"{reason} ({who(by)})",
                )
            ],
        )
        yield number


def number_for(connection: BaseDatabaseWrapper, using: str, resource: str, highest: int) -> int:
    """The number for a write with the fence lifted: the block's, or a newer one, which is the block's from now on.

    A holder may have written a row since the block began, or count in another partition. Left with the holder's own
    number, the row would not show it that somebody wrote in between.

    Args:
        connection: the database; the fence is lifted there, and the rows are locked.
        using: alias of the lease backend of the rows.
        resource: the resource of the row with the highest number.
        highest: that number.

    Raises:
        LeaseBackendError, TokensExhaustedError: no newer number is to be had.
    """
    number = lifted(connection) or 0
    # A migration's block has none, and leaves the rows' numbers.
    if 0 < number < highest:
        # Under a number that was invented nobody can write until it is put right, which may be what this block does.
        with suppress(InvalidTokenError):
            number = tokens.draw_above(get_backend(using), resource, highest)
            lift_higher(connection, number)
    return number


def who(by: object = None) -> str:
    """The user and process that is at work here, for the history, after the one who wanted it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    process = f"{user}@{os.uname().nodename} pid {os.getpid()}"
    name = name_of(by)
    return f"{name}, {process}" if name else process


def name_of(user: object) -> str:
    """What a Django user is known by: the name, and the key that stays when the name changes."""
    if user is None:
        return ""
    name = str(user.get_username() if hasattr(user, "get_username") else user) or "anonymous"
    key = getattr(user, "pk", None)
    return name[:MAX_NAME] + ("" if key is None else f" (user {key})")
