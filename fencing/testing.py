"""Helpers for your own tests: leases in memory, a clock that is moved by hand, holders who were overtaken, the history.

They work in ``TestCase`` and ``TransactionTestCase``, with pytest-django, and with xdist. As pytest fixtures they are
in ``pytest_fencing``, which pytest finds by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from django.test.utils import override_settings

from fencing import history, signals
from fencing.backends import get_backend
from fencing.conf import DEFAULT_ALIAS, setting
from fencing.entering import name_of
from fencing.leases import Lease
from fencing.leasing import lease
from fencing.models import FencedWrite, TokenGrant
from fencing.tokens import place_of

__all__ = [
    "HandClock",
    "assert_nothing_refused",
    "assert_outcomes",
    "grants",
    "leases_in_memory",
    "outcomes",
    "pause_after_acquire",
    "stale_holder",
]

MEMORY = "fencing.backends.memory.MemoryBackend"
NOT_REFUSED = ("accepted", "unfenced")


class HandClock:
    """Seconds that pass only when told so: the clock of a lease store in memory."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass at the store. Holders hear nothing of it, like a process that slept."""
        self.now += seconds


@contextmanager
def leases_in_memory() -> Iterator[HandClock]:
    """Keep the leases of every alias in this process's memory, by a clock that is moved by hand, and record every write.

    Yields:
        The clock. A holder whose lease has ended by it does not know, and the next one is granted it at once.
    """
    clock = HandClock()
    own = {"BACKEND": MEMORY, "OPTIONS": {"CLOCK": clock}}
    backends = {alias: {**entry, **own} for alias, entry in setting().get("BACKENDS", {}).items()}
    with override_settings(FENCING={**setting(), "BACKENDS": backends or {DEFAULT_ALIAS: own}, "RECORD": "all"}):
        yield clock


@contextmanager
def stale_holder(
    resource: Any,
    *,
    newer: Callable[[], Any] | None = None,
    using: str = DEFAULT_ALIAS,
    database: str | None = None,
) -> Iterator[Lease]:
    """Hold a lease in this context that ended unnoticed, and after which a newer holder has been there.

    The database refuses what is written in the block to rows of the resource. Works with every lease store.

    Args:
        resource: a name, or an instance of a fenced model.
        newer: what the newer holder does, inside its ``lease.atomic()``; default: nothing but to begin.
        using: alias of the lease backend.
        database: alias of the rows' database; default: the one that owns the numbers.
    """
    with lease(resource, renew=False, using=using) as held:
        _overtake(held, newer, database)
        yield held


@contextmanager
def pause_after_acquire(
    resource: Any,
    *,
    newer: Callable[[], Any] | None = None,
    using: str = DEFAULT_ALIAS,
    database: str | None = None,
) -> Iterator[None]:
    """Let whoever is granted the resource first in the block sleep right after that, until a newer holder has been there.

    The sleeper's writes are refused: with ``StaleWriteError``, or with ``LeaseLostError`` if it reads the row only after
    that. A ``fenced_task`` runs its body again under a new lease, which is not paused. Arguments as in ``stale_holder``.

    Raises (on exit):
        AssertionError: nobody took a lease of the resource in the block.
        Exception: whatever ``newer`` raised.
    """
    get_backend(using)  # of a misspelt alias nobody would take a lease
    name, failures, overtaken = name_of(resource, using), list[BaseException](), list[Lease]()

    def sleep(*, lease: Lease, **_named: Any) -> None:
        if lease.resource == name and lease.using == using and not overtaken:
            overtaken.append(lease)
            try:
                _overtake(lease, newer, database)
            except BaseException as error:
                failures.append(error)
                raise

    signals.lease_granted.connect(sleep, weak=False)
    try:
        yield
    finally:
        signals.lease_granted.disconnect(sleep)
        if failures:
            raise failures[0]
    if not overtaken:
        raise AssertionError(f"Nobody took a lease of {name!r}, so nobody was paused after it.")


def outcomes(resource: Any = None, *, using: str = DEFAULT_ALIAS, database: str | None = None) -> list[str]:
    """The outcomes on record for a resource, or for all of them, the oldest first: "accepted", "stale", …

    Args:
        resource: a name, or an instance of a fenced model.
        using: alias of the lease backend.
        database: alias of the rows' database; default: where ``FencedWrite`` is read.
    """
    return [one.outcome for one in _attempts(resource, using, database)]


def assert_outcomes(resource: Any, *expected: str, using: str = DEFAULT_ALIAS, database: str | None = None) -> None:
    """Assert that these, in this order, are the outcomes of all attempts to write to a resource.

    Raises:
        ValueError: one of them is no outcome.
    """
    for one in expected:
        if one not in FencedWrite.Outcome.values:
            known = ", ".join(FencedWrite.Outcome.values)
            raise ValueError(f"There is no outcome {one!r}; they are strings, one argument each: {known}.")
    found = _attempts(resource, using, database)
    if [one.outcome for one in found] != list(expected):
        raise AssertionError(f"Expected {', '.join(expected) or 'no attempt'}; on record: {_told(found)}.")


def assert_nothing_refused(resource: Any = None, *, using: str = DEFAULT_ALIAS, database: str | None = None) -> None:
    """Assert that no attempt to write to a resource, or to any, was refused."""
    found = [one for one in _attempts(resource, using, database) if one.outcome not in NOT_REFUSED]
    if found:
        raise AssertionError(f"Refused: {_told(found)}.")


def grants(resource: Any, *, using: str = DEFAULT_ALIAS) -> list[TokenGrant]:
    """The grants of a resource, the oldest first, collected from the store now."""
    history.collect(using)
    config = get_backend(using).config
    found = TokenGrant._base_manager.using(config.database).filter(namespace=config.namespace)
    return list(found.filter(resource=name_of(resource, using)).order_by("token"))


def _overtake(held: Lease, newer: Callable[[], Any] | None, database: str | None) -> None:
    """End a lease at the store, without a word to its holder, and let another context be the next holder."""
    backend = get_backend(held.using)
    backend.revoke(place_of(backend, held.resource), held.token)
    Context().run(_be_newer, held, newer, database)


def _be_newer(older: Lease, work: Callable[[], Any] | None, database: str | None) -> None:
    allowed = older.allow_in_transaction
    with lease(older.resource, using=older.using, allow_in_transaction=allowed) as held, held.atomic(using=database):
        if work is not None:
            work()


def _attempts(resource: Any, using: str, database: str | None) -> list[FencedWrite]:
    history.write_all_waiting()
    found = FencedWrite._base_manager.order_by("id")
    found = found if database is None else found.using(database)
    namespace = get_backend(using).config.namespace
    if resource is None:
        return list(found)
    return list(found.filter(namespace=namespace, resource=name_of(resource, using)))


def _told(found: list[FencedWrite]) -> str:
    return (
        ", ".join(f"{one.resource} {one.action} under token {one.token}: {one.outcome}" for one in found) or "nothing"
    )
