"""Tasks that change the stock."""

from __future__ import annotations

from uuid import uuid4

from django.conf import settings

from fencing.celery import FencedTask, fenced_task, leased_task
from inventory_demo.models import PlainStock, Stock, StockDelta


class OversoldError(Exception):
    """A change would take more pieces than there are.

    Args:
        sku: the article.
        quantity: how many there are.
        delta: the change that was asked for.
    """

    def __init__(self, sku: str, quantity: int, delta: int) -> None:
        super().__init__(sku, quantity, delta)
        self.sku = sku
        self.quantity = quantity
        self.delta = delta

    def __str__(self) -> str:
        return f"Stock {self.sku} has {self.quantity}; a change of {self.delta:+d} would oversell it."


def changed(sku: str, quantity: int, delta: int) -> int:
    """The quantity after a change; raises OversoldError rather than go below 0."""
    if quantity + delta < 0:
        raise OversoldError(sku, quantity, delta)
    return quantity + delta


@fenced_task(resource="stock:{sku}", ttl=settings.STOCK_TTL, bind=True, throws=(OversoldError,))
def apply_delta(self: FencedTask, sku: str, delta: int, reason: str) -> int:
    """Change a stock by ``delta``, keep the change in the ledger, and return the new quantity."""
    stock = Stock.objects.get(sku=sku)
    stock.quantity = changed(sku, stock.quantity, delta)
    stock.save()
    # A direct call has no key: then each call is a change of its own.
    StockDelta.objects.create(sku=sku, delta=delta, reason=reason, operation=self.operation or uuid4().hex)
    return stock.quantity


@leased_task(resource="stock:{sku}", ttl=settings.STOCK_TTL, throws=(OversoldError,))
def apply_delta_unfenced(sku: str, delta: int) -> int:
    """The same on a stock without a fence: a worker that sleeps past its ttl overwrites what came after it."""
    stock = PlainStock.objects.get(sku=sku)
    stock.quantity = changed(sku, stock.quantity, delta)
    stock.save()
    return stock.quantity
