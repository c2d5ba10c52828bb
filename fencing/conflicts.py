"""What becomes of an INSERT of many rows that meets other rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.db import NotSupportedError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import CharField, Model, Q, QuerySet, UniqueConstraint

from fencing.databases import locked
from fencing.exceptions import ResourceMismatchError
from fencing.naming import ModelFence, as_read, fence_of
from fencing.statements import plain

# A condition for each of so many rows: SQLite's expressions are 1000 deep at most.
LIKE_AT_A_TIME = 100


def ensure_one_resource(
    connection: BaseDatabaseWrapper, model: type[Model], objects: Iterable[Any], unique_fields: Iterable[str]
) -> None:
    """Raise NotSupportedError for an upsert whose conflict could be with a row of another resource."""
    fence, meta = fence_of(model), model._meta
    needs, keys = "unique_fields that hold", [set(attributes_of(model, unique_fields))]
    if not connection.features.supports_update_conflicts_with_target:
        # MariaDB takes no unique_fields: a row that is equal in any unique key is the one in conflict.
        needs = "on this database unique keys which all hold"
        keys = list(unique_keys(fence.owner, with_pk=any(one.pk is not None for one in objects)))
    if not all(set(fence.attributes) <= key for key in keys):
        raise NotSupportedError(
            f"bulk_create(update_conflicts=True) of {meta.label} needs {needs} "
            f"{', '.join(fence.attributes)}: else the row in conflict could belong to another resource."
        )


def unique_keys(model: type[Model], *, with_pk: bool) -> Iterator[set[str]]:
    """The attributes of each unique key of a model's table; ``with_pk``: the rows to insert bring their own."""
    meta = model._meta
    if with_pk:
        yield {field.attname for field in meta.pk_fields}
    yield from ({field.attname} for field in meta.local_concrete_fields if field.unique and not field.primary_key)
    groups = [constraint.fields for constraint in meta.constraints if isinstance(constraint, UniqueConstraint)]
    for group in (*groups, *meta.unique_together):
        yield {field.attname for field in meta.local_concrete_fields if field.name in group}


def attributes_of(model: type[Model], names: Iterable[str]) -> list[str]:
    """The attributes of fields by name, "pk" among them."""
    meta = model._meta
    pk = [field.attname for field in meta.pk_fields]
    return [one for name in names for one in (pk if name == "pk" else [meta.get_field(name).attname])]  # type: ignore[union-attr]


def without_names(fence: ModelFence, names: Iterable[str]) -> list[str]:
    """The fields that an upsert may write: not those that are equal anyway, because the resource's name is made of them.

    The key stays, for Django to refuse.
    """
    meta = fence.owner._meta
    named = {meta.get_field(one).name for one in fence.attributes if one not in fence.keys}
    return [one for one in names if one not in named and one not in fence.attributes]


def ensure_of_resource(
    connection: BaseDatabaseWrapper, fence: ModelFence, objects: Sequence[Any], resource: str, token: int
) -> None:
    """Undo an upsert, made with a number of its own, that has met a row of another resource.

    A database whose collation takes "A" and "a" for equal finds a conflict where there are two resources.

    Raises:
        ResourceMismatchError: it has.
    """
    if not any(_may_be_equal(connection, fence.owner._meta.get_field(one)) for one in fence.attributes):
        return
    for rows in _rows_like(connection, fence.owner, objects, fence.attributes):
        for row in rows.filter(last_token=token).values("pk", *fence.attributes):
            if fence.name(row) != resource:
                detail = f"to this database the name of {fence.label} {row['pk']} is equal"
                raise ResourceMismatchError(resource, fence.name(row), detail)


def _may_be_equal(connection: BaseDatabaseWrapper, field: Any) -> bool:
    """Whether the database may take two values of a field for equal that are two names."""
    while field.remote_field:
        field = field.target_field
    if not isinstance(field, CharField):
        return False
    by_bytes = not field.db_collation and str(field.db_type(connection)).startswith("varchar")
    return connection.vendor == "mysql" or not by_bytes


def rows_inserted(connection: BaseDatabaseWrapper, fence: ModelFence, objects: Iterable[Any], token: int) -> list[Any]:
    """The keys of the rows that an INSERT which passed over conflicts has made: those that carry its own number."""
    return [key for rows in _rows_like(connection, fence.owner, objects, fence.attributes)
            for key in rows.filter(last_token=token).values_list("pk", flat=True)]  # fmt: skip


def highest_alike(
    connection: BaseDatabaseWrapper, model: type[Model], objects: Sequence[Any], unique_fields: Iterable[str]
) -> int:
    """The highest number of the rows that an upsert may meet, which are locked now; 0 if it meets none."""
    keys: Iterable[Iterable[str]] = [attributes_of(model, unique_fields)]
    if not connection.features.supports_update_conflicts_with_target:
        keys = unique_keys(fence_of(model).owner, with_pk=any(one.pk is not None for one in objects))
    met = [rows for key in keys for rows in _rows_like(connection, model, objects, list(key))]
    return max((seen for rows in met for seen in locked(rows).values_list("last_token", flat=True)), default=0)


def never_lower(
    connection: BaseDatabaseWrapper, model: type[Model], objects: Sequence[Any], unique_fields: Iterable[str]
) -> None:
    """Raise the numbers of objects whose rows, alike in ``unique_fields``, carry a higher one.

    For an upsert with the fence lifted, where no trigger can keep the higher number: SQLite's cannot change a row.
    """
    names = attributes_of(model, unique_fields)
    highest: dict[tuple[Any, ...], int] = {}
    for rows in _rows_like(connection, model, objects, names):
        highest |= {tuple(found): seen for *found, seen in rows.values_list(*names, "last_token")}
    for one in objects:
        one.last_token = max(one.last_token, highest.get(_values_of(one, names), 0))


def _rows_like(
    connection: BaseDatabaseWrapper, model: type[Model], objects: Iterable[Any], names: Sequence[str]
) -> Iterator[QuerySet[Any]]:
    """The rows that have the values of one of the objects in the fields ``names``, in batches."""
    wanted = list(dict.fromkeys(_values_of(one, names) for one in objects))
    for start in range(0, len(wanted), LIKE_AT_A_TIME):
        alike = Q(
            *(Q(**dict(zip(names, values, strict=True))) for values in wanted[start : start + LIKE_AT_A_TIME]),
            _connector=Q.OR,
        )
        yield plain(model, connection.alias).filter(alike)


def _values_of(instance: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """An instance's values as a read gives them."""
    return tuple(as_read(instance._meta.get_field(name), getattr(instance, name)) for name in names)
