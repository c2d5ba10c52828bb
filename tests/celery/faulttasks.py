"""Tasks for the tests of faults: each stops where its test wants to strike, and only in its first delivery."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from celery import Task
from celery.exceptions import Reject
from django.db import connection

from fencing import exceptions
from fencing.celery import FencedTask, fenced_task
from inventory_demo.gate import Gate
from inventory_demo.models import Stock
from tests.celery.helpers import overtake, report
from tests.celery.tasks import PATIENCE, TTL, change, take, times_run


class Stopping(Task):  # type: ignore[type-arg]
    """A base of the user's own that has something to do after the body's commit, before Celery stores the result."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        stop_at("commit", self, *args)
        return result


def stop_at(here: str, task: Any, sku: str, where: str) -> None:
    """Report, and wait for the gate, if this is the place and nobody was there before."""
    event = f"at {here}"
    if here == where and all(one["event"] != event for one in iter(Gate(sku).report_now, None)):
        report(sku, event, id=task.request.id)
        Gate(sku).wait(PATIENCE)


def stopping(name: str, **options: Any) -> Task[..., int]:
    """A task that stops before its write, after it, or after its commit."""

    @fenced_task(
        resource="stock:{sku}", ttl=TTL, busy_wait=0.1, bind=True, base=Stopping, name=f"tests.{name}", **options
    )
    def body(self: FencedTask, sku: str, where: str) -> int:
        report(sku, "began")
        stop_at("read", self, sku, where)
        quantity = change(sku, -1)
        stop_at("write", self, sku, where)
        return quantity

    task: Task[..., int] = body
    return task


acknowledged_late = stopping("acknowledged_late", acks_late=True)
redelivered = stopping("redelivered", acks_late=True, reject_on_worker_lost=True)
redelivered_waiting = stopping("redelivered_waiting", acks_late=True, on_busy="wait")
redelivered_skipping = stopping("redelivered_skipping", acks_late=True, on_busy="skip")
redelivered_failing = stopping("redelivered_failing", acks_late=True, on_busy="fail")


@fenced_task(resource="stock:{sku}", ttl=TTL, soft_time_limit=2)
def deaf(sku: str, overtaken: bool) -> int:
    """Take no notice of the soft limit, and write what was read before it."""
    stock = Stock.objects.get(sku=sku)
    report(sku, "read")
    if times_run(sku) == 1:
        with suppress(Exception):
            Gate(sku).wait(PATIENCE)
        if overtaken:
            overtake(sku, -5)
    stock.quantity -= 1
    stock.save()
    return stock.quantity


@fenced_task(resource="stock:{sku}", ttl=TTL, soft_time_limit=1)
def sleeping_in_database(sku: str) -> None:
    """Be in the middle of a statement when the soft limit strikes."""
    change(sku, -1)
    report(sku, "wrote")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [PATIENCE])


@fenced_task(resource="stock:{sku}", ttl=TTL, bind=True, acks_late=True)
def rejecting(self: FencedTask, sku: str) -> int:
    """Write, and give the message back, once."""
    quantity = change(sku, -1)
    report(sku, "wrote")
    if times_run(sku) == 1:
        raise Reject(sku, requeue=True)
    return quantity


@fenced_task(resource="stock:{sku}", ttl=60, bind=True, max_retries=1)
def retrying_once(self: FencedTask, sku: str) -> int:
    """Write, and ask for another try, once."""
    quantity = change(sku, -1)
    report(sku, "wrote", retries=self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=2)
    return quantity


@fenced_task(resource="stock:{sku}", ttl=60, bind=True, atomic=False, max_retries=1)
def retrying_quietly(self: FencedTask, sku: str) -> int:
    """Ask for another try without leaving the body, which is not atomic."""
    report(sku, "began", retries=self.request.retries)
    if not self.request.retries:
        self.retry(countdown=0.2, throw=False)
        return change(sku, -1)
    return change(sku, -2)


