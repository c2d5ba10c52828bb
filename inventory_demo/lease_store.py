"""The lease store as the demo page sees it: whose lease there is now, and a store that forgets everything."""

from __future__ import annotations

from dataclasses import dataclass
from time import time

from django.conf import settings

from fencing.backends import get_backend
from fencing.tokens import place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A lease that exists now: the token of its grant, and the time of day at which it ends unless it is renewed."""

    token: int
    ends: float


def namespace() -> str:
    """The namespace of the example project's tokens."""
    return str(settings.FENCING["BACKENDS"]["default"]["NAMESPACE"])


def live_lease(resource: str) -> Live | None:
    """The lease of a resource as the store has it; None if nobody holds it."""
    backend = get_backend()
    # Before the store is asked: else a lease that it has no more could seem to end in a moment, and so to be released.
    asked = time()
    lease = backend.peek(place_of(backend, resource))
    return None if lease is None else Live(token=lease.token, ends=asked + lease.remaining)


def flush() -> None:
    """Make the store forget all leases, queues and counters of this namespace, and nothing of anybody else's."""
    backend = get_backend()
    backend.forget(place_of(backend, "any").space)
