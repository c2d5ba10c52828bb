"""Deletes that begin at an unfenced row: what they reach is fenced, however Django goes about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import IntegrityError
from django.db.models import SET_NULL
from django.db.models.signals import post_delete, pre_delete

from fencing import LeaseRequiredError, ResourceMismatchError, StaleWriteError, lease, unfenced
from fencing.models import FencedWrite
from fencing.scope import holding
from tests.concurrency import BOUND, threads
from tests.shop.models import Bin, Card, ColdPallet, Crate, Hook, Label, Pallet, Shelf, Tag, Warehouse

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

Pair = Callable[[str], Any]


@pytest.fixture
def told() -> Iterator[list[Any]]:
    """What receivers of a delete's signals were told: with one, Django deletes by keys and not by a queryset."""
    seen: list[Any] = []

    def note(instance: Any, **_named: Any) -> None:
        seen.append(instance)

    for signal in (pre_delete, post_delete):
        signal.connect(note, sender=Crate)
    yield seen
    for signal in (pre_delete, post_delete):
        signal.disconnect(note, sender=Crate)


def house(alias: str) -> Any:
    return Warehouse.objects.using(alias).create(name="w")


def test_cascade_to_rows_with_receivers(alias: str, overtaken: Pair, told: list[Any]) -> None:
    parent = house(alias)
    crate = Crate.objects.using(alias).create(warehouse=parent, code="1")
    with pytest.raises(LeaseRequiredError):
        parent.delete()
    with overtaken(crate.fence_name()) as (sleeper, newer):
        Crate.objects.using(alias).get().save()
        with holding(sleeper), pytest.raises(StaleWriteError) as caught:
            parent.delete()
        assert caught.value.seen == newer.token and not told
        assert parent.delete()[1] == {"shop.Crate": 1, "shop.Warehouse": 1}
    assert not Crate.objects.using(alias).exists() and len(told) == 2
    actions = FencedWrite.objects.using(alias).order_by("id").values_list("action", "outcome")
    assert list(actions) == [("update", "accepted"), ("delete", "stale"), ("delete", "accepted")]


def test_cascade_to_multi_table_children(alias: str, overtaken: Pair) -> None:
    parent = house(alias)
    child = ColdPallet.objects.using(alias).create(warehouse=parent)
    with pytest.raises(LeaseRequiredError):
        parent.delete()
    with overtaken(child.fence_name()) as (sleeper, _newer):
        Pallet.objects.using(alias).get().save()
        with holding(sleeper), pytest.raises(StaleWriteError):
            parent.delete()
        assert ColdPallet.objects.using(alias).exists()
        parent.delete()
    assert not Pallet.objects.using(alias).exists() and not ColdPallet.objects.using(alias).exists()


def test_cascade_to_rows_of_several_resources_and_models(alias: str, told: list[Any]) -> None:
    """All or nothing; and the number that the guard hears is the highest, whichever model comes last."""
    for busy in (Crate, Pallet):
        parent = house(alias)
        crate = Crate.objects.using(alias).create(warehouse=parent, code="1")
        pallet = ColdPallet.objects.using(alias).create(warehouse=parent)
        with lease(crate), pytest.raises(ResourceMismatchError):
            parent.delete()
        assert Crate.objects.using(alias).exists() and Pallet.objects.using(alias).exists()
        with lease([crate, pallet]):
            for _again in range(3):
                busy.objects.using(alias).get().save()
            parent.delete()
        assert not Crate.objects.using(alias).exists() and not Pallet.objects.using(alias).exists() and told


def test_receiver_that_deletes_other_rows_is_judged_for_them(alias: str) -> None:
    """A delete under way has judged its own rows only, though it has named a high number to the guard."""
    parent = house(alias)
    first, other = (Crate.objects.using(alias).create(warehouse=house(alias), code=code) for code in "ab")
    Crate.objects.using(alias).filter(pk=first.pk).get()

    def more(instance: Any, **_named: Any) -> None:
        if instance.pk == first.pk:
            Crate.objects.using(alias).get(pk=other.pk).warehouse.delete()

    pre_delete.connect(more, sender=Crate)
    try:
        with lease(first), pytest.raises(ResourceMismatchError):
            first.warehouse.delete()
        assert Crate.objects.using(alias).count() == 2
        with lease([first, other]):
            first.warehouse.delete()
    finally:
        pre_delete.disconnect(more, sender=Crate)
    assert not Crate.objects.using(alias).exists() and parent.pk