@fenced_task(
    resource="stock:{sku}", ttl=TTL, busy_wait=0, bind=True, autoretry_for=(Exception,), max_retries=3,
    default_retry_delay=0.2, max_stale_retries=0,
)  # fmt: skip
def auto(self: FencedTask, sku: str, trouble: str = "") -> int:
    """Have Celery try again whatever happens: nothing, an error, or a refusal."""
    stock = Stock.objects.get(sku=sku)
    report(sku, "read", read=stock.quantity, retries=self.request.retries)
    if trouble and not self.request.retries:
        if trouble == "error":
            raise ValueError(sku)
        overtake(sku, -5)
    stock.quantity -= 1
    stock.save()
    return stock.quantity


@fenced_task(
    resource="stock:{sku}", ttl=TTL, bind=True, atomic=False, autoretry_for=(Exception,), max_retries=2,
    default_retry_delay=0,
)  # fmt: skip
def auto_half_done(self: FencedTask, sku: str) -> None:
    """Be overtaken after one write is in, and have Celery try again whatever happens."""
    report(sku, "began", retries=self.request.retries)
    change(sku, -1)
    stock = Stock.objects.get(sku=sku)
    overtake(sku, -5)
    stock.save()


def raise_by_name(self: FencedTask, sku: str, error: str, *arguments: Any) -> None:
    """Report, and raise one of the errors of `fencing.exceptions`."""
    report(sku, "began", retries=self.request.retries)
    raise getattr(exceptions, error)(*arguments)


auto_raising, auto_naming, auto_excepting = (
    fenced_task(
        resource="stock:{sku}", ttl=TTL, bind=True, max_stale_retries=0, max_retries=1, default_retry_delay=0,
        name=f"tests.{name}", **options,
    )(raise_by_name)
    for name, options in (
        ("auto_raising", {"autoretry_for": (Exception,)}),
        ("auto_naming", {"autoretry_for": (exceptions.InvalidTokenError,)}),
        ("auto_excepting", {"autoretry_for": [Exception], "dont_autoretry_for": [exceptions.LeaseLostError]}),
    )
)  # fmt: skip


@fenced_task(resource="stock:{sku}", ttl=TTL, bind=True, busy_wait=0.1)
def replaced(self: FencedTask, sku: str) -> Any:
    """Write, and let another task of the same resource do the work instead."""
    change(sku, -5)
    request: Any = self.request
    return self.replace(replacement.si(sku).set(queue=request.delivery_info["routing_key"]))


replacement = fenced_task(resource="stock:{sku}", ttl=TTL, bind=True, busy_wait=0.1, name="tests.replacement")(take)


class Echoing(Task):  # type: ignore[type-arg]
    """A base whose task is delivered once more when its result has been stored already."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        # Celery 5.5 takes a step out of the chain as it sends it; the broker's message still has it.
        self.request.update(came=[*(self.request.chain or ())])

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        if times_run(args[0]) == 1:
            report(args[0], "echoed")
            self.signature_from_request(self.request, chain=self.request.get("came")).apply_async()


echoing = fenced_task(resource="stock:{sku}", ttl=TTL, busy_wait=0.1, bind=True, base=Echoing, name="tests.echoing")(
    take
)
rate_limited = fenced_task(
    resource="stock:{sku}", ttl=TTL, busy_wait=0.1, bind=True, rate_limit="20/s", name="tests.rate_limited"
)(take)


@fenced_task(
    resource=lambda request, exc, traceback: f"stock:test-{request.args[1]:08x}",
    operation=lambda request, exc, traceback: f"undo:{request.id}",
    ttl=TTL,
)
def making_good(request: Any, exc: Exception, traceback: Any) -> int:
    """What Celery calls when another task has failed."""
    sku, task = f"test-{request.args[1]:08x}", cast("FencedTask", making_good)
    report(sku, "called", id=task.request.id, operation=task.operation, error=type(exc).__name__)
    return change(sku, +1)
