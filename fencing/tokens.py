"""Ranges and reigns: the database owns the numbers, the lease stores hand them out.

A store counts inside ranges that are reserved here, so that one which forgot (restart, flush, failover, eviction)
goes on above everything ever issued. One row per namespace holds the highest number reserved; every reservation
raises it by one statement that commits by itself, before a number of the range can be issued.
"""

from __future__ import annotations

import logging
import secrets
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar, overload

from django.core.signals import setting_changed
from django.db import Error as DatabaseProblem
from django.db.backends.base.base import BaseDatabaseWrapper
from django.dispatch import receiver
from django.utils import timezone

from fencing.backends.base import Granted, Held, HolderInfo, LeaseBackend, Lost, NeedsRange, Place
from fencing.conf import MAX_TOKEN, BackendConfig
from fencing.connections import autocommit
from fencing.exceptions import InvalidTokenError, LeaseBackendError, TokensExhaustedError
from fencing.tables import quoted

logger = logging.getLogger("fencing")

# A number that is higher than what was reserved by more than this was not issued but invented.
MAX_RAISE = 2**40
# Each round that fails means that another client reserved, or a new reign began, in the same moment.
ROUNDS = 20

Result = TypeVar("Result")


class Namespace(NamedTuple):
    """What the row of a namespace says, as far as it never changes."""

    space: str
    partitions: int


class _MovedError(LeaseBackendError):
    """The namespace's row has another random id than this process knew: what it asked for is to be asked again."""


_namespaces: dict[tuple[str, str], Namespace] = {}


