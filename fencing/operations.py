"""Migration operations for fenced tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, cast

from django.db import transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddConstraint, AddField, SeparateDatabaseAndState
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from fencing import busytables
from fencing.fields import TokenField
from fencing.guards import FenceGuard
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


class _Wrapping(SeparateDatabaseAndState):
    """Operations that change the state as they are, and the database in a way of their own."""

    # Transactions are opened here, if there are any: on MariaDB there can be none around DDL.
    atomic = False

    def __init__(self, operations: Sequence[Operation], in_database: Sequence[Any]) -> None:
        self.operations = list(operations)
        super().__init__(
            database_operations=[cast(Operation, one) for one in in_database], state_operations=self.operations
        )

    @property
    def reversible(self) -> bool:  # type: ignore[override]
        """Whether all of the operations are."""
        return all(operation.reversible for operation in self.operations)

    @property
    def reduces_to_sql(self) -> bool:  # type: ignore[override]
        """Whether all of the operations do."""
        return all(operation.reduces_to_sql for operation in self.operations)

    def describe(self) -> str:
        """What ``migrate --plan`` prints."""
        return f"{type(self).__name__}: {'; '.join(operation.describe() for operation in self.operations)}"

    @property
    def migration_name_fragment(self) -> str:
        """The first one that an operation has, or ""."""
        fragments = (operation.migration_name_fragment for operation in self.operations)
        return next((fragment for fragment in fragments if fragment), "")


class Unfenced(_Wrapping):
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

    serialization_expand_args = ["operations"]

    def __init__(self, operations: Sequence[Operation]) -> None:
        super().__init__(operations, [_Apart(operation) for operation in operations])

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


class WhileInUse(_Wrapping):
    """Fence a table that is in use, without shutting its readers and writers out for longer than an instant::

        atomic = False
        operations = [WhileInUse([migrations.AddField("stock", "last_token", fencing.fields.TokenField(...))])]

    Takes what ``makemigrations`` wrote to add ``last_token``, or the guard, and gives way to whoever uses the table: a
    try that does not get its lock in time is given up and comes again. Nothing is done twice when a migration that has
    failed in between is run again. Any other operation waits like that as well, but is done as ever.

    Args:
        operations: what to run, in this order; backwards in the reverse order.
        wait: seconds that a try waits for the table, with all who come later behind it. More than PostgreSQL's
            ``deadlock_timeout``, after which a vacuum of the table makes room. On SQLite the connection's ``timeout``.
        patience: seconds after which there is no further try.

    Raises:
        TransactionManagementError: the migration is one transaction, ``atomic = False`` is missing.
        OperationalError: the table was never free.
    """

    serialization_expand_args = ["operations"]

    def __init__(
        self, operations: Sequence[Operation], wait: float = busytables.WAIT, patience: float = busytables.PATIENCE
    ) -> None:
        self.wait = wait
        self.patience = patience
        super().__init__(operations, [_GivingWay(operation, wait, patience) for operation in operations])

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """The arguments, for the migration writer."""
        named = {"wait": (self.wait, busytables.WAIT), "patience": (self.patience, busytables.PATIENCE)}
        given = {name: value for name, (value, default) in named.items() if value != default}
        return (self.__class__.__qualname__, [self.operations], given)


class _GivingWay:
    """An operation which gives way to whoever uses its table."""

    def __init__(self, operation: Operation, wait: float, patience: float) -> None:
        self.operation = operation
        self.wait = wait
        self.patience = patience

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operation, name)

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        way = busytables.GivingWay(schema_editor, wait=self.wait, patience=self.patience)
        operation = self.operation
        if isinstance(operation, AddField) and isinstance(operation.field, TokenField):
            model = to_state.apps.get_model(app_label, operation.model_name)
            if operation.allow_migrate_model(schema_editor.connection.alias, model):
                busytables.add_token(way, model, model._meta.get_field(operation.name))
        elif isinstance(operation, AddConstraint) and isinstance(operation.constraint, FenceGuard):
            model = to_state.apps.get_model(app_label, operation.model_name)
            if operation.allow_migrate_model(schema_editor.connection.alias, model):
                busytables.add_guard(way, model, operation.constraint)
        else:
            way.run(lambda: operation.database_forwards(app_label, schema_editor, from_state, to_state))

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        way = busytables.GivingWay(schema_editor, wait=self.wait, patience=self.patience)
        way.run(lambda: self.operation.database_backwards(app_label, schema_editor, from_state, to_state))


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
