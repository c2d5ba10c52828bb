"""Each row of the table in the design (§4.7) in a real worker, with every pool of Celery's on every broker.

CI runs all of it with prefork on both brokers, and with threads and gevent on Valkey; `make matrix-celery` runs the
rest, too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from time import time
from typing import Any
from uuid import uuid4

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from django.db import connection

from fencing import LeaseHeldError, PartialEffectError, StaleWriteError, history, lease
from fencing.models import TokenGrant
from inventory_demo.celery import app
from inventory_demo.server_support import wait_for
from inventory_demo.worker import Worker
from tests.celery import tasks
from tests.celery.combinations import ALL, PREFORK, SEVERAL_SLOTS, Combination
from tests.celery.helpers import Article, is_active, overtake, reaches

pytestmark = pytest.mark.slow

# Seconds of a time limit: on a busy machine, too, the body is at its gate before.
LIMIT = 2

on_several_slots = pytest.mark.parametrize("combination", SEVERAL_SLOTS, indirect=True)
on_prefork = pytest.mark.parametrize("combination", PREFORK, indirect=True)


@pytest.fixture(scope="module", params=ALL)
def combination(request: pytest.FixtureRequest) -> Combination:
    """A pool on a broker."""
    found: Combination = request.param
    return found


@pytest.fixture(scope="module")
def broker_url(request: pytest.FixtureRequest, combination: Combination) -> str:
    """The address of its broker, or "" for that of the settings."""
    return str(request.getfixturevalue("rabbitmq")) if combination.broker == "rabbitmq" else ""


@pytest.fixture(scope="module")
def worker(combination: Combination, broker_url: str, transactional_db: None) -> Iterator[Worker]:
    """A worker of that combination."""
    with combination.worker(broker_url) as running:
        yield running
        # In order, the end takes seconds in some pools; how a worker ends is not the point here.
        running.kill()


# --- resource held


def test_held_lease_puts_the_task_back_into_the_queue_and_costs_no_retry(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30):
        result = worker.send(tasks.retrying, article.sku, priority=6)
        assert reaches(result, "RETRY")
    assert result.get(timeout=15) == 9
    began = article.report()
    assert (began["retries"], began["priority"], began["id"]) == (0, 6, result.id)
    assert article.quantity == 9


def test_held_lease_is_a_failure_in_the_end(worker: Worker, article: Article) -> None:
    with lease(article.resource, ttl=30), pytest.raises(LeaseHeldError):
        worker.send(tasks.impatient, article.sku).get(timeout=15)
    assert article.reports() == []


@on_several_slots
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
    # As a chain has it, with an id: Celery before 5.7 ends a solo worker over one without.
    rest = [tasks.skipping.si(article.sku).set(queue=worker.queue, task_id=uuid4().hex)]
    with lease(article.resource, ttl=30):
        assert reaches(worker.send(tasks.skipping, article.sku, chain=rest), "FAILURE")
    assert article.quantity == 10


@on_several_slots
def test_tasks_that_contend_for_one_lease_all_take_effect_once(worker: Worker, article: Article) -> None:
    results = [worker.send(tasks.retrying, article.sku) for _ in range(6)]
    quantities = [result.get(timeout=20) for result in results]
    assert sorted(quantities) == [4, 5, 6, 7, 8, 9]
    assert article.quantity == 4


@on_several_slots
def test_tasks_at_a_time_hold_a_lease_each_for_longer_than_its_ttl(
    worker: Worker, combination: Combination, article: Article, other: Article
) -> None:
    results = [worker.send(tasks.at_gate, one.sku) for one in (article, other)]
    began = [one.report() for one in (article, other)]
    assert [one["held"] for one in began] == [[article.resource], [other.resource]]
    assert (began[0]["pid"] == began[1]["pid"]) is not combination.has_children
    assert wait_for(lambda: time() > began[1]["at"] + 1.5 * tasks.TTL, seconds=15)
    for one, told in zip((article, other), began, strict=True):
        live = one.live()
        assert live is not None and live.token == told["token"], "the heartbeat did not renew it"
        one.gate.open()
    assert [result.get(timeout=15) for result in results] == [9, 9]


# --- held by an earlier run of the same task id


@on_several_slots
def test_i5_redelivery_beside_the_first_run_takes_effect_once(worker: Worker, article: Article) -> None:
    task_id = uuid4().hex
    first = worker.send(tasks.at_gate, article.sku, task_id=task_id)
    article.report()
    worker.send(tasks.at_gate, article.sku, task_id=task_id)
    assert wait_for(lambda: f"[{task_id}] ignored" in worker.log(), seconds=15), "the duplicate did not step back"
    assert first.state == "PENDING", "the duplicate stored a state over its running original"
    article.gate.open()
    assert first.get(timeout=15) == 9
    assert wait_for(lambda: "duplicate" in article.outcomes(), seconds=15)
    assert article.outcomes() == ["accepted", "duplicate"]
    assert first.get(timeout=15) == 9
    assert article.quantity == 9
    assert article.reports() == []


# --- refused writes


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


def test_i3_body_that_wrote_what_it_had_read_too_early_runs_again(worker: Worker, article: Article) -> None:
    assert worker.send(tasks.reading_twice, article.sku).get(timeout=15) == 7
    assert article.report()["token"] < article.report()["token"]
    assert article.outcomes() == ["stale-read", "accepted"]
    assert article.quantity == 7


def test_i6_swallowed_refusal_is_never_a_success(worker: Worker, article: Article) -> None:
    with pytest.raises(StaleWriteError):
        worker.send(tasks.swallowing, article.sku).get(timeout=15)
    assert article.quantity == 5


def test_i6_refusal_after_a_part_was_committed_is_a_failure(worker: Worker, article: Article) -> None:
    with pytest.raises(PartialEffectError):
        worker.send(tasks.half_done, article.sku).get(timeout=15)
    assert article.quantity == 4


# --- lease lost


@pytest.mark.parametrize("how", ["advance", "renew", "ensure_held"])
def test_lost_lease_is_told_to_who_asks_and_the_body_runs_again(worker: Worker, article: Article, how: str) -> None:
    assert worker.send(tasks.losing_once, article.sku, how).get(timeout=30) == 9
    tokens = [told["token"] for told in article.reports()]
    assert len(tokens) == 2 and tokens[0] < tokens[1]
    assert article.outcomes() == ["accepted"]


# --- redelivery after the end


def test_i5_redelivery_after_the_end_gets_the_recorded_result(worker: Worker, article: Article) -> None:
    task_id = uuid4().hex
    for _ in range(2):
        assert worker.send(tasks.retrying, article.sku, task_id=task_id).get(timeout=15) == 9
        assert wait_for(article.is_free, seconds=15)
    assert wait_for(lambda: "duplicate" in article.outcomes(), seconds=15)
    assert len(article.reports()) == 1
    assert article.quantity == 9


# --- every way to end


@pytest.mark.parametrize(
    ("how", "states"),
    [
        ("error", {"FAILURE"}),
        ("ignore", {"PENDING"}),
        ("reject", {"PENDING", "FAILURE"}),  # FAILURE since Celery 5.7
        ("retry", {"RETRY"}),
        ("quiet retry", {"FAILURE"}),
    ],
)
def test_every_way_to_end_undoes_the_body_and_leaves_nothing_behind(
    worker: Worker, combination: Combination, article: Article, how: str, states: set[str]
) -> None:
    result = worker.send(tasks.ending, article.sku, how)
    told = article.report()
    assert wait_for(article.is_free, seconds=15)
    assert context_of(worker, combination, told) == [[], "", ""]
    assert wait_for(lambda: result.state in states, seconds=15)
    assert article.quantity == 10
    if how == "quiet retry":
        assert isinstance(result.result, RuntimeError)
    worker.control.revoke(result.id, destination=[worker.name])


def test_soft_time_limit_undoes_the_body_where_the_pool_has_such_limits(
    worker: Worker, combination: Combination, article: Article
) -> None:
    result = worker.send(tasks.ending, article.sku, "at the gate", soft_time_limit=LIMIT)
    told = article.report()
    if combination.has_children:
        assert reaches(result, "FAILURE")
        assert isinstance(result.result, SoftTimeLimitExceeded)
        assert article.quantity == 10
    else:
        assert_goes_on_beyond(result, article, told["at"] + LIMIT + 0.5)
    assert wait_for(article.is_free, seconds=15)
    assert context_of(worker, combination, told) == [[], "", ""]


def test_hard_time_limit_undoes_the_body_where_the_pool_has_such_limits(
    worker: Worker, combination: Combination, article: Article
) -> None:
    """C04: what a child leaves when it is killed ends by itself; a greenlet is only interrupted."""
    result = worker.send(tasks.ending, article.sku, "at the gate", time_limit=LIMIT)
    told = article.report()
    if combination.pool in ("prefork", "gevent"):
        assert reaches(result, "FAILURE")
        assert isinstance(result.result, TimeLimitExceeded)
        assert wait_for(article.is_free, seconds=15)
        if not combination.has_children:
            history.collect()
            assert TokenGrant.objects.get(resource=article.resource).ended == "released", "it was left to its ttl"
        assert article.quantity == 10
    else:
        assert_goes_on_beyond(result, article, told["at"] + LIMIT + 0.5)
    if not combination.has_children:
        assert context_of(worker, combination, told) == [[], "", ""]


def test_revocation_undoes_the_body_where_the_pool_can_end_a_task(
    worker: Worker, combination: Combination, article: Article
) -> None:
    result = worker.send(tasks.ending, article.sku, "at the gate")
    told = article.report()
    # Of this worker only: one that does not know the task would store the state REVOKED at once.
    worker.control.revoke(result.id, terminate=True, destination=[worker.name])
    if combination.pool in ("prefork", "gevent"):
        assert reaches(result, "REVOKED")
        assert wait_for(article.is_free, seconds=15)
        assert article.quantity == 10
    else:
        assert_goes_on_beyond(result, article, told["at"] + 1.5)
    if not combination.has_children:
        assert context_of(worker, combination, told) == [[], "", ""]


# --- worker killed


@on_prefork
def test_killed_child_leaves_a_lease_that_ends_by_itself_and_the_task_runs_again(
    worker: Worker, article: Article
) -> None:
    result = worker.send(tasks.at_gate_late, article.sku)
    first = article.report()
    os.kill(first["pid"], signal.SIGKILL)
    assert_runs_again(result, article, first)


def test_killed_worker_leaves_a_lease_that_ends_by_itself_and_the_task_runs_again(
    worker: Worker, combination: Combination, broker_url: str, article: Article
) -> None:
    with combination.worker(broker_url) as doomed:
        result = doomed.send(tasks.at_gate_late, article.sku)
        first = article.report()
        doomed.kill()
        left = article.live()
        assert left is None or 0 < left.remaining <= tasks.TTL
        if not combination.redelivers:
            doomed.send(tasks.at_gate_late, article.sku, task_id=result.id)
        with worker.consuming(doomed.queue):
            assert_runs_again(result, article, first)


# --- the database's sessions


def test_no_session_of_the_database_stays_open(worker: Worker) -> None:
    assert wait_for(lambda: sessions_of(worker) == 0, seconds=30)


def assert_runs_again(result: Any, article: Article, first: dict[str, Any]) -> None:
    """The run that `first` reported was killed: another one takes effect, under a higher token."""
    again = article.report(30)
    article.gate.open()
    assert result.get(timeout=15) == 9
    assert again["token"] > first["token"]
    assert article.outcomes() == ["accepted"]


def assert_goes_on_beyond(result: Any, article: Article, moment: float) -> None:
    """The task, which waits at the gate, is still at work then, and ends well."""
    assert wait_for(lambda: time() > moment, seconds=15)
    article.gate.open()
    # Celery 5.6 has stored REVOKED meanwhile, if it was revoked on threads, and a result keeps the first end it sees.
    assert wait_for(lambda: app.AsyncResult(result.id).state == "SUCCESS", seconds=15)
    assert article.quantity == 9


def context_of(worker: Worker, combination: Combination, told: dict[str, Any]) -> list[Any]:
    """What a task finds in the context of the child or thread that has reported; each greenlet is new."""
    for _ in range(40):
        found: list[Any] = worker.send(tasks.probe).get(timeout=15)
        where = found.pop(0)
        if combination.pool == "gevent" or where == [told["pid"], told["thread"]]:
            return found
    pytest.fail(f"{told} got no task")


def sessions_of(worker: Worker) -> int:
    """How many sessions the worker has at PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [worker.queue])
        return int(cursor.fetchone()[0])
