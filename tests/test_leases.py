"""lease(): taking, waiting, nesting, renewing, losing and giving back, on a real Valkey."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, wait
from contextvars import copy_context
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from fencing import (
    Lease,
    LeaseBackendError,
    LeaseHeldError,
    LeaseInsideTransactionError,
    LeaseLostError,
    LeaseRequiredError,
    StaleWriteError,
    current_lease,
    lease,
)
from fencing.backends import get_backend
from fencing.heartbeat import Schedule, beats
from fencing.revocation import revoke
from fencing.scope import held_leases
from fencing.signals import lease_granted, lease_lost
from fencing.tokens import place_of
from inventory_demo.models import Stock
from tests.concurrency import BOUND, threads, wait_until
from tests.services import PrivateValkey

pytestmark = pytest.mark.django_db(transaction=True)

# Seconds of a ttl which the heartbeat renews, though the machine holds it up for up to one second.
RENEWED = 1.5


def holder_of(resource: str) -> str | None:
    backend = get_backend()
    live = backend.peek(place_of(backend, resource))
    return live.holder if live else None


def left_in_store(resource: str) -> float:
    backend = get_backend()
    live = backend.peek(place_of(backend, resource))
    return live.remaining if live else 0.0


def sum_of(clock: Callable[[], float], jump: float) -> float:
    return clock() + jump


def renewed_or_lost(held: Lease, deadline: float) -> bool:
    return held._deadline > deadline or not held.is_held()


def take_away(held: Lease) -> None:
    held._backend.revoke(held._place, held.token)


@pytest.fixture
def lost() -> Any:
    reasons: list[tuple[Lease, str]] = []

    def note(lease: Lease, reason: str, **_named: Any) -> None:
        reasons.append((lease, reason))

    lease_lost.connect(note)
    yield reasons
    lease_lost.disconnect(note)


def test_lease_is_held_inside_and_gone_outside() -> None:
    with lease("stock:42", ttl=5) as held:
        assert held.is_held() and 0 < held.remaining() <= 5
        assert holder_of("stock:42") == held.holder
        assert current_lease() is held is current_lease("stock:42")
        assert current_lease("stock:43") is None
    assert holder_of("stock:42") is None
    assert current_lease() is None and not held.is_held()


def test_every_grant_has_a_higher_token_and_a_holder_of_its_own() -> None:
    """I1"""
    grants = []
    for _ in range(5):
        with lease("stock:42") as held, lease("stock:43") as other:
            grants += [held, other]
    tokens = [one.token for one in grants]
    assert tokens == sorted(set(tokens))
    assert len({one.holder for one in grants}) == len(grants)


def test_held_lease_is_refused_at_once_and_its_holder_untouched() -> None:
    """C03"""
    ran = []
    with lease("stock:42", ttl=5) as held, threads() as start:

        @lease("stock:42")
        def body() -> None:
            ran.append(1)

        with pytest.raises(LeaseHeldError) as caught:
            start(body).result(BOUND)
        assert (caught.value.resource, caught.value.holder) == ("stock:42", held.holder)
        assert 0 < caught.value.retry_after <= 5
        with pytest.raises(LeaseHeldError):
            start(lambda: lease("stock:42", wait=0.2).__enter__()).result(BOUND)
        assert holder_of("stock:42") == held.holder and held.is_held()
    assert not ran


def test_waiting_ends_with_the_release() -> None:
    entered = threading.Event()
    with threads() as start:
        with lease("stock:42") as first:

            def wait_for_it() -> int:
                entered.set()
                with lease("stock:42", wait=None) as second:
                    return second.token

            waiting = start(wait_for_it)
            assert entered.wait(BOUND)
        assert waiting.result(BOUND) > first.token


def test_nested_lease_is_the_same_grant_and_the_outer_exit_releases() -> None:
    with lease("stock:42") as outer:
        with lease("stock:42") as inner, lease(["stock:42", "stock:43"]) as (again, other):
            assert inner is outer is again
            assert held_leases() == (outer, other)
        assert holder_of("stock:42") == outer.holder and outer.is_held()
        assert holder_of("stock:43") is None
    assert holder_of("stock:42") is None


def test_several_resources_are_all_or_none() -> None:
    with lease(["stock:b", "stock:a", "stock:b"]) as (b, a, again):
        assert (a.resource, b.resource, again) == ("stock:a", "stock:b", b)
        assert a.token < b.token
    with lease("stock:b"), threads() as start:
        with pytest.raises(LeaseHeldError):
            start(lambda: lease(["stock:a", "stock:b", "stock:c"]).__enter__()).result(BOUND)
        assert holder_of("stock:a") is None and holder_of("stock:c") is None


def test_model_instance_names_its_resource() -> None:
    stock = Stock.objects.create(sku="42")
    with lease(stock) as held:
        assert held.resource == "stock:42"


def test_body_that_raises_releases_and_keeps_its_error() -> None:
    with pytest.raises(KeyboardInterrupt), lease("stock:42"):
        raise KeyboardInterrupt
    assert holder_of("stock:42") is None and held_leases() == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_interruption_after_the_store_answered_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """C07: the soft time limit strikes between the store's answer and ours."""
    with lease("stock:42"):
        pass
    backend = get_backend()
    acquire = backend.acquire

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        acquire(*args, **kwargs)
        raise error

    monkeypatch.setattr(backend, "acquire", interrupted)
    with pytest.raises(error), lease("stock:42"):
        raise AssertionError("entered")
    assert holder_of("stock:42") is None and held_leases() == ()


