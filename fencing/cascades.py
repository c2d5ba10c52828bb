"""Deletes and ``SET_NULL`` that begin at an unfenced row and reach fenced ones pass the fence as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.db import connections
from django.db.models.deletion import Collector

from fencing.bulkwrites import update_rows
from fencing.deletes import carry_out, fenced_rows, rows_set_by_database
from fencing.lockedrows import fenced_steps

Deleted = tuple[int, dict[str, int]]


def wrap_collector() -> None:
    """Let every delete of Django pass the fence; once for the process."""
    if not hasattr(Collector.delete, "fencing"):
        Collector.delete = fenced(Collector.delete)  # type: ignore[method-assign, assignment]


def fenced(delete: Callable[[Any], Deleted]) -> Callable[[Any], Deleted]:
    """Django's ``Collector.delete``, which judges the fenced rows that it is going to delete, unless that was done."""

    @wraps(delete)
    def fenced_delete(self: Any) -> Deleted:
        _update_through_fence(self)
        to_set = rows_set_by_database(self)
        reached = () if getattr(self, "fencing_judged", False) else fenced_rows(self)
        if not (reached or to_set):
            return delete(self)
        connection = connections[self.using]
        with fenced_steps(connection):
            for rows, values in to_set:
                update_rows(rows, values)
            return carry_out(connection, reached, lambda: delete(self))

    fenced_delete.fencing = True  # type: ignore[attr-defined]
    return fenced_delete


def _update_through_fence(collector: Any) -> None:
    """Let rows be set to NULL by a fenced queryset also where Django has read them, and would go by their keys."""
    for (field, _value), several in collector.field_updates.items():
        if not hasattr(field.model, "fence_name"):
            continue
        for place, rows in enumerate(several):
            if getattr(rows, "_result_cache", ()) is not None:
                keys = [one.pk for one in rows]
                several[place] = field.model._base_manager.using(collector.using).filter(pk__in=keys)
