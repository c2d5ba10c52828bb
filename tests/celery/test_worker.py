"""Fenced tasks in a real prefork worker: held leases, redeliveries, refusals, and every way to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from celery import chain
from celery.exceptions import SoftTimeLimitExceeded

from fencing import LeaseHeldError, lease
from inventory_demo.celery import app
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker
from tests.celery import tasks
from tests.celery.helpers import Article, overtake, reaches

pytestmark = pytest.mark.slow


def test_held_lease_puts_the_task_back_into_the_queue_and_costs_no_retry(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30):
        result = worker.send(tasks.retrying, article.sku)
        assert reaches(result, "RETRY")
    assert result.get(timeout=15) == 9
    began = article.report()
    assert began["retries"] == 0
    assert began["id"] == result.id
    assert article.quantity == 9


def test_held_lease_is_a_failure_in_the_end(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30), pytest.raises(LeaseHeldError):
        worker.send(tasks.impatient, article.sku).get(timeout=15)
    assert article.reports() == []


def test_waiting_task_stays_in_its_slot(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30):
        result = worker.send(tasks.waiting, article.sku)
        assert wait_for(lambda: is_active(worker, result.id), seconds=15)
    assert result.get(timeout=15) == 9
    assert "fencing_busy" not in (article.report()["headers"] or {})


def test_failing_task_fails_at_once(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30), pytest.raises(LeaseHeldError):
        worker.send(tasks.failing, article.sku).get(timeout=15)
    assert article.reports() == []


def test_skipped_task_is_stored_as_ignored(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30):
        result = worker.send(tasks.skipping, article.sku)
        assert reaches(result, "IGNORED")
    assert article.reports() == []
    assert article.quantity == 10


def test_skipping_in_a_chain_is_a_failure(worker: Worker, article: Article) -> None:
    steps = chain(tasks.skipping.si(article.sku), tasks.skipping.si(article.sku))
    with lease(article.resource, ttl=30):
        last = steps.apply_async(queue=worker.queue)
        assert reaches(last.parent, "FAILURE")
    assert article.quantity == 10


def test_i5_redelivery_beside_the_first_run_takes_effect_once(worker: Worker, article: Article) -> None:
    task_id = uuid4().hex
    first = worker.send(tasks.at_gate, article.sku, task_id=task_id)
    article.report()
    worker.send(tasks.at_gate, article.sku, task_id=task_id)
    assert wait_for(lambda: is_scheduled(worker, task_id), seconds=15)
    assert first.state == "PENDING", "the duplicate stored a state over its running original"
    article.gate.open()
    assert first.get(timeout=15) == 9
    assert wait_for(lambda: "duplicate" in article.outcomes(), seconds=15)
    assert article.outcomes() == ["accepted", "duplicate"]
    assert first.get(timeout=15) == 9
    assert article.quantity == 9
    assert article.reports() == []


def test_i5_redelivery_after_the_end_gets_the_recorded_result(worker: Worker, article: Article) -> None:
    task_id = uuid4().hex
    for _ in range(2):
        assert worker.send(tasks.retrying, article.sku, task_id=task_id).get(timeout=15) == 9
        assert wait_for(article.is_free, seconds=15)
    assert wait_for(lambda: "duplicate" in article.outcomes(), seconds=15)
    assert len(article.reports()) == 1
    assert article.quantity == 9


def test_tasks_that_contend_for_one_lease_all_take_effect_once(worker: Worker, article: Article) -> None:
    results = [worker.send(tasks.retrying, article.sku) for _ in range(6)]
    quantities = [result.get(timeout=20) for result in results]
    assert sorted(quantities) == [4, 5, 6, 7, 8, 9]
    assert article.quantity == 4


def test_refused_body_runs_again_with_what_is_there_now(worker: Worker, article: Article) -> None:
    result = worker.send(tasks.at_gate, article.sku)
    first = article.report()
    newer = overtake(article.sku, -5)
    article.gate.open()
    assert result.get(timeout=15) == 4
    again = article.report()
    assert again["read"] == 5
    assert first["token"] < newer < again["token"]
    assert article.outcomes() == ["accepted", "stale", "accepted"]


@pytest.mark.parametrize(
    ("how", "states"),
    [
        ("error", {"FAILURE"}),
        ("ignore", {"PENDING"}),
        ("reject", {"PENDING", "FAILURE"}),  # FAILURE since Celery 5.7
        ("retry", {"RETRY"}),
        ("quiet retry", {"FAILURE"}),
        ("soft limit", {"FAILURE"}),
    ],
)
def test_every_way_to_end_undoes_the_body_and_leaves_nothing_behind(
    worker: Worker, article: Article, how: str, states: set[str]
) -> None:
    result = worker.send(tasks.ending, article.sku, how)
    pid = article.report()["pid"]
    assert wait_for(article.is_free, seconds=15)
    assert context_of(worker, pid) == [[], "", ""]
    assert wait_for(lambda: result.state in states, seconds=15)
    assert article.quantity == 10
    if how == "soft limit":
        assert isinstance(result.result, SoftTimeLimitExceeded)
    if how == "quiet retry":
        assert isinstance(result.result, RuntimeError)
    app.control.revoke(result.id)


@pytest.mark.parametrize("how", ["SIGKILL", "time limit"])
def test_killed_child_leaves_a_lease_that_ends_by_itself(worker: Worker, article: Article, how: str) -> None:
    """C04: nothing is cleaned up by hand, and no lease is without an end."""
    killed = worker.send(tasks.at_gate, article.sku, **({"time_limit": 1} if how == "time limit" else {}))
    first = article.report()
    if how == "SIGKILL":
        os.kill(first["pid"], signal.SIGKILL)
    assert reaches(killed, "FAILURE")
    left = article.live()
    assert left is None or 0 < left.remaining <= tasks.TTL
    assert worker.send(tasks.retrying, article.sku).get(timeout=20) == 9
    assert article.report()["token"] > first["token"]
    assert article.quantity == 9


def is_active(worker: Worker, task_id: str) -> bool:
    """Whether a child of the worker is at work on the task."""
    return task_id in ids(app.control.inspect([worker.name], timeout=1).active, "id")


def is_scheduled(worker: Worker, task_id: str) -> bool:
    """Whether the task waits in the worker for its time."""
    found = app.control.inspect([worker.name], timeout=1).scheduled() or {}
    return any(one["request"]["id"] == task_id for many in found.values() for one in many)


def ids(ask: Callable[[], Any], key: str) -> list[str]:
    """The ids in an answer to an inspection."""
    return [one[key] for many in (ask() or {}).values() for one in many]


def context_of(worker: Worker, pid: int) -> list[Any]:
    """What a task finds in the context of this child."""
    for _ in range(40):
        found: list[Any] = worker.send(tasks.probe).get(timeout=15)
        if found[0] == pid:
            return found[1:]
    pytest.fail(f"child {pid} got no task")
