"""C25: four worker processes that sell the last piece at the same time, and lose no change, though leases end early."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import Sum

from fencing.backends import get_backend
from fencing.tokens import place_of
from inventory_demo.models import Stock, StockDelta
from inventory_demo.tasks import OversoldError, apply_delta
from inventory_demo.worker import Worker
from tests.concurrency import BOUND, wait_until

pytestmark = pytest.mark.slow

ROUNDS = 50
FINAL = {"SUCCESS", "FAILURE"}


@pytest.fixture(scope="module")
def worker(transactional_db: None) -> Iterator[Worker]:
    with Worker(f"test-{uuid4().hex[:8]}", concurrency=4) as running:
        yield running


@contextmanager
def leases_end_early(skus: Sequence[str], times: int) -> Iterator[None]:
    """Take the lease of each of these stocks away so many times, so that two tasks are at work on one of them."""
    ended, backend = threading.Event(), get_backend("default")
    left = {place_of(backend, f"stock:{sku}"): times for sku in skus}

    def take_away() -> None:
        while not ended.is_set():
            for place in [place for place, number in left.items() if number]:
                if (live := backend.peek(place)) is not None:
                    backend.revoke(place, live.token)
                    left[place] -= 1

    thread = threading.Thread(target=take_away)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(BOUND)


def ends(results: Sequence[Any]) -> list[Any]:
    """What came of each task: its result or its exception."""
    for result in results:
        wait_until(lambda: result.state in FINAL, f"task {result.id} ends", seconds=60)  # noqa: B023
    return [result.result for result in results]


def test_two_sales_of_the_last_piece_at_once(worker: Worker) -> None:
    skus = [f"last-{uuid4().hex[:8]}" for _ in range(ROUNDS)]
    Stock.objects.bulk_create([Stock(sku=sku, quantity=1) for sku in skus])
    with leases_end_early(skus, 2):
        sent = [[worker.send(apply_delta, sku, -1, f"sale {number}") for number in (1, 2)] for sku in skus]
        came = [ends(pair) for pair in sent]
    for sku, pair in zip(skus, came, strict=True):
        refused = [one for one in pair if isinstance(one, Exception)]
        # Not as stale: the body ran again, and found what the other one left.
        assert [type(one) for one in refused] == [OversoldError], (sku, pair)
        assert [one for one in pair if one not in refused] == [0]
    assert set(Stock.objects.filter(sku__in=skus).values_list("quantity", flat=True)) == {0}
    assert StockDelta.objects.filter(sku__in=skus).count() == ROUNDS


def test_changes_in_both_directions_by_four_processes(worker: Worker) -> None:
    sku = f"mixed-{uuid4().hex[:8]}"
    Stock.objects.create(sku=sku, quantity=100)
    deltas = ([-1, -1, 2] * 20)[:60]
    with leases_end_early([sku], 40):
        came = ends([worker.send(apply_delta, sku, delta, "mixed") for delta in deltas])
    accepted = [delta for delta, one in zip(deltas, came, strict=True) if isinstance(one, int)]
    assert all(isinstance(one, int | Exception) for one in came)
    assert Stock.objects.get(sku=sku).quantity == 100 + sum(accepted)
    written = StockDelta.objects.filter(sku=sku)
    assert written.count() == len(accepted)
    assert written.aggregate(sum=Sum("delta"))["sum"] == sum(accepted)
