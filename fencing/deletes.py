"""Fenced deletes: everything that a delete reaches is judged before anything of it is deleted.

Django deletes collected instances by their keys, past every manager and queryset, and asks nobody before but the
receivers of ``pre_delete``, one instance at a time. So ``Collector.delete`` is wrapped (``cascades``), the only place
in Django where this package does so: a delete that begins at an unfenced row would else reach fenced ones unjudged,
and end with the guard's ``IntegrityError`` even under a live lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model, QuerySet
from django.db.models.deletion import Collector, get_candidate_relations_to_delete

from fencing.bounds import bound_idling
from fencing.exceptions import RowMissingError
from fencing.leases import Lease
from fencing.lifting import lifted, naming_token
from fencing.lockedrows import (
    LockedRow,
    RefusalError,
    admit,
    connection_of,
    fenced_steps,
    keys_in,
    leases_for,
    lock_rows,
    record_rows,
)
from fencing.naming import ModelFence, fence_of
from fencing.statements import attempt, plain
from fencing.writes import record_unfenced

# PostgreSQL takes 65 535 values, where the server binds them.
KEYS_AT_A_TIME = 10_000

_Result = TypeVar("_Result")
Reached = Sequence[tuple[type[Model], Any]]

# The rows that a delete under way has locked and judged already: their keys, by the model whose table has the token.
_judged: ContextVar[Mapping[type[Model], Collection[Any]]] = ContextVar("fencing_judged", default=MappingProxyType({}))


def ensure_there(connection: BaseDatabaseWrapper, fence: ModelFence, lease: Lease, pk: Any) -> None:
    """Raise a refusal if the row is gone; if it is there, it is locked now."""
    if not lock_rows(connection, fence, [pk]):
        tried = attempt(lease, fence, pk, lease.newest_token, action="delete", seen=None)
        raise RefusalError(RowMissingError, lease, tried)


def delete_rows(
    connection: BaseDatabaseWrapper, objects: Any, origin: Any, *, keep_parents: bool = False
) -> tuple[int, dict[str, int]]:
    """Delete what Django would delete for ``objects``, every fenced row of it under the lease of its resource.

    Runs inside ``fenced_steps``.
    """
    collector = Collector(using=connection.alias, origin=origin)
    collector.collect(objects, keep_parents=keep_parents)
    collector.fencing_judged = True  # type: ignore[attr-defined]
    return carry_out(connection, fenced_rows(collector, keep_parents=keep_parents), collector.delete)


def carry_out(connection: BaseDatabaseWrapper, reached: Reached, delete: Callable[[], _Result]) -> _Result:
    """Judge the rows of each model that ``delete`` is going to delete, then let it, then record them.

    Runs inside ``fenced_steps``. The highest number is named to the guard, which judges every single row once more.
    """
    admitted = [one for model, matched in reached for one in _admit_delete(connection, model, matched)]
    tokens = [token for _fence, lease, _rows, token in admitted if lease is not None]
    judged: dict[type[Model], set[Any]] = {fence_of(model).owner: set() for model, _matched in reached}
    for fence, _lease, rows, _token in admitted:
        judged[fence.owner].update(row.pk for row in rows)
    with ExitStack() as stack:
        if tokens:
            stack.enter_context(naming_token(connection, max(tokens)))
        stack.callback(_judged.reset, _judged.set({**_judged.get(), **judged}))
        result = delete()
        kept = _kept(connection, admitted, result)
        for fence, lease, judged_rows, token in admitted:
            rows = [row for row in judged_rows if (fence.owner, row.pk) not in kept] if kept else judged_rows
            if lease is None:
                record_unfenced(connection, fence, [(row.pk, row.resource) for row in rows], token, "delete")
            else:
                record_rows(connection, fence, lease, rows, token, "delete")
    return result


_Admitted = tuple[ModelFence, "Lease | None", list[LockedRow], int]


def _kept(connection: BaseDatabaseWrapper, admitted: Sequence[_Admitted], result: Any) -> set[tuple[type[Model], Any]]:
    """The judged rows that are still there, by model and key: a receiver has changed them, so that they did not match.

    Nobody looks as long as Django says that it has deleted as many as were judged.
    """
    keys: dict[type[Model], list[Any]] = {}
    for fence, _lease, rows, _token in admitted:
        keys.setdefault(fence.owner, []).extend(row.pk for row in rows)
    deleted = result[1] if isinstance(result, tuple) else dict.fromkeys((one._meta.label for one in keys), result)
    return {
        (owner, pk)
        for owner, judged in keys.items()
        if deleted.get(owner._meta.label, 0) != len(judged)
        for part in _in_parts(connection, owner, judged)
        for pk in plain(owner, connection.alias).filter(pk__in=part).values_list("pk", flat=True)
    }


def _in_parts(connection: BaseDatabaseWrapper, owner: type[Model], keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Keys of a model's rows, as many at a time as a statement takes."""
    size = min(KEYS_AT_A_TIME, connection.ops.bulk_batch_size(owner._meta.pk_fields, keys)) or 1
    return (keys[start : start + size] for start in range(0, len(keys), size))


