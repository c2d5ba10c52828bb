"""What a delivery leads to, run by Celery's own tracer in the process of the test, where it can be overtaken at will."""

from __future__ import annotations

from contextlib import nullcontext
from time import time
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Task
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Retry

from fencing import LeaseHeldError, PartialEffectError, StaleWriteError, current_lease, lease
from fencing.backends.base import HolderInfo
from fencing.celery import FencedTask, fenced_task, leased_task
from fencing.scope import holder_info
from inventory_demo.celery import app
from inventory_demo.models import Stock
from inventory_demo.server_support import wait_for
from tests.celery import tasks
from tests.celery.helpers import BEFORE_CELERY_5_7, Article, in_other_context, overtake, revoke

pytestmark = [
    # Celery's result backend calls what redis-py 8 says is old.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
    # Celery before 5.7 warns of a callback that cannot be sent, and of a result that cannot be kept.
    pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning"),
]


def deliver(task: Task[..., Any], *args: Any, task_id: Any = "", **more: Any) -> Any:
    """Run a task as a worker's child does, and return what it made of it: a result, or an exception."""
    task_id = task_id or uuid4().hex
    place = {"exchange": "", "routing_key": f"test-{task_id}"}
    request = {"id": task_id, "task": task.name, "delivery_info": place, **more}
    value, info, *_rest = build_tracer(task.name, task, app=app)(task_id, [*args], {}, request)
    return info.retval if info else value


# --- a body that runs again


def test_i6_body_that_empties_an_argument_runs_again_with_all_of_it(article: Article) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, name="tests.emptying")
    def emptying(sku: str, order: dict[str, list[int]]) -> int:
        stock = Stock.objects.get(sku=sku)
        if stock.quantity == 10:
            overtake(sku, -5)
        while order["deltas"]:
            stock.quantity += order["deltas"].pop()
        stock.save()
        return stock.quantity

    order = {"deltas": [-1, -2]}
    assert deliver(emptying, article.sku, order) == 2
    assert article.quantity == 2
    assert order == {"deltas": [-1, -2]}


def test_body_that_adds_to_what_follows_it_runs_again_without_the_addition(article: Article) -> None:
    came = {"callbacks": ["tests.next"], "errbacks": [], "chain": ["tests.last", "tests.next"]}
    seen: list[dict[str, list[str]]] = []

    @fenced_task(resource="stock:{sku}", ttl=5, bind=True, name="tests.adding")
    def adding(self: FencedTask, sku: str) -> None:
        follows: dict[str, list[str]] = {one: getattr(self.request, one) for one in came}
        seen.append({one: [*signatures] for one, signatures in follows.items()})
        if len(seen) < 3:
            for one in follows.values():
                one.append("tests.added")
            raise StaleWriteError(article.resource, 5, 7)
        for one in follows.values():
            one.clear()

    assert deliver(adding, article.sku, **{one: [*signatures] for one, signatures in came.items()}) is None
    assert seen == [came, came, came]


def test_s9_what_a_body_committed_under_another_lease_is_not_done_again(article: Article, other: Article) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, atomic=False, name="tests.moving")
    def moving(sku: str, to: str) -> None:
        stock = Stock.objects.get(sku=sku)
        tasks.retrying(to, 1)
        overtake(sku, -5)
        stock.quantity -= 1
        stock.save()

    ended = deliver(moving, article.sku, other.sku)
    assert isinstance(ended, PartialEffectError)
    assert (ended.resource, ended.accepted) == (article.resource, 1)
    assert other.quantity == 11


def test_body_whose_own_transaction_was_rolled_back_runs_again(article: Article) -> None:
    runs: list[int] = []

    @fenced_task(resource="stock:{sku}", ttl=5, atomic=False, name="tests.own_transaction")
    def own_transaction(sku: str) -> int:
        held = current_lease()
        assert held is not None
        runs.append(held.token)
        with held.atomic():
            quantity = tasks.change(sku, -1)
            if len(runs) == 1:
                revoke(sku)
                held.renew()
        return quantity

    assert deliver(own_transaction, article.sku) == 9
    assert len(runs) == 2
    assert article.quantity == 9


def test_body_that_was_refused_after_a_long_time_has_all_its_patience(article: Article) -> None:
    newer = lease(article.resource, ttl=30)

    @fenced_task(resource="stock:{sku}", ttl=5, busy_wait=0.05, busy_timeout=1.5, name="tests.long")
    def long(sku: str) -> None:
        began = time()
        stock = Stock.objects.get(sku=sku)
        overtake(sku, -5)
        in_other_context(newer.__enter__)
        assert wait_for(lambda: time() > began + 1.6, seconds=15)
        stock.save()

    try:
        ended = deliver(long, article.sku)
    finally:
        newer.__exit__(None, None, None)
    assert isinstance(ended, Retry)
    assert isinstance(ended.exc, LeaseHeldError)


# --- a task inside itself


def test_task_called_inside_its_own_body_is_a_direct_call(article: Article) -> None:
    """Celery gives it the request of the run that it is in, with its id."""

    @fenced_task(resource="stock:{sku}", ttl=5, name="tests.recursive")
    def recursive(sku: str, depth: int) -> int:
        tasks.change(sku, -1)
        return int(between(sku, depth - 1) if depth else Stock.objects.get(sku=sku).quantity)

    @fenced_task(resource="stock:{sku}", ttl=5, name="tests.between")
    def between(sku: str, depth: int) -> int:
        return recursive(sku, depth)

    assert deliver(recursive, article.sku, 2) == 7
    assert article.quantity == 7


def test_task_inside_itself_that_finds_a_lease_held_is_not_sent_in_place_of_the_outer_one(
    article: Article, other: Article
) -> None:
    @leased_task(resource="stock:{sku}", ttl=5, busy_wait=0, busy_timeout=0.1, name="tests.descending")
    def descending(sku: str, below: str) -> None:
        if below:
            descending(below, "")

    with lease(other.resource, ttl=30):
        ended = in_other_context(lambda: deliver(descending, article.sku, other.sku))
    assert isinstance(ended, LeaseHeldError)


@pytest.mark.parametrize("task_id", ["x" * 255, UUID(int=7)], ids=["long", "UUID"])
def test_whatever_celery_takes_for_an_id_is_one_operation(article: Article, task_id: Any) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, name=f"tests.by_{type(task_id).__name__}")
    def identified(sku: str) -> int:
        return tasks.change(sku, -1)

    for _ in range(2):
        if BEFORE_CELERY_5_7 and isinstance(task_id, UUID):
            with pytest.raises(TypeError, match="UUID found"):  # it keeps no result under such an id
                deliver(identified, article.sku, task_id=task_id)
        else:
            assert deliver(identified, article.sku, task_id=task_id) == 9
    assert article.quantity == 9
    assert article.outcomes() == ["accepted", "duplicate"]


@pytest.mark.parametrize("task_id", ["x" * 256, "a\0b"])
def test_task_id_that_the_history_cannot_keep_is_refused_before_the_grant(article: Article, task_id: str) -> None:
    ended = deliver(tasks.leased, article.sku, task_id=task_id)
    assert isinstance(ended, ValueError)
    assert article.reports() == []


# --- a broker that is gone when a busy task is to be put back


@pytest.mark.usefixtures("broken_broker")
def test_busy_task_that_cannot_be_put_back_fails_or_is_given_back(article: Article) -> None:
    early, late = uuid4().hex, uuid4().hex
    with lease(article.resource, ttl=30):
        failed = in_other_context(lambda: deliver(tasks.retrying, article.sku, task_id=early))
        rejected = in_other_context(lambda: deliver(tasks.at_gate_late, article.sku, task_id=late))
    assert "nowhere.sock" in str(failed)
    assert app.AsyncResult(early).state == "FAILURE"
    assert isinstance(rejected, Reject)
    assert vars(rejected)["requeue"], "acknowledged late, the broker still has its message"
    assert app.AsyncResult(late).state == "PENDING"


