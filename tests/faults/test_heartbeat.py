"""Renewal by one thread for each store: with many leases, in greenlets, over forks and steps of the clock, and when its holder dies."""

from __future__ import annotations

import gc
import secrets
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

from fencing import heartbeat, history, lease, leases
from fencing.backends import get_backend
from fencing.backends.base import LiveLease
from fencing.heartbeat import Schedule, beats
from fencing.models import FencedWrite
from fencing.tokens import place_of
from inventory_demo.models import Stock
from tests.concurrency import BOUND, wait_until
from tests.services import PrivateValkey

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[2]


def live(resource: str) -> LiveLease | None:
    backend = get_backend()
    return backend.peek(place_of(backend, resource))


def heartbeats() -> int:
    return [thread.name for thread in threading.enumerate()].count("fencing-heartbeat")


def test_one_thread_renews_all_leases_and_never_above_their_ttl() -> None:
    names = [f"stock:{number}" for number in range(30)]
    with ExitStack() as stack:
        taken = [stack.enter_context(lease(name, ttl=2.4)) for name in names]
        ends = [one._deadline for one in taken]

        def all_renewed() -> bool:
            for name in names[::10]:
                found = live(name)
                assert found is not None and found.remaining <= 2.4
            return all(one._deadline > end + 1.0 for one, end in zip(taken, ends, strict=True))

        wait_until(all_renewed, "every lease is renewed twice")
        # That of another store, which an earlier test used, lingers for some seconds.
        wait_until(lambda: heartbeats() == 1, "one thread is left")
        assert all(one.is_held() for one in taken)
    assert not any(one in beats for one in taken)


def test_thread_ends_when_there_is_nothing_to_renew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "LINGER", 0.05)
    schedule = Schedule("test-heartbeat")
    done: list[int] = []
    schedule.add("once", lambda: done.append(1), 0.0)
    wait_until(lambda: done and schedule._thread is None, "the thread ends")
    schedule.add("again", lambda: done.append(2), 0.0)
    wait_until(lambda: done == [1, 2] and schedule._thread is None, "a new one starts, and ends")


def test_job_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(heartbeat, "LINGER", 0.05)
    schedule = Schedule("test-heartbeat")
    calls: list[str] = []

    def good() -> float | None:
        calls.append("good")
        return 0.01 if len(calls) < 5 else None

    def bad() -> float | None:
        schedule.remove("bad")
        raise RuntimeError("a bug in a receiver")

    schedule.add("bad", bad, 0.0)
    schedule.add("good", good, 0.02)
    wait_until(lambda: len(calls) == 5 and schedule._thread is None, "the other job goes on")
    assert "a bug in a receiver" in caplog.text


def test_receiver_that_ends_the_thread_it_runs_in_stops_no_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's receiver that calls sys.exit() means the process; in the heartbeat it ends a thread, without a word."""
    monkeypatch.setattr(heartbeat, "AGAIN", 0.01)
    schedule = Schedule("test-heartbeat")
    calls: list[str] = []

    def leave() -> None:
        calls.append("leave")
        if len(calls) < 3:
            sys.exit(1)

    schedule.add("leave", leave, 0.0)
    schedule.add("good", lambda: calls.append("good"), 0.05)
    wait_until(lambda: not schedule._entries, "both are done")
    assert calls.count("leave") >= 2 and calls.count("good") == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_ended_from_outside_is_started_again() -> None:
    schedule = Schedule("test-heartbeat")

    def strike() -> None:
        raise BaseException

    schedule.add("struck", strike, 0.0)
    thread = schedule._thread
    assert thread is not None
    thread.join(BOUND)
    assert not thread.is_alive()
    schedule.remove("struck")
    schedule.add("good", lambda: None, 0.0)
    wait_until(lambda: not schedule._entries, "a new thread serves who comes")


def test_thread_that_cannot_be_started_is_started_by_who_comes_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = Schedule("test-heartbeat")
    called: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        schedule.add("first", lambda: called.append("first"), 0.0)
    assert "test-heartbeat cannot be started" in caplog.text
    schedule.add("second", lambda: called.append("second"), 0.0)
    wait_until(lambda: sorted(called) == ["first", "second"], "the next one starts it for both")