def test_interrupted_end_of_one_lease_ends_the_others_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """C07: the soft time limit strikes within the exit."""
    with lease("stock:42"):
        pass
    backend = get_backend()
    release = backend.release

    def interrupted(place: Any, *args: Any) -> Any:
        release(place, *args)
        if place.resource == "stock:b":
            raise KeyboardInterrupt

    monkeypatch.setattr(backend, "release", interrupted)
    with pytest.raises(KeyboardInterrupt), lease(["stock:a", "stock:b", "stock:c"]):
        pass
    assert [holder_of(f"stock:{name}") for name in "abc"] == [None] * 3 and held_leases() == ()


def test_receiver_that_raises_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(**_named: Any) -> None:
        raise ValueError("a receiver's own fault")

    lease_granted.connect(broken)
    try:
        with lease("stock:42") as held:
            assert held.is_held()
    finally:
        lease_granted.disconnect(broken)
    assert "receiver" in caplog.text


def test_heartbeat_renews_to_the_ttl_and_never_beyond() -> None:
    """C02 c"""
    with lease("stock:42", ttl=RENEWED) as held:
        deadline = held._deadline
        most = 0.0

        def renewed_twice() -> bool:
            nonlocal most
            most = max(most, left_in_store("stock:42"))
            return held._deadline > deadline + RENEWED / 2

        wait_until(renewed_twice, "the heartbeat renews")
        assert held.is_held() and most <= RENEWED
    assert held not in beats._entries


