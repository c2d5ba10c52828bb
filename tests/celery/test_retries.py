"""Retries inside the lease, by the task and by Celery, and the other ways to have a task run again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery import Task

from fencing import (
    AlreadyAppliedError,
    FencingError,
    InvalidTokenError,
    LeaseBackendError,
    LeaseHeldError,
    LeaseInsideTransactionError,
    LeaseLostError,
    LeaseRequiredError,
    OperationMismatchError,
    PartialEffectError,
    ResourceMismatchError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    TokensExhaustedError,
    lease,
)
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker
from tests.celery import faulttasks, tasks
from tests.celery.helpers import Article, reaches

pytestmark = pytest.mark.slow


def test_c06_retry_inside_the_lease_gives_it_back_and_comes_again_under_a_higher_token(
    worker: Worker, article: Article
) -> None:
    result = worker.send(faulttasks.retrying_once, article.sku)
    first = article.report()
    assert reaches(result, "RETRY")
    assert article.is_free()
    assert article.quantity == 10
    assert result.get(timeout=30) == 9
    again = article.report()
    assert (first["retries"], again["retries"]) == (0, 1)
    assert again["token"] > first["token"]
    assert article.outcomes() == ["accepted"]


def test_c06_contention_under_autoretry_spends_no_retries_and_loses_nobody(worker: Worker, article: Article) -> None:
    results = [worker.send(faulttasks.auto, article.sku) for _ in range(8)]
    assert sorted(result.get(timeout=60) for result in results) == [*range(2, 10)]
    assert {report["retries"] for report in article.reports()} == {0}


@pytest.mark.parametrize(("trouble", "read", "left"), [("error", 10, 9), ("overtaken", 5, 4)])
def test_c06_autoretry_reads_again(worker: Worker, article: Article, trouble: str, read: int, left: int) -> None:
    assert worker.send(faulttasks.auto, article.sku, trouble).get(timeout=30) == left
    first, again = article.reports()
    assert (again["retries"], again["read"]) == (1, read)
    assert again["token"] > first["token"]
    assert article.quantity == left


def test_s9_autoretry_does_not_repeat_a_body_with_a_committed_part(worker: Worker, article: Article) -> None:
    result = worker.send(faulttasks.auto_half_done, article.sku)
    with pytest.raises(PartialEffectError):
        result.get(timeout=30)
    assert result.state == "FAILURE"
    assert [report["retries"] for report in article.reports()] == [0]
    assert article.quantity == 10 - 1 - 5


@pytest.mark.parametrize(
    ("task", "error", "attempts"),
    [
        (faulttasks.auto_raising, error, attempts)
        for error, attempts in (
            (AlreadyAppliedError("order", 5), 1),
            (InvalidTokenError("0"), 1),
            (LeaseInsideTransactionError("stock:7"), 1),
            (LeaseRequiredError("stock:7"), 1),
            (OperationMismatchError("order", "this", "that"), 1),
            (PartialEffectError("stock:7", 1), 1),
            (ResourceMismatchError("stock:7", "stock:8"), 1),
            (TokensExhaustedError("default", 2**53 - 1), 1),
            (LeaseBackendError("default", "it does not answer"), 2),
            (LeaseHeldError("stock:7", "somebody", 1.0), 2),
            (LeaseLostError("stock:7", 5), 2),
            (RowMissingError("stock:7", 5, None), 2),
            (StaleReadError("stock:7", 5, 4), 2),
            (StaleWriteError("stock:7", 5, 7), 2),
        )
    ]
    + [
        (faulttasks.auto_naming, InvalidTokenError("0"), 2),
        (faulttasks.auto_naming, TokensExhaustedError("default", 5), 1),
        (faulttasks.auto_excepting, PartialEffectError("stock:7", 1), 1),
        (faulttasks.auto_excepting, LeaseLostError("stock:7", 5), 1),
        (faulttasks.auto_excepting, LeaseBackendError("default", "it does not answer"), 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else getattr(value, "name", None),
)
def test_autoretry_repeats_what_another_attempt_may_cure_and_what_it_names(
    worker: Worker, article: Article, task: Task[..., None], error: FencingError, attempts: int
) -> None:
    result = worker.send(task, article.sku, type(error).__name__, *error.args)
    with pytest.raises(type(error)):
        result.get(timeout=30)
    assert [report["retries"] for report in article.reports()] == [*range(attempts)]


def test_retry_that_does_not_raise_is_an_attempt_of_its_own_where_the_body_is_not_atomic(
    worker: Worker, article: Article
) -> None:
    worker.send(faulttasks.retrying_quietly, article.sku)
    assert wait_for(lambda: article.quantity == 7, seconds=30)
    assert [report["retries"] for report in article.reports()] == [0, 1]


def test_rejected_message_comes_again_and_the_body_takes_effect_once(worker: Worker, article: Article) -> None:
    result = worker.send(faulttasks.rejecting, article.sku)
    assert result.get(timeout=30) == 9
    first, again = article.reports()
    assert again["token"] > first["token"]
    assert article.outcomes() == ["accepted"]


def test_replacement_of_the_same_resource_runs_and_what_the_replaced_body_wrote_is_undone(
    worker: Worker, article: Article
) -> None:
    result = worker.send(faulttasks.replaced, article.sku)
    assert result.get(timeout=30) == 9
    assert article.report()["id"] == result.id
    assert article.outcomes() == ["accepted"]


def test_busy_task_that_expires_is_revoked(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30):
        result = worker.send(tasks.retrying, article.sku, expires=2)
        assert reaches(result, "REVOKED", seconds=30)
    assert article.reports() == []


def test_countdown_eta_and_rate_limit_are_celerys(worker: Worker, article: Article) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    results = [
        worker.send(tasks.retrying, article.sku, countdown=0.2),
        worker.send(tasks.retrying, article.sku, eta=soon),
        *(worker.send(faulttasks.rate_limited, article.sku) for _ in range(3)),
    ]
    assert sorted(result.get(timeout=30) for result in results) == [5, 6, 7, 8, 9]
