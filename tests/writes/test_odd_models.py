"""Fenced models of unusual shapes: their rows are fenced like all others."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from django.core import serializers
from django.core.files.base import ContentFile
from django.db import IntegrityError, models
from django.db.models import F

from fencing import (
    LeaseRequiredError,
    ResourceMismatchError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    lease,
    naming,
    unfenced,
)
from fencing.naming import make_fence
from fencing.once import check_operation
from fencing.scope import holding
from inventory_demo.models import Stock
from tests.shop.models import (
    Archived,
    Badge,
    Bin,
    BinProxy,
    Card,
    Crate,
    ExpressBin,
    Line,
    Machine,
    Paper,
    Parcel,
    Press,
    Ticket,
    Warehouse,
)

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

Pair = Callable[[str], Any]


def test_key_that_the_database_makes(alias: str) -> None:
    ticket = Ticket.objects.using(alias).create(note="a")
    assert ticket.code == "first"
    with lease(ticket) as held:
        ticket.note = "b"
        ticket.save()
    assert Ticket.objects.using(alias).values_list("note", "last_token").get() == ("b", held.token)


@pytest.mark.parametrize("text", [str, lambda key: key.hex], ids=["dashes", "hex"])
def test_key_given_as_text_names_the_same_resource(alias: str, text: Callable[[uuid.UUID], str]) -> None:
    """Else a creation under the lease would not pass its resource."""
    key = uuid.uuid4()
    with lease(f"shop.parcel:{key}") as held:
        parcel = Parcel.objects.using(alias).create(id=text(key), weight=1)
        assert Parcel.objects.using(alias).get().last_token == held.token
        parcel.weight = 2
        parcel.save()
        parcel.weight = 3
        Parcel.objects.using(alias).bulk_update([parcel], ["weight"])
    assert Parcel.objects.using(alias).get().weight == 3


def test_values_of_other_kinds(alias: str, settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    Paper.objects.using(alias).create(key="a", facts={"x": [1, None]}, scan=b"\0\xff", pages=3)
    paper = Paper.objects.using(alias).get()
    with lease(paper):
        paper.facts, paper.scan, paper.pages = None, b"%s\0", 4
        paper.save()
        paper.file.save("n.txt", ContentFile(b"y"))
        paper = Paper.objects.using(alias).get()
        assert (paper.doubled, paper.facts, bytes(paper.scan or b"")) == (8, None, b"%s\0")
        paper.facts = {"a": 2}
        Paper.objects.using(alias).bulk_update([paper], ["facts", "scan"])
        paper.pages = F("pages") + 1
        paper.save(update_fields=["pages"])
        assert paper.pages == 5
        paper.refresh_from_db()
        assert (paper.doubled, paper.facts) == (10, {"a": 2})
        paper.delete()
    assert not Paper.objects.using(alias).exists()


@pytest.mark.parametrize("model", [BinProxy, ExpressBin])
def test_name_and_backend_are_those_of_the_class_with_the_column(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row under two names could be written by two holders at a time."""
    monkeypatch.setattr(model, "fence_resource", "own:{pk}", raising=False)
    monkeypatch.setattr(model, "fence_using", "own", raising=False)
    assert make_fence(model) == make_fence(Bin)


def test_key_of_two_columns(alias: str, overtaken: Pair) -> None:
    rows = Line.objects.using(alias)
    with lease("line:1:2"):
        line = Line(order=1, number=2, quantity=3)
        line.save(using=alias)
        line.quantity = 4
        line.save()
    late, line = rows.get(), rows.get()
    with overtaken("line:1:2") as (sleeper, newer):
        line.quantity = 5
        line.save()
        with pytest.raises(StaleWriteError):
            late.save(lease=sleeper)
        assert rows.update(quantity=6) == 1
        line.refresh_from_db()
        line.quantity = 7
        assert rows.bulk_update([line], ["quantity"]) == 1
        rows.bulk_create(
            [Line(order=1, number=2, quantity=8)],
            update_conflicts=True,
            unique_fields=None if alias == "maria" else ["order", "number"],
            update_fields=["quantity"],
        )
        assert rows.values_list("quantity", "last_token").get() == (8, newer.newest_token)
        assert rows.filter(quantity=8).delete()[0] == 1


