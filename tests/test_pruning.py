"""Pruning: what is old goes, and nothing that is forgotten opens a door, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction
from django.db.models import F
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fencing import AlreadyAppliedError, LeaseBackendError, LeaseLostError, StaleWriteError, history, lease, pruning
from fencing.backends import get_backend
from fencing.floors import create_floor, raise_floor
from fencing.leases import Lease
from fencing.models import FencedResource, FencedWrite, Operation, ResourceFloor, TokenGrant, TokenMark
from fencing.pruning import prune
from fencing.raising import raise_row
from inventory_demo.models import Stock, StockDelta
from tests.concurrency import BOUND, threads, wait_until, waiting_for_locks
from tests.test_transactions import grant
from tests.writes.two_threads import sqlite_file

DAY = 86_400.0
MARIA = pytest.mark.django_db(databases=["default", "maria"], transaction=True)
pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)


@pytest.fixture(params=["default", "lite", pytest.param("maria", marks=MARIA)])
def alias(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database of the rows; the only one that is pruned."""
    monkeypatch.setattr(pruning, "databases_of", lambda _using: [request.param])
    return str(request.param)


@pytest.fixture
def keep(settings: Any) -> Callable[..., None]:
    """A function that sets how many seconds history and operations are kept."""

    def set_both(history: float | None = None, operations: float | None = None) -> None:
        settings.FENCING = {**settings.FENCING, "RETENTION": history, "OPERATION_RETENTION": operations}

    return set_both


def pruned(**options: Any) -> dict[tuple[str, str], int]:
    return {(one.database, one.what): one.rows for one in prune(**options)}


def forget_resources(keep: Callable[..., None]) -> int:
    """Forget every resource that no live lease needs; the floor."""
    history.collect()
    keep(operations=1e-6)
    (floor,) = {one.floor for one in prune() if one.what == "resources"}
    assert floor is not None
    return floor


def namespace() -> str:
    return get_backend().config.namespace


# History


def a_write(age: float, outcome: str = "accepted") -> FencedWrite:
    at = timezone.now() - timedelta(seconds=age)
    return FencedWrite.objects.create(
        namespace="n", token=1, grant_token=1, resource="r", action="update", outcome=outcome, at=at
    )


def test_history_is_kept_as_long_as_the_setting_says(keep: Callable[..., None]) -> None:
    a_write(3 * DAY), a_write(3 * DAY, "stale")
    young = a_write(DAY)
    keep(history=2 * DAY)
    assert pruned()["default", "writes"] == 2
    assert FencedWrite.objects.get() == young


def test_nothing_goes_without_a_retention(keep: Callable[..., None]) -> None:
    a_write(3000 * DAY)
    with lease("stock:42") as held:
        held.once("x", lambda: 1)
    assert pruned() == {}
    keep(history=DAY)
    assert ("default", "results") not in pruned() and ("default", "resources") not in pruned()
    assert not FencedWrite.objects.filter(namespace="n").exists()
    assert FencedResource.objects.exists() and Operation.objects.filter(result__isnull=False).exists()


def test_dry_run_counts_and_changes_nothing(keep: Callable[..., None]) -> None:
    a_write(3 * DAY)
    held = grant()
    held.once("x", lambda: 1)
    history.collect()
    keep(history=DAY, operations=1e-6)
    assert pruned(dry_run=True) == {
        ("default", "writes"): 1, ("default", "results"): 1, ("default", "resources"): 1, ("default", "grants"): 0,
    }  # fmt: skip
    assert FencedWrite.objects.filter(namespace="n").exists() and FencedResource.objects.exists()
    assert Operation.objects.filter(result__isnull=False).exists() and not TokenMark.objects.exists()
    assert ResourceFloor.objects.get().token == 0


