"""Leases in coroutines: the context is carried along, a wait occupies nobody's thread, a cancelled one leaves nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections
from django.test import TestCase

from fencing import (
    Lease,
    LeaseHeldError,
    LeaseLostError,
    LeaseRequiredError,
    ResourceMismatchError,
    StaleReadError,
    current_lease,
    lease,
)
from fencing.acquiring import acquire
from fencing.backends import get_backend
from fencing.heartbeat import beats
from fencing.revocation import revoke
from fencing.scope import held_leases
from fencing.tokens import place_of
from inventory_demo.models import Stock
from tests.concurrency import BOUND, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def holder_of(resource: str) -> str | None:
    backend = get_backend()
    live = backend.peek(place_of(backend, resource))
    return live.holder if live else None


async def soon(condition: Any) -> None:
    """Wait for a condition without standing in the loop's way."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.01)


def run(coroutine: Any) -> Any:
    """Run a coroutine function as Django does: the ORM's thread is this one."""
    return async_to_sync(coroutine)()


def test_lease_and_save() -> None:
    Stock.objects.create(sku="42", quantity=10)

    async def body() -> None:
        async with lease("stock:42") as held:
            assert current_lease() is held
            stock = await Stock.objects.aget(sku="42")
            stock.quantity -= 3
            await stock.asave()
            assert await sync_to_async(current_lease)() is held
            assert await Stock.objects.filter(sku="42").aupdate(quantity=6) == 1
            with pytest.raises(StaleReadError):
                await stock.asave()
        assert current_lease() is None

    run(body)
    assert Stock.objects.get().quantity == 6
    assert holder_of("stock:42") is None


def test_lease_is_named_to_save_and_delete() -> None:
    stock = Stock.objects.create(sku="42", quantity=10)

    async def body() -> None:
        async with lease("stock:43") as other, lease("stock:42") as held:
            for write in (stock.asave, stock.adelete):
                with pytest.raises(ResourceMismatchError):
                    await write(lease=other)
            await stock.asave(lease=held)
            await stock.adelete(lease=held)

    run(body)
    assert not Stock.objects.exists()


def test_several_and_nested() -> None:
    async def body() -> None:
        async with lease(["stock:b", "stock:a"]) as (b, a):
            assert (a.resource, b.resource) == ("stock:a", "stock:b")
            async with lease("stock:a") as again:
                assert again is a
            assert a.is_held()
        assert held_leases() == ()

    run(body)
    assert holder_of("stock:a") is None


def test_decorated_coroutine() -> None:
    @lease("stock:{sku}")
    async def resource(sku: str) -> str:
        held = current_lease()
        assert held is not None
        return held.resource

    async def body() -> str:
        return await resource(sku="42")

    assert run(body) == "stock:42"
    assert holder_of("stock:42") is None


def test_tasks_do_not_share_their_leases() -> None:
    async def body() -> None:
        async with lease("stock:42") as mine:
            # A task is given a copy of the context; what it takes itself stays its own.
            async def other() -> None:
                assert current_lease("stock:42") is mine
                async with lease("stock:43"):
                    await asyncio.sleep(0)

            await asyncio.gather(other())
            assert held_leases() == (mine,)

    run(body)


def test_held_lease_is_refused_at_once() -> None:
    async def body() -> None:
        with pytest.raises(LeaseHeldError):
            async with lease("stock:42"):
                raise AssertionError("entered")

    taken, leave = threading.Event(), threading.Event()

    def holder() -> None:
        with lease("stock:42"):
            taken.set()
            assert leave.wait(BOUND)
        connection.close()

    thread = threading.Thread(target=holder)
    thread.start()
    try:
        assert taken.wait(BOUND)
        run(body)
    finally:
        leave.set()
        thread.join(BOUND)


def test_wait_occupies_neither_the_loop_nor_djangos_thread() -> None:
    async def waiter(order: list[str]) -> None:
        async with lease("stock:42", wait=BOUND):
            order.append("granted")

    async def body() -> None:
        order: list[str] = []
        async with lease("stock:42"):
            waiting = asyncio.create_task(waiter(order), context=fresh())
            await soon(lambda: threads_waiting() == 1)
            # The ORM still answers, in its own thread, while the other one waits.
            assert await Stock.objects.acount() == 0
            order.append("still held")
        await waiting
        assert order == ["still held", "granted"]

    run(body)


