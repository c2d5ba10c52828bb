"""Revoking a lease: by an operator, who knows better than the holder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import Error as DatabaseProblem

from fencing import conf, history, tokens
from fencing.backends import LeaseBackend, get_backend
from fencing.backends.base import LiveLease, Place
from fencing.connections import autocommit
from fencing.exceptions import FencingError, LeaseBackendError, LeaseHeldError
from fencing.floors import look
from fencing.history import Attempt
from fencing.maintenance import MAX_REASON, who
from fencing.naming import check_resource
from fencing.raising import raise_row
from fencing.reigns import databases_of
from fencing.tables import table

# Each round that fails means that a newer grant, or an imported row, has a higher number than was drawn.
ROUNDS = 20
# Seconds to wait for statements of the holder that are in flight; a transaction that idles is ended by its own bound.
LOCK_BOUND = 10.0
# What the resource's row names as its holder from then on.
HOLDER = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """What was done.

    Attributes:
        resource: whose lease it was.
        token: the number to which the resource's row was raised: whoever has a lower one is refused.
        lease: the lease as it was found; None if nobody held one any more.
        removed: whether the store still had it at the end.
        databases: where the row was raised.
    """

    resource: str
    token: int
    lease: LiveLease | None
    removed: bool
    databases: tuple[str, ...]


def revoke(
    resource: str,
    reason: str,
    *,
    token: int | None = None,
    using: str = conf.DEFAULT_ALIAS,
    databases: Sequence[str] | None = None,
    by: str = "",
) -> Revocation:
    """Refuse the present holder from now on, and let the next one in.

    The resource's row is raised first, so the database refuses the old holder even if it never notices; then the lease
    is removed. With nobody holding it, whoever held it last is refused.

    Args:
        resource: its name.
        reason: why; it goes to the history with who did it.
        token: the grant that is meant, as it was shown; nothing happens if another one has the lease by now.
        using: alias of the lease backend.
        databases: where its rows are; default: where the models under this backend's leases are written.
        by: who does it; default: this process's user.

    Raises:
        TypeError, ValueError: no name of a resource, or no reason, or one of more than 300 characters.
        LeaseHeldError: another grant than ``token`` has the lease.
        InvalidTokenError: ``token`` is none, or the resource's row holds a number that nobody can have issued.
        LeaseBackendError: the store or a database did not answer, or a transaction of the holder did not end in time.
    """
    check_resource(resource)
    if token is not None:
        tokens.check_token(token)
    if not 0 < len(reason.strip()) <= MAX_REASON:
        raise ValueError(f"A revocation needs a reason of 1 to {MAX_REASON} characters, not {reason!r}.")
    backend = get_backend(using)
    where = tuple(databases_of(using) if databases is None else databases)
    for _ in range(ROUNDS):
        # Drawn before looking: whoever is granted the lease after the look has a higher number and is not refused.
        place, number = tokens.draw_from_store(backend, resource)
        live = backend.peek(place)
        if live is not None and token not in (None, live.token):
            raise LeaseHeldError(resource, live.holder, live.remaining, live.info.task_id)
        if live is not None and live.token > number:
            continue
        meant = live.token if live is not None else token or number
        note = f"{reason} ({by or who()})"
        if all(_raise_row(backend, place, alias, number, meant, note) for alias in where):
            removed = live is not None and backend.revoke(place, live.token)
            return Revocation(resource=resource, token=number, lease=live, removed=removed, databases=where)
    raise LeaseBackendError(using, f"the row of resource {resource!r} was raised {ROUNDS} times in between.")


def is_on_record(resource: str, *, using: str = conf.DEFAULT_ALIAS) -> bool:
    """Whether anybody has ever held a resource, as far as is known; False may mean a typing error in its name.

    Told by its grants and by its rows in the databases of its backend, those apart that a revocation raised. True
    also where a database or the store cannot be asked.
    """
    config = get_backend(using).config
    grants = table("TokenGrant")._base_manager.using(config.database)
    granted = grants.filter(namespace=config.namespace, resource=check_resource(resource))
    try:
        if granted.exists() or any(_is_held_in(alias, config.namespace, resource) for alias in databases_of(using)):
            return True
        history.collect(using)
        return granted.exists()
    except (DatabaseProblem, FencingError):
        return True


def _is_held_in(alias: str, namespace: str, resource: str) -> bool:
    rows = table("FencedResource")._base_manager.using(alias).filter(namespace=namespace, name=resource)
    return rows.exclude(holder=HOLDER).exists()


def _raise_row(backend: LeaseBackend, place: Place, alias: str, number: int, meant: int, note: str) -> bool:
    """Raise the resource's row in one database and record that; False if it held more, which the store knows then."""
    config = backend.config
    attempt = Attempt(
        namespace=config.namespace,
        token=number,
        grant_token=meant,
        resource=place.resource,
        action="revoke",
        outcome="unfenced",
        note=note,
    )
    try:
        with autocommit(alias) as connection:
            row = [config.namespace, place.resource, number, HOLDER]
            if raise_row(connection, row, begins=0, bound=LOCK_BOUND) is not None:
                history.record(connection, [attempt])
                return True
            seen = look(connection, config.namespace, place.resource).highest or 1
    except DatabaseProblem as error:
        detail = (
            f"the row of resource {place.resource!r} in database {alias!r} could not be raised, so the lease was left: "
            f"{type(error).__name__}: {error}"
        )
        raise LeaseBackendError(config.alias, detail) from error
    tokens.raise_above(backend, place, seen)
    return False