def test_late_holder_cannot_delete_a_row_with_a_key_of_two_columns(alias: str, overtaken: Pair) -> None:
    late = Line.objects.using(alias).create(order=1, number=2)
    with overtaken("line:1:2") as (sleeper, _newer):
        Line.objects.using(alias).get().save()
        with pytest.raises(StaleWriteError):
            late.delete(lease=sleeper)
    assert Line.objects.using(alias).exists()


def test_token_in_the_child_of_an_unfenced_parent(alias: str, overtaken: Pair) -> None:
    """The parent's table is written first; a refusal undoes that."""
    Press.objects.using(alias).create(serial="1", force=3)
    press, late = Press.objects.using(alias).get(), Press.objects.using(alias).get()
    with overtaken(press.fence_name()) as (sleeper, _newer):
        press.force, press.place = 4, "right"
        press.save()
        late.place = "wrong"
        with pytest.raises(StaleWriteError):
            late.save(lease=sleeper)
        assert Machine.objects.using(alias).get().place == "right"
        assert Press.objects.using(alias).update(place="there", force=F("force") + 1) == 1
        assert Press.objects.using(alias).values_list("place", "force").get() == ("there", 5)
    with overtaken(press.fence_name()) as (sleeper, _newer):
        Press.objects.using(alias).get().save()
        with holding(sleeper), pytest.raises(StaleWriteError):
            Press.objects.using(alias).update(place="wrong")
        Press.objects.using(alias).get().delete()
    assert not Machine.objects.using(alias).exists()


