"""What the write benchmarks write: a fenced row, and the same row as a model without the fence has it."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from fencing.models import FencedModel


class Item(FencedModel):
    """Many rows of one resource, so that one lease lets them all be written."""

    fence_resource = "shelf:{shelf}"

    shelf = models.IntegerField()
    label = models.CharField(max_length=40)
    quantity = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.label


class PlainItem(models.Model):
    """The floor: Django's own writes of the same row."""

    shelf = models.IntegerField()
    label = models.CharField(max_length=40)
    quantity = models.IntegerField(default=0)

    objects: ClassVar[models.Manager[PlainItem]] = models.Manager()

    def __str__(self) -> str:
        return self.label
