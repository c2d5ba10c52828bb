"""One message delivered several times: by a broker that waits one second for an acknowledgement, and at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from celery import Task
from kombu.transport.redis import Channel

from inventory_demo.celery import app
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker
from tests.celery import faulttasks, tasks
from tests.celery.conftest import TASKS
from tests.celery.helpers import Article

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hasty(transactional_db: None) -> Iterator[Worker]:
    """A worker whose broker delivers again after a second; what is unacknowledged is kept apart from other workers'."""
    queue = f"test-{uuid4().hex[:8]}"
    kept = {one: f"{queue}:{one}" for one in ("unacked_key", "unacked_index_key", "unacked_mutex_key")}
    options = {**kept, "visibility_timeout": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    environment = {"WORKER_TRANSPORT_OPTIONS": json.dumps(options)}
    with Worker(queue, include=TASKS, environment=environment) as running, sweeping(options):
        yield running
    with app.connection_for_write() as broker:
        channel: Any = broker.default_channel
        channel.client.delete(*kept.values())


@contextmanager
def sweeping(options: dict[str, Any]) -> Iterator[None]:
    """Look each second for what to deliver again, as a worker does: a prefork one with Celery 5.5 looks every 100 only."""
    if hasattr(Channel, "unacked_restore_interval"):
        yield
        return
    ended = threading.Event()

    def sweep() -> None:
        with app.connection_for_write(transport_options=options) as broker:
            channel: Any = broker.default_channel
            while not ended.wait(1):
                channel.qos.restore_visible(interval=1)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        yield
    finally:
        ended.set()
        sweeper.join()


@pytest.mark.parametrize(
    ("task", "deliveries"),
    [
        (faulttasks.redelivered, 3),
        (faulttasks.redelivered_skipping, 3),
        (faulttasks.redelivered_failing, 3),
        (faulttasks.redelivered_waiting, 2),  # the second one waits in its slot
    ],
    ids=["retry", "skip", "fail", "wait"],
)
def test_c05_redelivered_beside_its_first_run_it_takes_effect_once_whatever_a_busy_task_does(
    hasty: Worker, article: Article, task: Task[..., int], deliveries: int
) -> None:
    result = hasty.send(task, article.sku, "read")
    article.report()
    article.report()
    received = f"[{result.id}] received"
    assert wait_for(lambda: hasty.log(60_000).count(received) >= deliveries, seconds=30)
    assert result.state == "PENDING", "the redelivery stored a state over its running original"
    article.gate.open()
    assert result.get(timeout=30) == 9
    assert wait_for(lambda: "duplicate" in article.outcomes(), seconds=30)
    assert wait_for(lambda: result.state == "SUCCESS", seconds=30)
    assert article.outcomes().count("accepted") == 1
    assert article.quantity == 9
    assert article.reports() == []


def test_c05_redelivered_between_commit_and_acknowledgement_it_returns_the_recorded_result(
    hasty: Worker, article: Article
) -> None:
    result = hasty.send(faulttasks.redelivered, article.sku, "commit")
    article.report()
    article.report()
    assert wait_for(lambda: "duplicate" in article.outcomes(), seconds=30)
    assert result.get(timeout=30) == 9
    article.gate.open()
    assert article.outcomes().count("accepted") == 1
    assert article.quantity == 9
    assert article.reports() == [], "the body ran again"


def test_c05_one_message_five_times_at_a_time_takes_effect_once(hasty: Worker, article: Article) -> None:
    task_id = uuid4().hex
    for _ in range(5):
        hasty.send(tasks.retrying, article.sku, task_id=task_id)
    assert wait_for(lambda: len(article.outcomes()) >= 5, seconds=60)
    # There may be more than five: this broker also delivers again what waits for its turn.
    first, *more = article.outcomes()
    assert (first, set(more)) == ("accepted", {"duplicate"})
    assert article.quantity == 9
