"""What `fenced_task` decides where no worker is needed: its options, direct and eager calls, repetitions."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from celery import Task
from celery.exceptions import Retry, SoftTimeLimitExceeded
from django.conf import settings
from django.db import connection, connections, transaction
from django.test import override_settings

from fencing import (
    Lease,
    LeaseBackendError,
    LeaseHeldError,
    LeaseInsideTransactionError,
    LeaseLostError,
    OperationMismatchError,
    PartialEffectError,
    StaleReadError,
    StaleWriteError,
    WriteRejectedError,
    current_lease,
    entering,
    lease,
)
from fencing.celery import FencedTask, fenced_task, leased_task
from fencing.models import Operation
from fencing.scope import holder_info
from fencing.taskpolicy import make_policy, pause
from fencing.taskrun import open_body
from inventory_demo.models import Stock, StockDelta
from inventory_demo.server_support import wait_for
from inventory_demo.tasks import OversoldError, apply_delta
from tests.celery import tasks
from tests.celery.helpers import Article, in_other_context, revoke

# --- options


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf])
def test_impossible_ttl_is_refused_at_decoration(ttl: float) -> None:
    with pytest.raises(ValueError, match="ttl"):
        fenced_task(resource="stock:{sku}", ttl=ttl)(lambda sku: None)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ttl": "30"}, TypeError),
        ({"on_busy": "shrug"}, ValueError),
        ({"busy_wait": -1}, ValueError),
        ({"busy_timeout": "5"}, TypeError),
        ({"max_stale_retries": -1}, ValueError),
        ({"max_stale_retries": 1.5}, TypeError),
        ({"resource": ""}, ValueError),
        ({"resource": None}, TypeError),
        ({"resource": "stock:{nobody}"}, ValueError),
        ({"resource": "stock:{rest}"}, ValueError),
        ({"resource": "stock:{sku:>10}"}, ValueError),
        ({"operation": "order:{nobody}"}, ValueError),
        ({"operation": "order:{sku}", "atomic": False}, ValueError),
    ],
)
def test_impossible_option_is_refused_at_decoration(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        fenced_task(**{"resource": "stock:{sku}", **options})(lambda sku, *rest: None)


@pytest.mark.parametrize("decorator", [fenced_task, leased_task])
def test_bare_decorator_and_a_positional_resource_are_shown_the_right_form(decorator: Any) -> None:
    def apply(sku: str) -> None: ...

    name = decorator.__name__
    with pytest.raises(
        TypeError, match=rf"@{name} stands alone above .*apply: write @{name}\(resource='stock:{{sku}}'\)"
    ):
        decorator(apply)
    with pytest.raises(TypeError, match=rf"keywords only: write @{name}\(resource='shelf:{{sku}}'\)"):
        decorator("shelf:{sku}", ttl=30)
    with pytest.raises(TypeError, match=rf"{name}\(\) missing 1 required keyword-only argument: 'resource'"):
        decorator()


@pytest.mark.parametrize(("misspelt", "meant"), [("opration", "operation"), ("busy_timout", "busy_timeout")])
def test_option_that_is_nearly_ours_is_refused_at_decoration(misspelt: str, meant: str) -> None:
    """To Celery it is an attribute of the task, so that the order would be shipped twice without a word."""
    options: dict[str, Any] = {misspelt: "order:{sku}"}
    with pytest.raises(TypeError, match=f"no option '{misspelt}'; did you mean '{meant}'"):
        fenced_task(resource="stock:{sku}", **options)(lambda sku: None)


def test_attributes_of_the_users_own_stay_options() -> None:
    class Atomics(Task):  # type: ignore[type-arg]
        abstract = True
        atomics = 1

    @fenced_task(resource="stock:{sku}", base=Atomics, atomics=2, team="stock", name="tests.own")
    def own(sku: str) -> None: ...

    task: Any = own
    assert (task.atomics, task.team) == (2, "stock")


def test_body_that_a_call_would_only_prepare_is_refused_at_decoration() -> None:
    """The task would succeed, its lease given back, before anything was done."""

    async def coroutine(sku: str) -> None: ...

    def generator(sku: str) -> Iterator[None]:
        yield

    async def asynchronous_generator(sku: str) -> AsyncIterator[None]:
        yield

    for body in (coroutine, generator, asynchronous_generator):
        with pytest.raises(TypeError, match="before the body began"):
            leased_task(resource="stock:{sku}", ignore_result=True)(body)


@pytest.mark.parametrize("option", ["operation", "atomic", "max_stale_retries"])
def test_leased_task_refuses_the_options_of_the_fence(option: str) -> None:
    options: dict[str, Any] = {option: None}
    with pytest.raises(TypeError, match=option):
        leased_task(resource="stock:{sku}", **options)


def test_arguments_are_checked_when_the_task_is_sent() -> None:
    with pytest.raises(TypeError):
        tasks.retrying.delay()
    with pytest.raises(TypeError):
        tasks.leased.delay("article", "too many")


def test_refusals_are_logged_as_expected() -> None:
    assert set(apply_delta.throws) == {OversoldError, WriteRejectedError}


def test_pause_doubles_up_to_the_end_of_the_lease_and_of_the_patience() -> None:
    assert 0.5 <= pause(0, 30) <= 1
    assert 4 <= pause(3, 30) <= 8
    assert 15 <= pause(10_000, 30) <= 30
    assert pause(3, 30, left=0.25) == 0.25


def test_base_of_the_tasks_is_celerys_class_itself() -> None:
    """Celery before 5.7 takes no type arguments: ``Task[Any, Any]`` is for type checkers only."""
    assert FencedTask.__bases__ == (Task,)
    assert "__orig_bases__" not in vars(FencedTask)


# --- direct and eager calls


def test_direct_call_happens_each_time(article: Article) -> None:
    assert [tasks.retrying(article.sku), tasks.retrying(article.sku)] == [9, 8]
    assert current_lease() is None
    assert article.is_free()


def test_same_operation_takes_effect_once_however_its_arguments_are_written(article: Article) -> None:
    assert tasks.ordered(article.sku) == 9
    assert tasks.ordered(delta=-1, sku=article.sku) == 9
    assert tasks.ordered.apply((article.sku, -1)).get() == 9
    assert article.quantity == 9
    assert article.outcomes() == ["accepted", "duplicate", "duplicate"]


def test_argument_and_its_text_are_one_call() -> None:
    def key(sku: Any, day: Any = None) -> None: ...

    policy = make_policy(
        key, bind=False, resource="stock:{sku}", ttl=None, operation="{sku}", atomic=True, on_busy="retry",
        busy_wait=1, busy_timeout=1, max_stale_retries=0, using="default",
    )  # fmt: skip
    number = UUID(int=5)
    calls = [policy.call((number,), {}), policy.call((), {"sku": str(number)}), policy.call((number, None), {})]
    assert len({(call.resource, call.operation("task", "id"), call.digest()) for call in calls}) == 1
    assert policy.call((number, 1), {}).digest() != calls[0].digest()
    with pytest.raises(TypeError):
        policy.call((True,), {})


def test_one_key_for_two_calls_is_no_duplicate(article: Article) -> None:
    assert tasks.named(article.sku, -1) == 9
    with pytest.raises(
        OperationMismatchError, match=r"of task 'tests.*named' took effect before, with other arg"
    ) as caught:
        tasks.named(article.sku, -2)
    recorded = Operation.objects.get(resource=article.resource)
    assert (caught.value.operation, caught.value.recorded) == (recorded.key, recorded.digest)
    assert len(caught.value.asked) == len(recorded.digest) and caught.value.asked not in str(caught.value)
    assert article.quantity == 9


def test_one_key_of_two_tasks_is_two_operations(article: Article) -> None:
    tasks.named(article.sku)

    @fenced_task(resource="stock:{sku}", operation=lambda sku: "order", name="tests.other")
    def other(sku: str) -> str:
        return "done"

    assert other(article.sku) == "done"
    assert Operation.objects.filter(resource=article.resource, key="order").count() == 2


def test_eager_call_waits_in_place(article: Article) -> None:
    with lease(article.resource, ttl=0.4, renew=False) as held:
        assert in_other_context(lambda: tasks.retrying.apply((article.sku,)).get()) == 9
        assert not held.is_held()


def test_direct_call_of_a_busy_task_raises(article: Article) -> None:
    with lease(article.resource, ttl=30):
        for task in (tasks.impatient, tasks.failing, tasks.skipping):
            with pytest.raises(LeaseHeldError):
                in_other_context(functools.partial(task, article.sku))


def test_eager_call_names_task_and_id_as_holder(article: Article) -> None:
    seen: list[Any] = []

    @fenced_task(resource="stock:{sku}", bind=True, name="tests.named_holder")
    def look(self: Any, sku: str) -> None:
        seen.append((article.live(), self.request.id))

    look.apply((article.sku,))
    live, task_id = seen[0]
    assert (live.info.task_name, live.info.task_id) == ("tests.named_holder", task_id)
    assert holder_info.get().task_id == ""


def test_interrupted_release_is_made_up_for(article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(held: Lease) -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(entering, "_leave", interrupted)
    with pytest.raises(SoftTimeLimitExceeded):
        tasks.retrying(article.sku)
    assert article.is_free()
    assert current_lease() is None


def test_task_can_be_sent_on_commit() -> None:
    assert callable(apply_delta.delay_on_commit)  # type: ignore[attr-defined]


def test_task_called_under_its_lease_joins_it(article: Article) -> None:
    with lease(article.resource, ttl=30) as held:
        assert tasks.retrying(article.sku) == 9
        assert held.is_held()


def test_open_transaction_is_refused(article: Article) -> None:
    with transaction.atomic(), pytest.raises(LeaseInsideTransactionError):
        tasks.retrying(article.sku)


def test_base_class_of_the_user_keeps_its_call(article: Article) -> None:
    calls: list[Any] = []

    class Base(Task):  # type: ignore[type-arg]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(current_lease())
            return super().__call__(*args, **kwargs)

    @fenced_task(resource="stock:{sku}", base=Base, name="tests.based")
    def body(sku: str) -> str:
        calls.append(current_lease())
        return sku

    assert body(article.sku) == article.sku
    assert calls[0] is None
    assert calls[1].resource == article.resource
    assert isinstance(body, Base)


def test_autoretry_sees_what_is_left_after_the_repetitions(article: Article) -> None:
    @fenced_task(
        resource="stock:{sku}", name="tests.auto", autoretry_for=(StaleWriteError,), max_stale_retries=0, bind=True
    )
    def auto(self: Any, sku: str) -> int:
        return int(tasks.overtaken.run(sku, 1))

    with pytest.raises((Retry, StaleWriteError)):
        auto(article.sku)
    assert article.quantity == 5


# --- refusals


def test_i3_refused_body_is_repeated_with_fresh_reads(article: Article) -> None:
    assert tasks.overtaken(article.sku, 1) == 2
    assert article.outcomes() == ["accepted", "stale", "accepted"]


def test_refused_body_is_repeated_three_times_and_no_more(article: Article) -> None:
    with pytest.raises(StaleWriteError):
        tasks.overtaken(article.sku, 99)
    assert article.outcomes() == ["accepted", "stale"] * 4
    assert article.quantity == 10 - 4 * 5


def test_i6_body_with_a_committed_part_is_not_repeated(article: Article) -> None:
    with pytest.raises(PartialEffectError) as caught:
        tasks.half_done(article.sku)
    assert caught.value.accepted == 1
    assert isinstance(caught.value.__cause__, LeaseLostError), "the second write of a row needs a number more"
    assert article.quantity == 4


def test_i6_body_with_a_committed_upsert_is_not_repeated(article: Article) -> None:
    @fenced_task(resource="stock:{sku}", atomic=False, name="tests.upserting_and_late")
    def upserting(sku: str) -> None:
        late = Stock.objects.get(sku=sku)
        Stock.objects.bulk_create(
            [Stock(sku=sku, quantity=4)], update_conflicts=True, unique_fields=["sku"], update_fields=["quantity"]
        )
        late.save()

    with pytest.raises(PartialEffectError) as caught:
        upserting(article.sku)
    assert caught.value.accepted == 1 and isinstance(caught.value.__cause__, StaleReadError)
    assert article.quantity == 4 and article.outcomes() == ["accepted", "stale-read"]


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "eager"])
def test_i5_body_whose_commit_was_followed_by_a_refusal_is_not_repeated(article: Article, direct: bool) -> None:
    """Again it would take effect twice, or be taken for a duplicate, and what ``on_commit`` was to do is lost in silence."""

    @fenced_task(resource="stock:{sku}", name=f"tests.refused_on_commit_{direct}")
    def refused_on_commit(sku: str) -> int:
        late = Stock.objects.get(sku=sku)
        left = tasks.change(sku, -1)
        transaction.on_commit(late.save)
        return left

    with pytest.raises(PartialEffectError) as caught:
        refused_on_commit(article.sku) if direct else refused_on_commit.apply((article.sku,), throw=True)
    assert isinstance(caught.value.__cause__, StaleReadError) and caught.value.accepted == 1
    assert article.quantity == 9 and article.outcomes() == ["accepted", "stale-read"]


def test_i6_swallowed_refusal_is_raised_at_the_end(article: Article) -> None:
    with pytest.raises(StaleWriteError):
        tasks.swallowing(article.sku)
    assert article.quantity == 5


def test_lost_lease_repeats_the_body(article: Article) -> None:
    runs: list[int] = []

    @fenced_task(resource="stock:{sku}", ttl=5, name="tests.losing")
    def losing(sku: str) -> int:
        held = current_lease()
        assert held is not None
        runs.append(held.token)
        if len(runs) == 1:
            revoke(sku)
            held.renew()
        return tasks.change(sku, -1)

    assert losing(article.sku) == 9
    assert runs[0] < runs[1]


def test_transaction_ended_for_idling_repeats_the_body(article: Article) -> None:
    backends: list[int] = []

    @fenced_task(resource="stock:{sku}", ttl=5, name="tests.idling")
    def idling(sku: str) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            backends.append(cursor.fetchone()[0])
        if len(backends) == 1:
            tasks.change(sku, -1)
            assert wait_for(lambda: not is_connected(backends[0]), seconds=15)
        return tasks.change(sku, -1)

    with override_settings(FENCING=fencing_with(IDLE_IN_TRANSACTION=0.2)):
        assert idling(article.sku) == 9
    assert backends[0] != backends[1]


def test_unreachable_store_is_an_error_and_no_write(article: Article) -> None:
    with (
        pytest.raises(LeaseBackendError),
        override_settings(
            CACHES={"leases": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere.sock"}}
        ),
    ):
        tasks.retrying(article.sku)
    assert article.quantity == 10


# --- the example project's task


def test_stock_and_ledger_change_together(article: Article) -> None:
    result = apply_delta.apply((article.sku, -4, "sale"))
    assert result.get() == 6
    line = StockDelta.objects.get(sku=article.sku)
    assert (line.delta, line.reason, line.operation) == (-4, "sale", f"{apply_delta.name}:{result.id}")
    assert open_body.get() is None


def test_oversell_is_its_own_error_and_changes_nothing(article: Article) -> None:
    with pytest.raises(OversoldError, match="would oversell"):
        apply_delta(article.sku, -11, "sale")
    assert article.quantity == 10
    assert not StockDelta.objects.filter(sku=article.sku).exists()


def fencing_with(**changes: Any) -> dict[str, Any]:
    """The setting with changes."""
    return {**settings.FENCING, **changes}


@contextmanager
def another_connection() -> Iterator[Any]:
    """A cursor of a connection of its own."""
    own = connections.create_connection("default")
    try:
        with own.cursor() as cursor:
            yield cursor
    finally:
        own.close()


def is_connected(backend: int) -> bool:
    """Whether PostgreSQL still has this session."""
    with another_connection() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [backend])
        return bool(cursor.fetchone()[0])