@pytest.mark.parametrize("alias", ["default", "lite", pytest.param("maria", marks=MARIA)])
def test_newest_grant_of_each_resource_stays(alias: str, keep: Callable[..., None], settings: Any) -> None:
    """Whoever looks, however late, finds who had the resource last; another namespace's numbers say nothing of that."""
    entry = {**settings.FENCING["BACKENDS"]["default"], "DATABASE": alias, "NAMESPACE": "kept"}
    settings.FENCING = {"BACKENDS": {"default": entry}}
    old = timezone.now() - timedelta(seconds=3 * DAY)
    grants = TokenGrant.objects.using(alias)
    for token in range(1, 41):
        grants.create(
            namespace="kept" if token <= 30 else "other", token=token, resource=f"stock:{token % 3}", holder="h",
            # Of every fifth only the end was told.
            granted_at=None if token % 5 == 0 else old, ended_at=old, ended="released",
        )  # fmt: skip
    keep(history=DAY)
    assert pruned(dry_run=True)[alias, "grants"] == 27
    assert pruned(batch=4)[alias, "grants"] == 27
    assert list(grants.filter(namespace="kept").order_by("token").values_list("token", flat=True)) == [28, 29, 30]
    assert grants.filter(namespace="other").count() == 10
    assert pruned(batch=4)[alias, "grants"] == 0
    grants.create(namespace="kept", token=41, resource="stock:0", holder="h", granted_at=timezone.now())
    assert pruned()[alias, "grants"] == 1 and not grants.filter(token=30).exists()


def test_grant_of_a_live_lease_stays_and_so_does_one_that_ended_late(keep: Callable[..., None]) -> None:
    """However long ago it was granted, and whoever followed."""
    old = timezone.now() - timedelta(seconds=3 * DAY)
    keep(history=DAY)
    with lease("stock:42") as held:
        history.collect()
        TokenGrant.objects.update(granted_at=old)
        row = {"namespace": namespace(), "resource": "stock:42", "holder": "h", "granted_at": old, "ended": "released"}
        late, early, newest = (held.token + number for number in (1, 2, 3))
        TokenGrant.objects.create(**row, token=late, ended_at=timezone.now())
        TokenGrant.objects.create(**row, token=early, ended_at=old)
        TokenGrant.objects.create(**row, token=newest, ended_at=old)
        assert pruned()["default", "grants"] == 1
    assert sorted(TokenGrant.objects.values_list("token", flat=True)) == [held.token, late, newest]


KILLED = """
import os, signal, sys
import django
django.setup()
from django.conf import settings
from django.db import connection
connection.settings_dict["NAME"] = sys.argv[1]
settings.FENCING = {**settings.FENCING, "RETENTION": 86_400.0}
from fencing import pruning

def delete(rows, batches=[0]):
    batches[0] += 1
    gone = rows.delete()[0]
    if batches[0] == 3:
        print("in the third batch", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return gone

pruning._delete = delete
list(pruning.prune(batch=10))
"""


@pytest.mark.skipif(connection.vendor != "postgresql", reason="another process has to find the same database")
def test_killed_prune_leaves_whole_batches_and_the_next_one_completes_it(keep: Callable[..., None]) -> None:
    for _ in range(45):
        a_write(3 * DAY)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(connection.settings_dict["NAME"])],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}, stdout=subprocess.PIPE, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"in the third batch\n")
    # The server notices that its client is gone when it wants to answer: until then it holds the rows.
    writes = FencedWrite.objects.filter(namespace="n")
    wait_until(lambda: unlocked(writes) == 25, "the killed batch is taken back")
    keep(history=DAY)
    assert pruned(batch=10)["default", "writes"] == 25
    assert not writes.exists()


def unlocked(rows: Any) -> int:
    with transaction.atomic():
        return len(rows.select_for_update(skip_locked=True))


def test_progress_is_told_after_each_batch(keep: Callable[..., None]) -> None:
    for _ in range(25):
        a_write(3 * DAY)
    keep(history=DAY)
    told: list[pruning.Progress] = []
    list(prune(batch=10, progress=told.append))
    assert [(one.database, one.what, one.done, one.whole) for one in told] == [
        ("default", "writes", 10, 25), ("default", "writes", 20, 25), ("default", "writes", 25, 25),
    ]  # fmt: skip


