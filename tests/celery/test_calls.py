"""Ways to make and to call a task: as a class, eagerly, with arguments written in every way; what a body may not do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from celery import Task, shared_task
from celery.app.annotations import prepare
from django.db import OperationalError
from django.utils.translation import gettext_lazy

from fencing import LeaseRequiredError, PartialEffectError, StaleWriteError, current_lease
from fencing.celery import FencedTask, fenced_task, leased_task
from fencing.taskpolicy import TaskPolicy, make_policy
from inventory_demo.celery import app
from inventory_demo.models import Stock
from tests.celery import tasks
from tests.celery.helpers import Article, overtake

# --- arguments


def policy_of(
    function: Any, *, bind: bool = False, resource: str = "stock:{sku}:{wh}", operation: str | None = "{sku}"
) -> TaskPolicy:
    return make_policy(
        function, bind=bind, resource=resource, ttl=None, operation=operation, atomic=True, on_busy="retry",
        busy_wait=1, busy_timeout=1, max_stale_retries=0, using="default",
    )  # fmt: skip


def move(sku: Any, wh: Any = "A", *more: Any, **rest: Any) -> None: ...


def bound_move(self: Any, sku: Any, wh: Any = "A", *more: Any, **rest: Any) -> None: ...


@pytest.mark.parametrize("policy", [policy_of(move), policy_of(bound_move, bind=True)], ids=["plain", "bound"])
def test_c10_same_call_is_the_same_name_however_it_is_written(policy: TaskPolicy) -> None:
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("1",), {}), ((), {"sku": "1"}), (("1", "A"), {}), ((), {"wh": "A", "sku": "1"}), (("1",), {"wh": "A"}),
    ]  # fmt: skip
    calls = [policy.call(args, kwargs) for args, kwargs in ways]
    assert {(call.resource, call.operation("task", "id"), call.digest()) for call in calls} == {
        ("stock:1:A", "1", calls[0].digest())
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal("1.50"), "1.50"),
        (date(2026, 2, 3), "2026-02-03"),
        (datetime(2026, 2, 3, 4, 5), "2026-02-03 04:05:00"),  # noqa: DTZ001
    ],
)
def test_c10_value_and_its_text_name_the_same_resource(value: Any, text: str) -> None:
    policy = policy_of(move)
    assert policy.call((value,), {}).resource == policy.call((text,), {}).resource == f"stock:{text}:A"


@pytest.mark.parametrize("value", [None, True, 1.5, b"1", object(), "", ["1"]])
def test_c10_value_without_a_stable_text_is_refused_at_the_call(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        policy_of(move).call((value,), {})


def test_c10_missing_argument_is_an_error_and_no_shared_name() -> None:
    with pytest.raises(TypeError, match="sku"):
        policy_of(move).call((), {})


DIGEST = """
from fencing.taskpolicy import make_policy

def move(sku, **rest): ...

policy = make_policy(
    move, bind=False, resource="stock:{sku}", ttl=None, operation=None, atomic=True, on_busy="retry", busy_wait=1,
    busy_timeout=1, max_stale_retries=0, using="default",
)
print(policy.call(("1",), {"tags": {"a", "b", "c", "d"}, "what": object()}).digest())
"""


def test_c10_arguments_are_the_same_in_every_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST], check=True, capture_output=True, timeout=60,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


def test_c10_keys_of_a_dictionary_are_what_a_message_makes_of_them() -> None:
    policy = policy_of(move)
    by_number = {9: 1, 10: 2, None: 3, date(2026, 2, 3): 4, ("a", 1): 5}
    sent = {"9": 1, "10": 2, "null": 3, "2026-02-03": 4, "('a', 1)": 5}
    one, other = policy.call(("1",), {"counts": [by_number]}), policy.call(("1",), {"counts": [sent]})
    assert one.digest() == other.digest() != policy.call(("1",), {"counts": [{**sent, "9": 2}]}).digest()


def test_c10_lazy_text_is_the_same_argument_as_its_text() -> None:
    policy = policy_of(move)
    assert (
        policy.call(("1",), {"note": gettext_lazy("sold")}).digest() == policy.call(("1",), {"note": "sold"}).digest()
    )


def test_operation_that_cannot_be_is_called_one() -> None:
    with pytest.raises(ValueError, match="operation's key"):
        policy_of(move, resource="stock").call(("1" * 201,), {}).operation("task", "id")


def test_key_of_a_task_with_a_long_name_and_id_is_its_own() -> None:
    """Each may have 255 characters, a key 200."""
    call = policy_of(move, operation=None).call(("1",), {})
    keys = [call.operation("t" * length, one * 255) for length in (255, 254) for one in "ab"]
    assert len({*keys}) == 4 and all(key and len(key) == 200 for key in keys)
    assert call.operation("t" * 163, "a" * 36) == "t" * 163 + ":" + "a" * 36


def test_i5_duplicate_is_one_though_the_body_has_changed_a_default(article: Article) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, operation="restock", name="tests.mutable_default")
    def restock(sku: str, seen: list[str] = []) -> list[str]:  # noqa: B006
        seen.append(sku)
        return seen

    assert restock(article.sku) == restock(article.sku) == restock(article.sku, []) == [article.sku]


@pytest.mark.parametrize("bind", [False, True])
def test_argument_may_have_any_name(article: Article, bind: bool) -> None:
    def body(*given: Any, sku: str, **named: Any) -> dict[str, Any]:
        return named

    task = fenced_task(resource="stock:{sku}", ttl=5, bind=bind, name=f"tests.any_name_{bind}")(body)
    named = dict.fromkeys(("self", "task", "_task", "args", "kwargs", "call", "body", "function", "first"), 1)
    assert task.apply(kwargs={"sku": article.sku, **named}).get() == named


# --- classes


class Counting(FencedTask):
    """A class of the user's that is a fenced task itself."""

    abstract = True
    calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        type(self).calls += 1
        return super().__call__(*args, **kwargs)


