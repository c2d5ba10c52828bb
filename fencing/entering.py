"""Entering and leaving a lease: as a context manager and as a decorator, for threads and for coroutines."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction, sync_to_async

from fencing import history, signals
from fencing.acquiring import acquire
from fencing.asynchronous import Acquisition
from fencing.connections import open_transactions
from fencing.entries import Entries, this_caller, this_coroutine
from fencing.exceptions import LeaseHeldError, LeaseInsideTransactionError, ResourceMismatchError
from fencing.leases import Lease
from fencing.logs import tell_lease
from fencing.naming import check_resource, resource_of_call
from fencing.scope import find_lease, hold, let_go

logger = logging.getLogger("fencing")

PLACEHOLDER = re.compile(r"\{[^\W\d]\w*\}")
# What is wrong with a body that its call only prepares.
NOT_INSIDE = "its body would run after the lease has ended"

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", Lease, tuple[Lease, ...])


class Leasing(Generic[L]):
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
        self._entered: Entries[list[Lease]] = Entries()
        self._entered_async: Entries[AsyncExitStack] = Entries()

    def __enter__(self) -> L:
        names, give_up = self._names(), self._give_up()
        granted: list[Lease] = []
        try:
            taken = {name: self._take(name, give_up, granted) for name in sorted(set(names))}
        except BaseException:
            _leave_all(granted)
            raise
        self._entered.add(this_caller(), granted)
        return self._yielded(names, taken)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave_all(self._entered.take(this_caller()))

    async def __aenter__(self) -> L:
        names, give_up = self._names(), self._give_up()
        async with AsyncExitStack() as stack:
            taken = {name: await self._take_async(name, give_up, stack) for name in sorted(set(names))}
            self._entered_async.add(this_coroutine(), stack.pop_all())
        return self._yielded(names, taken)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered_async.take(this_coroutine()).aclose()

    def __call__(self, function: Callable[P, R] | None = None, /, *more: Any, **named: Any) -> Callable[P, R]:
        if more or named or not callable(function):
            raise TypeError(_not_decorated(self._resource, function))
        _check_body(function)
        if iscoroutinefunction(function):

            @functools.wraps(function)
            async def under_lease_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self._for_call(function, args, kwargs):
                    return await function(*args, **kwargs)

            return under_lease_async  # type: ignore[return-value]

        @functools.wraps(function)
        def under_lease(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._for_call(function, args, kwargs):
                result = function(*args, **kwargs)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError(
                        f"{function!r} {NOT_INSIDE}: mark it as a coroutine function, or take the lease inside."
                    )
                return result

        return under_lease

    def _names(self) -> list[str]:
        """The resources' names in the order in which they were given."""
        if not isinstance(self._resource, (list, tuple)):
            return [self._name(self._resource)]
        if not self._resource:
            raise ValueError("lease() was given an empty list; it needs at least one resource.")
        return [self._name(one) for one in self._resource]

    def _name(self, resource: Any) -> str:
        name = name_of(resource, self._using)
        if "{" in name and isinstance(resource, str):
            _say_if_template(name)
        return name

    def _give_up(self) -> float | None:
        return None if self._wait is None else monotonic() + self._wait

    def _yielded(self, names: list[str], taken: dict[str, Lease]) -> L:
        if isinstance(self._resource, (list, tuple)):
            return tuple(taken[name] for name in names)  # type: ignore[return-value]
        return taken[names[0]]  # type: ignore[return-value]

    def _for_call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Leasing[L]:
        """The same with the resource named by the arguments of this call."""

        def named(resource: Any) -> Any:
            is_template = isinstance(resource, str) or callable(resource)
            return resource_of_call(resource, function, args, kwargs) if is_template else resource

        many = isinstance(self._resource, (list, tuple))
        resource = [named(one) for one in self._resource] if many else named(self._resource)
        return Leasing(
            resource,
            ttl=self._ttl,
            wait=self._wait,
            renew=self._renew,
            using=self._using,
            allow_in_transaction=self._allow_in_transaction,
        )

    def _take(self, name: str, give_up: float | None, granted: list[Lease]) -> Lease:
        """The lease of ``name``: the one that this context holds already, or a new grant, put among those ``granted``."""
        if (held := find_lease(name, self._using)) is not None:
            return held
        held = self._acquire(name, give_up)
        granted.append(held)
        return self._hold(held)

    async def _take_async(self, name: str, give_up: float | None, stack: AsyncExitStack) -> Lease:
        """The same for a coroutine: at once in Django's thread, and waiting, if need be, in another one."""
        if (held := find_lease(name, self._using)) is not None:
            return held
        try:
            held = await Acquisition(partial(self._acquire, name, 0.0)).in_djangos_thread()
        except LeaseHeldError:
            if self._wait == 0:
                raise
            held = await Acquisition(partial(self._acquire, name, give_up)).in_own_thread()
        stack.push_async_callback(_leave_async, held)
        return self._hold(held)

    def _acquire(self, name: str, give_up: float | None, abandoned: Callable[[], bool] | None = None) -> Lease:
        if not self._allow_in_transaction and (aliases := open_transactions()):
            raise LeaseInsideTransactionError(name, f"a transaction is open on {', '.join(map(repr, aliases))}")
        return acquire(
            name,
            ttl=self._ttl,
            give_up=give_up,
            using=self._using,
            allow_in_transaction=self._allow_in_transaction,
            abandoned=abandoned,
        )

    def _hold(self, held: Lease) -> Lease:
        """Count a new grant among those of this context, and tell of it."""
        hold(held)
        if self._renew:
            held.start_renewing()
        history.collect_soon(self._using)
        tell_lease(logging.DEBUG, "granted", held, "Granted %r, token %d", held.resource, held.token)
        signals.announce(signals.lease_granted, Lease, lease=held)
        return held


