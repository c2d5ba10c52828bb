"""Leases: taking one, asking about it, giving it back, and knowing which ones this context holds."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import uuid4

from django.utils import timezone

from fencing import conf, history, signals, tokens
from fencing.backends import get_backend
from fencing.backends.base import Granted, HolderInfo, LeaseBackend, Lost, Place
from fencing.connections import open_transactions
from fencing.exceptions import (
    FencingError,
    LeaseBackendError,
    LeaseHeldError,
    LeaseInsideTransactionError,
    LeaseLostError,
    LeaseRequiredError,
    ResourceMismatchError,
    WriteRejectedError,
)
from fencing.heartbeat import beats
from fencing.naming import check_resource, resource_of_call
from fencing.transactions import FencedTransaction

if TYPE_CHECKING:
    from fencing.models import FencedModel

logger = logging.getLogger("fencing")

POLL = 0.05
P = ParamSpec("P")
R = TypeVar("R")
Resource = "str | FencedModel"

_held: ContextVar[tuple[Lease, ...]] = ContextVar("fencing_held", default=())
holder_info: ContextVar[HolderInfo] = ContextVar("fencing_holder_info", default=HolderInfo())


class Lease:
    """A lease that this process was granted. Made by :func:`lease` only.

    Attributes:
        resource: the name of what is protected.
        token: the grant's number; it never changes.
        newest_token: the highest number issued under this grant: ``token``, or what :meth:`advance` gave last.
        holder: this grant's own id.
        ttl: seconds that the lease lives without renewal.
        granted_at: when it was granted, by this process's clock.
        using: alias of the lease backend.
        namespace: the namespace of the numbers.
    """

    def __init__(
        self, backend: LeaseBackend, place: Place, holder: str, granted: Granted, *, ttl: float, asked: float,
        allow_in_transaction: bool,
    ) -> None:
        self.resource = place.resource
        self.token = granted.token
        self.newest_token = granted.token
        self.holder = holder
        self.ttl = ttl
        self.granted_at: datetime = timezone.now()
        self.using = backend.config.alias
        self.namespace = backend.config.namespace
        self.allow_in_transaction = allow_in_transaction
        self.accepted = 0
        self.refused: dict[object, WriteRejectedError] = {}
        self._backend = backend
        self._place = place
        self._pid = os.getpid()
        self._deadline = asked + ttl
        self._lost = ""
        self._released = False
        self._issued = {granted.token}
        self._used = False
        self._numbers = Lock()

    def __repr__(self) -> str:
        return f"<Lease of {self.resource!r}, token {self.token}>"

    def remaining(self) -> float:
        """Seconds until the lease ends by itself, as this process knows; 0.0 when it is not held."""
        return max(0.0, self._deadline - monotonic()) if self.is_mine() and not self._lost else 0.0

    def is_held(self) -> bool:
        """Whether this process has reason to believe that it holds the lease. The database does not ask."""
        return self.remaining() > 0.0

    def is_mine(self) -> bool:
        """Whether this process took the lease and has not released it: a forked child holds nothing."""
        return not self._released and self._pid == os.getpid()

    def ensure_held(self) -> None:
        """Raise :exc:`LeaseLostError` unless :meth:`is_held`."""
        if not self.is_held():
            raise self._lost_error()

    def ensure_mine(self) -> None:
        """Raise :exc:`LeaseLostError` if this process released the lease, or never took it."""
        if not self.is_mine():
            raise self._lost_error()

    def renew(self) -> None:
        """Set the remaining time back to ``ttl``, now.

        Raises:
            LeaseLostError: the lease is not this holder's any more.
            LeaseBackendError: the store did not answer.
        """
        self.ensure_mine()
        if self._lost or not self._ask_to_renew():
            self._lose("the store refused to renew it")
            raise self._lost_error()

    def advance(self) -> int:
        """Take the next number under this lease, and return it.

        Raises:
            LeaseLostError: the lease is not this holder's any more.
            LeaseBackendError: the store did not answer.
        """
        self.ensure_mine()
        with self._numbers:
            answer = Lost() if self._lost else tokens.advance(self._backend, self._place, self.holder)
            if isinstance(answer, Granted):
                self.newest_token = answer.token
                self._issued.add(answer.token)
                self._used = False
                return answer.token
        self._lose("the store gives it no further number")
        raise self._lost_error()

    def release(self) -> None:
        """Give the lease back; nothing happens if that was done, or if it is lost by now."""
        if not self.is_mine():
            return
        beats.remove(self)
        self._released = True
        try:
            was_held = self._backend.release(self._place, self.holder, self.token)
        except LeaseBackendError:
            logger.warning("The lease of %r could not be released; it ends within %.3f s", self.resource, self.ttl, exc_info=True)
            return
        if not was_held:
            self._lose("it had ended before its release")
        history.collect_soon(self.using)

    def atomic(self, operation: str | None = None, using: str | None = None) -> FencedTransaction:
        """A transaction that takes effect only if no newer holder has begun or written (design §4.5).

        Args:
            operation: a key under which the transaction takes effect at most once for this resource.
            using: alias of the database; Django's default otherwise.

        Raises (on entry):
            StaleWriteError: a newer holder came first.
            AlreadyAppliedError: the operation took effect before.
            LeaseInsideTransactionError: a transaction is open and the lease does not allow that.
        """
        return FencedTransaction(self, operation=operation, using=using)

    def once(self, operation: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` at most once under ``operation``; every caller gets the recorded result, as JSON gives it."""
        return self.atomic(operation=operation).call(function, *args, **kwargs)

    def number_above(self, floor: int) -> int:
        """The number for a write onto a row that carries ``floor``: the newest one, or the next if that is not above."""
        number = self.newest_token if self.newest_token > floor else self.advance()
        self._used = True
        return number

    def unused_number(self) -> int:
        """A number that no write has carried yet."""
        number = self.advance() if self._used else self.newest_token
        self._used = True
        return number

    def issued(self, number: int) -> bool:
        """Whether ``number`` was issued under this very grant."""
        return number in self._issued

    def catch_up(self, seen: int) -> None:
        """After a refusal by ``seen``: if the store still says that the lease is ours, its numbers are behind; raise them."""
        try:
            if self.advance() <= seen:
                tokens.raise_above(self._backend, self._place, seen)
        except (LeaseLostError, LeaseBackendError):
            logger.debug("The lease of %r is not ours any more; its numbers stay", self.resource)

    def start_renewing(self) -> None:
        """Hand the lease to the heartbeat."""
        beats.add(self, self._beat, self.ttl / 3)

    def _beat(self) -> float | None:
        """Renew once; seconds until the next time, None when there is nothing left to renew."""
        if not self.is_mine() or self._lost:
            return None
        try:
            if self.remaining() > 0 and self._ask_to_renew():
                return self.ttl / 3
        except LeaseBackendError:
            if self.remaining() > 0:
                logger.warning("The lease of %r could not be renewed; trying again", self.resource, exc_info=True)
                return min(self.ttl / 10, 1.0)
        self._lose("it was not renewed in time")
        return None

    def _ask_to_renew(self) -> bool:
        asked = monotonic()
        if not self._backend.renew(self._place, self.holder, self.ttl):
            return False
        self._deadline = asked + self.ttl
        return True

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = reason
            logger.warning("The lease of %r with token %d is lost: %s", self.resource, self.token, reason)
            signals.announce(signals.lease_lost, Lease, lease=self, reason=reason)

    def _lost_error(self) -> LeaseLostError:
        if self._pid != os.getpid():
            return LeaseLostError(self.resource, self.token, "it belongs to another process; a forked child holds nothing")
        if self._released:
            return LeaseLostError(self.resource, self.token, "this process has released it")
        return LeaseLostError(self.resource, self.token, self._lost or "its time is over")