def test_deadline_counts_from_before_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that takes long must not make the holder believe longer than the store."""
    backend = get_backend()
    renew = backend.renew

    def slow(*args: Any) -> bool:
        answer = renew(*args)
        time.sleep(0.1)  # on its way
        return answer

    monkeypatch.setattr(backend, "renew", slow)
    with lease("stock:42", ttl=5, renew=False) as held:
        held.renew()
        left = left_in_store("stock:42")
        assert held.remaining() < left + 0.02


def test_late_release_of_an_earlier_grant_spares_the_next_one_of_the_same_caller() -> None:
    """S17: it was on its way all the time, in a connection that was given up."""
    with lease("stock:42") as first:
        pass
    with lease("stock:42") as second:
        assert not first._backend.release(first._place, first.holder, first.token)
        assert holder_of("stock:42") == second.holder
        second.renew()


def test_heartbeat_survives_a_failed_call(monkeypatch: pytest.MonkeyPatch, lost: list[Any]) -> None:
    """C02 a"""
    backend = get_backend()
    renew, calls = backend.renew, []

    def flaky(*args: Any) -> bool:
        calls.append(1)
        if len(calls) == 1:
            raise LeaseBackendError("default", "the connection broke")
        return renew(*args)

    monkeypatch.setattr(backend, "renew", flaky)
    with lease("stock:42", ttl=RENEWED) as held:
        wait_until(lambda: lost or len(calls) >= 3, "the heartbeat goes on")
        assert held.is_held()
    assert not lost


def test_heartbeat_notices_the_loss_and_leaves_the_others_lease_alone(lost: list[Any]) -> None:
    """C02 b"""
    with lease("stock:42", ttl=RENEWED) as held:
        take_away(held)
        with threads() as start:
            gate = threading.Event()

            def newer() -> tuple[str | None, str]:
                with lease("stock:42", ttl=30) as other:
                    assert gate.wait(BOUND)
                    return holder_of("stock:42"), other.holder

            other, end = start(newer), held._deadline
            wait_until(lambda: lost or held._deadline > end + RENEWED, "the holder is told, or believes that it renews")
            gate.set()
            there, theirs = other.result(BOUND)
            assert there == theirs
        assert not held.is_held()
        for refused in (held.ensure_held, held.renew, held.advance):
            with pytest.raises(LeaseLostError, match="stock:42"):
                refused()
    assert [one for one, _reason in lost] == [held]


def test_heartbeat_says_that_the_store_refused_where_a_lease_was_taken_away_in_time(lost: list[Any]) -> None:
    with lease("stock:42", ttl=30, renew=False) as held:
        take_away(held)
        assert held._beat() is None
    assert lost == [(held, "the store refused to renew it")]


def test_renewal_that_is_refused_because_the_lease_was_just_released_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, lost: list[Any]
) -> None:
    with lease("stock:42", ttl=30, renew=False) as held:
        renew = held._backend.renew

        def overtaken(*args: Any) -> bool:
            held.release()
            return renew(*args)

        monkeypatch.setattr(held._backend, "renew", overtaken)
        assert held._beat() is None
    assert lost == []


def test_exit_after_the_loss_does_not_raise(lost: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    with lease("stock:42", renew=False) as held:
        take_away(held)
        with lease("stock:42"):
            pass
    assert len(lost) == 1 and "is lost" in caplog.text


def test_release_of_a_lost_lease_spares_the_newer_holder() -> None:
    with lease("stock:42", renew=False) as held:
        take_away(held)
        with threads() as start:
            holding, leave = threading.Event(), threading.Event()

            def newer() -> str | None:
                with lease("stock:42") as other:
                    holding.set()
                    assert leave.wait(BOUND)
                    return other.holder if other.is_held() else None

            other = start(newer)
            assert holding.wait(BOUND)
            held.release()
            there = holder_of("stock:42")
            leave.set()
            assert other.result(BOUND) == there


def test_lease_without_renewal_ends_by_itself() -> None:
    with lease("stock:42", ttl=0.2, renew=False) as held:
        wait_until(lambda: holder_of("stock:42") is None, "the store ends it")
        wait_until(lambda: not held.is_held(), "the holder knows", seconds=5)
        with pytest.raises(LeaseLostError):
            held.ensure_held()


def test_renew_and_advance() -> None:
    with lease("stock:42", ttl=30) as held:
        held._deadline -= 25
        held.renew()
        assert held.remaining() > 10
        token = held.token
        numbers = [held.advance() for _ in range(3)]
        assert numbers == sorted(numbers) and numbers[0] > token
        assert held.token == token and held.newest_token == numbers[-1]


def test_row_with_a_higher_number_raises_the_next_grants() -> None:
    """L2, L3: imported, or written under a server that was ahead; the first write is refused, and nobody is stuck."""
    stock = Stock.objects.create(sku="42")
    with lease("stock:42") as held:
        above = held.token + 1_000_000
    with connection.cursor() as cursor:
        cursor.execute("UPDATE inventory_demo_stock SET last_token = %s", [above])
    stock.refresh_from_db()
    with lease("stock:42"), pytest.raises(StaleWriteError):
        stock.save()
    with lease("stock:42") as held:
        assert held.token > above
        stock.save()


def test_released_lease_is_of_no_use() -> None:
    """L7"""
    with lease("stock:42") as held:
        context = copy_context()
    for use in (held.renew, held.advance, held.ensure_held, lambda: held.atomic().__enter__()):
        with pytest.raises(LeaseLostError, match="released"):
            use()
    assert context.run(current_lease) is None
    held.release()


@pytest.mark.parametrize("first", [Lease.unused_number, partial(Lease.number_above, floor=2**52)])
def test_threads_of_one_lease_take_numbers_of_their_own(
    monkeypatch: pytest.MonkeyPatch, first: Callable[[Lease], int]
) -> None:
    """A bulk statement with another's number would be refused as stale, by nobody newer."""
    later: list[Future[int]] = []

    def advance(self: Lease) -> int:
        number = real(self)
        if not later:
            later.append(start(self.unused_number))
            # It has to wait for the first one, which goes on with the number after this; else it is done at once.
            wait(later, 0.2)
        return number

    real = Lease.advance
    monkeypatch.setattr(Lease, "advance", advance)
    with lease("stock:42") as held, threads() as start:
        held.unused_number()
        number = first(held)
        assert later[0].result(BOUND) > number