def test_lease_is_taken_and_given_back_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a process, or where it may have no more threads: nothing fails, neither before the body nor after."""
    schedule = Schedule("test-heartbeat")
    monkeypatch.setattr(leases, "beats_of", lambda _using: schedule)
    monkeypatch.setattr(history, "chores", schedule)
    monkeypatch.setattr(history, "in_test_environment", lambda: False)
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with lease("stock:42", ttl=30) as held:
        assert held.is_held()
    assert live("stock:42") is None


def test_handler_that_takes_a_lease_while_the_thread_is_started_leaves_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of a signal runs between any two steps of the main thread, which holds the schedule then."""
    schedule = Schedule("test-heartbeat")
    start = threading.Thread.start
    started: list[threading.Thread] = []
    called: list[str] = []

    def interrupted(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) == 1:
            schedule.add("of the handler", lambda: called.append("handler"), 0.0)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    schedule.add("interrupted", lambda: called.append("interrupted"), 0.0)
    wait_until(lambda: sorted(called) == ["handler", "interrupted"], "both are called")
    wait_until(lambda: [thread.is_alive() for thread in started].count(True) == 1, "one thread is left")


def test_thousands_of_leases_are_renewed_in_time() -> None:
    schedule = Schedule("test-heartbeat")
    called = 0

    def count() -> None:
        nonlocal called
        called += 1

    for number in range(10_000):
        schedule.add(number, count, 0.0)
    wait_until(lambda: called == 10_000, "all are called", seconds=10)


def test_what_was_removed_is_forgotten_long_before_it_would_have_been_due() -> None:
    """Else each short lease would be kept for as long as a third of its ttl."""
    schedule = Schedule("test-heartbeat")
    kept: list[weakref.ref[Any]] = []
    for _ in range(1000):
        job = Mock(return_value=None)
        kept.append(weakref.ref(job))
        schedule.add(job, job, 86_400.0)
        schedule.remove(job)
    del job
    gc.collect()
    assert sum(one() is not None for one in kept) < 100
    schedule.add("last", lambda: None, 0.0)
    wait_until(lambda: not schedule._entries, "those who come are served")


def test_what_was_removed_behind_a_job_that_stays_is_forgotten_as_well() -> None:
    """They were planned when the thread woke, and never come to the front."""
    schedule = Schedule("test-heartbeat")
    schedule.add("stays", lambda: None, 80_000.0)
    kept: list[weakref.ref[Any]] = []
    for _ in range(300):
        job = Mock(return_value=None)
        kept.append(weakref.ref(job))
        schedule.add(job, job, 86_400.0)
        woken = threading.Event()
        schedule.add(woken, woken.set, 0.0)
        assert woken.wait(10.0)
        schedule.remove(job)
    del job
    gc.collect()
    assert sum(one() is not None for one in kept) < 100
    schedule.remove("stays")
    schedule.add("last", lambda: None, 0.0)
    wait_until(lambda: not schedule._entries, "those who come are served")


def test_store_that_hangs_costs_no_lease_of_another_store(settings: Any) -> None:
    """Its calls take as long as their timeouts, one after the other."""
    with PrivateValkey() as hanging, PrivateValkey() as other:
        for alias, server in (("slow", hanging), ("quick", other)):
            entry = {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": server.url(),
                "OPTIONS": {"SOCKET_TIMEOUT": 0.5},
            }
            settings.CACHES = {**settings.CACHES, alias: entry}
        backend = "fencing.backends.redis.RedisBackend"
        aliases = {
            alias: {"BACKEND": backend, "CACHE": alias, "NAMESPACE": f"n-{secrets.token_hex(6)}"}
            for alias in ("slow", "quick")
        }
        settings.FENCING = {"BACKENDS": aliases}
        with ExitStack() as stack:
            slow = [stack.enter_context(lease(f"stock:{number}", ttl=3, using="slow")) for number in range(5)]
            with lease("stock:42", ttl=1.8, using="quick") as held:
                hanging.freeze()
                wait_until(lambda: not any(one.is_held() for one in slow), "the slow ones are lost")
                held.ensure_held()
            hanging.thaw()
        assert not held._lost


