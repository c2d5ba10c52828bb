"""Tasks whose worker is measured: fenced ones, and what each is compared with, written by hand."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task
from django.db import transaction
from django_redis import get_redis_connection

from benchmarks.models import AppliedOperation, PlainWrite
from fencing.celery import FencedTask, fenced_task
from inventory_demo.models import PlainStock, Stock, StockDelta

# Every name is as long as the others', so that the messages are.
OPTIONS: dict[str, Any] = {"ignore_result": True}


@shared_task(name="bench.empty", **OPTIONS)
def empty(sku: str, delta: int) -> None:
    """Do nothing."""


@fenced_task(resource="stock:{sku}", atomic=False, name="bench.fence", **OPTIONS)
def fenced(sku: str, delta: int) -> None:
    """Do nothing, under a lease."""


@shared_task(name="bench.redis", **OPTIONS)
def redis_lock(sku: str, delta: int) -> None:
    """Do nothing, under redis-py's own lock."""
    with get_redis_connection("leases").lock(f"lock:{sku}", timeout=30):
        pass


@shared_task(bind=True, name="bench.plain", **OPTIONS)
def delta_by_hand(self: Task[..., int], sku: str, delta: int) -> int:
    """What a fenced delta reads and writes, by the ORM; nothing keeps two of them from overwriting each other.

    It looks the operation up, reads the stock and saves it, and inserts a line of history, one of the ledger, and
    the operation with its result. The row of the grant, which fencing writes as well, it goes without.
    """
    operation = self.request.id or ""
    with transaction.atomic():
        if applied := AppliedOperation.objects.filter(key=operation).first():
            return int(applied.result)
        stock = PlainStock.objects.get(sku=sku)
        stock.quantity += delta
        stock.save()
        PlainWrite.objects.create(resource=f"stock:{sku}", object_pk=str(stock.pk), action="save", operation=operation)
        StockDelta.objects.create(sku=sku, delta=delta, reason="by hand", operation=operation)
        AppliedOperation.objects.create(key=operation, result=stock.quantity)
    return stock.quantity


@fenced_task(resource="stock:{sku}", bind=True, name="bench.delta", **OPTIONS)
def fenced_delta(self: FencedTask, sku: str, delta: int) -> int:
    """The example project's `apply_delta`: fenced, once, and recorded."""
    stock = Stock.objects.get(sku=sku)
    stock.quantity += delta
    stock.save()
    StockDelta.objects.create(sku=sku, delta=delta, reason="fenced", operation=self.operation or "")
    return stock.quantity


@shared_task(bind=True, name="bench.rowed", **OPTIONS)
def delta_for_update(self: Task[..., int], sku: str, delta: int) -> int:
    """The same with SELECT … FOR UPDATE and a table of operations, which keep it once and in turn; no history."""
    operation = self.request.id or ""
    with transaction.atomic():
        stock = PlainStock.objects.select_for_update().get(sku=sku)
        if applied := AppliedOperation.objects.filter(key=operation).first():
            return int(applied.result)
        stock.quantity += delta
        stock.save()
        StockDelta.objects.create(sku=sku, delta=delta, reason="in turn", operation=operation)
        AppliedOperation.objects.create(key=operation, result=stock.quantity)
    return stock.quantity


@shared_task(name="bench.ended")
def ended() -> None:
    """The last one in a queue: its result says that all before it are done."""