def _leave_all(granted: list[Lease]) -> None:
    """End grants, the last one first: each of them, although the end of another one is interrupted."""
    while granted:
        try:
            _leave(granted.pop())
        except BaseException:
            _leave_all(granted)
            raise


def _leave(lease: Lease) -> None:
    """End a grant, and take it out of this context."""
    try:
        _end(lease)
    finally:
        # A soft time limit may have struck before the release; else this does nothing.
        lease.release()
        let_go(lease)


async def _leave_async(lease: Lease) -> None:
    """The same for a coroutine; one that is being cancelled gives its lease back all the same."""
    let_go(lease)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # It was thrown away after its loop had ended: nobody goes on with it, and the heartbeat would renew for ever.
        _end(lease)
        return
    await asyncio.shield(sync_to_async(_end, thread_sensitive=True)(lease))


def _end(lease: Lease) -> None:
    lease.release()
    history.write_all_waiting()


@functools.lru_cache(maxsize=1000)  # once for each name, and names may come from anywhere
def _say_if_template(name: str) -> None:
    """Log that a name looks like one whose ``f`` was forgotten; it may be meant so, with braces."""
    if placeholder := PLACEHOLDER.search(name):
        logger.warning(
            "The lease of %r is taken under just that name. Was %s to be filled in? Only a decorator does that; a string "
            "needs an f before it.", name, placeholder[0],
        )  # fmt: skip


def name_of(resource: Any, using: str) -> str:
    """The name of a resource given as a string or as an instance of a fenced model."""
    if isinstance(resource, str):
        return check_resource(resource)
    name = getattr(resource, "fence_name", None)
    if name is None or isinstance(resource, type):
        return check_resource(resource)
    if resource.fence_using != using:
        raise ResourceMismatchError(
            f"backend {using}", name(), f"{type(resource).__name__}.fence_using is {resource.fence_using!r}"
        )
    return check_resource(name())


def _not_decorated(resource: Any, given: Any) -> str:
    """What is wrong where no function is to be decorated. To a bare ``@lease`` its function is what names a resource."""
    if callable(resource) and not isinstance(given, (classmethod, property)):
        name = getattr(resource, "__qualname__", repr(resource))
        return (
            f"lease({name}) decorates a function, and was called like one. If @lease stands alone above {name}, write "
            '@lease("stock:{sku}"), the name made of its arguments.'
        )
    return f"lease() decorates functions, not {given!r}: put it below @classmethod or @property."


def _check_body(function: Callable[..., Any]) -> None:
    """Refuse what a call does not run, or not to its end: the lease would be over before its body began."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r} is a generator, and {NOT_INSIDE}: write `with lease(...)` inside of it.")
