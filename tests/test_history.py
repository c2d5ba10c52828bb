"""History: grants collected from the store exactly once, and refusals that survive."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.handlers.base import BaseHandler
from django.db import IntegrityError, InterfaceError, OperationalError, connection, connections, transaction
from django.http import HttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext

from fencing import LeaseBackendError, StaleReadError, StaleWriteError, collector, history, lease, unfenced
from fencing import connections as own_connections
from fencing.acquiring import acquire
from fencing.backends import get_backend
from fencing.backends.base import GrantEvent, HolderInfo
from fencing.heartbeat import Schedule
from fencing.history import collect
from fencing.models import FencedWrite, TokenGrant
from fencing.scope import holder_info, holding
from fencing.tokens import place_of
from inventory_demo.models import Stock
from tests.concurrency import BOUND, threads, wait_until

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)
MARIA = pytest.mark.django_db(databases=["default", "maria"], transaction=True)


@pytest.fixture(autouse=True)
def _empty_outbox() -> None:
    collect()
    TokenGrant.objects.all().delete()


def waiting_events() -> int:
    backend = get_backend()
    return len(backend.read_events(place_of(backend, "x").space, 0, 1000))


def test_grant_and_its_end() -> None:
    with lease("stock:42", ttl=7) as held:
        assert collect() == 1
        grant = TokenGrant.objects.get()
        assert (grant.token, grant.resource, grant.holder, grant.ttl, grant.ended) == (
            held.token, "stock:42", held.holder, 7.0, "",
        )  # fmt: skip
        assert grant.granted_at is not None and abs((grant.granted_at - held.granted_at).total_seconds()) < 60
    assert collect() == 1 and collect() == 0
    grant.refresh_from_db()
    assert grant.ended == "released" and grant.ended_at is not None and grant.ended_at >= grant.granted_at


def test_grants_cost_no_database_work(django_assert_num_queries: Any) -> None:
    with lease("stock:42"):
        pass
    with django_assert_num_queries(0), lease("stock:42"):
        pass


def test_collecting_again_after_a_crash_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are committed, and the collector dies before it removes the events."""
    with lease("stock:42"):
        pass
    backend = get_backend()
    with monkeypatch.context() as patch:
        patch.setattr(
            backend, "forget_events", lambda *args: (_ for _ in ()).throw(LeaseBackendError("default", "gone"))
        )
        with pytest.raises(LeaseBackendError):
            collect()
    before = list(TokenGrant.objects.values())
    assert len(before) == 1 and waiting_events() == 2
    assert collect() == 2 and waiting_events() == 0
    assert list(TokenGrant.objects.values()) == before


def test_collecting_fails_before_the_rows_are_there_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with lease("stock:42"):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(history, "merge", lambda *args: (_ for _ in ()).throw(OperationalError("down")))
        with pytest.raises(OperationalError):
            collect()
    assert waiting_events() == 2
    collect()
    assert TokenGrant.objects.get().ended == "released"


def test_end_that_is_collected_before_its_grant() -> None:
    with lease("stock:42"):
        pass
    backend = get_backend()
    events = list(backend.read_events(place_of(backend, "x").space, 0, 10))
    collector.merge(connection, backend.config.namespace, events[1:])
    collector.merge(connection, backend.config.namespace, events[:1])
    grant = TokenGrant.objects.get()
    assert grant.ended == "released" and grant.granted_at is not None and grant.ttl == 30.0


def test_several_collectors_at_a_time() -> None:
    for number in range(60):
        with lease(f"stock:{number % 7}"):
            pass
    with threads() as start:
        for one in [start(lambda: collect(batch=10)) for _ in range(4)]:
            one.result(BOUND)
    assert TokenGrant.objects.count() == 60
    assert set(TokenGrant.objects.values_list("ended", flat=True)) == {"released"}
    assert waiting_events() == 0