def test_base_may_be_a_fenced_task_itself(article: Article) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, base=Counting, bind=True, name="tests.counted")
    def counted(self: Counting, sku: str) -> list[Any]:
        held = current_lease()
        return [held.resource if held else "", self.calls]

    assert counted(article.sku) == [article.resource, 1]
    assert isinstance(counted, Counting)


def test_class_with_a_body_of_its_own_is_a_base_like_others(article: Article) -> None:
    class Restocking(Task):  # type: ignore[type-arg]
        abstract = True

        def amount(self, sku: str) -> int:
            return len(sku)

    @fenced_task(resource="stock:{sku}", ttl=5, base=Restocking, bind=True, name="tests.restocking")
    def restock(self: Any, sku: str) -> int:
        return tasks.change(sku, self.amount(sku))

    assert restock(article.sku) == 10 + len(article.sku)


def test_lease_is_held_in_the_body_and_in_no_handler_of_the_class(article: Article) -> None:
    seen: list[Any] = []

    def note(*_given: Any) -> None:
        seen.append(current_lease())

    handlers = dict.fromkeys(("before_start", "on_success", "after_return"), note)
    base: Any = type(
        "Noting", (Task,), {"abstract": True, **{name: staticmethod(one) for name, one in handlers.items()}}
    )

    @fenced_task(resource="stock:{sku}", ttl=5, base=base, name="tests.noting")
    def noting(sku: str) -> bool:
        return current_lease() is not None

    assert noting.apply((article.sku,)).get() is True
    assert seen == [None, None, None]


# --- annotations


