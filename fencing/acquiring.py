"""Asking a store for a lease, in its queue if need be, and leaving nothing behind however that ends."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from time import monotonic

from fencing import tokens
from fencing.backends import get_backend
from fencing.backends.base import Granted, Held, LeaseBackend, Place
from fencing.exceptions import FencingError, LeaseHeldError
from fencing.leases import Lease
from fencing.scope import holder_info

logger = logging.getLogger("fencing")

# Seconds after which a wait in a thread looks whether anybody still wants it.
LOOK_UP = 1.0


def acquire(
    name: str,
    *,
    ttl: float,
    give_up: float | None,
    using: str,
    allow_in_transaction: bool,
    abandoned: Callable[[], bool] | None = None,
) -> Lease:
    """Ask for a lease until it is granted or ``give_up`` (monotonic seconds; None: never) has passed.

    Args:
        abandoned: says, while this waits in a thread, whether the one that it waits for has gone away.

    Raises:
        LeaseHeldError: somebody else holds it.
        LeaseBackendError: the store did not answer.
    """
    backend = get_backend(using)
    holder = os.urandom(16).hex()
    try:
        asked = monotonic()
        place, answer = tokens.acquire(backend, name, holder, ttl, holder_info.get())
        if isinstance(answer, Held):
            if give_up is not None and give_up <= monotonic():
                raise _held_error(name, answer)
            place, answer, asked = _wait(backend, name, holder, ttl, give_up, abandoned)
        return Lease(backend, place, holder, answer, ttl=ttl, asked=asked, allow_in_transaction=allow_in_transaction)
    except LeaseHeldError:
        raise
    except BaseException:
        _give_back(backend, name, holder)
        raise


def _wait(
    backend: LeaseBackend,
    name: str,
    holder: str,
    ttl: float,
    give_up: float | None,
    abandoned: Callable[[], bool] | None,
) -> tuple[Place, Granted, float]:
    """The grant that a wait ends with, and a moment since which it may count: never later than the store's."""
    with backend.waiter(holder, ttl, holder_info.get()) as waiter:
        try:
            while True:
                asked = monotonic()
                place, answer = tokens.ask(backend, name, waiter.ask)
                if isinstance(answer, Granted):
                    # Handed over some time ago, if the store says how long it lives.
                    return place, answer, asked if answer.remaining is None else asked + answer.remaining - ttl
                patience = math.inf if give_up is None else give_up - monotonic()
                if patience <= 0 or (abandoned is not None and abandoned()):
                    raise _held_error(name, answer)
                granted = waiter.sleep(answer, patience if abandoned is None else min(patience, LOOK_UP))
                # It began after the last question. Where that is long ago, the next one tells how much is left.
                if granted is not None and monotonic() - asked < ttl / 3:
                    return place, granted, asked
        except BaseException:
            _give_back(backend, name, holder)
            raise


def _held_error(name: str, held: Held) -> LeaseHeldError:
    return LeaseHeldError(name, held.holder, held.remaining, held.task_id)


def _give_back(backend: LeaseBackend, name: str, holder: str) -> None:
    """The store may have granted what we did not hear of, or queue us; leave nothing behind, and mask nothing."""
    try:
        backend.give_up(tokens.place_of(backend, name), holder)
    except FencingError:
        logger.debug("The lease of %r could not be given back; it ends by itself", name, exc_info=True)