def check_token(value: object) -> int:
    """``value``, if it is a token: an integer from 1 to 2**53 - 1.

    Raises:
        InvalidTokenError: for anything else, also for True, "5" and 5.0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKEN:
        raise InvalidTokenError(value)
    return value


def place_of(backend: LeaseBackend, resource: str) -> Place:
    """Where ``resource`` lives in the store. Reads, or creates, the namespace's row once per process.

    Raises:
        LeaseBackendError: the database cannot be used, or the namespace has another number of partitions.
    """
    config = backend.config
    namespace = _namespace(config)
    if namespace.partitions != config.partitions:
        detail = (
            f"PARTITIONS is {config.partitions}, but namespace {config.namespace!r} has {namespace.partitions}: with "
            "another number a resource would move to another counter and have two holders. Set it back."
        )
        raise LeaseBackendError(config.alias, detail)
    partition = zlib.crc32(resource.encode()) % namespace.partitions
    return Place(space=namespace.space, partition=partition, resource=resource)


def acquire(
    backend: LeaseBackend, resource: str, holder: str, ttl: float, info: HolderInfo
) -> tuple[Place, Granted | Held]:
    """Ask for the lease once, for ``ttl`` seconds, and reserve a range where the store needs one.

    Raises:
        LeaseBackendError: the store or the database did not answer as it should.
        TokensExhaustedError: no number is left.
    """

    def at(place: Place) -> Granted | Held:
        return with_range(backend, place, partial(backend.acquire, place, holder, ttl, info))

    return _at_its_place(backend, resource, at)


def advance(backend: LeaseBackend, place: Place, holder: str) -> Granted | Lost:
    """The next number for a live lease, or lost. Raises as ``acquire`` does."""
    try:
        return with_range(backend, place, partial(backend.advance, place, holder))
    except _MovedError:
        # The lease is under keys where nobody looks any more.
        return Lost()


def draw(backend: LeaseBackend, resource: str) -> int:
    """The next number of the resource's counter, for nobody; from the database when the store does not answer.

    Raises:
        LeaseBackendError: the database cannot be used.
        TokensExhaustedError: no number is left.
    """

    def at(place: Place) -> Granted:
        return with_range(backend, place, partial(backend.draw, place))

    try:
        return _at_its_place(backend, resource, at)[1].token
    except LeaseBackendError as error:
        reserved = _at_its_place(backend, resource, lambda place: _reserve(backend.config, place, 1))[1]
        logger.warning("Token %d comes from the database: %s", reserved[0], error)
        return reserved[0]


def raise_above(backend: LeaseBackend, place: Place, seen: int) -> None:
    """Let the next number at ``place`` be above ``seen``, which a row holds though it was never issued here.

    Raises:
        InvalidTokenError: ``seen`` is no token, or so far above everything reserved that it was invented; then
            nothing is raised.
        LeaseBackendError: the store or the database did not answer as it should.
        TokensExhaustedError: no number is left.
    """
    check_token(seen)
    try:
        _raise_above(backend, place, seen)
    except _MovedError:
        _raise_above(backend, place_of(backend, place.resource), seen)


@overload
def with_range(backend: LeaseBackend, place: Place, ask: Callable[[], Granted | NeedsRange]) -> Granted: ...
@overload
def with_range(  # type: ignore[overload-overlap]  # they overlap only where the store grants
    backend: LeaseBackend, place: Place, ask: Callable[[], Granted | Held | NeedsRange]
) -> Granted | Held: ...
@overload
def with_range(
    backend: LeaseBackend, place: Place, ask: Callable[[], Granted | Lost | NeedsRange]
) -> Granted | Lost: ...
def with_range(
    backend: LeaseBackend, place: Place, ask: Callable[[], Granted | Held | Lost | NeedsRange]
) -> Granted | Held | Lost:
    """The store's answer to ``ask``, with a range reserved and installed whenever it needs one.

    Raises:
        LeaseBackendError: the store or the database did not answer as it should, or never kept a range.
        TokensExhaustedError: no number is left.
    """
    for _ in range(ROUNDS):
        answer = ask()
        if not isinstance(answer, NeedsRange):
            return answer
        numbers = _reserve(backend.config, place, backend.config.block, issued=answer.next - 1, reign=answer)
        backend.install(place, answer.reign, numbers[0], numbers[-1])
    raise _no_range_kept(backend)


def _raise_above(backend: LeaseBackend, place: Place, seen: int) -> None:
    config = backend.config
    for _ in range(ROUNDS):
        answer = backend.draw(place)
        if isinstance(answer, NeedsRange):
            numbers = _reserve(config, place, config.block, issued=answer.next - 1, seen=seen, reign=answer)
        elif answer.token > seen:
            return
        else:
            numbers = _reserve(config, place, config.block, issued=answer.token, seen=seen)
        if backend.install(place, answer.reign, numbers[0], numbers[-1]):
            return
    raise _no_range_kept(backend)


def _no_range_kept(backend: LeaseBackend) -> LeaseBackendError:
    detail = f"the store asked for a range of tokens {ROUNDS} times and kept none; does it forget, or change servers?"
    return LeaseBackendError(backend.config.alias, detail)


def _at_its_place(backend: LeaseBackend, resource: str, work: Callable[[Place], Result]) -> tuple[Place, Result]:
    place = place_of(backend, resource)
    try:
        return place, work(place)
    except _MovedError:
        place = place_of(backend, resource)
        return place, work(place)


def _namespace(config: BackendConfig) -> Namespace:
    key = (config.database, config.namespace)
    known = _namespaces.get(key)
    if known is None:
        with _database(config) as connection, connection.cursor() as cursor:
            row = _row(cursor, config)
            if row is None:
                _insert_row(cursor, config, secrets.token_hex(8))
                row = _row(cursor, config)
        if row is None:
            raise LeaseBackendError(config.alias, f"the row of namespace {config.namespace!r} vanishes at once.")
        known = _namespaces[key] = Namespace(row[0], row[1])
    return known


@receiver(setting_changed)
def _forget_namespaces(*, setting: str, **_kwargs: Any) -> None:
    if setting in ("FENCING", "DATABASES"):
        _namespaces.clear()


def _reserve(
    config: BackendConfig, place: Place, size: int, *, issued: int = 0, seen: int = 0, reign: NeedsRange | None = None
) -> range:
    """``size`` numbers (near the end: one) above the ceiling, above ``issued`` and above ``seen``; logs the reign."""
    with _database(config) as connection:
        for _ in range(ROUNDS):
            with connection.cursor() as cursor:
                ceiling = _raise_ceiling(connection, cursor, config, place.space, size, issued, seen)
                if ceiling is None:
                    size = _why_not(cursor, config, place.space, size, issued, seen)
                    continue
                numbers = range(ceiling - size + 1, ceiling + 1)
                if reign is not None:
                    _log_reign(connection, cursor, config, place, reign, numbers[0])
                return numbers
    raise LeaseBackendError(config.alias, f"the row of namespace {config.namespace!r} vanishes again and again.")


def _raise_ceiling(
    connection: BaseDatabaseWrapper, cursor: Any, config: BackendConfig, space: str, size: int, issued: int, seen: int
) -> int | None:
    """Raise the ceiling by ``size`` above everything and return it; None if the row does not allow it."""
    durable, source, larger = "", "", "MAX"
    if connection.vendor == "postgresql":
        # A reservation that a crash of the database forgets would be made twice.
        durable = (
            "WITH durable AS MATERIALIZED (SELECT set_config('synchronous_commit', CASE current_setting("
            "'synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)) "
        )
        source, larger = " FROM durable", "GREATEST"
    floor = max(issued, seen)
    used = f"{larger}(kept.ceiling, CAST(%s AS bigint))"
    cursor.execute(
        f"{durable}UPDATE {quoted('TokenRange')} AS kept SET ceiling = {used} + %s{source} "  # noqa: S608
        f"WHERE kept.namespace = %s AND kept.space = %s AND {used} <= %s AND {used} >= %s RETURNING ceiling",
        [floor, size, config.namespace, space, floor, MAX_TOKEN - size, issued, seen - MAX_RAISE],
    )
    row = cursor.fetchone()
    return None if row is None else int(row[0])


def _why_not(cursor: Any, config: BackendConfig, space: str, size: int, issued: int, seen: int) -> int:
    """The size with which to try again, or the error that says why nothing was reserved."""
    row = _row(cursor, config)
    if row is None:
        # A test was rolled back, or its database flushed: the store still counts under the id that is known here.
        _insert_row(cursor, config, space)
        return size
    if row[0] != space:
        _namespaces.pop((config.database, config.namespace), None)
        raise _MovedError(config.alias, f"namespace {config.namespace!r} was created anew.")
    reserved = max(int(row[2]), issued)
    if seen > reserved + MAX_RAISE:
        detail = f"{reserved} is the highest that namespace {config.namespace!r} has reserved; it was not issued"
        raise InvalidTokenError(seen, detail)
    if max(reserved, seen) >= MAX_TOKEN:
        raise TokensExhaustedError(config.namespace, reserved)
    return size if max(reserved, seen) <= MAX_TOKEN - size else 1


def _row(cursor: Any, config: BackendConfig) -> tuple[str, int, int] | None:
    cursor.execute(
        f"SELECT space, partitions, ceiling FROM {quoted('TokenRange')} WHERE namespace = %s",  # noqa: S608
        [config.namespace],
    )
    found: tuple[str, int, int] | None = cursor.fetchone()
    return found


def _insert_row(cursor: Any, config: BackendConfig, space: str) -> None:
    cursor.execute(
        f"INSERT INTO {quoted('TokenRange')} (namespace, space, partitions, ceiling) "  # noqa: S608
        "VALUES (%s, %s, %s, 0) ON CONFLICT DO NOTHING",
        [config.namespace, space, config.partitions],
    )


def _log_reign(
    connection: BaseDatabaseWrapper, cursor: Any, config: BackendConfig, place: Place, needs: NeedsRange, first: int
) -> None:
    now = connection.ops.adapt_datetimefield_value(timezone.now())
    cursor.execute(
        f'INSERT INTO {quoted("Reign")} (namespace, "partition", reign, server, first_token, opened_at) '  # noqa: S608
        "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        [config.namespace, place.partition, needs.reign, needs.server, first, now],
    )


@contextmanager
def _database(config: BackendConfig) -> Iterator[BaseDatabaseWrapper]:
    """A connection to the database that owns the numbers, on which each statement commits by itself."""
    try:
        with autocommit(config.database) as connection:
            if connection.vendor not in ("postgresql", "sqlite"):
                detail = (
                    f"database {config.database!r} is {connection.vendor}; numbers are kept in PostgreSQL or SQLite."
                )
                raise LeaseBackendError(config.alias, detail)
            yield connection
    except DatabaseProblem as error:
        detail = f"database {config.database!r}, which owns the numbers, refused: {type(error).__name__}: {error}"
        raise LeaseBackendError(config.alias, detail) from error
