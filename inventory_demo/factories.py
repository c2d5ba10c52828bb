"""Rows for tests and for the demonstration."""

from __future__ import annotations

from typing import Any

from factory.declarations import Sequence
from factory.django import DjangoModelFactory

from inventory_demo.models import PlainStock, Stock, StockDelta


def numbered(name: str) -> Any:
    """A different text for each row: the name and a number."""
    return Sequence(f"{name}-{{}}".format)  # type: ignore[no-untyped-call]


class StockFactory(DjangoModelFactory[Stock]):
    """A stock of ten pieces."""

    class Meta:
        model = Stock

    sku = numbered("article")
    quantity = 10


class PlainStockFactory(DjangoModelFactory[PlainStock]):
    """A stock of ten pieces that nothing protects."""

    class Meta:
        model = PlainStock

    sku = numbered("article")
    quantity = 10


class StockDeltaFactory(DjangoModelFactory[StockDelta]):
    """A line of the ledger."""

    class Meta:
        model = StockDelta

    sku = numbered("article")
    delta = -1
    reason = "sale"
    operation = numbered("sale")
