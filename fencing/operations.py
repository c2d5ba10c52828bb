"""Migration operations for fenced tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import SeparateDatabaseAndState
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from fencing.guards import lift


class Unfenced(SeparateDatabaseAndState):
    """Run migration operations that rewrite rows of fenced tables with the guard lifted::

        operations = [Unfenced([migrations.AlterField("stock", "place", models.CharField(max_length=40, default=""))])]

    Needed where an operation updates or deletes rows: an AlterField from null to NOT NULL on PostgreSQL, RunPython,
    RunSQL. ``last_token`` stays as it is, because no lease store need be reachable while a migration runs. A holder
    who read a row before the migration can therefore write over it afterwards: stop the workers first, or use
    ``unfenced()`` in a command of your own where its next number has to make such a holder notice.

    Args:
        operations: what to run, in this order; backwards in the reverse order.
    """

    # Inside a migration with atomic = False there would else be no transaction to lift the guard in.
    atomic = True
    serialization_expand_args = ["operations"]

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = list(operations)
        super().__init__(database_operations=self.operations, state_operations=self.operations)

    @property
    def reversible(self) -> bool:  # type: ignore[override]
        """Whether all of the operations are."""
        return all(operation.reversible for operation in self.operations)

    @property
    def reduces_to_sql(self) -> bool:  # type: ignore[override]
        """Whether all of the operations do."""
        return all(operation.reduces_to_sql for operation in self.operations)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """The arguments, for the migration writer."""
        return (self.__class__.__qualname__, [self.operations], {})

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Run the operations with the guard lifted."""
        with _lifted_by(schema_editor):
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Undo the operations with the guard lifted."""
        with _lifted_by(schema_editor):
            super().database_backwards(app_label, schema_editor, from_state, to_state)

    def describe(self) -> str:
        """What ``migrate --plan`` prints."""
        return f"Unfenced: {'; '.join(operation.describe() for operation in self.operations)}"

    @property
    def migration_name_fragment(self) -> str:
        """The first one that an operation has, or ""."""
        fragments = (operation.migration_name_fragment for operation in self.operations)
        return next((fragment for fragment in fragments if fragment), "")


@contextmanager
def _lifted_by(schema_editor: BaseDatabaseSchemaEditor) -> Iterator[None]:
    """Lift the guard on the editor's connection, and in the script that ``sqlmigrate`` prints."""
    # SQLite's guard asks Python, so no script can lift it.
    printing = schema_editor.collect_sql and schema_editor.connection.vendor == "postgresql"
    if printing:
        schema_editor.execute("SELECT set_config('fencing.unfenced', '0', true)", params=None)
    with lift(schema_editor.connection, 0):
        yield
    if printing:
        schema_editor.execute("SELECT set_config('fencing.unfenced', '', true)", params=None)
