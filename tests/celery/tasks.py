"""Tasks of the tests. Each reports what it does to the gate of its article; none sleeps."""

from __future__ import annotations

import os
from typing import Any

from celery import Task, shared_task
from celery.exceptions import Ignore, Reject

from fencing import StaleWriteError, current_lease
from fencing.celery import FencedTask, fenced_task, leased_task
from fencing.scope import held_leases, holder_info
from inventory_demo.gate import Gate
from inventory_demo.models import Stock
from tests.celery.helpers import overtake, report, revoke

PATIENCE = 20.0
TTL = 2


def change(sku: str, delta: int) -> int:
    """Read, change, save."""
    stock = Stock.objects.get(sku=sku)
    stock.quantity += delta
    stock.save()
    return stock.quantity


def take(self: FencedTask, sku: str, delta: int = -1) -> int:
    """The body of most tasks."""
    report(sku, "began", retries=self.request.retries, headers=self.request.headers, id=self.request.id)
    return change(sku, delta)


def made(name: str, **options: Any) -> Task[..., int]:
    """`take` as a task under some policy; it has no retries of Celery's to spend."""
    task: Task[..., int] = fenced_task(
        resource="stock:{sku}",
        bind=True,
        max_retries=0,
        name=f"tests.{name}",
        **{"ttl": TTL, "busy_wait": 0.1, **options},
    )(take)
    return task


retrying = made("retrying")
impatient = made("impatient", busy_timeout=0.5)
waiting = made("waiting", on_busy="wait")
failing = made("failing", on_busy="fail")
skipping = made("skipping", on_busy="skip")
ordered = made("ordered", operation="order:{delta}")
named = made("named", operation="order")


@fenced_task(resource="stock:{sku}", ttl=TTL, busy_wait=0.1, bind=True)
def at_gate(self: FencedTask, sku: str) -> int:
    """Read, wait at the gate, and write."""
    stock = Stock.objects.get(sku=sku)
    report(sku, "waits", read=stock.quantity)
    Gate(sku).wait(PATIENCE)
    stock.quantity -= 1
    stock.save()
    return stock.quantity


@fenced_task(resource="stock:{sku}", ttl=TTL, bind=True, soft_time_limit=1, default_retry_delay=600)
def ending(self: FencedTask, sku: str, how: str) -> None:
    """Write, and end in some way that is not a return."""
    change(sku, -1)
    report(sku, "wrote")
    match how:
        case "error":
            raise ValueError(sku)
        case "ignore":
            raise Ignore
        case "reject":
            raise Reject(sku, requeue=False)
        case "retry":
            raise self.retry()
        case "quiet retry":
            self.retry(throw=False)
        case "soft limit":
            Gate(sku).wait(PATIENCE)


@shared_task
def probe() -> list[Any]:
    """What a task finds in its context that is under no lease."""
    info = holder_info.get()
    return [os.getpid(), [held.resource for held in held_leases()], info.task_id, info.task_name]


@fenced_task(resource="stock:{sku}", ttl=TTL)
def overtaken(sku: str, times: int) -> int:
    """Be overtaken between read and write, in the first so many runs."""
    stock = Stock.objects.get(sku=sku)
    report(sku, "read", read=stock.quantity)
    if times_run(sku) <= times:
        overtake(sku, -5)
    stock.quantity -= 3
    stock.save()
    return stock.quantity


@fenced_task(resource="stock:{sku}", ttl=TTL, atomic=False)
def half_done(sku: str) -> None:
    """Be overtaken after one write is in."""
    change(sku, -1)
    stock = Stock.objects.get(sku=sku)
    overtake(sku, -5)
    stock.save()


@fenced_task(resource="stock:{sku}", ttl=TTL, atomic=False, max_stale_retries=0)
def swallowing(sku: str) -> str:
    """Go on after a refusal as if nothing had happened."""
    stock = Stock.objects.get(sku=sku)
    overtake(sku, -5)
    try:
        stock.save()
    except StaleWriteError:
        return "fine"
    return "not refused"


@leased_task(resource="stock:{sku}", ttl=TTL)
def leased(sku: str) -> int:
    """Only a lease."""
    report(sku, "began")
    return change(sku, -1)


@fenced_task(resource="stock:{sku}", ttl=TTL, max_stale_retries=1)
def losing(sku: str) -> None:
    """Lose the lease in each run, and notice."""
    held = current_lease()
    assert held is not None
    revoke(sku)
    held.renew()


class Strict(Task):  # type: ignore[type-arg]
    """A base of the project that expects something, in a list."""

    abstract = True
    throws = [LookupError]  # type: ignore[assignment]


def refuse_or_miss(sku: str, how: str) -> None:
    """End in a refusal, or in what the task itself expects."""
    if how == "miss":
        raise KeyError(sku)
    raise StaleWriteError(f"stock:{sku}", 5, 7)


def expecting(name: str, **options: Any) -> Task[..., None]:
    """`refuse_or_miss` as a task that has `throws` in some form."""
    make = fenced_task(resource="stock:{sku}", ttl=TTL, max_stale_retries=0, name=f"tests.expecting_{name}", **options)
    return make(refuse_or_miss)


expecting_a_tuple = expecting("a_tuple", throws=(KeyError, ValueError))
expecting_a_list = expecting("a_list", throws=[KeyError])
expecting_one = expecting("one", throws=KeyError)
expecting_by_base = expecting("by_base", base=Strict)


def times_run(sku: str) -> int:
    """How often the present task has reported by now."""
    return len(list(iter(Gate(sku).report_now, None)))
