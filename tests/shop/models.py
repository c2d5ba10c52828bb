"""Models of the tests: the shapes that a fenced model can have."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import models

from fencing.models import FencedManager, FencedModel


class Visible(FencedManager):  # type: ignore[type-arg]
    """A manager that hides rows."""

    def get_queryset(self) -> Any:
        """Leave out what is hidden."""
        return super().get_queryset().filter(hidden=False)


class Warehouse(models.Model):
    """An unfenced parent."""

    name = models.CharField(max_length=40)

    def __str__(self) -> str:
        return self.name


class Bin(FencedModel):
    """A row with many kinds of fields, its resource named by its key."""

    label = models.CharField(max_length=40, default="")
    quantity = models.IntegerField(default=0)
    changed_at = models.DateTimeField(auto_now=True)
    warehouse = models.ForeignKey(Warehouse, models.SET_NULL, null=True, blank=True)


class Crate(FencedModel):
    """A row that goes with its unfenced parent."""

    fence_resource = "crate:{warehouse}:{code}"

    warehouse = models.ForeignKey(Warehouse, models.CASCADE)
    code = models.CharField(max_length=20)
    weight = models.IntegerField(default=0)


class Pallet(FencedModel):
    """A row with multi-table children that goes with its unfenced parent."""

    warehouse = models.ForeignKey(Warehouse, models.CASCADE)
    weight = models.IntegerField(default=0)


class ColdPallet(Pallet):
    """The child of a row that goes with its unfenced parent."""

    degrees = models.IntegerField(default=0)


class Shelf(models.Model):
    """An unfenced parent whose rows the database deletes with its own, from Django 6.1 on."""

    name = models.CharField(max_length=40)

    def __str__(self) -> str:
        return self.name


class Tag(FencedModel):
    """A row that the database deletes with its unfenced parent, from Django 6.1 on."""

    shelf = models.ForeignKey(Shelf, getattr(models, "DB_CASCADE", models.CASCADE))
    text = models.CharField(max_length=20, default="")


class Label(FencedModel):
    """A row that the database takes off its unfenced parent, from Django 6.1 on; the parent does not know of it."""

    shelf = models.ForeignKey(Shelf, getattr(models, "DB_SET_NULL", models.SET_NULL), null=True, related_name="+")


class Hook(FencedModel):
    """A row that the database deletes with its unfenced parent, which does not know of it, from Django 6.1 on."""

    shelf = models.ForeignKey(Shelf, getattr(models, "DB_CASCADE", models.CASCADE), related_name="+")


class Parcel(FencedModel):
    """A key that is preset, and an INSERT that needs a lease."""

    fence_inserts = True

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    weight = models.IntegerField(default=0)


class ExpressBin(Bin):
    """A multi-table child: the token stands in the parent's table."""

    courier = models.CharField(max_length=20, default="")


class BinProxy(Bin):
    """Another class for the same rows."""

    class Meta:
        proxy = True


class Ticket(FencedModel):
    """A key that the database makes."""

    code = models.CharField(primary_key=True, max_length=20, db_default="first")
    note = models.CharField(max_length=20, default="")


class Machine(models.Model):
    """An unfenced parent of a fenced child."""

    serial = models.CharField(max_length=20)
    place = models.CharField(max_length=20, default="")

    def __str__(self) -> str:
        return self.serial


class Press(FencedModel, Machine):
    """A multi-table child with the token in its own table."""

    force = models.IntegerField(default=0)


class Paper(FencedModel):
    """A key of another name in the database, and values of other kinds."""

    key = models.SlugField(primary_key=True, db_column="Paper Key")
    facts = models.JSONField(null=True)
    scan = models.BinaryField(null=True)
    file = models.FileField(upload_to="papers", blank=True)
    doubled = models.GeneratedField(
        expression=models.F("pages") * 2, output_field=models.IntegerField(), db_persist=True
    )
    pages = models.IntegerField(default=0, db_column="page count")

    class Meta(FencedModel.Meta):
        select_on_save = True


class Line(FencedModel):
    """A key of two columns."""

    fence_resource = "line:{order}:{number}"

    pk = models.CompositePrimaryKey("order", "number")
    order = models.IntegerField()
    number = models.IntegerField()
    quantity = models.IntegerField(default=0)


class Archived(FencedModel):
    """A default manager that hides rows, which is the base manager, too."""

    hidden = models.BooleanField(default=False)
    note = models.CharField(max_length=20, default="")

    objects = Visible()  # type: ignore[misc]
    everything = FencedManager()


class Card(FencedModel):
    """An order among siblings."""

    warehouse = models.ForeignKey(Warehouse, models.CASCADE)

    class Meta(FencedModel.Meta):
        order_with_respect_to = "warehouse"


class Badge(models.Model):
    """An unfenced model with fenced ones at the other end."""

    boxes = models.ManyToManyField(Bin)

    def __str__(self) -> str:
        return f"badge {self.pk}"


class Rack(FencedModel):
    """What the admin's forms can hold: a choice, a box to tick, a time, a relation; with fenced and plain children."""

    class Kind(models.TextChoices):
        """How deep its slots are."""

        FLAT = "flat", "flat slots"
        DEEP = "deep", "deep slots"

    fence_resource = "rack:{code}"

    code = models.CharField(max_length=190, unique=True)
    title = models.CharField(max_length=60, blank=True)
    size = models.IntegerField(default=0)
    open = models.BooleanField(default=True)
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.FLAT)
    checked_at = models.DateTimeField(null=True, blank=True)
    warehouses = models.ManyToManyField(Warehouse, blank=True)

    def __str__(self) -> str:
        return self.code


class Slot(FencedModel):
    """A fenced child of a fenced parent."""

    rack = models.ForeignKey(Rack, models.CASCADE)
    quantity = models.IntegerField(default=0)
    open = models.BooleanField(default=True)


class RackNote(models.Model):
    """A plain child of a fenced parent."""

    rack = models.ForeignKey(Rack, models.CASCADE)
    text = models.CharField(max_length=60)

    def __str__(self) -> str:
        return self.text
