"""System checks of MariaDB: what would go past the guard there, or let it forget numbers.

``fencing.checks`` registers them; each id is explained in ``docs/checks.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import Error as DatabaseProblem
from django.db import connections
from django.db.models import Model, deletion

# Django 6.1's on_delete that the database carries out.
BY_DATABASE = getattr(deletion, "DatabaseOnDelete", ())

ACTIONS = """
    SELECT constraint_name, CONCAT('ON DELETE ', delete_rule, ' ON UPDATE ', update_rule)
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = %s
    AND (delete_rule NOT IN ('RESTRICT', 'NO ACTION') OR update_rule NOT IN ('RESTRICT', 'NO ACTION'))"""


def past_the_guard(alias: str, model: type[Model]) -> Iterator[CheckMessage]:
    """Foreign keys of a fenced table by which the database itself deletes or changes rows: no trigger fires then."""
    declared = [
        field.name
        for field in model._meta.local_concrete_fields
        if field.remote_field and isinstance(getattr(field.remote_field, "on_delete", None), BY_DATABASE)
    ]
    for name in declared:
        yield _bypass(f"{model._meta.label}.{name} leaves what happens ON DELETE to database {alias!r}", model)
    if not declared:
        for name, action in _rows(alias, ACTIONS, model._meta.db_table):
            yield _bypass(f"{model._meta.label} has the foreign key {name!r} in database {alias!r}: {action}", model)


def forgets_numbers(alias: str) -> Iterator[CheckMessage]:
    """Whether a crash of the server may forget what it had committed, as ranges of numbers."""
    for (setting,) in _rows(alias, "SELECT @@innodb_flush_log_at_trx_commit"):
        if setting != 1:
            message = f"Database {alias!r}, which owns numbers, has innodb_flush_log_at_trx_commit = {setting}."
            hint = "Set it to 1: after a crash it would reserve numbers again that were issued before."
            yield Warning(message, hint=hint, id="fencing.W014")


def _bypass(message: str, model: type[Model]) -> Error:
    hint = "Let Django do it (models.CASCADE, models.SET_NULL): MariaDB fires no trigger for it, so nothing is fenced."
    return Error(f"{message}.", hint=hint, obj=model, id="fencing.E013")


def _rows(alias: str, sql: str, *params: str) -> list[tuple[Any, ...]]:
    """What the database says; nothing before it is there."""
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())
    except DatabaseProblem:
        return []