@pytest.fixture
def annotated(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Set what `task_annotations` say of the tasks that are made from now on."""
    return lambda annotations: monkeypatch.setitem(app.__dict__, "annotations", prepare(annotations))


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(ValueError("again"), 2), (KeyError("excepted"), 1), (PartialEffectError("stock:7", 1), 1)],
    ids=lambda value: type(value).__name__,
)
def test_annotation_may_except_errors_from_retries_beside_the_incurable(
    article: Article, annotated: Callable[[dict[str, Any]], None], error: Exception, attempts: int
) -> None:
    name = f"tests.annotated_{type(error).__name__}"
    told = {"autoretry_for": (Exception,), "dont_autoretry_for": (LookupError,), "max_retries": 1}
    annotated({name: {**told, "default_retry_delay": 0}})
    runs: list[int] = []

    @fenced_task(resource="stock:{sku}", ttl=5, bind=True, name=name)
    def failing(self: FencedTask, sku: str) -> None:
        runs.append(self.request.retries)
        raise error

    with pytest.raises(type(error)):
        failing.apply((article.sku,)).get()
    assert runs == [*range(attempts)]


@pytest.mark.parametrize("bind", [True, False])
def test_annotation_that_decorates_the_body_leaves_the_lease_around_it(
    article: Article, annotated: Callable[[dict[str, Any]], None], bind: bool
) -> None:
    name, calls = f"tests.decorated_{bind}", []

    def noting(run: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            calls.append(current_lease())
            return run(*args, **kwargs)

        return noted

    annotated({name: {"@run": noting}})

    def body(*args: Any, sku: str) -> str:
        held = current_lease()
        return held.resource if held else ""

    decorated = leased_task(resource="stock:{sku}", ttl=5, bind=bind, name=name)(body)
    assert decorated(sku=article.sku) == article.resource
    assert calls == [None]


# --- eager


@pytest.fixture
def eager() -> Iterator[None]:
    app.conf.task_always_eager = True
    yield
    app.conf.task_always_eager = False


@pytest.mark.usefixtures("eager")
def test_task_always_eager_runs_it_in_place_under_its_lease(article: Article) -> None:
    result = tasks.retrying.delay(article.sku)
    assert result.get() == 9
    assert article.report()["token"]
    assert tasks.retrying.apply_async((article.sku,), task_id=result.id).get() == 9, "the same id is a duplicate"
    assert article.quantity == 9
    assert article.is_free()


def test_frozen_signature_has_one_id_so_it_takes_effect_once(article: Article) -> None:
    """S8: sent three times it is one operation, as its task id says."""
    signature = tasks.retrying.s(article.sku)
    signature.freeze()
    results = [signature.apply(task_id=signature.id).get() for _ in range(3)]
    assert results == [9, 9, 9]
    assert article.outcomes() == ["accepted", "duplicate", "duplicate"]


# --- what a body may not do


@pytest.mark.parametrize("name", ["tests.a\0b", "tests.a\ud800b", "tests." + "n" * 250], ids=["NUL", "half", "long"])
def test_name_that_the_history_cannot_keep_is_refused_before_the_store_is_told(article: Article, name: str) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, name=name)
    def misnamed(sku: str) -> int:
        return tasks.change(sku, -1)

    with pytest.raises(ValueError, match="name of a task has at most 255"):
        misnamed(article.sku)
    app.tasks.unregister(name)
    assert article.quantity == 10 and article.outcomes() == []


def test_c12_save_of_another_resource_s_row_is_refused(article: Article) -> None:
    @fenced_task(resource="shelf:{sku}", ttl=5, name="tests.wrong_resource")
    def wrong(sku: str) -> int:
        return tasks.change(sku, -1)

    with pytest.raises(LeaseRequiredError, match=f"shelf:{article.sku}"):
        wrong(article.sku)
    assert article.quantity == 10


def test_coroutine_that_a_body_calls_by_async_to_sync_is_undone_with_it(article: Article) -> None:
    """By ``asyncio.run()`` it would write on another connection, and that would stay."""

    async def take_one(sku: str) -> None:
        stock = await Stock.objects.aget(sku=sku)
        stock.quantity -= 1
        await stock.asave()

    @fenced_task(resource="stock:{sku}", ttl=5, name="tests.calling_a_coroutine")
    def calling(sku: str, *, fail: bool) -> None:
        async_to_sync(take_one)(sku)
        if fail:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        calling(article.sku, fail=True)
    assert article.quantity == 10
    calling(article.sku, fail=False)
    assert article.quantity == 9


def test_c12_save_in_a_task_without_a_lease_is_refused(article: Article) -> None:
    @shared_task(name="tests.plain")
    def plain(sku: str) -> int:
        return tasks.change(sku, -1)

    with pytest.raises(LeaseRequiredError):
        plain(article.sku)
    assert article.quantity == 10


def test_u5_result_that_json_cannot_hold_is_an_error_before_the_commit(article: Article) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, name="tests.unserializable")
    def unserializable(sku: str) -> object:
        tasks.change(sku, -1)
        return object()

    with pytest.raises(TypeError, match="JSON"):
        unserializable.apply((article.sku,)).get()
    assert article.quantity == 10


def test_s18_refusal_that_an_atomic_body_swallows_is_raised_at_its_end(article: Article) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, max_stale_retries=0, name="tests.swallowing_atomic")
    def swallow(sku: str) -> str:
        stock = Stock.objects.get(sku=sku)
        overtake(sku, -5)
        try:
            stock.save()
        except StaleWriteError:
            return "fine"
        return "not refused"

    with pytest.raises(StaleWriteError):
        swallow(article.sku)
    assert article.quantity == 5


def test_s9_body_with_a_committed_part_is_not_repeated_for_an_error_of_the_database(article: Article) -> None:
    @fenced_task(resource="stock:{sku}", ttl=5, atomic=False, name="tests.cut_off")
    def cut_off(sku: str) -> None:
        tasks.change(sku, -1)
        raise OperationalError("the connection is gone")

    with pytest.raises(OperationalError):
        cut_off(article.sku)
    assert article.outcomes() == ["accepted"]
    assert article.quantity == 9
