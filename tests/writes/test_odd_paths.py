"""Ways to write that are seldom taken, and instances that are not what the row is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from fencing import LeaseLostError
from inventory_demo.models import Stock

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

Pair = Callable[[str], Any]


def stock(alias: str, sku: str = "42", quantity: int = 10) -> Stock:
    Stock.objects.using(alias).create(sku=sku, quantity=quantity)
    return Stock.objects.using(alias).get(sku=sku)


def quantities(alias: str) -> dict[str, int]:
    return dict(Stock.objects.using(alias).values_list("sku", "quantity"))


def test_lost_number_that_the_body_swallows(alias: str, overtaken: Pair) -> None:
    """I6: the second write never happened, so the transaction is no success."""
    one = stock(alias)
    with overtaken("stock:42") as (sleeper, _newer), pytest.raises(LeaseLostError), sleeper.atomic(using=alias):
        one.quantity = 9
        one.save(lease=sleeper)
        one.quantity = 8
        with suppress(LeaseLostError):
            one.save(lease=sleeper)
    assert quantities(alias) == {"42": 10}