def _admit_delete(connection: BaseDatabaseWrapper, model: type[Model], matched: Any) -> list[_Admitted]:
    """Judge the rows of one model that are to be deleted: by lease, with their number; None where the fence is lifted."""
    fence = fence_of(model)
    rows = lock_rows(connection, fence, matched)
    number = lifted(connection)
    if number is not None:
        return [(fence, None, rows, number)]
    admitted: list[_Admitted] = []
    for lease, group in leases_for(fence, rows, f"deleting {fence.label}"):
        bound_idling(connection, lease)
        admitted.append((fence, lease, group, admit(connection, fence, lease, group, "delete")))
    return admitted


def raw_delete(queryset: QuerySet[Any], using: str | None) -> int:
    """Django's fast delete of a cascade: judged here unless the delete that it belongs to has judged it."""
    fence, connection = fence_of(queryset.model), connection_of(queryset.using(using))
    if fence.owner in _judged.get():
        # By their keys: a row that has come since belongs to somebody else, who holds another lease or none.
        parts = _in_parts(connection, fence.owner, [*_judged.get()[fence.owner]])
        return sum(_plain_raw_delete(queryset.filter(pk__in=part), using) for part in parts)
    if not queryset.exists():
        return _plain_raw_delete(queryset, using)
    with fenced_steps(connection):
        reached = [(queryset.model, keys_in(queryset))]
        return carry_out(connection, reached, lambda: _plain_raw_delete(queryset, using))


def _plain_raw_delete(queryset: QuerySet[Any], using: str | None) -> int:
    return QuerySet._raw_delete(queryset, using)


def fenced_rows(collector: Any, *, keep_parents: bool = False) -> Reached:
    """The fenced rows that a delete is going to remove, by model: their keys, or a queryset of keys."""
    models = [*collector.data, *(queryset.model for queryset in collector.fast_deletes)]
    if any(map(_database_reaches_fenced, models)):
        collector = _followed_into_database(collector, keep_parents=keep_parents)
    reached: list[tuple[type[Model], Any]] = [
        (model, [one.pk for one in instances]) for model, instances in collector.data.items() if instances
    ]
    reached += [
        (queryset.model, keys_in(queryset)) for queryset in collector.fast_deletes if _is_fenced(queryset.model)
    ]
    return [(model, keys) for model, keys in reached if _owns_row(model)]


def _followed_into_database(collector: Any, *, keep_parents: bool) -> Any:
    """A collector of the same that has followed the database's own cascades, too."""
    followed: Any = Collector(using=collector.using, origin=collector.origin)
    followed.force_collection = True
    for objects in [*map(list, collector.data.values()), *map(list, collector.fast_deletes)]:
        followed.collect(objects, keep_parents=keep_parents, fail_on_restricted=False)
    return followed


def rows_set_by_database(collector: Any) -> list[tuple[QuerySet[Any], dict[str, Any]]]:
    """The fenced rows whose foreign keys the database itself is going to set, and to what.

    ``DB_SET_NULL`` and ``DB_SET_DEFAULT``, from Django 6.1 on: the guard refuses what the database does so, but on
    MariaDB, where it sees nothing of it.
    """
    models = [*collector.data, *(queryset.model for queryset in collector.fast_deletes)]
    if not any(map(_database_sets_fenced, models)):
        return []
    # Parents that go as well are in the collector by themselves; those that are kept keep what refers to them.
    followed = _followed_into_database(collector, keep_parents=True)
    found = []
    for model, objects in followed.data.items():
        for relation in _relations_set(model):
            field: Any = relation.field
            if relation.model._meta.concrete_model is not model._meta.concrete_model:
                continue
            value = None if field.remote_field.on_delete.operation == "SET NULL" else field._db_default_expression
            manager = field.model._base_manager.using(collector.using)
            for batch in collector.get_del_batches(list(objects), [field]):
                found.append((manager.filter(**{f"{field.name}__in": batch}), {field.name: value}))
    return found


@cache
def _deleted_by_database(model: type[Model]) -> frozenset[type[Model]]:
    """The models whose rows the database itself deletes with those of ``model``: ``DB_CASCADE``, from Django 6.1 on."""
    pending = [model]
    found: set[type[Model]] = set()
    while pending:
        children = {one.related_model for one in _relations(pending.pop(), "CASCADE")} - found
        pending += children
        found |= children
    return frozenset(found)


def _database_reaches_fenced(model: type[Model]) -> bool:
    """Whether the database itself deletes fenced rows with those of ``model``."""
    return any(map(_owns_row, _deleted_by_database(model)))


@cache
def _database_sets_fenced(model: type[Model]) -> bool:
    """Whether the database itself sets foreign keys of fenced rows when it deletes those of ``model``."""
    return any(_relations_set(one) for one in (model, *_deleted_by_database(model)))


def _relations_set(model: type[Model]) -> list[Any]:
    return [one for one in _relations(model, "SET NULL", "SET DEFAULT") if _is_fenced(one.related_model)]


def _relations(model: type[Model], *operations: str) -> list[Any]:
    """The foreign keys to a model that the database itself acts on, those without a related name among them."""
    relations: Any = get_candidate_relations_to_delete(model._meta)
    return [one for one in relations if getattr(one.on_delete, "operation", "") in operations]


def _is_fenced(model: type[Model]) -> bool:
    return any(field.attname == "last_token" for field in model._meta.concrete_fields) and hasattr(model, "fence_name")


def _owns_row(model: type[Model]) -> bool:
    """Whether deleting from this model's own table deletes the row that carries the token."""
    return _is_fenced(model) and fence_of(model).owner is model._meta.concrete_model
