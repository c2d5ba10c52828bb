"""``lease()``: what it can be given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from fencing import conf
from fencing.entering import Leasing
from fencing.leases import Lease
from fencing.naming import check_resource

if TYPE_CHECKING:
    from fencing.models import FencedModel


@overload
def lease(  # type: ignore[overload-overlap]  # a str is a sequence of str, too
    resource: str | FencedModel | Callable[..., str],
    *,
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = 0,
    renew: bool = True,
    using: str = conf.DEFAULT_ALIAS,
    allow_in_transaction: bool = False,
) -> Leasing[Lease]: ...


@overload
def lease(
    resource: Sequence[str | FencedModel],
    *,
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = 0,
    renew: bool = True,
    using: str = conf.DEFAULT_ALIAS,
    allow_in_transaction: bool = False,
) -> Leasing[tuple[Lease, ...]]: ...


def lease(
    resource: Any,
    *,
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = 0,
    renew: bool = True,
    using: str = conf.DEFAULT_ALIAS,
    allow_in_transaction: bool = False,
) -> Leasing[Any]:
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
    if isinstance(resource, str):
        check_resource(resource)
    elif not isinstance(resource, Iterable):
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
