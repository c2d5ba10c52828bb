"""S15: a router that reads from a streaming replica of PostgreSQL, which has fallen behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connections, models
from django.db.models import F
from pytest_django.plugin import DjangoDbBlocker

from fencing import RowMissingError, StaleReadError, lease
from fencing.models import FencedWrite
from inventory_demo.models import Stock
from tests.concurrency import wait_until
from tests.shop.models import Bin, Warehouse
from tests.standby import in_databases, primary_and_replica

pytestmark = pytest.mark.slow

PRIMARY, REPLICA = "writer", "replica"
BELOW: tuple[type[models.Model], ...] = (Stock, Warehouse, Bin)


class Router:
    """What the documentation of Django suggests: reads from the replica, writes to the primary."""

    def db_for_read(self, model: type[models.Model], **_hints: object) -> str | None:
        return REPLICA if model in BELOW else None

    def db_for_write(self, model: type[models.Model], **_hints: object) -> str | None:
        return PRIMARY if model in BELOW else None

    def allow_relation(self, _one: models.Model, _other: models.Model, **_hints: object) -> bool:
        return True


def value(alias: str, expression: str) -> object:
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT {expression}")
        return cursor.fetchone()[0]


@pytest.fixture(scope="module")
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The two servers in `DATABASES`, with the tables.

    In place of pytest-django's fixture, which forbids a test the aliases that it cannot name. The name is what makes
    pytest-django set the default database up.
    """
    with primary_and_replica() as servers, django_db_blocker.unblock():
        with in_databases(dict(zip((PRIMARY, REPLICA), servers, strict=True)), BELOW):
            yield
        call_command("flush", verbosity=0, interactive=False)


@pytest.fixture
def behind(transactional_db: None, settings: Any) -> Iterator[Callable[[], None]]:
    """A function that lets the replica fall behind: from then on it shows what was there."""
    settings.DATABASE_ROUTERS = [Router()]
    yield fall_behind
    value(REPLICA, "pg_wal_replay_resume()::text")


def fall_behind() -> None:
    """Stop the replica once it is up to date."""
    written = value(PRIMARY, "pg_current_wal_lsn()")
    wait_until(lambda: value(REPLICA, f"pg_last_wal_replay_lsn() >= '{written}'::pg_lsn"), "the replica is up to date")
    value(REPLICA, "pg_wal_replay_pause()::text")
    wait_until(lambda: value(REPLICA, "pg_get_wal_replay_pause_state()") == "paused", "the replica stops")


@pytest.fixture
def sku(behind: Callable[[], None]) -> str:
    """A stock whose change from 10 to 5 the replica has not seen."""
    sku = uuid4().hex
    Stock.objects.create(sku=sku, quantity=10)
    behind()
    with lease(f"stock:{sku}"):
        assert Stock.objects.filter(sku=sku).update(quantity=5) == 1
    return sku


def on_primary(sku: str) -> int | None:
    return Stock.objects.using(PRIMARY).filter(sku=sku).values_list("quantity", flat=True).first()


def outcomes(sku: str) -> list[str]:
    written = FencedWrite.objects.using(PRIMARY).filter(resource=f"stock:{sku}")
    return list(written.order_by("id").values_list("outcome", flat=True))


def test_i3_save_of_what_a_replica_showed_is_refused(sku: str) -> None:
    read = Stock.objects.get(sku=sku)
    assert (read._state.db, read.quantity) == (REPLICA, 10)
    read.quantity -= 3
    with lease(f"stock:{sku}"):
        for write in (read.save, lambda: Stock.objects.bulk_update([read], ["quantity"])):
            with pytest.raises(StaleReadError):
                write()
        assert on_primary(sku) == 5
        read.refresh_from_db()
        read.quantity -= 3
        read.save()
    assert on_primary(sku) == 2
    assert outcomes(sku) == ["accepted", "stale-read", "stale-read", "accepted"]


def test_change_worked_out_by_the_primary_needs_no_read(sku: str) -> None:
    read = Stock.objects.get(sku=sku)
    read.quantity = F("quantity") - 3
    with lease(f"stock:{sku}"):
        read.save(update_fields=["quantity"])
    assert on_primary(sku) == 2


def test_row_that_only_the_replica_has_is_missing(sku: str) -> None:
    read = Stock.objects.get(sku=sku)
    with lease(f"stock:{sku}"):
        assert Stock.objects.filter(sku=sku).delete()[0] == 1
        with pytest.raises(RowMissingError):
            read.save()
    assert on_primary(sku) is None


def refreshed(one: Stock) -> Stock:
    one.refresh_from_db()
    return one


WAYS_TO_READ: dict[str, Callable[[Stock], Stock]] = {
    "get": lambda one: Stock.objects.get(sku=one.sku),
    "raw": lambda one: next(iter(Stock.objects.raw("SELECT * FROM inventory_demo_stock WHERE id = %s", [one.pk]))),
    "only": lambda one: Stock.objects.only("quantity").get(pk=one.pk),
    "in_bulk": lambda one: Stock.objects.in_bulk([one.pk])[one.pk],
    "get_or_create": lambda one: Stock.objects.get_or_create(sku=one.sku)[0],
    "latest": lambda one: Stock.objects.filter(sku=one.sku).latest("id"),
    "base manager": lambda one: Stock._base_manager.get(pk=one.pk),
    "refresh_from_db": refreshed,
}


@pytest.mark.parametrize("way", WAYS_TO_READ)
def test_reads_under_a_lease_come_from_the_primary(sku: str, way: str) -> None:
    known = Stock.objects.get(sku=sku)
    with lease(f"stock:{sku}") as held, held.atomic(using=PRIMARY):
        read = WAYS_TO_READ[way](known)
        read.quantity -= 3
        read.save()
    assert on_primary(sku) == 2


def test_relations_are_read_from_the_primary_under_a_lease(behind: Callable[[], None]) -> None:
    warehouse = Warehouse.objects.create(name="north")
    bin_ = Bin.objects.create(warehouse=warehouse, label="old")
    behind()
    with lease(bin_):
        Bin.objects.filter(pk=bin_.pk).update(label="new")
    unfenced = Warehouse.objects.get(pk=warehouse.pk)
    with lease(bin_):
        (prefetched,) = Warehouse.objects.prefetch_related("bin_set").get(pk=warehouse.pk).bin_set.all()
        assert [one.label for one in (unfenced.bin_set.get(), prefetched)] == ["new", "new"]
        prefetched.label += "er"
        prefetched.save()
    assert unfenced.bin_set.get().label == "old"
    assert Bin.objects.using(PRIMARY).get(pk=bin_.pk).label == "newer"