def test_name_made_of_a_field_of_the_unfenced_parent(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check refuses it, for whoever writes the parent moves the row; the row's own class does not."""
    monkeypatch.setattr(Press, "fence_resource", "press:{serial}")
    monkeypatch.setattr(naming, "_fences", {})
    press = Press.objects.using(alias).create(serial="1")
    press.serial = "2"
    with lease(["press:1", "press:2"]):
        for change in (press.save, lambda: Press.objects.using(alias).update(serial="2")):
            with pytest.raises(ResourceMismatchError):
                change()
    assert Machine.objects.using(alias).get().serial == "1"


def test_child_that_fails_leaves_no_trace_in_memory(alias: str) -> None:
    child = ExpressBin.objects.using(alias).create(label="a", courier="x", quantity=1)
    with lease(child):
        child.quantity, child.courier = F("quantity") + 1, cast(str, None)
        with pytest.raises(IntegrityError):
            child.save()
        child.courier = "y"
        child.save()
    assert ExpressBin.objects.using(alias).values_list("quantity", "courier").get() == (2, "y")


def test_rows_that_the_managers_hide(alias: str) -> None:
    Archived.everything.using(alias).create(hidden=True)
    row = Archived.everything.using(alias).get()
    with lease(row):
        row.note = "a"
        row.save()
        row.refresh_from_db()
        row.refresh_from_db(fields=["note"])
        assert Archived.everything.using(alias).filter(hidden=True).delete()[0] == 1
    assert not Archived.everything.using(alias).exists()


def test_order_among_siblings(alias: str, overtaken: Pair) -> None:
    """Nothing that is written was read, so tokens are compared only, as by ``QuerySet.update``."""
    house: Any = Warehouse.objects.using(alias).create(name="w")
    first, second = (Card.objects.using(alias).create(warehouse=house) for _ in range(2))

    def order() -> list[Any]:
        return list(Card.objects.using(alias).values_list("pk", flat=True))

    with pytest.raises(LeaseRequiredError):
        house.set_card_order([second.pk, first.pk], using=alias)
    with lease(first), pytest.raises(ResourceMismatchError):
        house.set_card_order([second.pk, first.pk], using=alias)
    with lease(second), overtaken(first.fence_name()) as (sleeper, newer):
        Card.objects.using(alias).get(pk=first.pk).save()
        with holding(sleeper), pytest.raises(StaleWriteError):
            house.set_card_order([second.pk, first.pk], using=alias)
        assert order() == [first.pk, second.pk]
        house.set_card_order([second.pk, first.pk], using=alias)
        assert order() == [second.pk, first.pk]
        assert Card.objects.using(alias).get(pk=first.pk).last_token == newer.newest_token
        with pytest.raises(RowMissingError):
            house.set_card_order([second.pk, first.pk, first.pk + 1000], using=alias)
        # Objects that were read are compared with what was read.
        first._order = 0  # type: ignore[attr-defined]
        with pytest.raises(StaleReadError):
            Card.objects.using(alias).bulk_update([first], ["_order"])


def test_many_to_many_rows_are_not_the_rows_own(alias: str) -> None:
    box = Bin.objects.using(alias).create(label="a")
    badge = Badge.objects.using(alias).create()
    badge.boxes.add(box)
    with lease(box):
        box.delete()
    assert not badge.boxes.exists()


def test_child_that_is_saved_without_its_parent(alias: str, overtaken: Pair) -> None:
    """A file's rows are saved without their parents: the token is in the parent's row, and must be passed all the same."""
    ExpressBin.objects.using(alias).create(courier="x")
    rows = ExpressBin.objects.using(alias)
    dumped = serializers.serialize("json", rows.all())
    late, fresh = rows.get(), rows.get()

    def load() -> None:
        for one in serializers.deserialize("json", dumped.replace('"x"', '"file"'), using=alias):
            one.save(using=alias)

    late.courier = "late"
    with pytest.raises(LeaseRequiredError):
        late.save_base(raw=True, using=alias)
    with pytest.raises(LeaseRequiredError):
        load()
    with overtaken(late.fence_name()) as (sleeper, newer):
        fresh.courier = "fresh"
        fresh.save_base(raw=True, using=alias)
        with pytest.raises(StaleReadError):
            late.save_base(raw=True, using=alias)
        with pytest.raises(StaleReadError):
            load()
        with holding(sleeper), pytest.raises(StaleWriteError):
            late.save_base(raw=True, using=alias)
        assert rows.values_list("courier", "last_token").get() == ("fresh", newer.token)
        fresh.save()
    with unfenced("restore", database=alias):
        load()
    assert rows.get().courier == "file"


class Lowered(models.CharField):  # type: ignore[type-arg]
    """A field that keeps another value than it was given."""

    def get_prep_value(self, value: Any) -> Any:
        """What is kept."""
        return None if value is None else str(value).lower()


def test_value_that_a_field_keeps_otherwise_than_it_was_given(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is that of the row in the database, from the first moment on."""
    monkeypatch.setattr(Stock._meta.get_field("sku"), "__class__", Lowered)
    rows = Stock.objects.using(alias)
    with lease("stock:A"):
        made = rows.create(sku="A", quantity=1)
        assert rows.get().last_token == 0
        for write in (made.save, lambda: rows.bulk_update([made], ["quantity"])):
            made.quantity = 2
            with pytest.raises((LeaseRequiredError, ResourceMismatchError)):
                write()
    with lease("stock:a"):
        made.save()
    assert rows.values_list("sku", "quantity").get() == ("a", 2)


def test_key_that_reads_otherwise_than_it_is_kept(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign key reads as the key that it points to."""
    key = Warehouse._meta.pk
    monkeypatch.setattr(key, "get_prep_value", lambda value: None if value is None else int(value) - 1000)
    monkeypatch.setattr(key, "from_db_value", lambda value, *_more: value and value + 1000, raising=False)
    house = Warehouse(pk=1005, name="x")
    house.save(using=alias, force_insert=True)
    with lease("crate:1005:a") as held:
        Crate.objects.using(alias).create(warehouse=house, code="a")
        crate = Crate.objects.using(alias).get()
        assert (crate.warehouse_id, crate.last_token) == (1005, held.token)
        crate.weight = 2
        crate.save()
    assert Crate.objects.using(alias).get().weight == 2


class MadeWhenSaved(models.CharField):  # type: ignore[type-arg]
    """A slug of something else."""

    def pre_save(self, model_instance: Any, add: bool) -> Any:
        """What is kept."""
        model_instance.sku = f"s{model_instance.quantity}"
        return model_instance.sku


@pytest.fixture
def sku_made_when_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stock._meta.get_field("sku"), "__class__", MadeWhenSaved)
    monkeypatch.setattr(Stock, "fence_inserts", True)
    monkeypatch.setattr(naming, "_fences", {})


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.usefixtures("sku_made_when_saved")
def test_name_that_is_made_when_the_row_is_saved(alias: str, many: bool) -> None:
    """I4: it is the lease of that name that counts, and not that of what the field held before."""
    rows = Stock.objects.using(alias)

    def create(sku: str) -> None:
        if many:
            rows.bulk_create([Stock(sku=sku, quantity=1)])
        else:
            Stock(sku=sku, quantity=1).save(using=alias)

    with lease("stock:x"), pytest.raises(LeaseRequiredError):
        create("x")
    with lease("stock:s1") as held:
        create("")
        made = rows.get()
        assert (made.sku, made.last_token) == ("s1", held.token)
        made.save()
        made.quantity = 2
        with pytest.raises(ResourceMismatchError):
            made.save()
        fresh = Stock(quantity=1)
        with pytest.raises(IntegrityError):
            fresh.save(using=alias, lease=held)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.usefixtures("sku_made_when_saved")
def test_name_that_is_another_each_time(alias: str, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is created under a lease of another name."""

    def make(_field: Any, model_instance: Any, add: bool) -> Any:
        model_instance.quantity += add
        model_instance.sku = f"s{model_instance.quantity}"
        return model_instance.sku

    monkeypatch.setattr(MadeWhenSaved, "pre_save", make)
    with lease("stock:s1"), pytest.raises((ResourceMismatchError, LeaseRequiredError)):
        if many:
            Stock.objects.using(alias).bulk_create([Stock(sku="x", quantity=0)])
        else:
            Stock(sku="x", quantity=0).save(using=alias)
    assert not Stock.objects.using(alias).exists()


class Code(str, enum.Enum):  # noqa: UP042  (what people write where a name is no choice of a field)
    """A text of its own kind; ``str()`` of its member is "Code.A"."""

    A = "a"


class Number(int, enum.Enum):
    """The same for a number."""

    ONE = 1


def test_member_of_an_enumeration_is_its_value_in_a_name(alias: str) -> None:
    """As it is in the database: else two could hold the lease of one row at a time."""
    with lease("stock:a") as held:
        made = Stock.objects.using(alias).create(sku=Code.A, quantity=1)
        assert Stock.objects.using(alias).get().last_token == held.token
        made.quantity = 2
        made.save()
        assert made.fence_name() == naming.render("stock:{sku}", {"sku": Code.A}) == "stock:a"
    assert naming.render("{one}", {"one": Number.ONE}) == "1"
    assert type(naming.check_resource(Code.A)) is type(check_operation(Code.A)) is str


@pytest.mark.parametrize(
    ("model", "counted", "told"),
    [(ExpressBin, "quantity", "courier"), (Press, "force", "place")],
    ids=["token in the parent's table", "token in the child's"],
)
def test_expression_in_the_rows_table_and_a_value_in_another(alias: str, model: Any, counted: str, told: str) -> None:
    """I3: the value was worked out from a read, whichever table it goes to."""
    rows = model.objects.using(alias)
    rows.create(**{told: "old"})
    mine, theirs = rows.get(), rows.get()
    with lease(mine):
        setattr(theirs, told, "new")
        theirs.save()
        setattr(mine, counted, F(counted) + 1)
        setattr(mine, told, "older")
        with pytest.raises(StaleReadError):
            mine.save(update_fields=[counted, told])
        mine.save(update_fields=[counted])
    assert rows.values_list(counted, told).get() == (1, "new")
