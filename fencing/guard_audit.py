"""Whether the guards that the models declare are in a database, and how to put them there.

A guard goes missing past the migrations: an administrator disables or drops a trigger, a dump is restored without
triggers, a table is made by hand. What the database says that each trigger does is compared with what ``FenceGuard``
would create, so a trigger that is there and does something else is noticed as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from django.apps import apps
from django.db import connections, router, transaction

from fencing.bounds import milliseconds
from fencing.databases import kind, whole_seconds
from fencing.guard_sql import POSTGRESQL_CREATE
from fencing.guards import FenceGuard
from fencing.models import FencedModel
from fencing.naming import owns_token

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model

State = Literal["installed", "missing", "differs", "surplus", "no column", "no table"]
REPAIRABLE = frozenset({"missing", "differs"})
AMISS = REPAIRABLE | {"surplus", "no column"}
WAIT = 5.0

# What there is of a table's triggers: the definition of each, by its name.
Triggers = dict[str, str]
CREATION = re.compile(r"CREATE TRIGGER (.+?) BEFORE .+?(?=;\s*CREATE TRIGGER|\Z)", re.DOTALL)
# How it spells them is the database's own affair: the trigger's name, its table, brackets, spaces, quotes, the schema.
SPELLING = re.compile(
    r"CREATE TRIGGER .+? (?=BEFORE)| ON .+? FOR EACH ROW|\w+\.(?=fencing_guard)|[\s()\"'`\\]", re.DOTALL
)
POSTGRESQL_BODY = POSTGRESQL_CREATE.split("$fencing$")[1]

PRESENT = {
    "postgresql": """
        SELECT CASE WHEN pg_table_is_visible(tgrelid) THEN relname END, tgname,
            pg_get_triggerdef(pg_trigger.oid) || prosrc
            || CASE WHEN tgenabled IN ('O', 'A') THEN '' ELSE ' DISABLED' END,
            '"' || nspname || '"."' || relname || '"'
        FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid JOIN pg_proc ON pg_proc.oid = tgfoid
        JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE NOT tgisinternal AND tgparentid = 0""",
    "mariadb": """
        SELECT event_object_table, trigger_name, CONCAT('CREATE TRIGGER ', trigger_name, ' ', action_timing, ' ',
            event_manipulation, ' ON ', event_object_table, ' FOR EACH ROW ', action_statement), NULL
        FROM information_schema.triggers WHERE trigger_schema = DATABASE()""",
    "sqlite": "SELECT tbl_name, name, sql, NULL FROM sqlite_master WHERE type = 'trigger'",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardState:
    """How one guard stands in one database.

    Attributes:
        database: the alias.
        table: its table's name.
        model: the label of the model whose table it is, or "" where no model of this project has that table.
        guard: its name; where it is surplus, that of the trigger.
        state: "installed", "missing", "differs" from what the model declares, "surplus" if none declares it,
            "no column" where its table has no ``last_token`` that it could read, or "no table" while its table is not
            there.
        detail: what is amiss, or "".
        repairable: whether ``repair`` can put it right.
    """

    database: str
    table: str
    model: str
    guard: str
    state: State
    detail: str = ""
    repairable: bool = False


def fenced_databases() -> list[str]:
    """The aliases that fenced models may be migrated to."""
    return [alias for alias in connections if any(router.allow_migrate_model(alias, model) for model in _models())]


def audit(alias: str) -> list[GuardState]:
    """Compare the guards in a database with those that the models declare for it.

    Returns:
        Each guard that is declared or there, by its table and name.

    Raises:
        django.db.DatabaseError: the database cannot be read, or carries no guards (``fencing.E010``).
    """
    connection = connections[alias]
    with connection.cursor() as cursor:
        tables = set(connection.introspection.table_names(cursor))
    present, elsewhere = _present(connection)
    found = []
    for model in _models():
        if router.allow_migrate_model(alias, model):
            table = model._meta.db_table
            for guard in _declared(model):
                state, detail = _to_come("no table", model)
                if _names_schema(table) and _is_there(connection, table):
                    place = connection.ops.quote_name(table)
                    state, detail = _compared(_wanted(connection, model, guard), elsewhere.get(place, {}))
                elif table in tables:
                    state, detail = _compared(_wanted(connection, model, guard), present.get(table, {}))
                if state in REPAIRABLE and not _has_column(connection, table):
                    state, detail = _to_come("no column", model)
                found.append(_state(alias, table, model, guard.name, state, detail, repairable=state in REPAIRABLE))
    return sorted([*found, *_surplus(connection, present)], key=lambda one: (one.table, one.guard))


def repair(found: GuardState, wait: float = WAIT) -> None:
    """Install a guard that is missing or differs, or drop a surplus trigger.

    The table is locked against writers for that moment, and on PostgreSQL against readers too where a trigger is
    replaced. No write passes in between without the guard.

    Args:
        found: what ``audit`` said.
        wait: seconds to wait at most for those who use the table; whoever comes later waits behind. On SQLite the
            connection's own ``timeout`` counts.

    Raises:
        django.db.DatabaseError: the table was not free in time, or the database refused. Nothing has changed, but on
            MariaDB the one of the two triggers that came first.
    """
    connection = connections[found.database]
    if found.state == "surplus":
        statements = [_drop(connection, found.guard, found.table)]
    else:
        statements = _installation(connection, found)
    if kind(connection) == "mariadb":  # there each DDL statement is a transaction of its own
        statements = [f"SET STATEMENT lock_wait_timeout = {whole_seconds(wait)} FOR {sql}" for sql in statements]
    elif connection.vendor == "postgresql":
        statements.insert(0, f"SELECT set_config('lock_timeout', '{milliseconds(wait)}', true)")
    with transaction.atomic(using=found.database), connection.cursor() as cursor:
        for sql in statements:
            cursor.execute(sql)


def _to_come(state: Literal["no table", "no column"], model: type[Model]) -> tuple[State, str]:
    what = "no column last_token" if state == "no column" else "no such table"
    how = "run makemigrations and migrate" if model._meta.managed else "its model is not managed, so add it by hand"
    return state, f"{what}: {how}"


def _state(
    database: str, table: str, model: type[Model] | None, guard: str, state: State, detail: str, *, repairable: bool
) -> GuardState:
    label = "" if model is None else model._meta.label
    return GuardState(
        database=database, table=table, model=label, guard=guard, state=state, detail=detail, repairable=repairable
    )


def _models() -> Iterator[type[Model]]:
    """Those whose own table has a guard; a multi-table child is fenced by its parent's, a proxy by its model's."""
    for model in apps.get_models():
        if issubclass(model, FencedModel) and not model._meta.proxy and owns_token(model):
            yield model


def _declared(model: type[Model]) -> list[FenceGuard]:
    return [constraint for constraint in model._meta.constraints if isinstance(constraint, FenceGuard)]


def _present(connection: BaseDatabaseWrapper) -> tuple[dict[str, Triggers], dict[str, Triggers]]:
    """The triggers of the tables that need no schema before their names; and, on PostgreSQL, of all with theirs."""
    found: dict[str, Triggers] = {}
    elsewhere: dict[str, Triggers] = {}
    with connection.cursor() as cursor:
        cursor.execute(PRESENT.get(kind(connection), "SELECT 1 WHERE 1 = 0"))
        for table, name, definition, place in cursor.fetchall():
            for tables, key in ((found, table), (elsewhere, place)):
                if key is not None:
                    tables.setdefault(key, {})[name] = definition
    return found, elsewhere


def _names_schema(table: str) -> bool:
    """Whether a model's ``db_table`` has a schema before it, as people write it past Django's quotes."""
    return '"."' in table


def _is_there(connection: BaseDatabaseWrapper, table: str) -> bool:
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [connection.ops.quote_name(table)])
        return bool(cursor.fetchone()[0])


def _has_column(connection: BaseDatabaseWrapper, table: str) -> bool:
    """Whether a table has ``last_token``: one that became fenced has it from a migration on, which may be still to come."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)} WHERE 1 = 0")
        return any(column[0].lower() == "last_token" for column in cursor.description)


