"""Workers that are told to end while a task runs."""

from __future__ import annotations

import os
import signal
from uuid import uuid4

import pytest

from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker
from tests.celery import faulttasks, tasks
from tests.celery.conftest import TASKS
from tests.celery.helpers import Article

pytestmark = pytest.mark.slow


def test_i5_warm_shutdown_lets_the_task_end_and_a_cold_one_has_it_run_again_elsewhere(
    transactional_db: None, article: Article, other: Article
) -> None:
    queue = f"test-{uuid4().hex[:8]}"
    with Worker(queue, include=TASKS) as first:
        result = first.send(faulttasks.redelivered, article.sku, "write")
        article.report()
        article.report()
        for _ in range(2):  # Celery takes no notice of the second one
            os.kill(first.pid, signal.SIGTERM)
            assert wait_for(lambda: "Warm shutdown" in first.log(), seconds=15)
        article.gate.open()
        assert wait_for(first.has_ended, seconds=30)
        assert result.get(timeout=15) == 9
        assert article.is_free()
    with Worker(queue, include=TASKS) as second:
        result = second.send(faulttasks.redelivered, other.sku, "write")
        began = other.report()
        other.report()
        os.kill(second.pid, signal.SIGQUIT)
        assert wait_for(second.has_ended, seconds=30)
        assert wait_for(other.is_free, seconds=tasks.TTL + 15)
        assert other.quantity == 10
        with Worker(queue, include=TASKS) as third:
            assert result.get(timeout=30) == 9
            assert other.report()["token"] > began["token"]
            assert other.outcomes() == ["accepted"]
            assert third.send(tasks.retrying, article.sku).get(timeout=30) == 8