def test_cancelled_wait_leaves_nothing() -> None:
    async def body() -> None:
        async with lease("stock:42"):

            async def wait_for_it() -> None:
                async with lease("stock:42", wait=None):
                    raise AssertionError("entered")

            waiting = asyncio.create_task(wait_for_it(), context=fresh())
            await soon(lambda: threads_waiting() == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await soon(lambda: threads_waiting() == 0)
        async with lease("stock:42", wait=BOUND):
            pass

    run(body)
    assert holder_of("stock:42") is None
    wait_until(lambda: not beats._entries, "no lease is renewed any more")


def test_cancelled_body_gives_its_lease_back() -> None:
    async def body() -> None:
        entered = asyncio.Event()

        async def work() -> None:
            async with lease("stock:42"):
                entered.set()
                await asyncio.sleep(BOUND)

        working = asyncio.create_task(work())
        await entered.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    run(body)
    assert holder_of("stock:42") is None


def test_exit_ends_its_own_entry_where_coroutines_share_one_object() -> None:
    """One that outlived its lease leaves after somebody newer has entered."""
    shared = lease("stock:42", ttl=600)

    async def body() -> None:
        inside, leave = asyncio.Event(), asyncio.Event()

        async def sleep() -> None:
            async with shared:
                inside.set()
                await leave.wait()

        sleeping = asyncio.create_task(sleep())
        await inside.wait()
        await sync_to_async(revoke)("stock:42", "it sleeps")
        async with shared as newer:
            leave.set()
            await sleeping
            assert newer.is_held() and newer in beats
            assert await sync_to_async(holder_of)("stock:42") == newer.holder

    run(body)
    assert holder_of("stock:42") is None


def test_exit_ends_its_own_entry_where_coroutines_enter_one_object_by_a_plain_with() -> None:
    """They take turns in one thread."""
    shared = lease("stock:42", ttl=600)
    with lease("stock:43"):  # so that no number has to be reserved in a database, which no coroutine may ask
        pass

    async def body() -> None:
        inside, leave = asyncio.Event(), asyncio.Event()

        async def sleep() -> None:
            with shared:
                inside.set()
                await leave.wait()

        sleeping = asyncio.create_task(sleep())
        async with asyncio.timeout(BOUND):
            await inside.wait()
        await sync_to_async(revoke)("stock:42", "it sleeps")
        with shared as newer:
            leave.set()
            await sleeping
            assert newer.is_held() and newer in beats
            assert await sync_to_async(holder_of)("stock:42") == newer.holder

    run(body)
    assert holder_of("stock:42") is None


def test_coroutine_that_is_thrown_away_with_its_loop_gives_its_lease_back() -> None:
    """It cannot await the release, and the heartbeat would renew for ever."""
    entered: list[Lease] = []

    async def work() -> None:
        async with lease("stock:42") as held:
            entered.append(held)
            await asyncio.sleep(BOUND)

    thrown_away(work(), lambda: entered)
    assert holder_of("stock:42") is None
    assert entered[0] not in beats


def test_coroutine_that_is_thrown_away_while_it_waits_leaves_no_waiter() -> None:
    holder = acquire("stock:42", ttl=600, give_up=0, using="default", allow_in_transaction=False)
    backend = get_backend()
    space = place_of(backend, "stock:42").space

    async def work() -> None:
        async with lease("stock:42", wait=None):
            raise AssertionError("entered")

    thrown_away(work(), lambda: backend.waiters(space, 0, ["stock:42"]) == [1])
    wait_until(lambda: backend.waiters(space, 0, ["stock:42"]) == [0], "it is out of the queue")
    holder.release()
    assert holder_of("stock:42") is None


def thrown_away(coroutine: Any, condition: Any) -> None:
    """Run a coroutine until a condition holds, end its loop, and close it, as the garbage collector would."""
    loop = asyncio.new_event_loop()
    try:
        task: Any = loop.create_task(coroutine)
        loop.run_until_complete(soon(condition))
        loop.run_until_complete(sync_to_async(connections.close_all)())
        task._log_destroy_pending = False
    finally:
        loop.close()
    coroutine.close()


def test_task_that_is_still_inside_at_the_outer_exit_holds_nothing() -> None:
    """L7: the entry that acquired releases, whatever is still inside, and nobody renews it any more."""
    Stock.objects.create(sku="42", quantity=10)

    async def body() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def child() -> None:
            async with lease("stock:42") as again:
                inside.set()
                await go_on.wait()
                assert not again.is_held() and current_lease() is None
                stock = await Stock.objects.aget(sku="42")
                with pytest.raises(LeaseRequiredError):
                    await stock.asave()
                with pytest.raises(LeaseLostError, match="released"):
                    await sync_to_async(again.advance)()
                with pytest.raises(LeaseHeldError):
                    await lease("stock:42").__aenter__()

        async with lease("stock:42") as held:
            late = asyncio.create_task(child())
            await inside.wait()
        assert held not in beats._entries
        async with lease("stock:42") as newer:
            go_on.set()
            await late
            assert await sync_to_async(holder_of)("stock:42") == newer.holder

    run(body)
    assert holder_of("stock:42") is None


class TestCaseWithCoroutines(TestCase):
    """The test's own transaction is in Django's thread; so are the numbers."""

    async def test_lease(self) -> None:
        stock = await Stock.objects.acreate(sku="42", quantity=10)
        async with lease("stock:42") as held:
            stock.quantity = 7
            await stock.asave()
        assert stock.last_token == held.token


def fresh() -> Any:
    """A context that holds no lease."""
    from contextvars import Context

    return Context()


def threads_waiting() -> int:
    """How many threads wait for a lease now."""
    import sys

    return sum(
        any(
            frame.f_code.co_name == "_wait" and frame.f_code.co_filename.endswith("acquiring.py")
            for frame in stack_of(top)
        )
        for top in sys._current_frames().values()
    )


def stack_of(frame: Any) -> list[Any]:
    """The frames below one."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames
