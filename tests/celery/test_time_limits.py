"""Soft and hard time limits, wherever they strike: in the body, in the wait for the lease, in the begin, in the commit."""

from __future__ import annotations

from uuid import uuid4

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from django.db import connection, transaction

from fencing import lease
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker
from tests.celery import faulttasks, tasks
from tests.celery.commits import commits, slow_commit
from tests.celery.helpers import Article, reaches

pytestmark = pytest.mark.slow


def test_c07_swallowed_soft_limit_lets_the_save_through_where_nobody_is_newer(worker: Worker, article: Article) -> None:
    assert worker.send(faulttasks.deaf, article.sku, False).get(timeout=30) == 9
    assert article.quantity == 9
    assert wait_for(article.is_free, seconds=15)


def test_c07_swallowed_soft_limit_does_not_let_a_stale_save_through(worker: Worker, article: Article) -> None:
    assert worker.send(faulttasks.deaf, article.sku, True).get(timeout=30) == 4
    assert article.outcomes() == ["accepted", "stale", "accepted"]
    assert article.quantity == 4


def test_soft_limit_in_the_middle_of_a_statement_undoes_the_body_and_leaves_a_usable_child(
    worker: Worker, article: Article
) -> None:
    result = worker.send(faulttasks.sleeping_in_database, article.sku)
    assert reaches(result, "FAILURE", seconds=30)
    assert isinstance(result.result, SoftTimeLimitExceeded)
    assert wait_for(article.is_free, seconds=15)
    assert article.quantity == 10
    for _ in range(4):  # both children
        worker.send(tasks.retrying, article.sku).get(timeout=30)
    assert article.quantity == 6


def test_soft_limit_in_the_wait_for_the_lease_leaves_nobody_in_its_queue(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30):
        result = worker.send(tasks.waiting, article.sku, soft_time_limit=1)
        assert reaches(result, "FAILURE", seconds=30)
    assert isinstance(result.result, SoftTimeLimitExceeded)
    assert article.is_free(), "the lease went to one who had left"
    assert article.reports() == []


def test_soft_limit_in_the_begin_is_the_outcome_and_gives_the_lease_back(worker: Worker, article: Article) -> None:
    worker.send(tasks.retrying, article.sku).get(timeout=30)
    article.report()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM fencing_resource WHERE name = %s FOR UPDATE", [article.resource])
        assert cursor.rowcount == 1
        result = worker.send(tasks.retrying, article.sku, soft_time_limit=1)
        assert reaches(result, "FAILURE", seconds=30)
        assert wait_for(article.is_free, seconds=15)
    assert isinstance(result.result, SoftTimeLimitExceeded)
    assert worker.send(tasks.retrying, article.sku).get(timeout=30) == 8
    assert len(article.reports()) == 1


def test_c07_soft_limit_in_the_commit_undoes_it_and_the_task_can_be_sent_again(
    worker: Worker, article: Article
) -> None:
    task_id = uuid4().hex
    with slow_commit(article.sku, seconds=30):
        result = worker.send(tasks.retrying, article.sku, task_id=task_id, soft_time_limit=1)
        assert reaches(result, "FAILURE", seconds=30)
        assert isinstance(result.result, SoftTimeLimitExceeded)
        assert wait_for(lambda: commits() == 0, seconds=10), "the commit went on without anybody to hear of it"
    assert article.quantity == 10
    for _ in range(2):
        worker.send(tasks.retrying, article.sku, task_id=task_id)
    assert wait_for(lambda: article.outcomes() == ["accepted", "duplicate"], seconds=30)
    assert article.quantity == 9


def test_hard_limit_undoes_the_body_and_the_lease_ends_by_itself(worker: Worker, article: Article) -> None:
    result = worker.send(faulttasks.acknowledged_late, article.sku, "write", time_limit=1)
    assert reaches(result, "FAILURE", seconds=30)
    assert isinstance(result.result, TimeLimitExceeded)
    assert wait_for(article.is_free, seconds=tasks.TTL + 15)
    assert article.quantity == 10