def test_set_null_without_a_lease_and_by_a_superseded_holder(alias: str, overtaken: Pair) -> None:
    parent = house(alias)
    box = Bin.objects.using(alias).create(label="a", warehouse=parent)
    with pytest.raises(LeaseRequiredError):
        parent.delete()
    with overtaken(box.fence_name()) as (sleeper, newer):
        Bin.objects.using(alias).get().save()
        with holding(sleeper), pytest.raises(StaleWriteError):
            parent.delete()
        assert Bin.objects.using(alias).get().warehouse_id == parent.pk
        parent.delete()
        assert Bin.objects.using(alias).values("warehouse", "last_token").get() == {
            "warehouse": None,
            "last_token": newer.newest_token,
        }


def test_set_null_of_rows_that_django_has_read(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function for on_delete that is not marked as lazy is given rows, which Django would update by their keys."""

    def eager(collector: Any, field: Any, sub_objs: Any, using: str) -> None:
        SET_NULL(collector, field, sub_objs, using)

    monkeypatch.setattr(Bin._meta.get_field("warehouse").remote_field, "on_delete", eager)
    parent = house(alias)
    box = Bin.objects.using(alias).create(label="a", warehouse=parent)
    with pytest.raises(LeaseRequiredError):
        parent.delete()
    with lease(box) as held:
        parent.delete()
    assert Bin.objects.using(alias).values("warehouse", "last_token").get() == {
        "warehouse": None,
        "last_token": held.token,
    }


def test_cascade_by_the_database(alias: str, overtaken: Pair) -> None:
    """Before Django 6.1 it is Django's own cascade, with the same answers."""
    shelf = Shelf._default_manager.using(alias).create(name="s")
    tag = Tag.objects.using(alias).create(shelf=shelf)
    with pytest.raises(LeaseRequiredError):
        shelf.delete()
    with lease("stock:1"), pytest.raises(ResourceMismatchError):
        shelf.delete()
    with overtaken(tag.fence_name()) as (sleeper, _newer):
        Tag.objects.using(alias).get().save()
        with holding(sleeper), pytest.raises(StaleWriteError):
            Shelf._default_manager.using(alias).all().delete()
        assert Tag.objects.using(alias).exists()
        shelf.delete()
    assert not Tag.objects.using(alias).exists()
    assert list(FencedWrite.objects.using(alias).order_by("id").values_list("outcome", flat=True)) == [
        "accepted",
        "stale",
        "accepted",
    ]


@pytest.mark.parametrize("many", [False, True])
def test_rows_that_the_database_sets_or_deletes_unknown_to_their_parent(
    alias: str, overtaken: Pair, many: bool
) -> None:
    """MariaDB's guard sees nothing of it, the others refuse it whoever holds the lease."""
    shelf = Shelf._default_manager.using(alias).create(name="s")
    label = Label.objects.using(alias).create(shelf=shelf)
    hook = Hook.objects.using(alias).create(shelf=shelf)
    delete = Shelf._default_manager.using(alias).all().delete if many else shelf.delete
    for one in (label, hook):
        with pytest.raises((LeaseRequiredError, ResourceMismatchError)), lease(one.fence_name()):
            delete()
    with pytest.raises(LeaseRequiredError):
        delete()
    with lease(hook), overtaken(label.fence_name()) as (sleeper, newer):
        Label.objects.using(alias).get().save()
        with holding(sleeper), pytest.raises(StaleWriteError):
            delete()
        assert Label.objects.using(alias).get().shelf_id == shelf.pk
        delete()
        assert newer.issued(Label.objects.using(alias).filter(shelf=None).values_list("last_token", flat=True).get())
    assert not Hook.objects.using(alias).exists()


def test_cascade_with_the_fence_lifted(alias: str, told: list[Any]) -> None:
    parent = house(alias)
    Crate.objects.using(alias).create(warehouse=parent, code="1")
    ColdPallet.objects.using(alias).create(warehouse=parent)
    with unfenced("clear", database=alias):
        parent.delete()
    assert not Crate.objects.using(alias).exists() and not Pallet.objects.using(alias).exists() and told
    recorded = FencedWrite.objects.using(alias).filter(action="delete").values_list("model", "outcome")
    assert sorted(recorded) == [("shop.crate", "unfenced"), ("shop.pallet", "unfenced")]


def test_row_that_came_while_a_delete_was_under_way_is_nobodys_to_delete(alias: str) -> None:
    """It was not judged, and its number is lower than what the guard hears: only its key keeps it."""
    parent = house(alias)
    crate = Crate.objects.using(alias).create(warehouse=parent, code="1")

    def arrive() -> None:
        Crate.objects.using(alias).create(warehouse_id=parent.pk, code="2")

    def meanwhile(**_named: Any) -> None:
        if alias == "lite":  # a database in memory is of one thread
            arrive()
            return
        with threads() as start:
            start(arrive).result(BOUND)

    pre_delete.connect(meanwhile, sender=Warehouse)
    try:
        with lease(crate), pytest.raises(IntegrityError):
            parent.delete()
    finally:
        pre_delete.disconnect(meanwhile, sender=Warehouse)
    left = set(Crate.objects.using(alias).values_list("code", flat=True))
    assert left == ({"1"} if alias == "lite" else {"1", "2"}) and Warehouse.objects.using(alias).exists()


def test_cascade_to_more_rows_than_a_statement_takes(alias: str) -> None:
    parent = house(alias)
    Pallet.objects.using(alias).bulk_create([Pallet(warehouse=parent) for _ in range(3)])
    Crate.objects.using(alias).bulk_create([Crate(warehouse=parent, code=str(number)) for number in range(1200)])
    with unfenced("clear", database=alias):
        assert parent.delete()[1] == {"shop.Crate": 1200, "shop.Pallet": 3, "shop.Warehouse": 1}


def test_receiver_that_takes_a_row_out_of_a_delete(alias: str) -> None:
    """I6: it is not deleted, and nothing says that it was."""
    parent, other = house(alias), house(alias)
    rows = [Card.objects.using(alias).create(warehouse=parent) for _ in range(2)]

    def move(instance: Any, **_named: Any) -> None:
        if instance.pk == parent.pk:
            Card.objects.using(alias).filter(pk=rows[0].pk).update(warehouse=other)

    pre_delete.connect(move, sender=Warehouse)
    try:
        with lease(rows):
            Warehouse.objects.using(alias).get(pk=parent.pk).delete()
        left = Card.objects.using(alias).get()
        with unfenced("clear", database=alias):
            parent, other = other, house(alias)
            parent.delete()
    finally:
        pre_delete.disconnect(move, sender=Warehouse)
    recorded = FencedWrite.objects.using(alias).filter(model="shop.card").order_by("id")
    assert list(recorded.values_list("action", "object_pk", "outcome")) == [
        ("update", str(rows[0].pk), "accepted"),
        ("delete", str(rows[1].pk), "accepted"),
        ("update", str(rows[0].pk), "unfenced"),
    ]
    assert Card.objects.using(alias).get() == left


def test_receiver_that_writes_a_row_inside_another_delete(alias: str) -> None:
    """The inner delete has named another number to the guard, and gives the outer one's back."""
    first, other = (Crate.objects.using(alias).create(warehouse=house(alias), code=code) for code in "ab")

    def more(instance: Any, **_named: Any) -> None:
        if instance.pk == first.pk:
            Crate.objects.using(alias).get(pk=other.pk).delete()
        else:
            Crate.objects.using(alias).filter(pk=first.pk).update(weight=7)

    pre_delete.connect(more, sender=Crate)
    try:
        with lease([first, other]):
            first.delete()
    finally:
        pre_delete.disconnect(more, sender=Crate)
    assert not Crate.objects.using(alias).exists()
    recorded = FencedWrite.objects.using(alias).order_by("id").values_list("action", "outcome")
    assert list(recorded) == [("update", "accepted"), ("delete", "accepted"), ("delete", "accepted")]


def test_receiver_that_writes_a_row_before_it_is_deleted(alias: str) -> None:
    """It was judged with a lower number than it carries then, and is still the holder's own."""
    crate = Crate.objects.using(alias).create(warehouse=house(alias), code="1")

    def by_save(instance: Any) -> None:
        instance.weight += 1
        instance.save()

    def by_update(instance: Any) -> None:
        Crate.objects.using(alias).filter(pk=instance.pk).update(weight=3)

    def by_steps(instance: Any) -> None:
        Crate.objects.using(alias).filter(warehouse__name="w").distinct().update(weight=4)

    def write(instance: Any, **_named: Any) -> None:
        for change in (by_save, by_update, by_steps):
            change(instance)

    pre_delete.connect(write, sender=Crate)
    try:
        with lease(crate):
            crate.warehouse.delete()
    finally:
        pre_delete.disconnect(write, sender=Crate)
    assert not Crate.objects.using(alias).exists()
    recorded = FencedWrite.objects.using(alias).order_by("id").values_list("action", "outcome")
    assert list(recorded) == [*[("update", "accepted")] * 3, ("delete", "accepted")]