def test_grants_go_while_the_store_does_not_answer(keep: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    grant()
    grant()
    history.collect()
    TokenGrant.objects.update(granted_at=timezone.now() - timedelta(seconds=3 * DAY))
    TokenGrant.objects.update(ended_at=timezone.now() - timedelta(seconds=3 * DAY), ended="released")
    monkeypatch.setattr(
        get_backend(), "live", lambda *args: (_ for _ in ()).throw(LeaseBackendError("default", "gone"))
    )
    keep(history=DAY)
    assert pruned()["default", "grants"] == 1


# Operations


def test_pruned_operation_loses_its_result_and_keeps_its_key(alias: str, keep: Callable[..., None]) -> None:
    """I5: a duplicate that comes after the retention takes no effect either, and is not told a false result."""
    ran: list[str] = []
    with grant().atomic("order-7", using=alias) as once:
        ran.append("first")
        once.result = {"left": 7}
    grant().atomic("order-8", using=alias).call(lambda: ran.append("other"))
    Operation.objects.using(alias).filter(key="order-7").update(applied_at=timezone.now() - timedelta(seconds=DAY))
    keep(operations=DAY / 2)
    done = [one.rows for one in prune() if (one.database, one.what) == (alias, "results")]
    assert done == [1]
    for _ in range(2):
        with pytest.raises(AlreadyAppliedError, match="no longer kept") as caught:
            grant().atomic("order-7", using=alias).call(ran.append, "again")
        assert (caught.value.result, caught.value.kept) == (None, False)
    assert grant().atomic("order-8", using=alias).call(ran.append, "again") is None
    assert ran == ["first", "other"]


def test_duplicates_while_results_are_pruned_take_effect_once(keep: Callable[..., None]) -> None:
    keep(operations=1e-6)
    Stock.objects.create(sku="42", quantity=0)
    results: list[Any] = []

    def work(number: int) -> None:
        for turn in range(20):
            with contextlib.suppress(AlreadyAppliedError, StaleWriteError):
                results.append(grant(f"stock:{number}").once(f"key-{turn}", effect, turn))

    def effect(turn: int) -> int:
        StockDelta.objects.create(sku="42", delta=1, reason=str(turn), operation=uuid4().hex)
        return turn

    with threads() as start:
        workers = [start(work, 7) for _ in range(3)]
        while not all(worker.done() for worker in workers):
            list(prune(batch=3))
        for worker in workers:
            worker.result(BOUND)
    assert set(results) <= set(range(20))
    assert StockDelta.objects.count() == StockDelta.objects.values("reason").distinct().count() > 0


# Resources


@pytest.fixture
def stock(alias: str) -> Stock:
    return Stock.objects.using(alias).create(sku="42", quantity=10)


def save_row(held: Lease, alias: str) -> None:
    Stock.objects.using(alias).get(sku="42").save(lease=held)


def save_expression(held: Lease, alias: str) -> None:
    one = Stock.objects.using(alias).get(sku="42")
    one.quantity = F("quantity") - 1
    one.save(lease=held, update_fields=["quantity"])


def begin(held: Lease, alias: str) -> None:
    with held.atomic(using=alias):
        StockDelta.objects.using(alias).create(sku="42", delta=-1, reason="x", operation=str(held.token))


def delete_row(held: Lease, alias: str) -> None:
    Stock.objects.using(alias).get(sku="42").delete(lease=held)


def update_rows(held: Lease, alias: str) -> None:
    from fencing.scope import holding

    with holding(held):
        Stock.objects.using(alias).filter(sku="42").update(quantity=1)


def delete_rows(held: Lease, alias: str) -> None:
    from fencing.scope import holding

    with holding(held):
        Stock.objects.using(alias).filter(sku="42").delete()


WAYS = [save_row, save_expression, begin, delete_row, update_rows, delete_rows]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_forgotten_resource_refuses_the_superseded_holder(
    stock: Stock, alias: str, keep: Callable[..., None], way: Callable[[Lease, str], None]
) -> None:
    """I4: the row's own token knows nothing of the newer holder, who has only begun; the floor does."""
    old, newer = grant(), grant()
    newer.atomic(using=alias).call(lambda: None)
    floor = forget_resources(keep)
    assert floor >= newer.token and not FencedResource.objects.using(alias).exists()
    with pytest.raises(StaleWriteError) as caught:
        way(old, alias)
    assert (caught.value.token, caught.value.seen) == (old.token, floor)
    kept = Stock.objects.using(alias).get()
    assert (kept.quantity, kept.last_token) == (10, 0)
    assert not StockDelta.objects.using(alias).exists() and not FencedResource.objects.using(alias).exists()


def test_forgotten_resource_refuses_to_create_a_row_again(stock: Stock, alias: str, keep: Callable[..., None]) -> None:
    old, newer = grant(), grant()
    delete_row(newer, alias)
    forget_resources(keep)
    with pytest.raises(StaleWriteError):
        Stock(sku="42", quantity=1).save(using=alias, lease=old)
    assert not Stock.objects.using(alias).exists()
    Stock(sku="42", quantity=1).save(using=alias, lease=grant())
    assert Stock.objects.using(alias).get().quantity == 1


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_forgotten_resource_lets_the_next_holder_in(
    stock: Stock, alias: str, keep: Callable[..., None], way: Callable[[Lease, str], None]
) -> None:
    grant().atomic(using=alias).call(lambda: None)
    forget_resources(keep)
    held = grant()
    way(held, alias)
    assert FencedResource.objects.using(alias).get().last_token == held.token


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_known_resource_costs_no_statement_for_the_floor(stock: Stock, django_assert_num_queries: Any) -> None:
    held, mine = grant(), Stock.objects.get()
    with django_assert_num_queries(4):
        mine.save(lease=held)  # refused, looked at, created, sent again
    again = grant()
    with django_assert_num_queries(1):
        mine.save(lease=again)
    with django_assert_num_queries(1):
        assert raise_row(connection, [namespace(), "stock:43", 5, "h"], begins=1) == 1


def test_live_lease_is_never_forgotten(stock: Stock, alias: str, keep: Callable[..., None]) -> None:
    """However old its token is: the floor stays below, also where it has not written yet."""
    with lease("stock:idle") as idle, lease("stock:42") as held:
        begin(held, alias)
        begin(grant("stock:other"), alias)
        assert forget_resources(keep) < idle.token
        assert FencedResource.objects.using(alias).count() == 2
        save_row(held, alias)
        begin(idle, alias)


def test_resource_goes_once_a_mark_is_old_enough(keep: Callable[..., None]) -> None:
    """Nothing has been collected, so that the tokens' age is known by the marks alone."""
    begin(grant(), "default")
    TokenGrant.objects.all().delete()
    keep(operations=DAY)
    assert pruned()["default", "resources"] == 0
    TokenMark.objects.update(at=timezone.now() - timedelta(seconds=2 * DAY))
    begin(grant("stock:43"), "default")
    assert pruned()["default", "resources"] == 1
    assert FencedResource.objects.get().name == "stock:43"
    assert TokenMark.objects.count() == 2
    TokenMark.objects.update(at=timezone.now() - timedelta(seconds=2 * DAY))
    assert pruned()["default", "resources"] == 1
    assert TokenMark.objects.count() == 2, "of the old marks the last one says all"


def test_mark_is_no_older_than_the_numbers_that_it_tells_of(keep: Callable[..., None]) -> None:
    """What is issued while the history is pruned, for hours perhaps, would be taken for as old as its beginning."""
    keep(history=DAY, operations=DAY)
    steps = prune()
    next(steps)
    granted, token = timezone.now(), grant().token
    list(steps)
    mark = TokenMark.objects.get()
    assert mark.token > token
    assert mark.at > granted


def test_marks_of_several_counters_are_at_the_one_that_is_least_far(settings: Any) -> None:
    backends = {"default": {**settings.FENCING["BACKENDS"]["default"], "PARTITIONS": 3, "NAMESPACE": "three"}}
    settings.FENCING = {"BACKENDS": backends, "OPERATION_RETENTION": 1e-6}
    settings.CACHES = {**settings.CACHES}
    from fencing.tokens import draw

    for _ in range(3):
        drawn = [draw(get_backend(), f"stock:{number}") for number in range(30)]
    list(prune())
    assert 0 < TokenMark.objects.get().token < max(drawn)


def test_prune_leaves_resources_while_the_store_does_not_answer(
    keep: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: whoever holds a lease is not known, so no resource goes; history that needs no store does."""
    begin(grant(), "default")
    history.collect()
    a_write(3 * DAY)
    keep(history=DAY, operations=1e-6)
    monkeypatch.setattr(
        get_backend(), "live", lambda *args: (_ for _ in ()).throw(LeaseBackendError("default", "gone"))
    )
    with pytest.raises(LeaseBackendError):
        list(prune())
    assert FencedResource.objects.exists() and ResourceFloor.objects.get().token == 0
    assert not FencedWrite.objects.filter(namespace="n").exists()


def test_begun_transaction_whose_resource_is_forgotten_has_no_effect(stock: Stock, alias: str) -> None:
    held = grant()
    with pytest.raises(StaleWriteError), held.atomic(using=alias):
        StockDelta.objects.using(alias).create(sku="42", delta=-1, reason="x", operation="x")
        FencedResource.objects.using(alias).all().delete()
    assert not StockDelta.objects.using(alias).exists()


def test_opened_reign_counts_above_the_floor(keep: Callable[..., None]) -> None:
    """After a backup the floor may be the highest number that the database knows."""
    from fencing.reigns import MARGIN, logged_reigns, open_reigns

    far = logged_reigns("default").ceiling + 3 * MARGIN  # a reign is opened above everything by one
    raise_floor("default", namespace(), far)
    open_reigns("default", by="test")
    begin(grant(), "default")
    assert FencedResource.objects.get().last_token > far


def test_revocation_of_a_forgotten_resource_is_above_the_floor(keep: Callable[..., None]) -> None:
    from fencing.reigns import logged_reigns
    from fencing.revocation import revoke

    far = logged_reigns("default").ceiling + 10**6
    raise_floor("default", namespace(), far)
    assert revoke("stock:42", "test").token > far


# At the same time


def test_old_statement_that_waits_while_its_resource_is_forgotten(keep: Callable[..., None]) -> None:
    """Its own view still has the floor as it was: it has to read the present one, and lock it."""
    Stock.objects.create(sku="42", quantity=10)
    old, newer = grant(), grant()
    begin(newer, "default")
    mine = Stock.objects.get()
    with threads() as start:
        with transaction.atomic():
            Stock.objects.select_for_update().get()
            waiting = start(lambda: mine.save(lease=old))
            wait_until(lambda: waiting_for_locks() == 1, "the old statement waits for the row")
            assert start(forget_resources, keep).result(BOUND) >= newer.token
        with pytest.raises(StaleWriteError):
            waiting.result(BOUND)
    assert Stock.objects.get().last_token == 0 and not FencedResource.objects.exists()


def test_begin_that_waits_while_its_resource_is_forgotten() -> None:
    """The same with the floor in one statement's view: read without a lock it would still be as it was."""
    row = FencedResource.objects.create(namespace=namespace(), name="stock:42", last_token=5, holder="h")
    with threads() as start:
        with transaction.atomic():
            FencedResource.objects.select_for_update().get(pk=row.pk)
            waiting = start(lambda: raise_row(connection, [namespace(), "stock:42", 7, "other"], begins=1))
            wait_until(lambda: waiting_for_locks() == 1, "the begin waits for the resource's row")
            start(raise_floor, "default", namespace(), 9).result(BOUND)
            row.delete()
        assert waiting.result(BOUND) is None
    assert not FencedResource.objects.exists()


@pytest.mark.parametrize("alias", ["default", pytest.param("maria", marks=MARIA)], indirect=True)
def test_floor_waits_for_rows_that_were_created_below_it_and_holds_nobody_up(alias: str) -> None:
    namespace = "floor"
    create_floor(connections[alias], namespace)
    with threads() as start:
        with transaction.atomic(using=alias):
            assert raise_row(connections[alias], [namespace, "a", 5, "h"], begins=0) is not None
            raising = start(raise_floor, alias, namespace, 9)
            with pytest.raises(OperationalError):
                start(lambda: raise_floor(alias, namespace, 9, patience=0.2)).result(BOUND)
            other = start(lambda: raise_row(connections[alias], [namespace, "b", 6, "h"], begins=1))
            assert other.result(BOUND) is not None
            assert not raising.done()
        raising.result(BOUND)
    assert ResourceFloor.objects.using(alias).get(namespace=namespace).token == 9
    assert raise_row(connections[alias], [namespace, "c", 9, "h"], begins=0) is None
    assert raise_row(connections[alias], [namespace, "c", 10, "h"], begins=0) is not None


@pytest.mark.parametrize("alias", ["default", pytest.param("maria", marks=MARIA)], indirect=True)
def test_row_that_somebody_holds_is_left(alias: str, keep: Callable[..., None], stock: Stock) -> None:
    held = grant()
    begin(held, alias)
    begin(grant("stock:43"), alias)
    with threads() as start:
        with transaction.atomic(using=alias):
            save_row(held, alias)
            start(forget_resources, keep).result(BOUND)
            assert [one.name for one in FencedResource.objects.using(alias).all()] == ["stock:42"]
        start(forget_resources, keep).result(BOUND)
    assert not FencedResource.objects.using(alias).exists()


def test_several_at_once_forget_every_row_once(keep: Callable[..., None]) -> None:
    for _ in range(300):
        a_write(3 * DAY)
    keep(history=DAY)
    with threads() as start:
        done = [start(lambda: pruned(batch=20)) for _ in range(4)]
        assert sum(one.result(BOUND)["default", "writes"] for one in done) == 300
    assert not FencedWrite.objects.filter(namespace="n").exists()


@pytest.mark.parametrize("alias", ["default", pytest.param("maria", marks=MARIA)], indirect=True)
def test_holders_at_work_while_resources_are_forgotten(alias: str, keep: Callable[..., None]) -> None:
    """At random: whoever begins is the newest, every accepted delta counts, and no older one lands after a newer."""
    keep(operations=1e-6)
    skus = ["1", "2", "3"]
    for sku in skus:
        Stock.objects.using(alias).create(sku=sku, quantity=0)

    def work(number: int) -> int:
        accepted = 0
        for turn in range(12):
            sku = skus[(number + turn) % 3]
            held = grant(f"stock:{sku}")
            try:
                held.atomic(f"{number}-{turn}", using=alias).call(add_one, sku, held)
            except (StaleWriteError, LeaseLostError, OperationalError):
                continue  # somebody newer came before its begin, its read or its end
            accepted += 1
        return accepted

    def add_one(sku: str, held: Lease) -> None:
        one = Stock.objects.using(alias).get(sku=sku)
        one.quantity += 1
        one.save(lease=held)
        StockDelta.objects.using(alias).create(sku=sku, delta=1, reason="x", operation=str(held.token))

    with threads() as start:
        workers = [start(work, number) for number in range(4)]
        while not all(worker.done() for worker in workers):
            history.collect()
            list(prune(batch=2))
        accepted = sum(worker.result(60) for worker in workers)
    rows = Stock.objects.using(alias).values_list("quantity", flat=True)
    assert sum(rows) == StockDelta.objects.using(alias).count() == accepted > 0
    for sku in skus:
        tokens = [int(one.operation) for one in StockDelta.objects.using(alias).filter(sku=sku).order_by("pk")]
        assert tokens == sorted(tokens)


# Floors


def test_without_a_floor_nothing_gets_in_until_there_is_one(stock: Stock, alias: str) -> None:
    """Somebody emptied the table, or the namespace is new: the first holder creates the floor and gets in."""
    ResourceFloor.objects.using(alias).all().delete()
    save_row(grant(), alias)
    ResourceFloor.objects.using(alias).all().delete()
    FencedResource.objects.using(alias).all().delete()
    begin(grant(), alias)
    assert ResourceFloor.objects.using(alias).get().token == 0


def test_floor_that_comes_while_a_statement_is_under_way() -> None:
    """Its view has none, a look afterwards finds one: it is sent again instead of being refused."""
    row = FencedResource.objects.create(namespace="new", name="stock:42", last_token=5, holder="h")
    with threads() as start:
        with transaction.atomic():
            FencedResource.objects.select_for_update().get(pk=row.pk)
            waiting = start(lambda: raise_row(connection, ["new", "stock:42", 7, "other"], begins=1))
            wait_until(lambda: waiting_for_locks() == 1, "the begin waits for the resource's row")
            start(raise_floor, "default", "new", 6).result(BOUND)
            row.delete()
        assert waiting.result(BOUND) == 1


def test_floors_come_with_the_tables() -> None:
    ResourceFloor.objects.all().delete()
    call_command("flush", interactive=False, verbosity=0)
    assert ResourceFloor.objects.get().namespace == namespace()


def test_migrations_go_back_and_forth() -> None:
    try:
        call_command("migrate", "fencing", "0004", verbosity=0)
        assert "fencing_resourcefloor" not in connection.introspection.table_names()
    finally:
        call_command("migrate", "fencing", verbosity=0)
    assert ResourceFloor.objects.get().token == 0


# The command


def told(*args: str) -> str:
    out = StringIO()
    call_command("fencing", "prune", *args, stdout=out)
    return out.getvalue()


def test_command_prints_what_it_did(keep: Callable[..., None]) -> None:
    a_write(3 * DAY)
    with pytest.raises(CommandError, match="RETENTION"):
        told()
    keep(history=DAY)
    assert json.loads(told("--dry-run", "--json")) == {
        "dry_run": True,
        "pruned": [
            {"database": "default", "what": "writes", "rows": 1, "floor": None},
            {"database": "default", "what": "grants", "rows": 0, "floor": None},
        ],
    }
    assert "WOULD GO" in told("--dry-run")
    assert FencedWrite.objects.filter(namespace="n").exists()
    keep(history=DAY, operations=DAY)
    lines = told().splitlines()
    assert lines[0].split() == ["DATABASE", "FORGOTTEN", "ROWS", "FLOOR"]
    assert [line.split() for line in lines[1:]] == [
        ["default", "writes", "1", "-"], ["default", "results", "0", "-"],
        ["default", "grants", "0", "-"], ["default", "resources", "0", "0"],
    ]  # fmt: skip
    assert not FencedWrite.objects.filter(namespace="n").exists()


class Terminal(StringIO):
    """Standard error that somebody looks at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_bar_is_drawn_for_a_terminal_only(
    keep: Callable[..., None], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    for _ in range(3):
        a_write(3 * DAY)
    keep(history=DAY)
    monkeypatch.setattr("fencing.management.prune.EVERY", 0.0)
    out, err = StringIO(), Terminal() if terminal else StringIO()
    call_command("fencing", "prune", "--json", stdout=out, stderr=err)
    assert json.loads(out.getvalue())["pruned"][0]["rows"] == 3
    bar = f"\r\033[K[{'#' * 30}] writes of default: 3 of 3\r\033[K"
    assert err.getvalue() == (bar if terminal else "")


def test_command_refuses_inside_a_transaction(keep: Callable[..., None]) -> None:
    keep(history=DAY)
    with transaction.atomic(), pytest.raises(TransactionManagementError, match="open on default"):
        list(prune())


def test_longer_than_the_calendar_is_for_ever(keep: Callable[..., None]) -> None:
    keep(history=1e12, operations=1e12)
    assert list(prune()) == []


def test_pruning_is_sqlites_writer_before_it_reads(
    keep: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else SQLite refused it at once when somebody else wrote between its read and its delete."""
    keep(history=1e-6)
    monkeypatch.setattr(pruning, "databases", lambda: ["lite"])
    delete = pruning._delete

    def become_writer() -> None:
        with connections["lite"].cursor() as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("ROLLBACK")

    def write_between(rows: Any) -> int:
        with threads() as start, pytest.raises(OperationalError, match="locked"):
            start(become_writer).result(BOUND)
        return delete(rows)

    monkeypatch.setattr(pruning, "_delete", write_between)
    with sqlite_file(tmp_path / "lite.sqlite3"):
        written = FencedWrite.objects.using("lite")
        written.create(
            namespace=namespace(),
            token=1,
            grant_token=1,
            resource="r",
            action="update",
            outcome="stale",
            at=timezone.now(),
        )
        assert next(prune()).rows == 1
        raise_floor("lite", namespace(), 1)
        with CaptureQueriesContext(connections["lite"]) as sent:
            raise_floor("lite", namespace(), 2)
    first = next(
        query["sql"] for query in sent if "fencing_resourcefloor" in query["sql"] and "SELECT 1" not in query["sql"]
    )
    assert first.startswith("UPDATE")


@pytest.mark.parametrize("value", [0, -1, "5", float("nan"), True])
def test_settings_that_cannot_be(settings: Any, value: Any) -> None:
    from fencing.checks import check_settings

    for key in ("RETENTION", "OPERATION_RETENTION"):
        settings.FENCING = {"BACKENDS": settings.FENCING["BACKENDS"], key: value}
        (error,) = check_settings()
        assert error.id == "fencing.E001" and key in error.msg


def test_history_without_an_end_is_said_before_deployment(settings: Any) -> None:
    from fencing.checks import check_retention

    assert [(one.id, one.msg) for one in check_retention()] == [
        ("fencing.W003", "The history of writes and grants is kept for ever.")
    ]
    settings.FENCING = {**settings.FENCING, "RETENTION": timedelta(days=30)}
    assert check_retention() == []
    settings.FENCING = {**settings.FENCING, "RETENTION": None, "RECORD": "none"}
    assert [one.msg for one in check_retention()] == ["The history of grants is kept for ever."]


def test_holder_of_an_unreachable_past_is_refused_once_and_let_in_by_the_next_grant(keep: Callable[..., None]) -> None:
    """A live holder whose counter is behind the floor: the numbers are raised, and the next grant passes."""
    far = grant().token + 1000
    raise_floor("default", namespace(), far)
    with lease("stock:42") as held, pytest.raises(StaleWriteError):
        begin(held, "default")
    with lease("stock:42") as next_one:
        assert next_one.token > far
        begin(next_one, "default")
