"""Models of the tests: the shapes that a fenced model can have."""

from __future__ import annotations

import uuid

from django.db import models

from fencing.models import FencedModel


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
