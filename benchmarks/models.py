"""What the benchmarks write: fenced rows, and what stands for the same in models without the fence."""

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


class AppliedOperation(models.Model):
    """The floor's table of operations: a key that can be inserted once, and what came of it."""

    key = models.CharField(max_length=200, unique=True)
    result = models.JSONField()
    applied_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[models.Manager[AppliedOperation]] = models.Manager()

    def __str__(self) -> str:
        return self.key


class PlainWrite(models.Model):
    """The floor's history: a line for each write."""

    resource = models.CharField(max_length=200, db_index=True)
    object_pk = models.CharField(max_length=200)
    action = models.CharField(max_length=20)
    operation = models.CharField(max_length=200)
    at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[models.Manager[PlainWrite]] = models.Manager()

    def __str__(self) -> str:
        return f"{self.action} {self.object_pk}"
