"""What the benchmarks write: fenced rows, and what stands for the same in models without the fence."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import connections, models
from psycopg.types.numeric import Int8

from fencing.models import FencedModel
from fencing.prepared import fetch_one


class Item(FencedModel):
    """Many rows of one resource, so that one lease lets them all be written."""

    fence_resource = "shelf:{shelf}"

    shelf = models.IntegerField()
    label = models.CharField(max_length=40)
    quantity = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.label


class BareItem(Item):
    """The floor of a fenced save: its statement, sent from Django's own ``save()``, and nothing else of fencing's.

    Attributes:
        sent: the text that a fenced save of another item has sent under the lease, and its values.
    """

    sent: ClassVar[tuple[str, dict[str, Any]]]

    class Meta:
        proxy = True

    def _do_update(  # type: ignore[override]  # the two versions of Django differ
        self, base_qs: Any, using: str, pk_val: Any, values: Any, update_fields: Any, forced_update: bool, *more: Any
    ) -> Any:
        text, params = self.sent
        written = [value for field, _model, value in values if field.attname != "last_token"]
        own = {"pk": pk_val, "object_pk": str(pk_val), "seen": Int8(self.last_token)}
        own |= {f"value{number}": value for number, value in enumerate(written)}
        _seen, _passed, accepted = fetch_one(connections[using], text, {**params, **own}) or (None, False, False)
        return [()] * accepted if more else accepted


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
