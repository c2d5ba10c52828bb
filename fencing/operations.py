"""Migration operations for fenced tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, cast

from django.db import transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import SeparateDatabaseAndState
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from fencing.lifting import lift, lift_outside_transactions

# What a script has to say before and after the operations.
PRINTED = {
    "postgresql": (
        "SELECT set_config('fencing.unfenced', '0', true)",
        "SELECT set_config('fencing.unfenced', '', true)",
    ),
    "mysql": (
        "SET @fencing_unfenced = 0, @fencing_migrating = TRUE",
        "SET @fencing_unfenced = NULL, @fencing_migrating = NULL",
    ),
}


class Unfenced(SeparateDatabaseAndState):
    """Run migration operations that rewrite rows of fenced tables with the guard lifted::

        operations = [Unfenced([migrations.AlterField("stock", "place", models.CharField(max_length=40, default=""))])]

    Needed where an operation updates or deletes rows: an AlterField from null to NOT NULL on PostgreSQL, RunPython,
    RunSQL. ``last_token`` stays as it is, because no lease store need be reachable while a migration runs. A holder
    who read a row before the migration can therefore write over it afterwards: stop the workers first, or use
    ``unfenced()`` in a command of your own where its next number has to make such a holder notice.

    On MariaDB each operation that may be in a transaction is in one of its own, and nothing takes DDL back.

    Args:
        operations: what to run, in this order; backwards in the reverse order.
    """

    # The transaction that the guard is lifted in is opened here: on MariaDB there can be none around DDL.
    atomic = False
    serialization_expand_args = ["operations"]

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = list(operations)
        apart = [cast(Operation, _Apart(operation)) for operation in self.operations]
        super().__init__(database_operations=apart, state_operations=self.operations)

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


class _Apart:
    """An operation which on MariaDB is in a transaction of its own, as Django has it outside of ``Unfenced``."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operation, name)

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        with self._transaction(schema_editor):
            self.operation.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        with self._transaction(schema_editor):
            self.operation.database_backwards(app_label, schema_editor, from_state, to_state)

    def _transaction(self, schema_editor: BaseDatabaseSchemaEditor) -> AbstractContextManager[Any]:
        if schema_editor.connection.vendor != "mysql" or self.operation.atomic is False:
            return nullcontext()
        return transaction.atomic(using=schema_editor.connection.alias)


@contextmanager
def _lifted_by(schema_editor: BaseDatabaseSchemaEditor) -> Iterator[None]:
    """Lift the guard on the editor's connection, and in the script that ``sqlmigrate`` prints."""
    connection = schema_editor.connection
    # SQLite's guard asks Python, so no script can lift it.
    lifting, standing = PRINTED.get(connection.vendor, ("", "")) if schema_editor.collect_sql else ("", "")
    if lifting:
        schema_editor.execute(lifting, params=None)
    if connection.vendor == "mysql":
        around: AbstractContextManager[Any] = lift_outside_transactions(connection)
    else:
        around = ExitStack()
        if not connection.in_atomic_block:
            around.enter_context(transaction.atomic(using=connection.alias))
        around.enter_context(lift(connection, 0))
    with around:
        yield
    if standing:
        schema_editor.execute(standing, params=None)
