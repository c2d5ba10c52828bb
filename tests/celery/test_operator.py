"""What an operator sees of fenced tasks: states and exceptions in the sender, log lines, events, headers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import states
from celery.backends.base import BaseBackend
from celery.signals import task_postrun, task_received
from django.core.management import call_command
from django.db import transaction

from fencing import LeaseHeldError, LeaseLostError, PartialEffectError, StaleWriteError, exceptions, lease
from fencing.celery import fenced_task
from fencing.logs import task_fields
from inventory_demo.celery import app
from inventory_demo.models import Stock
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker
from tests.celery import tasks
from tests.celery.helpers import Article, hearing, in_other_context, is_active, overtake, reaches

OURS = [
    name for name, value in vars(exceptions).items() if str(getattr(value, "__module__", "")) == exceptions.__name__
]
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "FencingError": ("anything",),
    "LeaseError": ("anything",),
    "LeaseHeldError": ("stock:7", "f00", 2.5, "task-1"),
    "LeaseLostError": ("stock:7", 5, "its time is over"),
    "LeaseRequiredError": ("", ("stock:8", "stock:9"), "QuerySet.update()", "stock:{sku}"),
    "LeaseInsideTransactionError": ("stock:7", "a transaction is open on 'default'"),
    "ResourceMismatchError": ("stock:7", "stock:8", "Stock"),
    "WriteRejectedError": ("stock:7", 5, 7, "Stock 1"),
    "StaleWriteError": ("stock:7", 5, 7, "Stock 1"),
    "StaleReadError": ("stock:7", 5, 4, "Stock 1"),
    "RowMissingError": ("stock:7", 5, None, "Stock 1"),
    "AlreadyAppliedError": ("order-7", {"left": [1, None, "ä"]}, False),
    "OperationMismatchError": ("order-7", "1f3a", "9c0b", "shop.book"),
    "PartialEffectError": ("stock:7", 2),
    "InvalidTokenError": (2**60, "the row shop.stock 1"),
    "TokensExhaustedError": ("default", 2**53),
    "LeaseBackendError": ("default", "it did not answer"),
}


class Consumer:
    """What sends the signal in a worker's main process."""

    event_dispatcher: Any


@pytest.fixture(scope="module")
def worker(transactional_db: None) -> Iterator[Worker]:
    """A worker that sends events of its tasks."""
    options = ["--task-events"]
    with Worker(f"test-{uuid4().hex[:8]}", include=["tests.celery.tasks"], options=options, concurrency=1) as running:
        yield running


# --- exceptions on their way to the sender


