"""Grants whose end nobody told: their holder was killed, and nobody has asked for the resource since.

A store lets a lease end by itself and says nothing. A newer grant of the resource shows it in the history; until then
only the store knows, and it is asked: a lease that is renewed is there, however long ago its grant was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max
from django.utils import timezone

from fencing import history
from fencing.backends import LeaseBackend
from fencing.tables import table
from fencing.tokens import place_of


def end_expired(backend: LeaseBackend, grants: Iterable[Any], written: Sequence[str]) -> int:
    """End those of these rows of ``TokenGrant`` as expired whose ttl is over and whose lease the store has no more.

    When exactly is not known: a ttl after the last sign of life, which is a write, or the grant itself.

    Args:
        backend: the store of the grants; one in this process's memory does not know the leases of others.
        grants: rows, as they were read a moment ago.
        written: aliases of the databases that know the writes under them.

    Returns:
        How many were ended.

    Raises:
        LeaseBackendError: the store did not answer.
    """
    if not backend.is_shared:
        return 0
    now = timezone.now()
    over = [one for one in grants if not one.ended and one.granted_at and now - one.granted_at > _ttl(one)]
    gone = [one for one in over if not _is_live(backend, one)]
    if not gone:
        return 0
    # What was told meanwhile: the lease may have been released since the rows were read.
    history.collect(backend.config.alias)
    rows = table("TokenGrant")._base_manager.using(backend.config.database).filter(ended="")
    last = _last_writes(gone, written)
    return sum(
        rows.filter(pk=one.pk).update(
            ended="expired", ended_at=min(now, max(one.granted_at, last.get(one.token, one.granted_at)) + _ttl(one))
        )
        for one in gone
    )


def _ttl(grant: Any) -> timedelta:
    return timedelta(seconds=grant.ttl)


def _is_live(backend: LeaseBackend, grant: Any) -> bool:
    live = backend.peek(place_of(backend, grant.resource))
    return live is not None and live.holder == grant.holder


def _last_writes(grants: Sequence[Any], written: Sequence[str]) -> dict[int, datetime]:
    """When the last write under each of these grants was tried."""
    last: dict[int, datetime] = {}
    tokens = [one.token for one in grants]
    for alias in written:
        writes = table("FencedWrite")._base_manager.using(alias)
        theirs = writes.filter(namespace=grants[0].namespace, grant_token__in=tokens)
        for token, at in theirs.order_by().values_list("grant_token").annotate(Max("at")):
            last[token] = max(at, last.get(token, at))
    return last
