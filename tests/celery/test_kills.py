"""A child that is killed: before its write, after it, and between its commit and the acknowledgement of its message."""

from __future__ import annotations

import os
import signal

import pytest

from inventory_demo.celery import app
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker
from tests.celery import faulttasks, tasks
from tests.celery.commits import commits, slow_commit
from tests.celery.helpers import Article, is_active, reaches

pytestmark = pytest.mark.slow


def test_i5_killed_before_its_commit_it_runs_again_under_a_higher_token(
    worker: Worker, article: Article, other: Article
) -> None:
    places = {"read": article, "write": other}
    results = {where: worker.send(faulttasks.redelivered, one.sku, where) for where, one in places.items()}
    first = {where: one.report() for where, one in places.items()}
    for one in places.values():
        os.kill(one.report()["pid"], signal.SIGKILL)
    for where, one in places.items():
        assert results[where].get(timeout=30) == 9
        again = one.report()
        assert again["event"] == "began"
        assert again["token"] > first[where]["token"]
        assert one.quantity == 9
        assert one.outcomes() == ["accepted"]
        assert wait_for(one.is_free, seconds=15)


def test_i5_killed_after_its_commit_it_takes_effect_once_and_returns_the_recorded_result(
    worker: Worker, article: Article
) -> None:
    result = worker.send(faulttasks.redelivered, article.sku, "commit")
    article.report()
    at_commit = article.report()
    assert article.is_free()
    assert article.quantity == 9
    os.kill(at_commit["pid"], signal.SIGKILL)
    assert result.get(timeout=30) == 9
    assert article.reports() == [], "the body ran again"
    assert article.outcomes() == ["accepted", "duplicate"]
    assert article.quantity == 9


def test_i5_killed_in_the_middle_of_its_commit_it_takes_effect_once(worker: Worker, article: Article) -> None:
    with slow_commit(article.sku):
        result = worker.send(faulttasks.redelivered, article.sku, "")
        began = article.report()
        assert wait_for(lambda: commits() == 1, seconds=15)
        os.kill(began["pid"], signal.SIGKILL)
        # The database goes on with a commit of which nobody hears any more.
        assert result.get(timeout=40) == 9
    assert article.quantity == 9
    assert article.outcomes() == ["accepted", "duplicate"]


def test_without_reject_on_worker_lost_a_killed_task_is_a_failure_without_effect(
    worker: Worker, article: Article
) -> None:
    result = worker.send(faulttasks.acknowledged_late, article.sku, "write")
    article.report()
    child = article.report()["pid"]
    # Before its main process has heard of the begin, Celery takes the task for one that nobody had.
    assert wait_for(lambda: is_active(worker, result.id), seconds=15)
    os.kill(child, signal.SIGKILL)
    assert reaches(result, "FAILURE", seconds=30)
    assert wait_for(article.is_free, seconds=tasks.TTL + 15)
    assert article.quantity == 10
    assert article.reports() == []


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_revoked_with_terminate_it_has_no_effect_and_its_lease_ends(worker: Worker, article: Article, how: str) -> None:
    result = worker.send(faulttasks.acknowledged_late, article.sku, "write")
    article.report()
    article.report()
    app.control.revoke(result.id, terminate=True, signal=how, destination=[worker.name])
    assert reaches(result, "REVOKED", seconds=30)
    assert wait_for(article.is_free, seconds=tasks.TTL + 15)
    assert article.quantity == 10
    assert worker.send(tasks.retrying, article.sku).get(timeout=30) == 9
