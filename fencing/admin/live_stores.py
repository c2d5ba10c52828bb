"""What each lease store has now, and what the databases say of it: a store that is down costs its own part only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from django.db import DatabaseError
from django.utils.translation import gettext as _

from fencing import conf
from fencing.admin.drift import Drift, of_counter, of_lease
from fencing.admin.limits import time_limit
from fencing.admin.newest import UNREACHABLE
from fencing.backends import LeaseBackend, get_backend
from fencing.backends.base import Counting, LiveLease, Place
from fencing.databases import is_cancelled
from fencing.models import FencedResource
from fencing.reigns import Reigns, databases_of, logged_reigns
from fencing.tokens import place_of

# Of each backend: whoever has more asks for one by its name.
MOST = 200


@dataclass(slots=True, kw_only=True)
class Lease:
    """A lease that exists now.

    Attributes:
        waiters: how many wait for it; None where the store keeps no queue.
        stored: the resource's row, from the database where it is highest.
        drift: how that row and the lease differ; None where no database could be asked.
    """

    live: LiveLease
    waiters: int | None = None
    stored: FencedResource | None = None
    drift: Drift | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """The counter of a partition; ``drift`` is None where no database could be asked."""

    partition: int
    counting: Counting | None
    dropped: int
    drift: Drift | None = None


@dataclass(slots=True, kw_only=True)
class Store:
    """One lease backend. What could not be asked is missing, and ``problems`` say why."""

    alias: str
    namespace: str = ""
    leases: list[Lease] = field(default_factory=list)
    is_truncated: bool = False
    counters: list[Counter] = field(default_factory=list)
    reigns: Reigns | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def dropped(self) -> int:
        """How many grant events the outbox's cap has dropped."""
        return sum(counter.dropped for counter in self.counters)


def stores(resource: str = "") -> Iterator[Store]:
    """Every lease backend, with all leases or that of one resource."""
    for alias in conf.backend_aliases():
        store = Store(alias=alias)
        _tried(store, _ask_store, resource)
        _tried(store, _ask_databases)
        yield store


def _tried(store: Store, ask: Callable[..., None], *args: object) -> None:
    try:
        ask(store, *args)
    except UNREACHABLE as error:
        slow = isinstance(error, DatabaseError) and is_cancelled(error)
        problem = _("The database took too long to answer.") if slow else str(error)
        if problem not in store.problems:
            store.problems.append(problem)


def _ask_store(store: Store, resource: str) -> None:
    store.namespace = conf.backend_config(store.alias).namespace
    backend = get_backend(store.alias)
    place = place_of(backend, resource)
    found = _one(backend, place) if resource else _all(backend, place.space)
    store.is_truncated = len(found) > MOST
    store.leases = found[:MOST]
    for partition in range(backend.config.partitions):
        counter = Counter(
            partition=partition,
            counting=backend.counting(place.space, partition),
            dropped=backend.dropped_events(place.space, partition),
        )
        store.counters.append(counter)


def _one(backend: LeaseBackend, place: Place) -> list[Lease]:
    live = backend.peek(place)
    return [] if live is None else _with_waiters(backend, place.space, place.partition, [live])


def _all(backend: LeaseBackend, space: str) -> list[Lease]:
    found: list[Lease] = []
    for partition in range(backend.config.partitions):
        live = list(backend.live(space, partition, MOST + 1 - len(found)))
        found += _with_waiters(backend, space, partition, live)
        if len(found) > MOST:
            break
    return sorted(found, key=lambda lease: lease.live.token)


def _with_waiters(backend: LeaseBackend, space: str, partition: int, live: list[LiveLease]) -> list[Lease]:
    counts = backend.waiters(space, partition, [one.resource for one in live])
    return [Lease(live=one, waiters=count) for one, count in zip(live, counts, strict=True)]


def _ask_databases(store: Store) -> None:
    """Compare with the databases; the store has been asked before, because it may be kept in the same one."""
    written = databases_of(store.alias)
    with time_limit(conf.backend_config(store.alias).database, *written):
        store.reigns = logged_reigns(store.alias)
        stored = _stored(store, written)
    for lease in store.leases:
        lease.stored = stored.get(lease.live.resource)
        lease.drift = of_lease(lease.live, lease.stored)
    ceiling = store.reigns.ceiling
    store.counters = [replace(one, drift=of_counter(one.counting, ceiling)) for one in store.counters]


def _stored(store: Store, written: list[str]) -> dict[str, FencedResource]:
    """The resources' rows by name, each from the database that has seen the highest token."""
    found: dict[str, FencedResource] = {}
    names = [lease.live.resource for lease in store.leases]
    for alias in written if names else ():
        for row in FencedResource.objects.using(alias).filter(namespace=store.namespace, name__in=names):
            if row.name not in found or row.last_token > found[row.name].last_token:
                found[row.name] = row
    return found
