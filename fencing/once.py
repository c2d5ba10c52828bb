"""Operations: a key under which an effect happens once, with the result that every later caller gets (I5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DataError, IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from fencing.conf import MAX_OPERATION_LENGTH
from fencing.databases import CHECK_VIOLATION, DUPLICATE_KEY, code_of, unless_there
from fencing.naming import plain_text
from fencing.tables import sql_name

if TYPE_CHECKING:
    from fencing.leases import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An effect that is to happen once.

    Attributes:
        task: the name of the task, part of the key's scope, or "".
        key: the key.
        digest: of the arguments, or "".
        result: what later callers get, as JSON.
    """

    task: str
    key: str
    digest: str
    result: str = "null"


def row_of_operation(connection: BaseDatabaseWrapper, lease: Lease, operation: Operation) -> dict[str, Any]:
    """The values of an operation's row, by the names of their columns."""
    return {
        "namespace": lease.namespace,
        "resource": lease.resource,
        "task": operation.task,
        "key": operation.key,
        "digest": operation.digest,
        "token": connection.ops.adapt_integerfield_value(lease.token, "BigIntegerField"),
        "result": operation.result,
        "applied_at": connection.ops.adapt_datetimefield_value(timezone.now()),
    }


class Recorded(NamedTuple):
    """The digest of an operation's arguments, and its result, unless that was pruned."""

    digest: str
    result: Any
    kept: bool


def take_key(connection: BaseDatabaseWrapper, lease: Lease, operation: Operation) -> bool:
    """Insert the key with its result into the open transaction; False if a concurrent duplicate was first.

    Raises:
        TypeError: the database's JSON cannot hold the result: PostgreSQL's knows neither NUL nor half a surrogate pair.
    """
    row = row_of_operation(connection, lease, operation)
    columns = ", ".join(map(connection.ops.quote_name, row))
    # MariaDB counts a row that was there already like one that was inserted, so there the error tells.
    unless = "" if connection.vendor == "mysql" else unless_there(connection, "key")
    marks = ", ".join(["%s"] * len(row))
    with connection.cursor() as cursor, as_type_error(operation.result):
        try:
            cursor.execute(
                f"INSERT INTO {sql_name('Operation')} ({columns}) VALUES ({marks}) {unless}", [*row.values()]
            )
        except IntegrityError as error:
            if connection.vendor != "mysql" or code_of(error) != DUPLICATE_KEY:
                raise
            return False
        return bool(cursor.rowcount == 1)


@contextmanager
def as_type_error(result: str) -> Iterator[None]:
    """Raise a TypeError where the database cannot hold the result."""
    try:
        yield
    except (DataError, IntegrityError) as error:
        if isinstance(error, IntegrityError) and code_of(error) != CHECK_VIOLATION:
            raise
        raise TypeError(f"The database cannot hold the result {result[:200]}: {error}.") from error


def recorded(connection: BaseDatabaseWrapper, lease: Lease, *, task: str, key: str) -> Recorded | None:
    """What is recorded under a key, or None."""
    text = "CAST(result AS char)" if connection.vendor == "mysql" else "CAST(result AS text)"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT digest, {text} FROM {sql_name('Operation')} "
            f"WHERE namespace = %s AND resource = %s AND task = %s AND {connection.ops.quote_name('key')} = %s",
            [lease.namespace, lease.resource, task, key],
        )
        row = cursor.fetchone()
    return None if row is None else recorded_as(*row)


def recorded_as(digest: str, result: str | None) -> Recorded:
    """What a row of the table says: SQL's NULL stands for a result that was pruned, JSON's null for None."""
    return Recorded(digest, None if result is None else json.loads(result), kept=result is not None)


def check_operation(operation: object) -> str:
    """``operation``, if it can be a key; TypeError or ValueError otherwise."""
    if not isinstance(operation, str):
        raise TypeError(f"An operation's key is a string, not {operation!r}.")
    if not operation or len(operation) > MAX_OPERATION_LENGTH or "\0" in operation:
        raise ValueError(
            f"An operation's key has 1 to {MAX_OPERATION_LENGTH} characters and no NUL; "
            f"{operation[:40]!r} has {len(operation)}."
        )
    return plain_text(operation)


def as_json(result: Any) -> str:
    """``result`` as JSON text; TypeError if JSON cannot hold it."""
    try:
        return json.dumps(result, allow_nan=False)
    except ValueError as error:
        raise TypeError(f"JSON cannot hold the result {result!r}: {error}.") from error