@pytest.mark.parametrize("jump", [86_400, -86_400])
def test_wall_clock_that_steps_neither_loses_nor_prolongs_a_lease(monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    """C26: time.time() and datetime.now(), which django.utils.timezone uses."""
    real = time.time

    class Stepped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(real(), tz) + timedelta(seconds=jump)

    with lease("stock:42", ttl=1.8) as held:
        end = held._deadline
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        monkeypatch.setattr("django.utils.timezone.datetime", Stepped)
        wait_until(lambda: held._deadline > end + 0.9, "it is renewed as before")
        found = live("stock:42")
        assert found is not None and found.remaining <= 1.8
        assert held.remaining() <= 1.8
    with lease("stock:42", ttl=0.2, renew=False):
        wait_until(lambda: live("stock:42") is None, "it lives no longer than it was asked for", seconds=5)


def test_lease_of_a_holder_that_was_killed_ends_within_its_ttl(process_environment: dict[str, str]) -> None:
    """C02 c: what was renewed again and again has not piled up."""
    name = f"stock:{uuid4().hex[:8]}"
    program = (
        "import django, time; django.setup()\n"
        "from fencing import lease\n"
        f"with lease({name!r}, ttl=2.0) as held:\n"
        "    end = held._deadline\n"
        "    while held._deadline < end + 1.5: time.sleep(0.05)\n"
        "    print('renewed', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=process_environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "renewed\n"
        found = live(name)
        assert found is not None and found.remaining <= 2.0
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
        process.stdout.close()  # type: ignore[union-attr]
    killed = time.monotonic()
    with lease(name, wait=20) as held:
        assert time.monotonic() - killed < 5.0
        assert held.token > found.token


def run(program: str, environment: dict[str, str]) -> list[int]:
    """The tokens that a program of this folder prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.faults.{program}", uuid4().hex[:8]],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
def test_children_of_a_holder_hold_nothing_and_renew_their_own(process_environment: dict[str, str]) -> None:
    """C11: no mixed replies, no number twice, and the parent's lease is untouched."""
    tokens = run("forks", process_environment)
    assert len(tokens) == 1 + 4 * 51
    assert len(set(tokens)) == len(tokens)


@pytest.mark.slow
def test_leases_of_greenlets_are_renewed(process_environment: dict[str, str]) -> None:
    assert len(run("greenlets", process_environment)) == 20


@pytest.mark.slow
def test_greenlets_that_wait_are_woken_and_block_no_other(process_environment: dict[str, str]) -> None:
    assert len(run("waiting_greenlets", process_environment)) == 6


@pytest.mark.slow
def test_greenlet_that_starves_its_heartbeat_is_refused(process_environment: dict[str, str], tmp_path: Path) -> None:
    """C01, in a worker with its pool of greenlets: the lease ends, somebody newer writes, the late write is refused."""
    stock = Stock.objects.create(sku=uuid4().hex[:8], quantity=10)
    flag = tmp_path / "written"
    program = [sys.executable, "-m", "tests.faults.busy_greenlet", stock.sku, str(flag)]
    with subprocess.Popen(program, env=process_environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as busy:
        try:
            assert busy.stdout is not None
            old = int(busy.stdout.readline())
            with lease(stock, ttl=30, wait=20) as newer:
                stock.refresh_from_db()
                stock.quantity = 7
                stock.save()
                flag.touch()
                told, _ = busy.communicate(timeout=60)
                found = live(newer.resource)
                assert found is not None and found.holder == newer.holder, "its exit spares the lease of the other"
        finally:
            busy.kill()
    assert told.strip() == f"{old} refused by {newer.token}, believed: False"
    stock.refresh_from_db()
    assert (stock.quantity, stock.last_token) == (7, newer.token)
    history.collect("default")
    writes = FencedWrite.objects.filter(resource=newer.resource, action="update").order_by("id")
    assert [(one.outcome, one.token) for one in writes] == [("accepted", newer.token), ("stale", old)]