@pytest.mark.parametrize("name", sorted(OURS))
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_every_exception_comes_through_a_result_backend_with_its_numbers(name: str, serializer: str) -> None:
    error = getattr(exceptions, name)(*EXAMPLES[name])
    backend = BaseBackend(app, serializer=serializer, accept=[serializer])
    stored = backend.decode(backend.encode({"result": backend.prepare_exception(error, serializer)}))
    for again in (backend.exception_to_python(stored["result"]), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert type(again) is type(error)
        assert {**vars(again)} == {**vars(error)}
        assert str(again) == str(error)


# --- in a worker


@pytest.mark.slow
def test_busy_task_tells_its_sender_who_holds_the_lease(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30) as held:
        result = worker.send(tasks.retrying, article.sku)
        assert reaches(result, states.RETRY)
        assert isinstance(result.result, LeaseHeldError)
        assert (result.result.resource, result.result.holder) == (article.resource, held.holder)
        assert result.result.retry_after > 0
        assert "LeaseHeldError" in result.traceback
    assert result.get(timeout=15) == 9
    (line, *_) = lines(worker, result, "found the lease")
    assert "INFO" in line and article.resource in line and held.holder in line and "tries again in" in line


@pytest.mark.slow
def test_skipped_task_is_ignored_without_a_result(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30):
        result = worker.send(tasks.skipping, article.sku)
        assert reaches(result, states.IGNORED)
    assert (result.result, result.traceback) == (None, None)
    lines(worker, result, "it is skipped")


@pytest.mark.slow
def test_stale_task_fails_with_its_numbers_in_the_sender(worker: Worker, article: Article) -> None:
    result = worker.send(tasks.overtaken, article.sku, 99)
    with pytest.raises(StaleWriteError) as caught:
        result.get(timeout=20)
    assert result.state == states.FAILURE
    assert caught.value.resource == article.resource
    assert caught.value.seen is not None and caught.value.token < caught.value.seen
    assert "StaleWriteError" in result.traceback
    told = lines(worker, result, "was refused", at_least=4)
    assert [line.split(": the body runs again, ")[-1] for line in told[:3]] == ["1 of 3", "2 of 3", "3 of 3"]
    assert f"token {caught.value.token}, last token {caught.value.seen}" in told[3] and "WARNING" in told[3]


@pytest.mark.slow
def test_task_with_a_committed_part_and_one_that_lost_its_lease_fail_in_the_sender(
    worker: Worker, article: Article
) -> None:
    with pytest.raises(PartialEffectError) as partial:
        worker.send(tasks.half_done, article.sku).get(timeout=15)
    assert (partial.value.resource, partial.value.accepted) == (article.resource, 1)
    result = worker.send(tasks.losing, article.sku)
    with pytest.raises(LeaseLostError) as lost:
        result.get(timeout=15)
    assert lost.value.resource == article.resource and lost.value.token > 0
    assert result.state == states.FAILURE
    (*_, line) = lines(worker, result, "was refused (LeaseLostError)", at_least=2)
    assert f"token {lost.value.token}: its body" in line, "no last token, since nobody has seen one"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refusal", "miss"])
def test_what_is_expected_is_one_line_of_the_log(worker: Worker, article: Article, how: str) -> None:
    for task in (tasks.expecting_a_tuple, tasks.expecting_a_list, tasks.expecting_one, tasks.expecting_by_base):
        result = worker.send(task, article.sku, how)
        with pytest.raises((StaleWriteError, KeyError)):
            result.get(timeout=15)
        (line,) = lines(worker, result, "raised expected")
        assert "INFO" in line
        following = worker.log(30_000).split(line)[1]
        assert "Traceback" not in following and "ERROR" not in following


@pytest.mark.slow
def test_monitors_see_resource_token_and_holder(worker: Worker, article: Article) -> None:
    with monitor() as (state, listen):
        result = worker.send(tasks.at_gate, article.sku)
        token = article.report()["token"]
        assert listen(lambda: result.id in state.tasks and hasattr(state.tasks[result.id], "token"))
        seen = state.tasks[result.id]
        assert (seen.state, seen.resource, seen.token) == ("GRANTED", article.resource, token)
        assert (live := article.live()) and seen.holder == live.holder
        assert seen.result == f"lease of {article.resource}, token {token}", "what flower shows"
        listed = leases_of_tasks()
        assert wait_for(lambda: is_active(worker, result.id), seconds=15)
        article.gate.open()
        assert listen(lambda: seen.state == states.SUCCESS)
        assert (seen.name, seen.result, seen.token) == (tasks.at_gate.name, "9", token)
    assert listed[result.id] == (article.resource, token)


@pytest.mark.slow
def test_duplicate_succeeds_with_the_recorded_result(worker: Worker, article: Article) -> None:
    result = worker.send(tasks.retrying, article.sku)
    assert result.get(timeout=15) == 9
    result.forget()
    again = worker.send(tasks.retrying, article.sku, task_id=result.id)
    assert again.get(timeout=15) == 9
    assert (again.state, again.traceback) == (states.SUCCESS, None)
    (line,) = lines(worker, result, "duplicate: ")
    assert "INFO" in line and article.resource in line
    assert article.quantity == 9


# --- what the recipes promise


@pytest.mark.slow
def test_i5_step_of_a_chain_that_is_delivered_twice_sends_the_next_one_under_its_id(
    worker: Worker, article: Article
) -> None:
    first, second = uuid4().hex, uuid4().hex
    following = tasks.retrying.si(article.sku).set(task_id=second, queue=worker.queue)
    for _ in range(2):
        worker.send(tasks.retrying, article.sku, task_id=first, chain=[following])
    assert wait_for(lambda: article.outcomes().count("duplicate") == 2, seconds=20), article.outcomes()
    assert sorted(article.outcomes()) == ["accepted", "accepted", "duplicate", "duplicate"]
    assert article.quantity == 8
    assert {report["id"] for report in article.reports()} == {first, second}


def test_what_a_body_sends_on_commit_is_sent_once(article: Article) -> None:
    sent: list[int] = []

    @fenced_task(resource="stock:{sku}", operation="notice", name="tests.sending", bind=True)
    def sending(self: Any, sku: str) -> int:
        stock = Stock.objects.get(sku=sku)
        transaction.on_commit(lambda: sent.append(stock.quantity))
        if stock.quantity == 10:
            overtake(sku, -5)
        stock.quantity -= 1
        stock.save()
        return stock.quantity

    assert [sending(article.sku), sending(article.sku)] == [4, 4]
    assert article.outcomes() == ["accepted", "stale", "accepted", "duplicate"]
    assert sent == [4]


def test_task_on_a_row_of_an_open_transaction_is_sent_at_its_commit(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C21: never before, as the worker would find no row; and not at all after a rollback."""
    sku = f"test-{uuid4().hex[:8]}"
    monkeypatch.setitem(app.conf, "task_always_eager", True)
    with transaction.atomic():
        Stock.objects.create(sku=sku, quantity=10)
        tasks.ordered.delay_on_commit(sku, -1)  # type: ignore[attr-defined]
        assert Stock.objects.get(sku=sku).quantity == 10
    assert Stock.objects.get(sku=sku).quantity == 9
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.ordered.delay_on_commit(sku, -2)  # type: ignore[attr-defined]
        raise ZeroDivisionError
    assert Stock.objects.get(sku=sku).quantity == 9


# --- headers


def test_request_shows_resource_and_grant_to_body_and_signals(article: Article) -> None:
    seen: dict[str, Any] = {}

    def after(*, task: Any, **_named: Any) -> None:
        seen.update(task.request.headers["fencing"])

    own = {"mine": "1"}
    task_postrun.connect(after)
    try:
        tasks.retrying.apply((article.sku,), headers=own).get()
    finally:
        task_postrun.disconnect(after)
    report = article.report()
    assert report["headers"] == {"mine": "1", "fencing": seen}
    assert (seen["resource"], seen["token"]) == (article.resource, report["token"])
    assert own == {"mine": "1"}, "the sender's own headers were changed"


@pytest.mark.parametrize(
    ("groups", "enabled", "task", "listened"),
    [
        (None, True, tasks.retrying, True),
        (["worker", "task"], True, tasks.retrying, True),
        (["worker"], True, tasks.retrying, False),
        (None, False, tasks.retrying, False),
        (None, True, tasks.probe, False),
    ],
)
def test_child_is_told_whether_somebody_listens(
    groups: list[str] | None, enabled: bool, task: Any, listened: bool
) -> None:
    consumer, request = Consumer(), SimpleNamespace(task=task, request_dict={})
    with app.connection_for_write() as connection:
        consumer.event_dispatcher = app.events.Dispatcher(connection, enabled=enabled, groups=groups)
        task_received.send(sender=consumer, request=request)
    assert request.request_dict == ({"fencing_events": True} if listened else {})


@pytest.mark.usefixtures("broken_broker")
def test_event_that_cannot_be_sent_fails_no_task(article: Article, caplog: pytest.LogCaptureFixture) -> None:
    assert tasks.retrying.apply((article.sku,), headers={"fencing_events": "yes"}).get() == 9
    assert "could not be sent" in caplog.text


# --- log lines of a task


def test_lines_of_a_task_name_it(article: Article, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="fencing")
    result = tasks.overtaken.apply((article.sku, 99))
    assert isinstance(result.result, StaleWriteError)
    told = [vars(record) for record in caplog.records if getattr(record, "task_id", None) == result.id]
    assert {one["event"] for one in told} == {"granted", "lost", "refused", "repeated", "failed"}
    assert {one["task_name"] for one in told} == {tasks.overtaken.name}
    last = told[-1]
    assert [last[name] for name in ("event", "resource", "token", "seen")] == [
        "failed", article.resource, result.result.token, result.result.seen,
    ]  # fmt: skip
    assert last["holder"] in {one["holder"] for one in told if one["event"] == "granted"}
    assert task_fields.get()["task_id"] == ""


def test_line_of_a_busy_task_names_the_holder(article: Article, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="fencing")
    with lease(article.resource, ttl=30) as held:
        result = in_other_context(lambda: tasks.failing.apply((article.sku,)))
    assert isinstance(result.result, LeaseHeldError)
    (told,) = (vars(record) for record in caplog.records if getattr(record, "event", "") == "busy")
    assert [told[name] for name in ("resource", "holder", "task_id", "task_name", "note")] == [
        article.resource, held.holder, result.id, tasks.failing.name, "it fails",
    ]  # fmt: skip


def lines(worker: Worker, result: Any, text: str = "", *, at_least: int = 1) -> list[str]:
    """The worker's lines about a task with this text, once so many are there."""
    found: list[str] = []

    def there() -> bool:
        found[:] = [line for line in worker.log(30_000).splitlines() if result.id in line and text in line]
        return len(found) >= at_least

    assert wait_for(there, seconds=15), worker.log()
    return found


def leases_of_tasks() -> dict[str, tuple[str, int]]:
    """Which task holds what, as an operator sees it."""
    out = StringIO()
    call_command("fencing", "leases", "--json", stdout=out)
    return {one["task_id"]: (one["resource"], one["token"]) for one in json.loads(out.getvalue())["leases"]}


@contextmanager
def monitor() -> Iterator[tuple[Any, Callable[[Callable[[], Any]], bool]]]:
    """What a monitor such as flower knows, and a function that lets it listen until a condition holds."""
    state = app.events.State()
    with hearing(state.event) as listen:
        yield state, listen
