"""Many tasks that want one lease: all get it, in bounded time, without filling the broker with their attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from math import log2
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import Sum

from inventory_demo.models import StockDelta
from inventory_demo.worker import Worker
from tests.celery import tasks
from tests.celery.helpers import Article, hearing

pytestmark = pytest.mark.slow

PROCESSES = 4
# Messages for each task, on the average: its own, and what puts it back into the queue.
MESSAGES = 3.0
# Seconds by which the worker's main process, when it is busy, may be late to tell that a task has begun.
LATE = 0.3


@pytest.fixture(scope="module")
def crowd(transactional_db: None) -> Iterator[Worker]:
    """A worker with as many processes as want the lease at a time; it tells what it does."""
    with Worker(
        f"test-{uuid4().hex[:8]}", include=["tests.celery.tasks"], concurrency=PROCESSES, options=["--task-events"]
    ) as running:
        yield running


class Events:
    """What a worker has told of these tasks: their messages, when each was first begun, and when it got its lease."""

    def __init__(self, task_ids: Collection[str]) -> None:
        self.task_ids = task_ids
        self.messages: Counter[str] = Counter()
        self.begun: dict[str, float] = {}
        self.granted: dict[str, float] = {}
        self.succeeded: set[str] = set()

    def note(self, event: dict[str, Any]) -> None:
        """Take one in, unless it is of another worker on the same broker."""
        if event.get("uuid") not in self.task_ids:
            return
        match event["type"]:
            case "task-received":
                self.messages[event["uuid"]] += 1
            case "task-started":
                self.begun.setdefault(event["uuid"], event["timestamp"])
            case "task-granted":
                self.granted[event["uuid"]] = event["timestamp"]
            case "task-succeeded":
                self.succeeded.add(event["uuid"])

    def waits(self) -> dict[str, float]:
        """How long each task has waited for its lease, in a slot and in the queue, from its first begin on."""
        # Two processes tell of it, each by its own clock.
        return {task_id: max(0.0, self.granted[task_id] - begun) for task_id, begun in self.begun.items()}


def contend(worker: Worker, article: Article, task: Any, tasks: int) -> Events:
    """Send so many tasks of one article, and see each of them take effect once."""
    task_ids = [uuid4().hex for _ in range(tasks)]
    events = Events(task_ids)
    with hearing(events.note) as listen:
        results = [worker.send(task, article.sku, 1, task_id=task_id) for task_id in task_ids]
        assert listen(lambda: len(events.succeeded) == tasks, 240), f"{len(events.succeeded)} of {tasks} tasks ended"
    assert sorted(result.get(timeout=15) for result in results) == list(range(11, 11 + tasks))
    assert article.quantity == 10 + tasks
    ledger = StockDelta.objects.filter(sku=article.sku)
    assert ledger.aggregate(Sum("delta"))["delta__sum"] == ledger.count() == tasks
    assert Counter(article.outcomes()) == {"accepted": tasks}
    return events


def test_200_tasks_that_want_one_lease_get_it_in_turn(
    crowd: Worker, article: Article, record_property: Callable[[str, Any], None]
) -> None:
    events = contend(crowd, article, tasks.patient, 200)
    waits = sorted(events.waits().values())
    messages = events.messages.total() / len(waits)
    found = {"p50": waits[100], "p99": waits[198], "longest": waits[-1], "messages": messages}
    print(found)
    record_property("seconds until the lease", found)
    assert messages <= MESSAGES, found


def test_tasks_that_do_not_get_the_lease_come_back_ever_more_rarely(crowd: Worker, article: Article) -> None:
    """Each body works for nearly as long as the others wait for it, so most go back into the queue, some many times."""
    events = contend(crowd, article, tasks.crowded, 60)
    assert max(events.messages.values()) > 1, "the lease was hardly in demand"
    for task_id, waited in events.waits().items():
        # The pauses are at least half of 1 s, 2 s, 4 s and so on.
        assert events.messages[task_id] <= 1 + log2(1 + 2 * (waited + LATE)), (events.messages[task_id], waited)