def test_other_threads_hold_nothing() -> None:
    with lease("stock:42"), threads() as start:
        assert start(current_lease).result(BOUND) is None


def test_forked_child_holds_nothing_and_releases_nothing() -> None:
    """C11"""
    stock = Stock.objects.create(sku="42")
    with lease("stock:42") as held:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if current_lease() is None and not held.is_held() and not beats._entries:
                    try:
                        stock.save()
                    except LeaseRequiredError:
                        held.release()
                        status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert holder_of("stock:42") == held.holder
        stock.save()


def test_forked_child_renews_by_a_thread_of_its_own() -> None:
    """C11: the parent's thread does not exist there, and may have had its lock at the fork."""
    schedule = Schedule("test-heartbeat")
    schedule.add("parent", lambda: 0.001, 0.0)
    try:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            done = threading.Event()
            schedule.add("child", done.set, 0.0)
            os._exit(0 if done.wait(20) and "parent" not in schedule._entries else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        schedule.remove("parent")


def test_lease_inside_an_open_transaction() -> None:
    with transaction.atomic(), pytest.raises(LeaseInsideTransactionError, match="default"), lease("stock:42"):
        pass
    assert holder_of("stock:42") is None
    with lease("stock:42") as outer, transaction.atomic(), lease("stock:42") as again:
        assert again is outer


def test_decorator_names_the_resource_by_the_arguments_however_written() -> None:
    """C10"""

    @lease("stock:{sku}:{warehouse}")
    def resource(sku: Any, warehouse: Any = "A") -> str:
        held = current_lease()
        assert held is not None
        return held.resource

    key = UUID("12345678123456781234567812345678")
    assert {resource("1"), resource(sku="1"), resource("1", "A"), resource(1), resource(warehouse="A", sku="1")} == {
        "stock:1:A"
    }
    assert resource(key) == resource(str(key))
    for unusable in (None, object(), True, 1.5, "", ["1"]):
        with pytest.raises((TypeError, ValueError)):
            resource(unusable)
    with pytest.raises(TypeError):
        resource(warehouse="A")  # type: ignore[call-arg]


def test_decorator_refuses_what_a_call_would_only_prepare() -> None:
    """The lease would have ended before the body began."""

    def generator() -> Iterator[None]:
        yield

    async def asynchronous_generator() -> AsyncIterator[None]:
        yield

    for function in (generator, asynchronous_generator):
        with pytest.raises(TypeError, match="after the lease has ended"):
            lease("stock:42")(function)

    def method(_of: Any) -> None: ...

    descriptors: list[Any] = [classmethod(method), property(method)]
    for descriptor in descriptors:
        with pytest.raises(TypeError, match="@classmethod"):
            lease("stock:42")(descriptor)


def test_name_that_looks_like_a_template_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A forgotten f: every article would share the lease."""
    for name in ("told:{sku}", "told:{sku}", "told:{1}", "told:{}", 'told:{"a": 1}', "told:plain"):
        with lease(name) as held:
            assert held.resource == name
    for name in ("told:{order}", "told:{sku}"):
        with lease([name, "told:plain"]):
            pass

    async def enter() -> None:
        async with lease("told:{place}"):
            pass

    async_to_sync(enter)()

    @lease("told:{sku}")
    def change(sku: str) -> None: ...

    change("42")
    lines = [one.getMessage() for one in caplog.records if "Was {" in one.getMessage()]
    assert [line.split("'")[1] for line in lines] == ["told:{sku}", "told:{order}", "told:{place}"]
    assert "Was {sku} to be filled in?" in lines[0]


def test_bare_decorator_is_told_when_its_function_is_called() -> None:
    """Until then it could be a function that names resources."""
    bare: Any = lease
    ran: list[Any] = []

    def change(*args: Any, **kwargs: Any) -> None:
        ran.append(args)

    async def change_async(sku: str) -> None:
        ran.append(sku)

    decorated, coroutine = bare(change), bare(change_async)
    calls: list[Callable[[], Any]] = [
        lambda: decorated(), lambda: decorated("42"), lambda: decorated(str, 1), lambda: decorated(sku="42"),
        lambda: coroutine("42"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(TypeError, match=r'@lease stands alone above .*change.*, write @lease\("stock:\{sku\}"\)'):
            call()
    with pytest.raises(TypeError, match="string or a fenced model instance"), decorated:
        pass
    assert ran == []
    with pytest.raises(TypeError, match="decorates functions, not None"):
        lease("stock:42")()


def test_coroutine_that_looks_like_a_function_is_refused_when_it_is_called() -> None:
    async def body() -> None:
        raise AssertionError("ran")

    @lease("stock:42")
    def wrapped() -> Any:
        return body()

    with pytest.raises(TypeError, match="after the lease has ended"):
        wrapped()
    assert holder_of("stock:42") is None


def test_exit_ends_its_own_entry_where_threads_share_one_object() -> None:
    """A sleeper that outlived its lease leaves after somebody newer has entered."""
    shared = lease("stock:42", ttl=600)
    with threads() as start:
        inside, leave = threading.Event(), threading.Event()

        def sleep() -> None:
            with shared:
                inside.set()
                leave.wait(BOUND)

        sleeping = start(sleep)
        assert inside.wait(BOUND)
        revoke("stock:42", "it sleeps")
        with shared as newer:
            leave.set()
            sleeping.result(BOUND)
            assert newer.is_held() and newer in beats
            assert holder_of("stock:42") == newer.holder
    assert holder_of("stock:42") is None


def test_generator_that_is_closed_late_and_elsewhere_gives_its_lease_back() -> None:
    def body() -> Iterator[Lease]:
        with lease("stock:42") as held:
            yield held

    suspended = body()
    held = next(suspended)
    assert current_lease() is held
    with threads() as start:
        start(suspended.close).result(BOUND)  # type: ignore[attr-defined]
    assert current_lease() is None and held not in beats
    assert holder_of("stock:42") is None


@pytest.mark.parametrize("template", ["stock:{sku!r}", "stock:{sku:>4}", "stock:{sku.id}", "stock:{}", "stock:{0}"])
def test_templates_are_plain(template: str) -> None:
    @lease(template)
    def body(sku: str) -> None:
        raise AssertionError("ran")

    with pytest.raises(ValueError, match="plain name"):
        body("1")


@pytest.mark.parametrize(
    "ttl",
    [
        0,
        -1,
        0.0,
        float("nan"),
        float("inf"),
        1e300,
        10**400,
        "5",
        True,
        Decimal("1.5"),
        timedelta(0),
        timedelta(seconds=-1),
    ],
)
def test_ttl_that_cannot_be(ttl: Any) -> None:
    """C28, when the decorator is applied, before anything is asked of the store."""
    with pytest.raises((TypeError, ValueError), match="ttl"):
        lease("stock:42", ttl=ttl)


@pytest.mark.parametrize(("ttl", "most"), [(7.5, 7.5), (8, 8.0), (timedelta(seconds=9), 9.0), (1e6, 1e6)])
def test_ttl_that_can(ttl: Any, most: float) -> None:
    with lease("stock:42", ttl=ttl, renew=False) as held:
        assert 0 < left_in_store("stock:42") <= most
        held.renew()
        assert 0 < left_in_store("stock:42") <= most


def test_heartbeat_that_has_nothing_to_do_for_ages_serves_who_comes() -> None:
    schedule, done = Schedule("test-heartbeat"), threading.Event()
    schedule.add("endless", lambda: None, 1e12)
    try:
        wait_until(lambda: schedule._wakes_at, "it sleeps")
        schedule.add("soon", done.set, 0.0)
        assert done.wait(BOUND)
    finally:
        schedule.remove("endless")


@pytest.mark.parametrize("ttl", [timedelta(days=40), 1e12])
def test_endless_ttl_breaks_neither_writes_nor_the_renewal_of_others(ttl: Any) -> None:
    """C28: databases and threads wait for less than that."""
    stock = Stock.objects.create(sku="42")
    with lease("stock:42", ttl=ttl) as held, lease("stock:43", ttl=RENEWED) as other:
        with held.atomic():
            stock.save()
        with transaction.atomic():
            stock.save()
        end = other._deadline
        wait_until(lambda: other._deadline > end or not other.is_held(), "the other one is renewed")
        assert other.is_held() and held.is_held()


def test_tiny_ttl_is_rounded_up_and_never_endless() -> None:
    with lease("stock:42", ttl=0.0004, renew=False):
        assert left_in_store("stock:42") <= 0.001


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), 10**400, "1", True])
def test_wait_that_cannot_be(wait: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="wait"):
        lease("stock:42", wait=wait)


@pytest.mark.parametrize("resource", ["", "x" * 201, "a\0b", "a\nb", 7, None, b"x", Stock])
def test_resource_that_cannot_be(resource: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        lease(resource).__enter__()


def test_empty_list_of_resources() -> None:
    with pytest.raises(ValueError, match="empty"):
        lease([]).__enter__()


@pytest.mark.parametrize("resource", ["x" * 200, "a b {c} é 你好", "}{", "a:b"])
def test_odd_names(resource: str) -> None:
    with lease([resource, "other"]) as (held, _other):
        assert held.resource == resource and holder_of(resource) == held.holder


def test_store_that_does_not_answer(settings: Any, valkey_server: Callable[..., PrivateValkey]) -> None:
    """I7: no lease, no token, a typed error, and no write."""
    server = valkey_server()
    settings.CACHES = {**settings.CACHES, "leases": {**settings.CACHES["leases"], "LOCATION": server.url()}}
    stock = Stock.objects.create(sku="42")
    with lease("stock:42"):
        stock.save()
        server.kill()
        with pytest.raises(LeaseBackendError):
            stock.save()
    with pytest.raises(LeaseBackendError, match="default"), lease("stock:42"):
        raise AssertionError("entered")
    assert held_leases() == ()


def test_wall_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """C26"""
    real = time.time
    with lease("stock:42", ttl=RENEWED) as held:
        for jump in (86_400, -86_400):
            monkeypatch.setattr(time, "time", partial(sum_of, real, jump))
            deadline = held._deadline
            wait_until(partial(renewed_or_lost, held, deadline), "the heartbeat renews")
            assert held.is_held()
