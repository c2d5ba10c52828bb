"""Tokens: the database owns the numbers, the lease stores hand them out.

A store counts inside ranges that are reserved in the database (``fencing.ranges``), so that one which forgot
(restart, flush, failover, eviction) goes on above everything ever issued. The functions here ask a store, and get it
a range when it has none.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import TypeVar, overload

from fencing.backends.base import Granted, Held, HolderInfo, LeaseBackend, Lost, NeedsRange, Place
from fencing.conf import MAX_TOKEN
from fencing.exceptions import InvalidTokenError, LeaseBackendError
from fencing.ranges import MovedError, namespace_of, reserve

logger = logging.getLogger("fencing")

# Each round that fails means that another client reserved, or a new reign began, in the same moment.
ROUNDS = 20

Result = TypeVar("Result")


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
    namespace = namespace_of(config)
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
    """Ask for the lease once, for ``ttl`` seconds, and reserve a range where the store needs one. Raises as ``ask``."""
    return ask(backend, resource, lambda place: backend.acquire(place, holder, ttl, info))


def ask(
    backend: LeaseBackend, resource: str, request: Callable[[Place], Granted | Held | NeedsRange]
) -> tuple[Place, Granted | Held]:
    """Send ``request`` for a lease, with a range reserved where the store needs one.

    Raises:
        LeaseBackendError: the store or the database did not answer as it should.
        TokensExhaustedError: no number is left.
    """
    return _at_its_place(backend, resource, lambda place: with_range(backend, place, request))


def advance(backend: LeaseBackend, place: Place, holder: str) -> Granted | Lost:
    """The next number for a live lease, or lost. Raises as ``acquire`` does."""
    try:
        return with_range(backend, place, lambda place: backend.advance(place, holder))
    except MovedError:
        # The lease is under keys where nobody looks any more.
        return Lost()


def draw(backend: LeaseBackend, resource: str) -> int:
    """The next number of the resource's counter, for nobody; from the database when the store does not answer.

    Raises:
        LeaseBackendError: the database cannot be used.
        TokensExhaustedError: no number is left.
    """

    try:
        return draw_from_store(backend, resource)[1]
    except LeaseBackendError as error:
        reserved = _at_its_place(backend, resource, lambda place: reserve(backend.config, place, 1))[1]
        logger.warning("Token %d comes from the database: %s", reserved[0], error)
        return reserved[0]


def draw_above(backend: LeaseBackend, resource: str, seen: int) -> int:
    """As ``draw``, and above ``seen``, which a row holds: another counter, or none, may have issued that.

    Raises:
        InvalidTokenError: ``seen`` is so far above everything reserved that it was invented.
        LeaseBackendError, TokensExhaustedError: as ``draw``.
    """
    number = draw(backend, resource)
    if number > seen:
        return number
    return _at_its_place(backend, resource, lambda place: reserve(backend.config, place, 1, seen=seen))[1][0]


def draw_from_store(backend: LeaseBackend, resource: str) -> tuple[Place, int]:
    """The next number of the resource's counter, and where that is: every later grant there has a higher one.

    Raises:
        LeaseBackendError: the store or the database did not answer as it should.
        TokensExhaustedError: no number is left.
    """
    place, granted = _at_its_place(backend, resource, lambda place: with_range(backend, place, backend.draw))
    return place, granted.token


def open_reign(backend: LeaseBackend, place: Place) -> int:
    """Close the reign at ``place`` and begin one above everything that is reserved in the database by now.

    Only who hears of the new reign can get it a range, so every range that it has was reserved after this began.

    Returns:
        The new reign's first number, which is nobody's; every later one at ``place`` is higher.

    Raises:
        LeaseBackendError: the store or the database did not answer as it should.
        TokensExhaustedError: no number is left.
    """
    backend.close_reign(place)
    return with_range(backend, place, backend.draw).token


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
    except MovedError:
        _raise_above(backend, place_of(backend, place.resource), seen)


@overload
def with_range(backend: LeaseBackend, place: Place, ask: Callable[[Place], Granted | NeedsRange]) -> Granted: ...
@overload
def with_range(  # type: ignore[overload-overlap]  # they overlap only where the store grants
    backend: LeaseBackend, place: Place, ask: Callable[[Place], Granted | Held | NeedsRange]
) -> Granted | Held: ...
@overload
def with_range(
    backend: LeaseBackend, place: Place, ask: Callable[[Place], Granted | Lost | NeedsRange]
) -> Granted | Lost: ...
def with_range(
    backend: LeaseBackend, place: Place, ask: Callable[[Place], Granted | Held | Lost | NeedsRange]
) -> Granted | Held | Lost:
    """The store's answer to ``ask``, with a range reserved and installed whenever it needs one.

    Raises:
        LeaseBackendError: the store or the database did not answer as it should, or never kept a range.
        TokensExhaustedError: no number is left.
    """
    for _ in range(ROUNDS):
        answer = ask(place)
        if not isinstance(answer, NeedsRange):
            return answer
        numbers = reserve(backend.config, place, backend.config.block, issued=answer.next - 1, reign=answer)
        backend.install(place, answer.reign, numbers[0], numbers[-1])
    raise _no_range_kept(backend)


def _raise_above(backend: LeaseBackend, place: Place, seen: int) -> None:
    config = backend.config
    for _ in range(ROUNDS):
        answer = backend.draw(place)
        if isinstance(answer, NeedsRange):
            numbers = reserve(config, place, config.block, issued=answer.next - 1, seen=seen, reign=answer)
        elif answer.token > seen:
            return
        else:
            numbers = reserve(config, place, config.block, issued=answer.token, seen=seen)
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
    except MovedError:
        place = place_of(backend, resource)
        return place, work(place)
