"""Operations: a key under which an effect happens once, with the result that every later caller gets (I5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import DataError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from fencing.conf import MAX_OPERATION_LENGTH
from fencing.tables import quoted

if TYPE_CHECKING:
    from fencing.leases import Lease


def take_key(connection: BaseDatabaseWrapper, lease: Lease, *, task: str, key: str, digest: str, result: str) -> bool:
    """Insert the key with its result into the open transaction; False if a concurrent duplicate was first.

    Raises:
        TypeError: the database's JSON cannot hold the result: PostgreSQL's knows neither NUL nor half a surrogate pair.
    """
    with connection.cursor() as cursor, _as_type_error(result):
        cursor.execute(
            f"INSERT INTO {quoted('Operation')} "
            "(namespace, resource, task, key, digest, token, result, applied_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (namespace, resource, task, key) DO NOTHING RETURNING token",
            [
                lease.namespace, lease.resource, task, key, digest, lease.token, result,
                connection.ops.adapt_datetimefield_value(timezone.now()),
            ],
        )  # fmt: skip
        return cursor.fetchone() is not None


@contextmanager
def _as_type_error(result: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise TypeError(f"The database cannot hold the result {result[:200]}: {error}.") from error


def recorded(connection: BaseDatabaseWrapper, lease: Lease, *, task: str, key: str) -> tuple[str, Any] | None:
    """The digest of the arguments and the result that are recorded under a key, or None."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT digest, CAST(result AS text) FROM {quoted('Operation')} "
            "WHERE namespace = %s AND resource = %s AND task = %s AND key = %s",
            [lease.namespace, lease.resource, task, key],
        )
        row = cursor.fetchone()
    return None if row is None else (row[0], json.loads(row[1]))


def check_operation(operation: object) -> str:
    """``operation``, if it can be a key; TypeError or ValueError otherwise."""
    if not isinstance(operation, str):
        raise TypeError(f"An operation's key is a string, not {operation!r}.")
    if not operation or len(operation) > MAX_OPERATION_LENGTH or "\0" in operation:
        raise ValueError(
            f"An operation's key has 1 to {MAX_OPERATION_LENGTH} characters and no NUL; "
            f"{operation[:40]!r} has {len(operation)}."
        )
    return operation


def as_json(result: Any) -> str:
    """``result`` as JSON text; TypeError if JSON cannot hold it."""
    try:
        return json.dumps(result, allow_nan=False)
    except ValueError as error:
        raise TypeError(f"JSON cannot hold the result {result!r}: {error}.") from error