@pytest.mark.usefixtures("broken_broker")
@pytest.mark.parametrize("acks_late", [False, True])
@pytest.mark.parametrize("trouble", ["busy", "error", "retry"])
def test_retry_that_cannot_be_sent_fails_or_is_given_back(article: Article, trouble: str, acks_late: bool) -> None:
    """Celery alone drops it: rejected, not requeued, and PENDING for ever."""

    @fenced_task(
        resource="stock:{sku}", ttl=5, busy_wait=0, bind=True, autoretry_for=(Exception,), acks_late=acks_late,
        name=f"tests.unsent_{trouble}_{acks_late}",
    )  # fmt: skip
    def unsent(self: FencedTask, sku: str) -> None:
        tasks.change(sku, -1)
        if trouble == "retry":
            raise self.retry()
        raise ValueError(sku)

    task_id = uuid4().hex
    with lease(article.resource, ttl=30) if trouble == "busy" else nullcontext():
        ended = in_other_context(lambda: deliver(unsent, article.sku, task_id=task_id))
    assert isinstance(ended, Reject) is acks_late
    assert vars(ended)["requeue"] if acks_late else "nowhere.sock" in str(ended)
    assert app.AsyncResult(task_id).state == ("PENDING" if acks_late else "FAILURE")
    assert article.quantity == 10
    assert article.is_free()


@pytest.mark.usefixtures("broken_broker")
@pytest.mark.parametrize("moment", ["2020-01-01T00:00:00+00:00", "2020-01-01T00:00:00"], ids=["aware", "naive"])
def test_busy_task_that_has_expired_meanwhile_is_revoked_and_not_sent_again(article: Article, moment: str) -> None:
    """Its message would be dropped as it comes, and the state RETRY stored over that end."""
    task_id = uuid4().hex
    with lease(article.resource, ttl=30):
        ended = in_other_context(lambda: deliver(tasks.retrying, article.sku, task_id=task_id, expires=moment))
    assert isinstance(ended, Ignore)
    kept: Any = app.AsyncResult(task_id)
    assert kept.state == "REVOKED"
    assert article.reports() == []


def test_autoretry_leaves_a_message_that_goes_back_to_the_broker_alone(article: Article) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, autoretry_for=(Exception,), name="tests.auto_rejecting")
    def rejecting(sku: str) -> None:
        raise Reject(sku, requeue=True)

    ended = deliver(rejecting, article.sku)
    assert isinstance(ended, Reject) and vars(ended)["requeue"]


def test_rejection_that_a_last_retry_ends_with_is_its_own(article: Article) -> None:
    final = Reject(ValueError("enough"))

    @fenced_task(
        resource="stock:{sku}", ttl=5, bind=True, max_retries=0, acks_late=True, name="tests.finally_rejecting"
    )
    def rejecting(self: FencedTask, sku: str) -> None:
        raise self.retry(exc=final)

    ended = deliver(rejecting, article.sku)
    assert ended is final and not vars(ended)["requeue"]


@pytest.mark.usefixtures("broken_broker")
def test_u5_copy_that_cannot_be_put_back_stores_nothing_over_its_first_delivery(article: Article) -> None:
    task_id = uuid4().hex
    before = holder_info.set(HolderInfo(task_id=task_id, task_name=tasks.retrying.name))
    try:
        with lease(article.resource, ttl=30):
            ended = in_other_context(lambda: deliver(tasks.retrying, article.sku, task_id=task_id))
    finally:
        holder_info.reset(before)
    assert isinstance(ended, Reject)
    assert app.AsyncResult(task_id).state == "PENDING"


@pytest.mark.usefixtures("broken_broker")
def test_i5_effect_of_a_task_whose_callback_cannot_be_sent_stays_and_a_duplicate_tries_it_again(
    article: Article, other: Article
) -> None:
    callback = tasks.retrying.si(other.sku)
    task_id, request = uuid4().hex, {"callbacks": [callback]}
    for _ in range(2):
        assert "nowhere.sock" in str(deliver(tasks.retrying, article.sku, task_id=task_id, **request))
        assert app.AsyncResult(task_id).state == "FAILURE"
    assert article.quantity == 9 and article.outcomes() == ["accepted", "duplicate"]
