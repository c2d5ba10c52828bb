"""PostgreSQL: a fenced ``QuerySet.update()`` with its history as one statement, all or nothing.

It locks what matches in the order of the keys, counts what may not be written, passes the resource, and writes only
if nothing speaks against it. So a refused one has written nothing, and the steps of ``bulkwrites`` find out what to
tell. They also do what this cannot: several leases at once, joins, slices, and keys that SQL writes in another way
than Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import CharField, QuerySet, TextField, sql
from django.utils import timezone

from fencing import conf, history
from fencing.bounds import IDLE_BOUND, milliseconds
from fencing.leases import Lease
from fencing.naming import ModelFence
from fencing.prepared import SERVER, fetch_one, named
from fencing.resources import Way, passing
from fencing.rowstatement import quoted
from fencing.statements import bounds_idling, plain, way_to_pass

# Fields whose values read the same as text, in SQL and in Python.
SAME_TEXT = frozenset(
    {
        "AutoField",
        "BigAutoField",
        "BigIntegerField",
        "CharField",
        "IntegerField",
        "PositiveBigIntegerField",
        "PositiveIntegerField",
        "PositiveSmallIntegerField",
        "SlugField",
        "SmallAutoField",
        "SmallIntegerField",
        "TextField",
        "UUIDField",
    }
)
TEXTS = (CharField, TextField)


def can_be_one_statement(connection: BaseDatabaseWrapper, fence: ModelFence, queryset: QuerySet[Any]) -> bool:
    """Whether the rows of ``queryset``, all of one resource, can be updated by one statement."""
    query, meta = queryset.query, fence.owner._meta
    if connection.vendor != "postgresql" or queryset.model._meta.concrete_model is not fence.owner:
        return False
    if query.is_sliced or query.combinator or query.distinct or query.annotations or query.extra or query.group_by:
        return False
    return len(fence.keys) == 1 and all(reads_the_same(meta.get_field(one)) for one in (*fence.keys, *fence.attributes))


def reads_the_same(field: Any) -> bool:
    """Whether the text of the field's values is the same in SQL and in Python."""
    field = getattr(field, "target_field", field)
    return field.get_internal_type() in SAME_TEXT and not hasattr(field, "from_db_value")


def update_at_once(
    connection: BaseDatabaseWrapper,
    fence: ModelFence,
    lease: Lease,
    token: int,
    queryset: Any,
    values: Mapping[str, Any],
) -> int | None:
    """Update the rows of ``queryset``, all of the lease's resource, and say how many; None if anything was refused."""
    matched = queryset.order_by("pk").values_list("pk", "last_token", *fence.attributes).query
    matched.standard_ordering = True
    matched.select_for_update = False  # all of it is locked anyway, and autocommit takes no other
    update = plain(fence.owner, connection.alias).query.chain(sql.UpdateQuery)
    update.add_update_values({**values, "last_token": token})  # type: ignore[attr-defined]
    try:
        select, found = matched.get_compiler(connection=connection).as_sql()
    except EmptyResultSet:
        return 0
    if matched.count_active_tables() > 1 or update.related_updates:  # type: ignore[attr-defined]
        return None
    text, written = update.get_compiler(connection=connection).as_sql()
    params = {f"value{number}": value for number, value in enumerate((*found, *written))}
    names = list(params)
    name, literals = name_in_sql(fence)
    bound = bounds_idling(connection, lease)
    statement = many_text(
        named(select, names[: len(found)]),
        named(text, names[len(found) :]),
        fence,
        name,
        bound=bound,
        way=way_to_pass(connection, lease),
        recorded=history.wanted(history.ACCEPTED),
    )
    params |= literals
    params |= {
        "namespace": lease.namespace,
        "resource": lease.resource,
        "grant_token": lease.token,
        "holder": lease.holder,
        "token": token,
        "at": timezone.now(),
        "idle": milliseconds(conf.idle_in_transaction(lease.ttl)) if bound else None,
    }
    with transaction.mark_for_rollback_on_error(using=connection.alias):
        answer = fetch_one(connection, statement, params, prepare=False)
    there, refused, passed, count = answer or (0, 0, True, 0)
    if refused or (there and not passed):
        return None
    if passed:
        lease.passed.add(connection.alias)
    return int(count)


def many_text(select: str, update: str, fence: ModelFence, name: str, *, bound: bool, way: Way, recorded: bool) -> str:
    """The statement around a SELECT of key, token and what the name is made of, and an UPDATE without condition."""
    meta = fence.owner._meta
    table, key = quoted(meta.db_table), quoted(meta.pk.column or "")
    attributes = "".join(f", attribute{number}" for number in range(len(fence.attributes)))
    parts = [f"bound AS MATERIALIZED (SELECT {named(IDLE_BOUND, ['idle', 'idle'])})"] if bound else []
    parts += [
        f"old (key, seen{attributes}) AS MATERIALIZED ({select} FOR NO KEY UPDATE)",
        # NULL is no "yes" either.
        "verdict AS MATERIALIZED (SELECT count(*) AS there, count(*) FILTER (WHERE "
        f'(seen < %(token)s AND ({name}) COLLATE "C" = %(resource)s) IS NOT TRUE) AS refused FROM old)',
        passing("(SELECT there > 0 AND refused = 0 FROM verdict)", way),
        f"fenced AS ({update} FROM old WHERE {table}.{key} = old.key "
        "AND (SELECT refused = 0 FROM verdict) AND EXISTS (SELECT 1 FROM passed) RETURNING old.key, old.seen)",
    ]
    if recorded:
        pk = f"left(key::text, {history.MAX_PK_LENGTH})" if isinstance(meta.pk, TEXTS) else "key::text"
        insert = history.inserting_accepted("fenced", fence.label, "update", object_pk=pk, seen="seen")
        parts.append(f"history AS ({insert})")
    idling = "(SELECT count(*) FROM bound) >= 0 AND " if bound else ""
    return (
        f"WITH {', '.join(parts)} SELECT there, refused, {idling}EXISTS (SELECT 1 FROM passed), "
        f"(SELECT count(*) FROM fenced), {SERVER} FROM verdict"
    )


def name_in_sql(fence: ModelFence) -> tuple[str, dict[str, str]]:
    """The name of a locked row's resource as SQL, and the values of its literal parts."""
    parts: list[str] = []
    literals: dict[str, str] = {}
    attributes = {placeholder: number for number, (placeholder, _attribute) in enumerate(fence.fields)}
    for literal, placeholder, _spec, _conversion in Formatter().parse(fence.template):
        if literal:
            parts.append(f"%(literal{len(literals)})s::text")
            literals[f"literal{len(literals)}"] = literal
        if placeholder is not None:
            parts.append(f"attribute{attributes[placeholder]}::text")
    return " || ".join(parts), literals
