"""``QuerySet.update()`` as one statement of PostgreSQL, and where it must be steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F, Value
from django.db.models.functions import Concat

from fencing import ResourceMismatchError, StaleWriteError, lease, unfenced
from fencing.models import FencedWrite
from fencing.scope import holding
from tests.concurrency import threads, wait_until, waiting_for_locks
from tests.shop.models import Bin, Crate, Parcel, Warehouse

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def crate() -> Crate:
    """A row of a resource that is known: the first write to an unknown one takes steps."""
    created = Crate.objects.create(warehouse=Warehouse.objects.create(name="north"), code="a%s'", weight=1)
    with lease(created) as earlier, earlier.atomic():
        return created


@contextmanager
def counting() -> Iterator[list[str]]:
    """The statements that the block sends."""
    sent: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        sent.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield sent


def test_one_statement_with_its_history(crate: Crate) -> None:
    with lease(crate) as held, counting() as sent:
        assert Crate.objects.filter(weight__lt=5).update(weight=F("weight") + 6) == 1
    assert len(sent) == 1
    assert Crate.objects.values_list("weight", "last_token").get() == (7, held.token)
    written = FencedWrite.objects.get()
    assert (written.token, written.grant_token, written.seen, written.at is not None) == (
        held.token,
        held.token,
        0,
        True,
    )
    assert (written.object_pk, written.action, written.outcome) == (str(crate.pk), "update", "accepted")
    assert (written.resource, written.model, written.namespace) == (held.resource, "shop.crate", held.namespace)


def test_key_of_another_kind() -> None:
    with lease("shop.parcel:6f2c0e3e-7d5a-4e0f-9a54-0d7a3c1b2f10"):
        created = Parcel.objects.create(id="6f2c0e3e-7d5a-4e0f-9a54-0d7a3c1b2f10")
        with counting() as sent:
            assert Parcel.objects.update(weight=3) == 1
    assert len(sent) == 1
    assert FencedWrite.objects.get(action="update").object_pk == str(created.pk)


def test_nothing_matched(crate: Crate) -> None:
    with lease(crate), counting() as sent:
        assert Crate.objects.filter(weight=99).update(weight=2) == 0
        assert Crate.objects.none().update(weight=2) == 0
    assert len(sent) == 1
    assert not FencedWrite.objects.exists()


def test_rows_of_another_resource(crate: Crate) -> None:
    Crate.objects.create(warehouse=crate.warehouse, code="A%S'", weight=1)
    with lease(crate), pytest.raises(ResourceMismatchError):
        Crate.objects.update(weight=5)
    assert set(Crate.objects.values_list("weight", "last_token")) == {(1, 0)}


def test_row_fence_alone_refuses(crate: Crate) -> None:
    """The resource has seen nobody newer, but one of its rows has."""
    with lease(crate) as held:
        Crate.objects.update(weight=1)
        with unfenced("another program's number"):
            crate.save()
        held._used = False  # or it would take a higher number than the other program's
        with pytest.raises(StaleWriteError, match="1 of 1 rows"):
            Crate.objects.update(weight=5)
    assert Crate.objects.get().weight == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda: Crate.objects.filter(warehouse__name="north").update(weight=4),
        lambda: Crate.objects.annotate(more=F("weight") + 3).update(weight=F("more")),
        lambda: Crate.objects.filter(warehouse__in=Warehouse.objects.all()).distinct().update(weight=4),
        lambda: (Crate.objects.all() | Crate.objects.filter(warehouse__name="x")).update(weight=4),
    ],
    ids=["join", "annotation", "distinct", "or"],
)
def test_what_takes_steps_is_fenced_as_well(crate: Crate, write: Callable[[], int], overtaken: Any) -> None:
    with overtaken(f"crate:{crate.warehouse_id}:{crate.code}") as (sleeper, newer):
        with holding(newer):
            assert write() == 1
        with holding(sleeper), pytest.raises(StaleWriteError):
            write()
    assert Crate.objects.get().weight == 4
    assert list(FencedWrite.objects.order_by("id").values_list("outcome", flat=True)) == ["accepted", "stale"]


def test_refusal_leaves_the_transaction_usable_and_its_number_for_the_record(crate: Crate, overtaken: Any) -> None:
    with overtaken(f"crate:{crate.warehouse_id}:{crate.code}") as (sleeper, newer):
        with holding(newer):
            Crate.objects.update(weight=5)
        with transaction.atomic():
            with holding(sleeper), pytest.raises(StaleWriteError) as refusal:
                Crate.objects.update(weight=6)
            Warehouse.objects.create(name="kept")
    assert (refusal.value.token, refusal.value.seen) == (sleeper.token, newer.token)
    assert Warehouse.objects.filter(name="kept").exists()
    assert Crate.objects.get().weight == 5


def test_error_of_the_statement_is_djangos() -> None:
    bin_ = Bin.objects.create()
    with lease(bin_), pytest.raises(IntegrityError):
        Bin.objects.update(warehouse=99)
    with lease(bin_):
        assert Bin.objects.update(label=Concat(F("label"), Value("%s!"))) == 1
    assert Bin.objects.get().label == "%s!"


def test_old_statement_that_waited_writes_nothing(crate: Crate, overtaken: Any) -> None:
    """It waited on a row lock while the newer holder wrote, and finds that only when it has the lock."""
    with overtaken(f"crate:{crate.warehouse_id}:{crate.code}") as (sleeper, newer), threads() as start:

        def late() -> int:
            with holding(sleeper):
                return Crate.objects.update(weight=60)

        with transaction.atomic(), holding(newer):
            Crate.objects.update(weight=70)
            waiting = start(late)
            wait_until(lambda: waiting_for_locks() == 1, "the late update waits for the row")
        with pytest.raises(StaleWriteError):
            waiting.result(20)
    assert Crate.objects.get().weight == 70


def test_delete_leaves_a_row_that_has_stopped_to_match_while_it_waited(crate: Crate) -> None:
    """As Django's own does: it looks at the condition again once it has the row."""

    def delete() -> int:
        with lease(crate):
            return Crate.objects.filter(weight=1).delete()[0]

    with threads() as start:
        with lease(crate) as older, transaction.atomic():
            Crate.objects.filter(weight=1).update(weight=5)
            # Its lease is over, and nobody newer has written yet.
            older._backend.revoke(older._place, older.token)
            deleted = start(delete)
            wait_until(lambda: waiting_for_locks() == 1, "the delete waits for the row")
        assert deleted.result() == 0
    assert Crate.objects.get().weight == 5
