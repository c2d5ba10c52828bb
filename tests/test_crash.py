"""A PostgreSQL that crashes between the begin of a fenced transaction and its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connections
from pytest_django.plugin import DjangoDbBlocker

from fencing import StaleWriteError
from fencing.acquiring import acquire
from fencing.leases import Lease
from fencing.models import FencedResource
from inventory_demo.models import Stock
from tests.concurrency import wait_until
from tests.standby import Server, in_databases, lone_server

pytestmark = pytest.mark.slow

BRITTLE = "brittle"


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Server]:
    """The server; in place of pytest-django's fixture, as in `test_replica`."""
    with lone_server() as server, django_db_blocker.unblock():
        with in_databases({BRITTLE: server}, [Stock]):
            yield server
        call_command("flush", verbosity=0, interactive=False)


def grant() -> Lease:
    """A lease that ends in the store at once, so that the next one is newer, without its holder's knowing."""
    held = acquire("stock:42", ttl=30, give_up=None, using="default", allow_in_transaction=False)
    held._backend.revoke(held._place, held.token)
    return held


def add(held: Lease, change: int) -> None:
    with held.atomic(using=BRITTLE):
        stock = Stock.objects.using(BRITTLE).get(sku="42")
        stock.quantity += change
        stock.save(lease=held)


def quantity() -> int:
    return Stock.objects.using(BRITTLE).get(sku="42").quantity


def hold_log_writer() -> None:
    """Stop the process that brings to the disk, now and then, what no commit has waited for."""
    with connections[BRITTLE].cursor() as cursor:

        def sleeping() -> list[int]:
            cursor.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'WalWriterMain'")
            found[:] = [pid for (pid,) in cursor.fetchall()]
            return found

        found: list[int] = []
        wait_until(sleeping, "the log writer sleeps, and holds no lock that the next commit needs")
        os.kill(found[0], signal.SIGSTOP)


def test_crash_that_forgets_a_begin_takes_its_transaction_along(transactional_db: Server) -> None:
    """A begin does not wait for the disk: what it shut out may come again, but only as if it had never been."""
    Stock.objects.using(BRITTLE).create(sku="42", quantity=10)
    old, newer = grant(), grant()
    hold_log_writer()
    with pytest.raises(DatabaseError), newer.atomic(using=BRITTLE):
        assert FencedResource.objects.using(BRITTLE).get().last_token == newer.token
        transactional_db.kill()
        quantity()
    connections[BRITTLE].close()
    transactional_db.start()
    assert not FencedResource.objects.using(BRITTLE).exists(), "the crash did not forget the begin"
    add(old, -2)
    add(newer, -4)
    with pytest.raises(StaleWriteError):
        add(old, -8)
    assert quantity() == 4


def test_what_was_committed_takes_its_begin_along(transactional_db: Server) -> None:
    """Else the old holder could write again after the crash, onto what the newer one has done."""
    Stock.objects.using(BRITTLE).create(sku="42", quantity=10)
    old, newer = grant(), grant()
    add(newer, -4)
    transactional_db.kill()
    connections[BRITTLE].close()
    transactional_db.start()
    with pytest.raises(StaleWriteError):
        add(old, -8)
    assert quantity() == 6
