"""Core's ``flush``, which on SQLite deletes the rows and would be refused by the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.commands import flush
from django.db import connections

from fencing.lifting import lift
from fencing.ranges import forget_database


class Command(flush.Command):
    """Core's command and options, with the guard lifted for the statements that empty a table, and for no others.

    This process forgets the namespaces' ids as well: other processes are going to see new ones.
    """

    def handle(self, **options: Any) -> None:
        """Empty the tables of ``--database``."""
        with connections[options["database"]].execute_wrapper(_lift_for_emptying):
            super().handle(**options)
        forget_database(options["database"])


def _lift_for_emptying(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    # Receivers of post_migrate run inside core's handle() too; statements of the ORM come with params.
    if params is None and sql.startswith("DELETE FROM"):
        with lift(context["connection"], 0):
            return execute(sql, params, many, context)
    return execute(sql, params, many, context)
