"""INSERTs that meet a row which somebody else has in hand: the row first, then the resource, like every other write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from fencing import StaleWriteError
from fencing.models import FencedWrite
from fencing.scope import holding
from inventory_demo.models import Stock
from tests.concurrency import BOUND, blocked_sessions, threads, wait_until
from tests.shop.models import Crate, Warehouse

SERVERS = [
    "default",
    pytest.param("maria", marks=pytest.mark.django_db(databases=["default", "maria"], transaction=True)),
]

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

Pair = Callable[[str], Any]


def create(alias: str) -> object:
    try:
        return Stock.objects.using(alias).create(sku="42", quantity=7)
    except IntegrityError as error:
        return error


def get_or_create(alias: str) -> object:
    return Stock.objects.using(alias).get_or_create(sku="42", defaults={"quantity": 7})[1]


def upsert(alias: str) -> object:
    unique = None if alias == "maria" else ["sku"]
    new = [Stock(sku="42", quantity=7)]
    return Stock.objects.using(alias).bulk_create(
        new, update_conflicts=True, update_fields=["quantity"], unique_fields=unique
    )


def ignoring(alias: str) -> object:
    return Stock.objects.using(alias).bulk_create([Stock(sku="42", quantity=7)], ignore_conflicts=True)


def known(instance: Any) -> tuple[Any, ...]:
    """What an instance knows of its row."""
    return instance.pk, instance._state.adding, instance._state.db, instance.last_token, instance._fence_pin


@pytest.mark.parametrize("alias", SERVERS)
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("write", [create, get_or_create, upsert, ignoring])
def test_row_of_a_sleeper_in_a_fenced_transaction(
    alias: str, there: bool, write: Callable[[str], object], overtaken: Pair
) -> None:
    """It had the resource and waited for the row; the sleeper had the row, and waited for the resource at its end."""
    if there:
        Stock.objects.using(alias).create(sku="42", quantity=1)
    with overtaken("stock:42") as (sleeper, newer), threads() as start:

        def newly() -> object:
            with holding(newer):
                return write(alias)

        with holding(sleeper), sleeper.atomic(using=alias):
            if there:
                Stock.objects.using(alias).update(quantity=2)
            else:
                Stock.objects.using(alias).create(sku="42", quantity=2)
            waiting = start(newly)
            # Under a snapshot of its own get_or_create() finds the row that was there.
            wait_until(lambda: waiting.done() or blocked_sessions(alias) == 1, "it waits for the row")
            assert waiting.done() == (there and write is get_or_create)
        answer = waiting.result(BOUND)
    assert isinstance(answer, IntegrityError) == (write is create)
    expected = (7, newer) if write is upsert else (2, sleeper)
    row = Stock.objects.using(alias).get()
    assert row.quantity == expected[0] and expected[1].issued(row.last_token)
    accepted = FencedWrite.objects.using(alias).filter(outcome="accepted").order_by("id")
    assert accepted.last().token == row.last_token  # type: ignore[union-attr]
    assert len(accepted) == 1 + (write is upsert)


def test_superseded_insert_that_meets_a_row_is_no_error_of_the_database(alias: str, overtaken: Pair) -> None:
    """The database says that the row is there before the resource is asked."""
    with overtaken("stock:42") as (sleeper, newer):
        with holding(newer):
            create(alias)
        with transaction.atomic(using=alias):
            with holding(sleeper), pytest.raises(StaleWriteError) as caught:
                create(alias)
            Warehouse.objects.using(alias).create(name="kept")
    assert (caught.value.token, caught.value.seen) == (sleeper.token, newer.token)
    assert Warehouse.objects.using(alias).exists()
    recorded = FencedWrite.objects.using(alias).order_by("id").values_list("action", "outcome", "seen")
    assert list(recorded) == [("insert", "accepted", None), ("insert", "stale", newer.token)]


def test_objects_of_a_refused_insert_are_new_still(alias: str, overtaken: Pair) -> None:
    """Django has given them keys, and taken them for rows, before the resource refused them."""
    house = Warehouse.objects.using(alias).create(name="w")
    with overtaken(f"crate:{house.pk}:1") as (sleeper, newer):
        mine = [Crate(warehouse=house, code="1") for _ in range(2)]
        before = list(map(known, mine))
        with holding(newer):
            Crate.objects.using(alias).create(warehouse=house, code="1")
        with holding(sleeper), pytest.raises(StaleWriteError):
            Crate.objects.using(alias).bulk_create(mine)
        with holding(sleeper), pytest.raises(StaleWriteError):
            mine[1].save(using=alias)
        assert list(map(known, mine)) == before
        with holding(newer):
            assert len(Crate.objects.using(alias).bulk_create(mine)) == 2
    assert Crate.objects.using(alias).count() == 3