def _creation(connection: BaseDatabaseWrapper, model: type[Model], guard: FenceGuard) -> list[str]:
    """The statements that create a guard."""
    editor = connection.schema_editor()
    editor.deferred_sql = []
    return [str(guard.create_sql(model, editor)), *map(str, editor.deferred_sql)]


def _wanted(connection: BaseDatabaseWrapper, model: type[Model], guard: FenceGuard) -> Triggers:
    body = POSTGRESQL_BODY if connection.vendor == "postgresql" else ""
    return {
        found[1].strip('"`'): found[0] + body
        for sql in _creation(connection, model, guard)
        for found in CREATION.finditer(sql)
    }


def _compared(wanted: Triggers, present: Triggers) -> tuple[State, str]:
    if not wanted.keys() & present.keys():
        return "missing", ""
    amiss = [f"{name} is missing" for name in wanted if name not in present]
    for name in wanted.keys() & present.keys():
        if SPELLING.sub("", wanted[name]).lower() != SPELLING.sub("", present[name]).lower():
            amiss.append(f"{name} is disabled" if present[name].endswith(" DISABLED") else f"{name} is another one")
    return ("differs", ", ".join(sorted(amiss))) if amiss else ("installed", "")


def _surplus(connection: BaseDatabaseWrapper, present: dict[str, Triggers]) -> Iterator[GuardState]:
    fenced = set(_models())
    for table, triggers in present.items():
        models = [one for one in apps.get_models(include_auto_created=True) if one._meta.db_table == table]
        models = [one for one in models if not one._meta.proxy]
        declared = [(one, guard) for one in models if one in fenced for guard in _declared(one)]
        wanted = {name for one, guard in declared for name in _wanted(connection, one, guard)}
        detail, known = "its model declares no such guard", True
        if not models:
            detail, known = "no model here has this table", False
        elif fenced.intersection(models) and not declared:
            detail, known = "the Meta of its model lost the guard: fencing.E006", False
        for name in sorted(triggers.keys() - wanted):
            if 'fencing guard "' in triggers[name]:
                model = models[0] if models else None
                yield _state(connection.alias, table, model, name, "surplus", detail, repairable=known)


def _installation(connection: BaseDatabaseWrapper, found: GuardState) -> list[str]:
    model = apps.get_model(found.model)
    (guard,) = (one for one in _declared(model) if one.name == found.guard)
    creation = _creation(connection, model, guard)
    if kind(connection) == "mariadb":
        return [sql.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1) for sql in creation]
    replaced = _wanted(connection, model, guard) if found.state == "differs" else ()
    return [*(_drop(connection, name, found.table) for name in replaced), *creation]


def _drop(connection: BaseDatabaseWrapper, trigger: str, table: str) -> str:
    quote = connection.ops.quote_name
    where = f" ON {quote(table)}" if connection.vendor == "postgresql" else ""
    return f"DROP TRIGGER IF EXISTS {quote(trigger)}{where}"