def held_leases() -> tuple[Lease, ...]:
    """The leases that this context holds, the innermost last; those of a parent process are none of them."""
    return tuple(lease for lease in _held.get() if lease.is_mine())


def current_lease(resource: str | None = None) -> Lease | None:
    """The innermost lease of this context, or the one of ``resource``; None if there is none."""
    for held in reversed(held_leases()):
        if resource is None or held.resource == resource:
            return held
    return None


def find_lease(resource: str, using: str) -> Lease | None:
    """The lease of ``resource`` from backend ``using`` that this context holds."""
    for held in reversed(held_leases()):
        if held.resource == resource and held.using == using:
            return held
    return None


def require_lease(resource: str, using: str, what: str) -> Lease:
    """``find_lease``, or LeaseRequiredError naming what is held instead."""
    if (found := find_lease(resource, using)) is None:
        raise LeaseRequiredError(resource, [held.resource for held in held_leases()], what)
    return found


@contextmanager
def holding(lease: Lease) -> Iterator[None]:
    """Count ``lease`` among those that this context holds, as the innermost one."""
    before = _held.set((*_held.get(), lease))
    try:
        yield
    finally:
        _held.reset(before)


class Leasing:
    """What :func:`lease` returns: a context manager and a decorator. Each entry is a grant of its own."""

    def __init__(
        self, resource: Any, *, ttl: float, wait: float | None, renew: bool, using: str, allow_in_transaction: bool
    ) -> None:
        self._resource = resource
        self._ttl = ttl
        self._wait = wait
        self._renew = renew
        self._using = using
        self._allow_in_transaction = allow_in_transaction
        self._entered: list[ExitStack] = []

    def __enter__(self) -> Any:
        many = isinstance(self._resource, (list, tuple))
        names = [name_of(one, self._using) for one in (self._resource if many else [self._resource])]
        if many and not names:
            raise ValueError("lease() was given an empty list; it needs at least one resource.")
        give_up = None if self._wait is None else monotonic() + self._wait
        with ExitStack() as stack:
            taken = {name: self._take(name, give_up, stack) for name in sorted(set(names))}
            self._entered.append(stack.pop_all())
        return tuple(taken[name] for name in names) if many else taken[names[0]]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().close()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def under_lease(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._for_call(function, args, kwargs):
                return function(*args, **kwargs)

        return under_lease

    def _for_call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Leasing:
        """The same with the resource named by the arguments of this call."""

        def named(resource: Any) -> Any:
            is_template = isinstance(resource, str) or callable(resource)
            return resource_of_call(resource, function, args, kwargs) if is_template else resource

        many = isinstance(self._resource, (list, tuple))
        resource = [named(one) for one in self._resource] if many else named(self._resource)
        return Leasing(
            resource, ttl=self._ttl, wait=self._wait, renew=self._renew, using=self._using,
            allow_in_transaction=self._allow_in_transaction,
        )

    def _take(self, name: str, give_up: float | None, stack: ExitStack) -> Lease:
        """The lease of ``name``: the one that this context holds already, or a new grant that ``stack`` ends."""
        if (held := find_lease(name, self._using)) is not None:
            return held
        if not self._allow_in_transaction and (aliases := open_transactions()):
            raise LeaseInsideTransactionError(name, f"a transaction is open on {', '.join(map(repr, aliases))}")
        held = acquire(
            name, ttl=self._ttl, give_up=give_up, using=self._using, allow_in_transaction=self._allow_in_transaction
        )
        stack.callback(_leave, held)
        _held.set((*_held.get(), held))
        if self._renew:
            held.start_renewing()
        history.collect_soon(self._using)
        signals.announce(signals.lease_granted, Lease, lease=held)
        return held


def _leave(lease: Lease) -> None:
    """End a grant: out of the context first, so that nothing is written under a lease that is being released."""
    _held.set(tuple(other for other in _held.get() if other is not lease))
    lease.release()
    history.write_all_waiting()


def acquire(name: str, *, ttl: float, give_up: float | None, using: str, allow_in_transaction: bool) -> Lease:
    """Ask for a lease until it is granted or ``give_up`` (monotonic seconds; None: never) has passed.

    Raises:
        LeaseHeldError: somebody else holds it.
        LeaseBackendError: the store did not answer.
    """
    backend = get_backend(using)
    holder = uuid4().hex
    try:
        while True:
            asked = monotonic()
            place, answer = tokens.acquire(backend, name, holder, ttl, holder_info.get())
            if isinstance(answer, Granted):
                return Lease(
                    backend, place, holder, answer, ttl=ttl, asked=asked, allow_in_transaction=allow_in_transaction
                )
            patience = POLL if give_up is None else give_up - monotonic()
            if patience <= 0:
                raise LeaseHeldError(name, answer.holder, answer.remaining, answer.task_id)
            time.sleep(max(0.001, min(answer.remaining, POLL, patience)))
    except LeaseHeldError:
        raise
    except BaseException:
        _give_back(backend, name, holder)
        raise


def _give_back(backend: LeaseBackend, name: str, holder: str) -> None:
    """The store may have granted what we did not hear of; leave nothing behind, and mask nothing."""
    try:
        place = tokens.place_of(backend, name)
        if (live := backend.peek(place)) is not None and live.holder == holder:
            backend.release(place, holder, live.token)
    except FencingError:
        logger.debug("The lease of %r could not be given back; it ends by itself", name, exc_info=True)


def name_of(resource: Any, using: str) -> str:
    """The name of a resource given as a string or as an instance of a fenced model."""
    name = getattr(resource, "fence_name", None)
    if name is None or isinstance(resource, type):
        return check_resource(resource)
    if resource.fence_using != using:
        raise ResourceMismatchError(
            f"backend {using}", name(), f"{type(resource).__name__}.fence_using is {resource.fence_using!r}"
        )
    return check_resource(name())


def lease(
    resource: str | FencedModel | Sequence[str | FencedModel] | Callable[..., str] | Any,
    *,
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = 0,
    renew: bool = True,
    using: str = conf.DEFAULT_ALIAS,
    allow_in_transaction: bool = False,
) -> Leasing:
    """Take the lease of a resource: ``with lease("stock:42") as held:``, or ``@lease("stock:{sku}")`` on a function.

    A nested ``lease()`` of the same resource in the same context re-enters: the same token, and the inner exit
    releases nothing. The exit never raises because the lease was lost meanwhile: committed work must not look failed.

    Args:
        resource: a name of up to 200 characters, a fenced model instance, or a list of them (taken in the order of
            their names, all or none; a tuple of leases is what ``with`` yields). As a decorator a name may hold
            arguments of the function in braces.
        ttl: seconds that the lease lives without renewal, finite and above 0; default: the backend's TTL.
        wait: seconds to wait for somebody else's lease; 0 refuses at once, None waits for ever.
        renew: whether the heartbeat renews the lease every third of its ttl.
        using: alias in ``FENCING["BACKENDS"]``.
        allow_in_transaction: take it although a transaction is open; use ``lease.atomic()`` inside.

    Raises:
        TypeError, ValueError: a ttl, wait or resource that cannot be.

    Raises (on entry):
        LeaseHeldError: somebody else holds it.
        LeaseInsideTransactionError: a transaction is open: the lease would end before its commit.
        LeaseBackendError: the store did not answer. It may have granted a lease that then ends by itself.
    """
    if isinstance(resource, str) or not isinstance(resource, Iterable):
        _check_shape(resource)
    config = conf.backend_config(using)
    return Leasing(
        resource,
        ttl=config.ttl if ttl is None else conf.seconds(ttl, "ttl"),
        wait=None if wait is None else conf.patience(wait, "wait"),
        renew=renew,
        using=using,
        allow_in_transaction=allow_in_transaction,
    )


def _check_shape(resource: Any) -> None:
    """Refuse at once what can never name a resource; templates are filled and checked at each call."""
    if not (callable(resource) or hasattr(resource, "fence_name")):
        check_resource(resource)
