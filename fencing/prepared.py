"""Statements that PostgreSQL keeps prepared: parsing and planning them takes longer than doing what they say.

psycopg prepares what a connection sends again, but Django switches that off, because a pooler that changes servers
between transactions need not know the statement, or knows another one by its name. So a statement is prepared only
where the connection shows that it leads straight to its server, or where ``OPTIONS`` has a ``prepare_threshold``:
that one counts then, and None is no. It is what is sent here only; Django's own statements are sent as ever.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any
from weakref import WeakSet

from django.db import NotSupportedError, ProgrammingError
from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("fencing")

# How often a connection has sent a text before it is prepared: many connections send it once.
THRESHOLD = 1

# The last column of every text that is sent here: which server process has answered.
SERVER = "pg_backend_pid()"

# Connections of psycopg whose server process is the one that greeted them. A pooler greets in its own name.
_direct: WeakSet[Any] = WeakSet()

# Texts that failed when they were prepared. Whatever it was, Django's own way of sending them is still there.
_given_up: set[str] = set()


def named(text: str, names: Iterable[str]) -> str:
    """``text`` with a name at each of its places for a value, in order: then the same value is sent once."""
    marks = iter(names)
    return re.sub("%[%s]", lambda found: found[0] if found[0] == "%%" else f"%({next(marks)})s", text)


def fetch_one(
    connection: BaseDatabaseWrapper, text: str, params: Mapping[str, Any], *, prepare: bool = True
) -> tuple[Any, ...] | None:
    """Send ``text``; the first row of the answer without its last column, ``SERVER``.

    Args:
        connection: a connection to PostgreSQL.
        text: the statement, with names at the places for values.
        params: the values by name.
        prepare: whether it is to be prepared, if that can be.
    """
    if not prepare or text in _given_up or not may_prepare(connection):
        return _fetch(connection, text, params)
    raw = connection.connection
    before = raw.cursor_factory, raw.prepare_threshold
    # Only a cursor that binds its values on the server prepares.
    raw.cursor_factory = _djangos_cursors()[1]
    if raw.prepare_threshold is None:
        raw.prepare_threshold = THRESHOLD
    try:
        return _fetch(connection, text, params)
    except (ProgrammingError, NotSupportedError) as error:
        _given_up.add(text)
        logger.info("A statement is not prepared any more: %s", error)
        if connection.in_atomic_block or not connection.get_autocommit():
            raise
    finally:
        raw.cursor_factory, raw.prepare_threshold = before
    # It has done nothing, and there is no transaction that it could have broken.
    return _fetch(connection, text, params)


def may_prepare(connection: BaseDatabaseWrapper) -> bool:
    """Whether statements may be prepared on the connection, as it is now."""
    if connection.connection is None or connection.queries_logged:
        return False  # Django 5.2 logs what the cursor sent, and this one sends no values in its text
    options = connection.settings_dict["OPTIONS"]
    if "prepare_threshold" in options:
        asked = options["prepare_threshold"] is not None
    else:
        asked = connection.connection in _direct
    return asked and connection.connection.cursor_factory in _djangos_cursors()


def _fetch(connection: BaseDatabaseWrapper, text: str, params: Mapping[str, Any]) -> tuple[Any, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        row = cursor.fetchone()
    if row is None:
        return None
    if connection.connection not in _direct and row[-1] == _greeter(connection):
        _direct.add(connection.connection)
    return tuple(row[:-1])


def _greeter(connection: BaseDatabaseWrapper) -> int | None:
    """The server process that the connection was told when it was opened; None with psycopg 2."""
    info = getattr(connection.connection, "info", None)
    return getattr(info, "backend_pid", None) if _djangos_cursors() else None


@cache
def _djangos_cursors() -> tuple[Any, ...]:
    """Django's cursors that bind on the client and on the server; none with psycopg 2, which cannot."""
    from django.db.backends.postgresql import base, psycopg_any

    return (base.Cursor, base.ServerBindingCursor) if psycopg_any.is_psycopg3 else ()