def test_grant_of_a_holder_that_was_killed() -> None:
    """A SIGKILLed holder's grant is in the history too, and ends as expired when somebody newer comes."""
    script = (
        "import django, sys, time; django.setup()\n"
        "from fencing import lease\n"
        "with lease('stock:killed', ttl=1) as held:\n"
        "    print(held.token, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings",
        "FENCING_TEST_DATABASE": str(connection.settings_dict["NAME"]),
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin and child.stdout
    token = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait(BOUND)
    child.stdin.close(), child.stdout.close()
    collect()
    assert TokenGrant.objects.get(token=token).ended == ""
    with lease("stock:killed", wait=10) as newer:
        assert newer.token > token
    collect()
    assert TokenGrant.objects.get(token=token).ended == "expired"


def test_lost_lease_ends_as_lost() -> None:
    held = acquire("stock:42", ttl=0.05, give_up=0, using="default", allow_in_transaction=False)
    with lease("stock:42", wait=5):
        held.release()
    collect()
    assert list(TokenGrant.objects.order_by("token").values_list("ended", flat=True)) == ["lost", "released"]


def test_revoked_lease_ends_as_revoked() -> None:
    with lease("stock:42", renew=False) as held:
        held._backend.revoke(held._place, held.token)
    collect()
    assert TokenGrant.objects.get().ended == "revoked"


def test_release_that_was_sent_twice_is_a_release() -> None:
    with lease("stock:42") as held:
        pass
    held._backend.release(held._place, held.holder, held.token)
    collect()
    assert TokenGrant.objects.get().ended == "released"


def test_collecting_in_the_background_keeps_no_session() -> None:
    """In that thread no request or task ends, after which Django would drop one that the server has ended."""

    def collect_in_the_background() -> Any:
        history._collect_quietly("default")
        return connections["default"].connection

    with lease("stock:42"):
        pass
    with threads() as start:
        assert start(collect_in_the_background).result(BOUND) is None
    assert TokenGrant.objects.get().ended == "released"


def test_lease_that_ends_while_grants_are_collected_is_collected_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may come after it for hours."""
    with lease("stock:42"):
        pass
    backend = get_backend()
    forget, meanwhile = backend.forget_events, ["stock:43"]

    def forget_late(*args: Any) -> None:
        forget(*args)
        while meanwhile:
            with lease(meanwhile.pop()):
                pass

    monkeypatch.setattr(backend, "forget_events", forget_late)
    monkeypatch.setattr(history, "chores", Schedule("test-chores"))
    monkeypatch.setattr(history, "in_test_environment", lambda: False)
    monkeypatch.setattr(history, "COLLECT_EVERY", 0.0)
    history.collect_soon("default")
    ended = TokenGrant.objects.filter(resource="stock:43", ended="released")
    wait_until(ended.exists, "it is collected although nothing follows it")


def test_live_process_collects_in_the_background() -> None:
    """Outside of a test environment nobody has to ask."""
    script = (
        "import django, sys; django.setup()\n"
        "from fencing import lease\n"
        "with lease('stock:background'): pass\n"
        "sys.stdin.read()\n"
    )
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings",
        "FENCING_TEST_DATABASE": str(connection.settings_dict["NAME"]),
    }  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE) as child:
        wait_until(TokenGrant.objects.filter(ended="released").exists, "the background collects")
        child.communicate(timeout=BOUND)
    assert child.returncode == 0


def test_refusal_that_cannot_be_recorded_is_still_a_refusal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """L8: the history's own connection fails; the typed error is what the caller gets, and the line comes later."""
    Stock.objects.create(sku="42")
    late = Stock.objects.get()
    sleeper = acquire("stock:42", ttl=30, give_up=0, using="default", allow_in_transaction=False)
    sleeper._backend.revoke(sleeper._place, sleeper.token)
    with lease("stock:42"):
        Stock.objects.get().save()
    with monkeypatch.context() as patch:
        patch.setattr(history, "record", lambda *args: (_ for _ in ()).throw(OperationalError("full")))
        with pytest.raises(StaleWriteError), transaction.atomic(), holding(sleeper):
            late.save()
    assert "could not be recorded" in caplog.text
    history.write_all_waiting()
    assert FencedWrite.objects.filter(outcome="stale").count() == 1


def test_refusal_for_which_there_was_no_connection_is_written_by_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: others use the one connection besides, or the database gives none; the caller's own is free a moment later."""
    monkeypatch.setattr(own_connections, "PATIENCE", 0.05)
    Stock.objects.create(sku="42")
    late = Stock.objects.get()
    with lease("stock:42") as held:
        Stock.objects.get().save()
        with own_connections._turns["default"]:
            with pytest.raises(StaleReadError), transaction.atomic():
                late.save()
            assert list(FencedWrite.objects.values_list("outcome", flat=True)) == ["accepted"]
    assert list(FencedWrite.objects.order_by("id").values_list("outcome", "grant_token")) == [
        ("accepted", held.token), ("stale-read", held.token),
    ]  # fmt: skip


def test_two_grants_never_share_a_token_in_the_history() -> None:
    with lease("stock:42") as held:
        collect()
    with pytest.raises(IntegrityError):
        TokenGrant.objects.create(namespace=held.namespace, token=held.token, resource="x", holder="y")


# Merging


@pytest.fixture(params=["default", "lite", pytest.param("maria", marks=MARIA)])
def alias(request: pytest.FixtureRequest) -> str:
    """The database that the events are merged into."""
    return str(request.param)


def an_event(kind: Any, token: int, at: int, resource: str = "r") -> GrantEvent:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    info = HolderInfo(task_id=f"id {token}", task_name="t")
    moment = began + timedelta(seconds=at)
    return GrantEvent(
        id=f"{token}-{kind}", kind=kind, token=token, resource=resource, holder=f"h{token}", at=moment, ttl=5.0, info=info
    )  # fmt: skip


def a_history() -> list[GrantEvent]:
    """Grants of three resources in turn: released, released twice, lost, revoked, never told."""
    events: list[GrantEvent] = []
    for token in range(1, 31):
        at, resource, turn = token * 10, f"r{token % 3}", token // 3 % 5
        events.append(an_event("granted", token, at, resource))
        ends = [["released"], ["released", "lost"], ["lost"], ["revoked", "lost"], []][turn]
        events += [an_event(kind, token, at + 5 + number, resource) for number, kind in enumerate(ends)]
    return events


def merged(alias: str, *batches: list[GrantEvent]) -> list[tuple[Any, ...]]:
    TokenGrant.objects.using(alias).all().delete()
    for batch in batches:
        collector.merge(connections[alias], "n", batch)
    names = ("token", "resource", "holder", "task_id", "task_name", "ttl", "granted_at", "ended_at", "ended")
    return list(TokenGrant.objects.using(alias).order_by("token").values_list(*names))


def test_batch_of_any_size_is_merged_by_two_statements(alias: str) -> None:
    with CaptureQueriesContext(connections[alias]) as sent:
        collector.merge(connections[alias], "n", a_history())
    assert len([one for one in sent if "INSERT" in one["sql"] or "UPDATE" in one["sql"]]) == 2
    assert TokenGrant.objects.using(alias).count() == 30


def test_what_merging_tells(alias: str) -> None:
    rows = {row[0]: row for row in merged(alias, a_history())}
    how = {1: "released", 3: "released", 6: "lost", 9: "revoked", 12: "expired", 30: "released"}
    assert {token: rows[token][8] for token in how} == how
    assert [token for token, row in rows.items() if not row[8]] == [28, 29], "the last ones of their resources"
    assert rows[12][7] == rows[15][6], "it had expired when the next one was granted"
    assert rows[3][7] - rows[3][6] == timedelta(seconds=5), "the first of two releases counts"


def test_merging_again_in_any_order_and_in_other_batches_changes_nothing(alias: str) -> None:
    events = a_history()
    once = merged(alias, events)
    assert merged(alias, events, events) == once
    one_by_one = [[event] for event in events]
    assert merged(alias, *one_by_one, events) == once
    how = [(row[0], row[8]) for row in once]
    for seed in range(6):
        mixed = events * 2
        random.Random(seed).shuffle(mixed)  # noqa: S311
        parts = [mixed[first : first + 7] for first in range(0, len(mixed), 7)]
        assert [(row[0], row[8]) for row in merged(alias, *parts)] == how
        assert merged(alias, mixed)[-1] == once[-1]


def test_grant_that_is_collected_after_its_successor_has_ended_as_well(alias: str) -> None:
    first, second = an_event("granted", 1, 10), an_event("granted", 2, 20)
    assert [row[8] for row in merged(alias, [second], [first])] == ["expired", ""]


UNKEEPABLE = {"NUL": "a\0b", "half a surrogate pair": "a\ud800b", "too long": "n" * 300}


def an_unkeepable_event(text: str) -> GrantEvent:
    return replace(an_event("granted", 2, 20), info=HolderInfo(task_id=text, task_name=text))


def is_kept_as_it_is(alias: str, text: str) -> bool:
    """SQLite keeps a NUL, MariaDB too, and SQLite texts of any length."""
    return {"lite": text != UNKEEPABLE["half a surrogate pair"], "maria": text == UNKEEPABLE["NUL"]}.get(alias, False)


@pytest.mark.parametrize("text", UNKEEPABLE.values(), ids=UNKEEPABLE)
def test_event_that_the_database_cannot_keep_stops_no_other_and_is_not_lost(
    alias: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = [an_event("granted", 1, 10), an_unkeepable_event(text), an_event("released", 2, 25, "r")]
    rows = merged(alias, [*events, an_event("granted", 3, 30)])
    assert [(row[0], row[8]) for row in rows] == [(1, "expired"), (2, "released"), (3, "")]
    if is_kept_as_it_is(alias, text):
        assert rows[1][3] == text and not caplog.records
    else:
        escaped = ascii(text)[1:-1][:255]
        assert rows[1][3:5] == (escaped, escaped)
        assert "cannot keep" in caplog.text and "token=2" in caplog.text
    assert rows[0][3] == "id 1", "the others as they are"


@pytest.mark.django_db(databases=["default", "lite"])
def test_event_that_the_database_cannot_keep_breaks_no_transaction_of_a_test() -> None:
    events = [an_event("granted", 1, 10), an_unkeepable_event("a\0b")]
    assert [row[0] for row in merged("default", events)] == [1, 2]


def test_outbox_is_emptied_of_what_the_database_cannot_keep() -> None:
    """It stood in the way of all that came later, for ever."""
    before = holder_info.set(HolderInfo(task_name="a\0b"))
    try:
        with lease("stock:42") as held:
            pass
    finally:
        holder_info.reset(before)
    with lease("stock:43"):
        pass
    assert collect() == 4 and waiting_events() == 0
    assert TokenGrant.objects.count() == 2 and TokenGrant.objects.get(token=held.token).ended == "released"


def test_collectors_that_block_each_other_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadlock of the database's: nothing has happened, and nothing is lost."""
    failing = iter([True, True, False])
    upsert = collector._upsert

    def sometimes(cursor: Any, *args: Any) -> None:
        if next(failing, False):
            raise OperationalError(1213, "Deadlock found")
        upsert(cursor, *args)

    monkeypatch.setattr(collector, "_upsert", sometimes)
    collector.merge(connection, "n", a_history())
    assert TokenGrant.objects.count() == 30
    monkeypatch.setattr(collector, "_upsert", lambda *args: (_ for _ in ()).throw(OperationalError(1213, "Deadlock")))
    with pytest.raises(OperationalError):
        collector.merge(connection, "n", a_history())


def test_collectors_in_processes_that_are_killed_lose_and_repeat_nothing(process_environment: dict[str, str]) -> None:
    """Several at a time, killed at any moment and started again, while workers go on; one of those is killed as well."""
    collecting = (
        "import django; django.setup()\nfrom fencing.history import collect\n"
        "print('on', flush=True)\nwhile True: collect(batch=3)\n"
    )
    working = (
        "import django; django.setup()\nfrom fencing import lease\nimport sys\n"
        "for number in range(60):\n    with lease(f'stock:{sys.argv[1]}-{number % 4}') as held: print(held.token, flush=True)\n"
        "held = lease(f'stock:{sys.argv[1]}-left', ttl=600).__enter__()\nprint(held.token, flush=True)\nsys.stdin.read()\n"
    )

    def start(script: str, *args: str) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", script, *args], env=process_environment, **pipes)  # type: ignore[call-overload,no-any-return]

    def stop(child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.communicate(timeout=BOUND)

    workers = [start(working, str(number)) for number in range(2)]
    collectors = [start(collecting) for _ in range(2)]
    tokens: list[int] = []
    try:
        for child in collectors:
            assert child.stdout and child.stdout.readline()
        for turn in range(61):
            for worker in workers:
                assert worker.stdout is not None
                tokens.append(int(worker.stdout.readline()))
            if turn % 15 == 14:
                stop(collectors.pop(0))
                collectors.append(start(collecting))
    finally:
        for child in [*workers, *collectors]:
            stop(child)
    collect()
    assert waiting_events() == 0
    rows = dict(TokenGrant.objects.values_list("token", "ended"))
    assert sorted(rows) == sorted(tokens)
    assert [ended for _token, ended in sorted(rows.items())].count("") == 2, "of the killed workers' last leases"
    assert set(rows.values()) == {"released", ""}


# Log lines


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if getattr(record, "event", None) == event]


@pytest.mark.parametrize("record", ["all", "none"])
def test_log_lines_have_named_fields(settings: Any, caplog: pytest.LogCaptureFixture, record: str) -> None:
    settings.FENCING = {**settings.FENCING, "RECORD": record}
    caplog.set_level("DEBUG", logger="fencing")
    stock = Stock.objects.create(sku="42")
    late = Stock.objects.get()
    sleeper = acquire("stock:42", ttl=30, give_up=0, using="default", allow_in_transaction=False)
    sleeper._backend.revoke(sleeper._place, sleeper.token)
    with lease("stock:42") as held:
        Stock.objects.get().save()
        held.once("order-7", lambda: 1)
        held.once("order-7", lambda: 1)
    with transaction.atomic(), pytest.raises(StaleWriteError):
        late.save(lease=sleeper)
    sleeper.release()
    with unfenced("audit") as number:
        stock.save()
    (granted,), (released,), (lost,) = told(caplog, "granted"), told(caplog, "released"), told(caplog, "lost")
    for one, whose in ((granted, held), (released, held), (lost, sleeper)):
        assert (one["resource"], one["token"], one["holder"]) == ("stock:42", whose.token, whose.holder)
    (refused,), (duplicate,) = told(caplog, "refused"), told(caplog, "duplicate")
    names = ("resource", "token", "seen", "model", "object_pk", "outcome")
    assert [refused[name] for name in names] == [
        "stock:42", sleeper.token, held.token, "inventory_demo.stock", str(stock.pk), "stale",
    ]  # fmt: skip
    assert (duplicate["operation"], duplicate["token"]) == ("order-7", held.token)
    block, row = told(caplog, "unfenced")
    assert block["note"].startswith("audit") and block["token"] == row["token"] == number
    assert row["object_pk"] == str(stock.pk)


# Refusals in every nesting of transactions


def another_fenced(alias: str) -> Any:
    return acquire("stock:43", ttl=30, give_up=0, using="default", allow_in_transaction=True).atomic(using=alias)


def in_atomic(alias: str) -> Any:
    return transaction.atomic(using=alias)


NESTINGS: dict[str, list[Callable[[str], Any]]] = {
    "autocommit": [],
    "atomic": [in_atomic],
    "savepoint": [in_atomic, in_atomic, in_atomic],
    "fenced": [another_fenced],
    "fenced, savepoint": [another_fenced, in_atomic],
}


@pytest.fixture
def refused_write(alias: str) -> Callable[[], None]:
    """A function that does a write of a superseded holder, which is refused."""
    Stock.objects.using(alias).create(sku="42")
    late = Stock.objects.using(alias).get()
    sleeper = acquire("stock:42", ttl=30, give_up=0, using="default", allow_in_transaction=False)
    sleeper._backend.revoke(sleeper._place, sleeper.token)
    with lease("stock:42"):
        Stock.objects.using(alias).get().save()
    return lambda: late.save(lease=sleeper)


def stale_lines(alias: str) -> int:
    return FencedWrite.objects.using(alias).filter(outcome="stale").count()


@pytest.mark.parametrize("nesting", NESTINGS)
def test_refusal_outlives_every_rollback(alias: str, refused_write: Callable[[], None], nesting: str) -> None:
    with pytest.raises(ZeroDivisionError), contextlib.ExitStack() as stack:
        for enter in NESTINGS[nesting]:
            stack.enter_context(enter(alias))
        with contextlib.suppress(StaleWriteError):
            refused_write()
        raise ZeroDivisionError
    history.write_all_waiting()
    assert stale_lines(alias) == 1


def test_refusal_in_a_request_outlives_its_rollback(alias: str, refused_write: Callable[[], None]) -> None:
    """ATOMIC_REQUESTS"""

    def view(_request: Any) -> HttpResponse:
        refused_write()
        return HttpResponse()

    settings = connections[alias].settings_dict
    before = settings["ATOMIC_REQUESTS"]
    settings["ATOMIC_REQUESTS"] = True
    try:
        with pytest.raises(StaleWriteError):
            BaseHandler().make_view_atomic(view)(RequestFactory().get("/"))
    finally:
        settings["ATOMIC_REQUESTS"] = before
    HttpResponse().close()  # which ends the request; its thread takes no lease any more
    assert stale_lines(alias) == 1


class _Broken(logging.Filter):
    """A filter of the project's own that stumbles over what it does not know."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "event", "") == "refused":
            raise LookupError("no such field")
        return True


@pytest.fixture
def broken_log() -> Iterator[None]:
    broken, logger = _Broken(), logging.getLogger("fencing")
    level = logger.level
    logger.addFilter(broken)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeFilter(broken)


@pytest.mark.usefixtures("broken_log")
def test_log_that_raises_costs_no_refusal_its_row(alias: str, refused_write: Callable[[], None]) -> None:
    with pytest.raises(LookupError):
        refused_write()
    assert stale_lines(alias) == 1


@pytest.mark.usefixtures("broken_log")
def test_log_that_raises_lets_no_refused_transaction_commit(alias: str) -> None:
    """The body takes what the log raised for something harmless; the refusal is remembered all the same."""
    for sku in ("42", "43"):
        Stock.objects.using(alias).create(sku=sku)
    late, other = Stock.objects.using(alias).order_by("sku")
    with lease(late):
        Stock.objects.using(alias).get(sku="42").save()
    with pytest.raises(StaleReadError), lease([late, other]) as (held, _other), held.atomic(using=alias):
        other.quantity = 7
        other.save()
        with contextlib.suppress(LookupError):
            late.save()
    other.refresh_from_db()
    assert other.quantity != 7


@pytest.mark.parametrize("alias", ["default"])
@pytest.mark.parametrize(
    "failure", [InterfaceError("connection already closed"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates")]
)
def test_whatever_keeps_a_refusal_from_the_history_it_stays_a_refusal(
    refused_write: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
) -> None:
    """An ``InterfaceError`` is no ``DatabaseError`` of Django's, and what a driver cannot encode is neither."""

    def fail(*_args: object) -> None:
        raise failure

    monkeypatch.setattr(history, "record", fail)
    with pytest.raises(StaleWriteError):
        refused_write()
    assert "could not be recorded" in caplog.text


@pytest.mark.parametrize("alias", ["lite"])
def test_what_interrupts_the_writing_of_waiting_refusals_costs_the_others_nothing(
    refused_write: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction.atomic(using="lite"):
        for _ in range(3):
            with contextlib.suppress(StaleWriteError):
                refused_write()
    with monkeypatch.context() as patch:

        def interrupted(*_args: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(history, "record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            history.write_all_waiting()
    history.write_all_waiting()
    assert stale_lines("lite") == 2
