"""PostgreSQL: one fenced UPDATE with its history as one statement, atomic by itself and kept prepared.

Its text depends on names only (table, columns, what is compared), so it is made once and kept; values are parameters.
Where Django has to build the UPDATE, because a value is an expression or its field wraps it, that text is used
instead, and sent in Django's own way.
"""

from __future__ import annotations

from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, sql
from django.utils import timezone

from fencing import conf, history
from fencing.bounds import IDLE_BOUND, milliseconds
from fencing.leases import Lease
from fencing.prepared import SERVER, fetch_one, named
from fencing.resources import Way, passing
from fencing.statements import RowWrite, Verdict, bounds_idling, plain, way_to_pass, with_token


def send_statement(
    connection: BaseDatabaseWrapper, lease: Lease, write: RowWrite, token: int, way: Way | None = None
) -> Verdict:
    """Lock, pass, write and record a row in one statement; ``way`` is how to pass, by default as ``way_to_pass`` says."""
    meta = write.fence.owner._meta
    table, key = meta.db_table, meta.pk.column or ""
    values = bindable_values(connection, write)
    if values is None:
        update, params = compiled_update(connection, write, token)
    else:
        update = plain_update(table, key, tuple([field.column for field, _model, _value in write.values]))
        params = values
    bound = bounds_idling(connection, lease)
    recorded = write.fence.label if history.wanted(history.ACCEPTED) else None
    kept: dict[Any, Any] = {meta.get_field(one): value for one, value in write.named.items()}
    names = {one.column: one.get_db_prep_save(value, connection) for one, value in kept.items()}
    columns = tuple([(column, isinstance(value, str)) for column, value in names.items()])
    way = way or way_to_pass(connection, lease)
    text = row_text(update, table, key, bound, way, write.compares, recorded, columns)
    # Of the types that the columns have: small integers would else be of other types, and each prepared apart.
    big = connection.ops.adapt_integerfield_value
    answer = fetch_one(
        connection,
        text,
        {
            **params,
            **{f"name{number}": value for number, value in enumerate(names.values())},
            "namespace": lease.namespace,
            "resource": lease.resource,
            "grant_token": big(lease.token, "BigIntegerField"),
            "holder": lease.holder,
            "pk": meta.pk.get_db_prep_value(write.pk, connection),
            "object_pk": str(write.pk)[: history.MAX_PK_LENGTH],
            "token": big(token, "BigIntegerField"),
            "seen": big(write.pin, "BigIntegerField"),
            "at": timezone.now(),
            "idle": milliseconds(conf.idle_in_transaction(lease.ttl)) if bound else None,
        },
        prepare=values is not None,
    )
    if answer is None:
        return Verdict(seen=None, passed=True, accepted=False)
    if answer[1]:
        lease.passed.add(connection.alias)
    return Verdict(seen=answer[0], passed=answer[1], accepted=answer[2])


@lru_cache(maxsize=1000)
def row_text(
    update: str,
    table: str,
    key: str,
    bound: bool,
    way: Way,
    compares: bool,
    recorded: str | None,
    columns: tuple[tuple[str, bool], ...] = (),
) -> str:
    """The statement around an UPDATE of one row, which ends in the condition on its key.

    Args:
        update: the UPDATE.
        table: the name of its table.
        key: the column of the primary key.
        bound: whether it bounds how long the open transaction may idle.
        way: how it passes the resource's row.
        compares: whether the row must be the one that was read.
        recorded: the model's label for the history; None to leave nothing there.
        columns: those that must still hold ``name0``, ``name1``, …, which the row's name was made of; whether it is text,
            of which a collation may take other text for equal.
    """
    parts = [f"bound AS MATERIALIZED (SELECT {named(IDLE_BOUND, ['idle', 'idle'])})"] if bound else []
    compare = " AND old.seen = %(seen)s" if compares else " AND old.named" if columns else ""
    bytewise = '::text COLLATE "C"'
    alike = " AND ".join(
        f"t.{quoted(column)}{bytewise * is_text} = %(name{number})s" for number, (column, is_text) in enumerate(columns)
    )
    seen = f"t.last_token AS seen{f', {alike} AS named' if columns else ''}"
    parts += [
        f"old AS MATERIALIZED (SELECT {seen} FROM {quoted(table)} t{', bound' if bound else ''} "
        f"WHERE t.{quoted(key)} = %(pk)s FOR NO KEY UPDATE OF t)",
        passing("EXISTS (SELECT 1 FROM old)", way),
        f"fenced AS ({update} AND EXISTS (SELECT 1 FROM old WHERE old.seen < %(token)s{compare}) "
        "AND EXISTS (SELECT 1 FROM passed) RETURNING 1)",
    ]
    if recorded is not None:
        parts.append(f"history AS ({history.inserting_accepted('fenced', recorded, 'update')})")
    # The types of the answer never change: so a prepared statement outlives an ALTER TABLE.
    return (
        f"WITH {', '.join(parts)} SELECT old.seen::bigint, EXISTS (SELECT 1 FROM passed), "
        f"EXISTS (SELECT 1 FROM fenced), {SERVER} FROM old"
    )


@lru_cache(maxsize=1000)
def plain_update(table: str, key: str, columns: tuple[str, ...]) -> str:
    """The UPDATE of one row by its key, with the values ``value0``, ``value1``, … and the token."""
    values = [f"{quoted(column)} = %(value{number})s" for number, column in enumerate(columns)]
    return f"UPDATE {quoted(table)} SET {', '.join([*values, 'last_token = %(token)s'])} WHERE {quoted(key)} = %(pk)s"


def compiled_update(connection: BaseDatabaseWrapper, write: RowWrite, token: int) -> tuple[str, dict[str, Any]]:
    """Django's own UPDATE of one row by its key, and its values by name."""
    query = plain(write.fence.owner, connection.alias).filter(pk=write.pk).query.chain(sql.UpdateQuery)
    query.add_update_fields(with_token(write, token))  # type: ignore[attr-defined]
    text, values = query.get_compiler(connection=connection).as_sql()
    params = {f"value{number}": value for number, value in enumerate(values)}
    return named(text, params), params


def bindable_values(connection: BaseDatabaseWrapper, write: RowWrite) -> dict[str, Any] | None:
    """The values as the database takes them, by name; None if they are more than values that the text need not know."""
    found = {}
    for number, (field, _model, value) in enumerate(write.values):
        if hasattr(value, "resolve_expression") or hasattr(value, "prepare_database_save") or wraps_values(field):
            return None
        found[f"value{number}"] = value = field.get_db_prep_save(value, connection)
        if not isinstance(value, bound_alike()):
            return None
    return found


def wraps_values(field: Field[Any, Any]) -> bool:
    """Whether a value of the field stands inside SQL of its own; Django 6.1 has another name for that."""
    return hasattr(field, "get_placeholder") or hasattr(field, "get_placeholder_sql")


@cache
def bound_alike() -> tuple[type, ...]:
    """What PostgreSQL takes for a column's value in the same way, whether it stands in the text or is bound to it."""
    from django.db.backends.postgresql.psycopg_any import Jsonb

    return (str, bytes, bool, int, float, Decimal, date, time, timedelta, UUID, type(None), Jsonb)


def quoted(name: str) -> str:
    """A name as Django quotes it, in a text with places for values."""
    name = name if name.startswith('"') and name.endswith('"') else f'"{name}"'
    return name.replace("%", "%%")
