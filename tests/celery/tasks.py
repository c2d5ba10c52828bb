"""Tasks of the tests. Each reports what it does to the gate of its article; none sleeps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import sleep
from typing import Any

from celery import Task, shared_task
from celery.exceptions import Ignore, Reject

from fencing import StaleWriteError, current_lease
from fencing.celery import FencedTask, fenced_task, leased_task
from fencing.scope import held_leases, holder_info
from inventory_demo.gate import Gate
from inventory_demo.models import Stock, StockDelta
from inventory_demo.server_support import wait_for
from tests.celery.helpers import overtake, report, revoke

PATIENCE = 20.0
TTL = 2
# Seconds that a body works where the lease is to be in demand for longer than a slot is waited in.
WORK = 0.02


def change(sku: str, delta: int) -> int:
    """Read, change, save."""
    stock = Stock.objects.get(sku=sku)
    stock.quantity += delta
    stock.save()
    return stock.quantity


def take(self: FencedTask, sku: str, delta: int = -1) -> int:
    """The body of most tasks."""
    request = self.request
    priority = request.delivery_info.get("priority") if request.delivery_info else None
    report(
        sku, "began", retries=request.retries, headers=request.headers, id=request.id, priority=priority,
        stamps=request.stamps, shadow=request.shadow, shown=[request.get("argsrepr"), request.get("kwargsrepr")],
    )  # fmt: skip
    return change(sku, delta)


def made(name: str, body: Callable[..., int] = take, **options: Any) -> Task[..., int]:
    """A body as a task under some policy; it has no retries of Celery's to spend."""
    task: Task[..., int] = fenced_task(
        resource="stock:{sku}",
        bind=True,
        max_retries=0,
        name=f"tests.{name}",
        **{"ttl": TTL, "busy_wait": 0.1, **options},
    )(body)
    return task


retrying = made("retrying")
impatient = made("impatient", busy_timeout=0.5)
waiting = made("waiting", on_busy="wait")
failing = made("failing", on_busy="fail")
skipping = made("skipping", on_busy="skip")
ordered = made("ordered", operation="order:{delta}")
named = made("named", operation="order")


def pass_gate(self: FencedTask, sku: str) -> int:
    """Read, wait at the gate, and write."""
    stock = Stock.objects.get(sku=sku)
    report(sku, "waits", read=stock.quantity, held=held_resources())
    Gate(sku).wait(PATIENCE)
    stock.quantity -= 1
    stock.save()
    return stock.quantity


at_gate = made("at_gate", pass_gate)
# Its message stays with the broker until it has ended.
at_gate_late = made("at_gate_late", pass_gate, acks_late=True, reject_on_worker_lost=True)


@fenced_task(resource="stock:{sku}", ttl=TTL, bind=True, default_retry_delay=600)
def ending(self: FencedTask, sku: str, how: str) -> None:
    """Write, and end in some way that is not a return."""
    change(sku, -1)
    report(sku, "wrote", thread=threading.get_ident())
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
        case "at the gate":
            Gate(sku).wait(PATIENCE)


@shared_task
def probe() -> list[Any]:
    """What a task finds in its context that is under no lease."""
    info = holder_info.get()
    return [[os.getpid(), threading.get_ident()], held_resources(), info.task_id, info.task_name]


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


@fenced_task(resource="stock:{sku}", ttl=TTL)
def reading_twice(sku: str) -> int:
    """Write in the first run what was read before an earlier write of the same run."""
    early = Stock.objects.get(sku=sku)
    report(sku, "read", read=early.quantity)
    if times_run(sku) == 1:
        change(sku, -2)
    early.quantity -= 3
    early.save()
    return early.quantity


@fenced_task(resource="stock:{sku}", ttl=TTL)
def losing_once(sku: str, how: str) -> int:
    """Lose the lease in the first run, and ask for it in some way."""
    held = current_lease(f"stock:{sku}")
    assert held is not None
    report(sku, "began")
    if times_run(sku) == 1:
        revoke(sku)
        if how == "ensure_held":  # what the heartbeat has found out
            wait_for(lambda: not held.is_held(), seconds=PATIENCE)
        getattr(held, how)()
    return change(sku, -1)


def held_resources() -> list[str]:
    """What the present context holds."""
    return [held.resource for held in held_leases()]


def keep(self: FencedTask, sku: str, delta: int) -> int:
    """Change, with a line in the ledger."""
    StockDelta.objects.create(sku=sku, delta=delta, reason="test", operation=self.operation or "")
    return change(sku, delta)


def work(self: FencedTask, sku: str, delta: int) -> int:
    """The same with some work that takes time."""
    sleep(WORK)
    return keep(self, sku, delta)


patient = fenced_task(resource="stock:{sku}", ttl=30, bind=True, name="tests.patient")(keep)
crowded = fenced_task(resource="stock:{sku}", ttl=30, bind=True, name="tests.crowded", busy_wait=1.5 * WORK)(work)


def times_run(sku: str) -> int:
    """How often the present task has reported by now."""
    return len(list(iter(Gate(sku).report_now, None)))
