"""The leases that a context holds: never another thread's, never the previous task's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fencing.backends.base import HolderInfo
from fencing.exceptions import LeaseRequiredError
from fencing.leases import Lease

_held: ContextVar[tuple[Lease, ...]] = ContextVar("fencing_held", default=())

NOBODY = HolderInfo()
holder_info: ContextVar[HolderInfo] = ContextVar("fencing_holder_info", default=NOBODY)


def held_leases() -> tuple[Lease, ...]:
    """The leases that this context holds, the innermost last; those of a parent process are none of them."""
    held = _held.get()
    return tuple([lease for lease in held if lease.is_mine()]) if held else held


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
        raise lease_required([resource], "", what)
    return found


def lease_required(names: Iterable[str], template: str, what: str) -> LeaseRequiredError:
    """The error of a write without its leases: the one resource, or how they are named, and what is held instead.

    Args:
        names: the resources that the write needs; "" for one without a name yet, or whose name nobody has looked up.
        template: how all of them are named.
        what: what was attempted.
    """
    needed = {*names}
    only = needed.pop() if len(needed) == 1 else ""
    held = [lease.resource for lease in held_leases()]
    return LeaseRequiredError(only, held, what, "" if only else template)


@contextmanager
def holding(lease: Lease) -> Iterator[None]:
    """Count ``lease`` among those that this context holds, as the innermost one."""
    before = _held.set((*_held.get(), lease))
    try:
        yield
    finally:
        _held.reset(before)


def hold(lease: Lease) -> None:
    """Count ``lease`` among those that this context holds, until ``let_go``."""
    _held.set((*_held.get(), lease))


def let_go(lease: Lease) -> None:
    """Take ``lease`` out of this context; what it had accepted was done under the leases around it, too."""
    held = _held.get()
    others = tuple([other for other in held if other is not lease])
    if others and lease in held:
        others[-1].accepted += lease.accepted
    _held.set(others)


def keep_only(leases: tuple[Lease, ...]) -> None:
    """Take every lease out of this context but these, also what an interrupted exit has left in it."""
    _held.set(leases)
