"""Every test of this folder runs on PostgreSQL, on SQLite and on MariaDB, with the numbers in the default database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fencing import Lease, lease
from fencing.acquiring import acquire
from fencing.models import FencedWrite

MARIA = pytest.mark.django_db(databases=["default", "maria"], transaction=True)


@pytest.fixture(params=["default", "lite", pytest.param("maria", marks=MARIA)])
def alias(request: pytest.FixtureRequest) -> str:
    """The database of the rows."""
    return str(request.param)


@pytest.fixture
def outcomes(alias: str) -> Callable[[], list[str]]:
    """A function that lists the outcomes in the history, oldest first."""
    return lambda: list(FencedWrite.objects.using(alias).order_by("id").values_list("outcome", flat=True))


class Sleeper:
    """A holder that was overtaken: its lease ended without its knowing, and somebody newer holds one now."""

    def __init__(self, resource: str) -> None:
        self.lease = acquire(resource, ttl=30, give_up=0, using="default", allow_in_transaction=False)
        self._backend = self.lease._backend
        self._backend.revoke(self.lease._place, self.lease.token)


@pytest.fixture
def overtaken() -> Callable[[str], Any]:
    """A function that gives a context: the sleeper's lease and the newer holder's, both as those know them."""

    @contextmanager
    def pair(resource: str) -> Iterator[tuple[Lease, Lease]]:
        sleeper = Sleeper(resource).lease
        with lease(resource, ttl=30) as newer:
            yield sleeper, newer

    return pair
