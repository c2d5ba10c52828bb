"""Chains, groups and chords of fenced tasks, and tasks that are sent when a transaction commits."""

from __future__ import annotations

from uuid import uuid4

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError
from django.db import transaction

from fencing import LeaseHeldError, lease
from inventory_demo.celery import app
from inventory_demo.factories import StockFactory
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker
from tests.celery import faulttasks, tasks
from tests.celery.conftest import new_article
from tests.celery.helpers import Article, reaches

pytestmark = pytest.mark.slow


def test_group_on_one_resource_takes_effect_one_by_one(worker: Worker, article: Article) -> None:
    members = group(tasks.retrying.si(article.sku) for _ in range(4)).apply_async(queue=worker.queue)
    assert sorted(members.get(timeout=30)) == [6, 7, 8, 9]


def test_i5_duplicate_of_a_step_sends_the_next_one_again_which_takes_effect_once(
    worker: Worker, article: Article, other: Article
) -> None:
    steps = [faulttasks.echoing.si(article.sku), tasks.retrying.si(other.sku)]
    last = chain(*(step.set(queue=worker.queue) for step in steps)).apply_async()
    assert last.get(timeout=30) == 9
    assert wait_for(lambda: other.outcomes() == ["accepted", "duplicate"], seconds=15)
    assert article.outcomes() == ["accepted", "duplicate"]
    assert (article.quantity, other.quantity) == (9, 9)


def test_i5_duplicate_in_a_chord_counts_once_and_the_body_runs_once(
    worker: Worker, article: Article, other: Article
) -> None:
    with new_article() as total:
        header = [faulttasks.echoing.si(article.sku), tasks.at_gate.si(other.sku)]
        result = chord([one.set(queue=worker.queue) for one in header])(
            tasks.retrying.si(total.sku).set(queue=worker.queue)
        )
        other.report()
        assert wait_for(lambda: article.outcomes() == ["accepted", "duplicate"], seconds=15)
        assert wait_for(article.is_free, seconds=15)
        assert total.reports() == [], "the duplicate stood for the member that still runs"
        other.gate.open()
        assert result.get(timeout=30) == 9
        assert total.outcomes() == ["accepted"]


def test_skipping_in_a_chord_is_a_failure_of_the_chord(worker: Worker, article: Article, other: Article) -> None:
    with new_article() as total:
        header = [tasks.skipping.si(article.sku), tasks.retrying.si(other.sku)]
        with lease(article.resource, ttl=30):
            result = chord([one.set(queue=worker.queue) for one in header])(
                tasks.retrying.si(total.sku).set(queue=worker.queue)
            )
            with pytest.raises((ChordError, LeaseHeldError)):
                result.get(timeout=30)
        assert reaches(result, "FAILURE")
        assert total.reports() == []


def test_stamps_and_shadow_stay_with_a_task_that_waits_for_its_lease(worker: Worker, article: Article) -> None:
    """By its stamps it is found, and revoked."""
    signature = tasks.retrying.si(article.sku).set(queue=worker.queue, shadow="restock")
    signature.stamp(tenant="blue")
    with lease(article.resource, ttl=30):
        result = signature.apply_async()
        assert reaches(result, "RETRY")
    assert result.get(timeout=30) == 9
    began = article.report()
    assert began["stamps"] == {"tenant": "blue"} and began["shadow"] == "restock"


def test_hidden_arguments_stay_hidden_in_a_task_that_waits_for_its_lease(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30):
        result = worker.send(tasks.retrying, article.sku, argsrepr="(a sku)", kwargsrepr="{nothing}")
        assert reaches(result, "RETRY")
    assert result.get(timeout=30) == 9
    assert article.report()["shown"] == ["(a sku)", "{nothing}"]


def test_errback_of_three_arguments_is_called_like_a_function(worker: Worker, article: Article, other: Article) -> None:
    """By Celery, in the slot of the task that failed: so it has no id, and an operation only where it names one."""
    made_good = faulttasks.making_good.s().set(queue=worker.queue)
    with lease(article.resource, ttl=30):
        failed = worker.send(
            tasks.failing, article.sku, int(other.sku.removeprefix("test-"), 16), link_error=[made_good]
        )
        assert reaches(failed, "FAILURE")
    called = other.report()
    assert (called["id"], called["operation"], called["error"]) == (None, f"undo:{failed.id}", "LeaseHeldError")
    assert wait_for(lambda: other.quantity == 11, seconds=15)


def test_callbacks_of_skipped_failed_and_duplicate_tasks(worker: Worker, article: Article, other: Article) -> None:
    """Of a skipped task none is called; a duplicate calls its own again under the same id."""
    callback, errback = (tasks.retrying.si(other.sku, delta).set(queue=worker.queue) for delta in (-1, -2))
    with lease(article.resource, ttl=30):
        assert reaches(worker.send(tasks.skipping, article.sku, link=[callback], link_error=[errback]), "IGNORED")
        assert reaches(worker.send(tasks.failing, article.sku, link=[callback], link_error=[errback]), "FAILURE")
    assert wait_for(lambda: other.quantity == 8, seconds=15)
    callback.freeze()
    task_id = uuid4().hex
    for _ in range(2):
        worker.send(tasks.retrying, article.sku, task_id=task_id, link=[callback])
    assert wait_for(lambda: "duplicate" in other.outcomes(), seconds=15)
    assert other.outcomes() == ["accepted", "accepted", "duplicate"]
    assert (article.quantity, other.quantity) == (9, 7)


def test_c21_task_sent_on_commit_finds_the_row_and_after_a_rollback_none_is_sent(
    worker: Worker, article: Article
) -> None:
    task_id, sku = uuid4().hex, f"test-{uuid4().hex[:8]}"
    on_commit = tasks.retrying.apply_async_on_commit  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        on_commit((article.sku,), queue=worker.queue)
        raise ZeroDivisionError
    with transaction.atomic():
        StockFactory.create(sku=sku)
        on_commit((sku,), queue=worker.queue, task_id=task_id)
        # What was sent before comes first: had the other one been, it would have been at work by now.
        assert worker.send(tasks.probe).get(timeout=30)
    assert app.AsyncResult(task_id).get(timeout=30) == 9
    assert article.reports() == []
