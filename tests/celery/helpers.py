"""What the tests and the tasks of the tests share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import celery
from django.db import connection, connections

from fencing import current_lease, lease
from fencing.backends import get_backend
from fencing.backends.base import LiveLease
from fencing.models import FencedWrite
from fencing.tokens import place_of
from inventory_demo.celery import app
from inventory_demo.gate import Gate
from inventory_demo.models import Stock
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker

BEFORE_CELERY_5_7 = celery.VERSION[:2] < (5, 7)


@dataclass(frozen=True, slots=True)
class Article:
    """One test's stock, and the gate at which its tasks report."""

    sku: str
    gate: Gate

    @property
    def resource(self) -> str:
        """What its lease is of."""
        return f"stock:{self.sku}"

    @property
    def quantity(self) -> int:
        """What the database has."""
        return Stock.objects.values_list("quantity", flat=True).get(sku=self.sku)

    def live(self) -> LiveLease | None:
        """Its lease as the store has it."""
        backend = get_backend("default")
        return backend.peek(place_of(backend, self.resource))

    def is_free(self) -> bool:
        """Whether nobody holds its lease."""
        return self.live() is None

    def report(self, seconds: float = 15) -> dict[str, Any]:
        """The next report of its tasks."""
        return self.gate.next_report(seconds)

    def reports(self) -> list[dict[str, Any]]:
        """The reports that are there now."""
        found = []
        while (report := self.gate.report_now()) is not None:
            found.append(report)
        return found

    def outcomes(self) -> list[str]:
        """What the history says about its writes."""
        return [*FencedWrite.objects.filter(resource=self.resource).order_by("id").values_list("outcome", flat=True)]


def revoke(sku: str) -> None:
    """End the lease of a stock, whoever holds it, as its expiry would."""
    backend = get_backend("default")
    place = place_of(backend, f"stock:{sku}")
    if (live := backend.peek(place)) is not None:
        backend.revoke(place, live.token)


def overtake(sku: str, delta: int) -> int:
    """End the present lease, and write as the next holder: in a thread, which holds nothing of ours. Returns the token."""
    tokens: list[int] = []

    def write() -> None:
        try:
            with lease(f"stock:{sku}", ttl=5) as held:
                stock = Stock.objects.get(sku=sku)
                stock.quantity += delta
                stock.save()
                tokens.append(held.token)
        finally:
            connection.close()

    revoke(sku)
    thread = threading.Thread(target=write)
    thread.start()
    thread.join(timeout=20)
    return tokens[0]


def report(sku: str, event: str, **facts: Any) -> None:
    """Tell the test what happens in a task."""
    held = current_lease(f"stock:{sku}")
    Gate(sku).report(event, token=held.token if held else None, **facts)


def reaches(result: Any, state: str, seconds: float = 15) -> bool:
    """Wait until a task is in this state."""
    return wait_for(lambda: bool(result.state == state), seconds=seconds)


def is_active(worker: Worker, task_id: str) -> bool:
    """Whether the worker's main process knows that the task is in a slot, which it hears some time after its begin."""
    found = worker.control.inspect([worker.name], timeout=5).active() or {}
    return any(one["id"] == task_id for many in found.values() for one in many)


def in_other_context(function: Callable[[], Any]) -> Any:
    """Call it in a thread, which holds nothing of ours, and return or raise what it did."""

    def call() -> Any:
        try:
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout=30)


@contextmanager
def hearing(note: Callable[[dict[str, Any]], Any]) -> Iterator[Callable[..., bool]]:
    """Hear every event of the workers; yield a function that listens until a condition holds, and says whether it does."""
    probed: list[Any] = []
    with app.connection_for_read() as broker:
        receiver: Any = app.events.Receiver(broker, handlers={"*": note, "probe-monitor": probed.append})
        with receiver.consumer_context(wakeup=False) as (connection, _channel, _consumers):

            def listen(condition: Callable[[], Any], seconds: float = 15) -> bool:
                def heard() -> bool:
                    with suppress(TimeoutError):
                        for _ in range(50):
                            connection.drain_events(timeout=0.1)
                    return bool(condition())

                return wait_for(heard, seconds=seconds)

            def is_subscribed() -> bool:
                with app.events.default_dispatcher() as events:
                    events.send("probe-monitor")
                return bool(probed)

            assert listen(is_subscribed)
            yield listen
