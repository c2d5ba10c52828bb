"""Fencing a table that is in use: nothing is rewritten, and nobody is shut out while the table is read.

What a statement read under which lock is asked of the database. ``make bigtable ROWS=5000000`` does the same to as many
rows and prints the longest waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connections, migrations, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.writer import OperationWriter
from django.db.transaction import TransactionManagementError

from fencing.conf import MAX_TOKEN
from fencing.fields import TokenField
from fencing.guards import FenceGuard
from fencing.lifting import lift
from fencing.operations import WhileInUse
from tests.concurrency import threads, wait_until

from .conftest import ALIAS, MARIADB, ON_MARIADB, ON_POSTGRESQL, Steps, run
from .test_migrations import GUARD, guard_of
from .traffic import traffic

ROWS = int(os.environ.get("FENCING_TEST_ROWS", "200000"))
# For a busy machine; that nothing is rewritten or read under a lock is asked of the database.
BOUND = 3.0 if ROWS <= 200_000 else 10.0

COLUMN = migrations.AddField("stock", "last_token", TokenField(default=0, db_default=0, editable=False))
TRIGGERS = migrations.AddConstraint("stock", FenceGuard(name=GUARD))

READ = "SELECT quantity FROM shop_stock WHERE id = 17"
WRITE = "UPDATE shop_stock SET quantity = quantity + 1 WHERE id = 18"

# Nobody else can write under these, and under the last one nobody can read.
SHUTTING_OUT = ("ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")

NUMBERS = {
    "postgresql": "SELECT n FROM generate_series(1, {rows}) n",
    "mysql": "SELECT seq FROM seq_1_to_{rows}",
    "sqlite": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {rows}) SELECT n FROM c",
}
PLACE = {
    "postgresql": "SELECT pg_relation_filenode('shop_stock')",
    "mysql": "SELECT table_id FROM information_schema.innodb_sys_tables WHERE name = CONCAT(DATABASE(), '/shop_stock')",
    "sqlite": "SELECT rootpage FROM sqlite_master WHERE name = 'shop_stock'",
}


def table_with(steps: Steps, rows: int) -> Steps:
    """The table before it was fenced."""
    fields: list[tuple[str, Any]] = [
        ("id", models.BigAutoField(primary_key=True)),
        ("quantity", models.IntegerField(default=0)),
    ]
    steps.forwards(migrations.CreateModel("Stock", fields))
    if steps.connection.vendor == "sqlite":
        run(steps.connection, "PRAGMA journal_mode = WAL")
    numbers = NUMBERS[steps.connection.vendor].format(rows=rows)
    run(steps.connection, f"INSERT INTO shop_stock (id, quantity) SELECT n.*, 10 FROM ({numbers}) n")  # noqa: S608
    return steps


@pytest.fixture
def small(steps: Steps) -> Steps:
    return table_with(steps, 30)


@pytest.fixture
def big(steps: Steps) -> Steps:
    return table_with(steps, ROWS)


def answer(connection: BaseDatabaseWrapper, sql: str) -> Any:
    """The one value that a query gives, past Django's own wrappers."""
    with connection.connection.cursor() if connection.vendor != "sqlite" else connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


READ_SO_FAR = {
    "postgresql": "SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_xact_user_tables WHERE relname = 'shop_stock' "
    "AND schemaname = current_schema()",
    "mysql": "SELECT variable_value + 0 FROM information_schema.session_status "
    "WHERE variable_name = 'Handler_read_rnd_next'",
}
SHUT_OUT = f"""
    SELECT count(*) > 0 FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'shop_stock'::regclass
    AND granted AND mode IN {SHUTTING_OUT}"""  # noqa: S608


@contextmanager
def read_under_lock(connection: BaseDatabaseWrapper) -> Iterator[list[int]]:
    """How many rows each statement of the block read of the table while others were shut out.

    MariaDB's DDL has its lock for all of its time.
    """
    found: list[int] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        before = answer(connection, READ_SO_FAR[connection.vendor])
        result = execute(sql, params, many, context)
        if connection.vendor == "mysql" or answer(connection, SHUT_OUT):
            found.append(int(answer(connection, READ_SO_FAR[connection.vendor]) - before))
        return result

    with connection.execute_wrapper(watch):
        yield found


SCANNING = pytest.mark.parametrize("connection", ["postgresql", MARIADB], indirect=True)


@SCANNING
def test_no_statement_reads_the_table_while_others_are_shut_out(big: Steps) -> None:
    place = answer(big.connection, PLACE[big.connection.vendor])
    with read_under_lock(big.connection) as reads:
        big.forwards(WhileInUse([COLUMN]), atomic=False)
        big.forwards(WhileInUse([TRIGGERS]), atomic=False)
    assert len(reads) >= 2
    assert max(reads) < 2000, "what the catalogue is asked, on MariaDB"
    assert answer(big.connection, PLACE[big.connection.vendor]) == place


@ON_POSTGRESQL
def test_djangos_own_migration_reads_all_of_it_while_nobody_else_can(big: Steps) -> None:
    """So what the test above asks would tell."""
    started = time.monotonic()
    with read_under_lock(big.connection) as reads:
        big.forwards(COLUMN, TRIGGERS)
    print(f"\npostgresql, {ROWS} rows: nobody else for {time.monotonic() - started:.2f} s by Django's own migration")
    assert max(reads) == ROWS


def test_users_of_the_table_hardly_wait_and_nothing_is_rewritten(big: Steps) -> None:
    place = answer(big.connection, PLACE[big.connection.vendor])
    times = []
    with traffic(big.connection, READ, WRITE) as users:
        for operation in (COLUMN, TRIGGERS):
            started = time.monotonic()
            big.forwards(WhileInUse([operation]), atomic=False)
            times.append(time.monotonic() - started)
    assert answer(big.connection, PLACE[big.connection.vendor]) == place
    reader, writer = (user.longest for user in users)
    print(
        f"\n{big.connection.vendor}, {ROWS} rows: column {times[0]:.2f} s, guard {times[1]:.2f} s; "
        f"longest wait of a reader {reader:.3f} s, of a writer {writer:.3f} s"
    )
    assert max(reader, writer) < BOUND
    ensure_fenced(big)


def ensure_fenced(steps: Steps) -> None:
    """Whether column, CHECK and guard are what a new table has."""
    connection = steps.connection
    assert answer(connection, "SELECT COUNT(*) FROM shop_stock WHERE last_token <> 0") == 0
    refused = pytest.raises(IntegrityError)
    with refused, transaction.atomic(using=ALIAS), lift(connection, 0):
        run(connection, f"UPDATE shop_stock SET last_token = {MAX_TOKEN + 1} WHERE id = 1")  # noqa: S608
    run(connection, "DELETE FROM shop_stock WHERE id = -1")
    run(connection, "INSERT INTO shop_stock (id, quantity) VALUES (-1, 5)")
    with pytest.raises(IntegrityError), transaction.atomic(using=ALIAS):
        run(connection, "UPDATE shop_stock SET quantity = 1 WHERE id = -1")
    with transaction.atomic(using=ALIAS), lift(connection, 0):
        run(connection, "DELETE FROM shop_stock WHERE id <> 1")
    assert guard_of(steps, "shop_stock") == GUARD
    if connection.vendor == "postgresql":
        sql = "SELECT bool_and(convalidated) FROM pg_constraint WHERE conrelid = 'shop_stock'::regclass"
        assert answer(connection, sql) is True


def test_a_table_that_is_not_free_is_given_up_to_its_users_and_tried_again(small: Steps) -> None:
    """Who comes while it waits is not kept waiting longer than ``wait``."""
    other = small.connection.copy()
    with threads() as start, closing(other):
        other.set_autocommit(False)
        run(other, WRITE)

        def migrate() -> None:
            own: Any = Steps(connections[ALIAS])
            own.states, own.done = list(small.states), list(small.done)
            own.forwards(WhileInUse([COLUMN, TRIGGERS], wait=0.3), atomic=False)

        if small.connection.vendor == "sqlite":
            small.connection.settings_dict["OPTIONS"]["timeout"] = 0.1
        migrating = start(migrate)
        started = time.monotonic()
        for _ in range(8):
            with closing(small.connection.copy()) as third:
                run(third, READ)
        assert not migrating.done()
        assert time.monotonic() - started < 15
        if small.connection.vendor == "postgresql":
            wait_until(lambda: timed_out(small.connection), "a try was given up")
        other.rollback()
        migrating.result(20)
    small.connection.close()
    assert guard_of(small, "shop_stock", where="id = 17") == GUARD


def timed_out(connection: BaseDatabaseWrapper) -> bool:
    """Whether nobody waits for the table at this moment, although somebody wants it."""
    run(connection, "SELECT pg_stat_clear_snapshot()")
    sql = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'shop_stock'::regclass"
    return int(answer(connection, sql)) == 0


def test_patience_ends(small: Steps) -> None:
    small.connection.settings_dict["OPTIONS"].update({"timeout": 0.1} if small.connection.vendor == "sqlite" else {})
    with closing(small.connection.copy()) as other:
        other.set_autocommit(False)
        run(other, WRITE)
        small.connection.close()
        started = time.monotonic()
        with pytest.raises(OperationalError):
            small.forwards(WhileInUse([COLUMN], wait=0.1, patience=0), atomic=False)
        assert time.monotonic() - started < 5
        other.rollback()
    small.forwards(WhileInUse([COLUMN]), atomic=False)
    if small.connection.vendor == "mysql":
        assert answer(small.connection, "SELECT @@lock_wait_timeout = @@global.lock_wait_timeout") == 1


def test_a_migration_that_failed_in_between_goes_on(small: Steps) -> None:
    def fail(_apps: Any, _editor: Any) -> None:
        raise ZeroDivisionError

    failing = migrations.RunPython(fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            small.forwards(WhileInUse([COLUMN, TRIGGERS, failing]), atomic=False)
    small.forwards(WhileInUse([COLUMN, TRIGGERS]), atomic=False)
    ensure_fenced(small)


@ON_MARIADB
def test_mariadb_says_so_where_it_would_have_to_copy_the_table(small: Steps) -> None:
    run(small.connection, "ALTER TABLE shop_stock ROW_FORMAT = COMPRESSED")
    with pytest.raises(OperationalError, match="ALGORITHM=INSTANT is not supported"):
        small.forwards(WhileInUse([COLUMN]), atomic=False)
    assert "last_token" not in columns(small)


@ON_POSTGRESQL
def test_check_that_was_not_validated_is_validated_by_the_next_try(small: Steps) -> None:
    run(small.connection, "ALTER TABLE shop_stock ADD COLUMN last_token bigint DEFAULT 0 NOT NULL")
    run(
        small.connection,
        "ALTER TABLE shop_stock ADD CONSTRAINT shop_stock_last_token_check "
        f"CHECK (last_token BETWEEN 0 AND {MAX_TOKEN}) NOT VALID",
    )
    small.forwards(WhileInUse([COLUMN, TRIGGERS]), atomic=False)
    ensure_fenced(small)


def test_a_column_of_that_name_which_is_another_one_is_not_taken_for_it(small: Steps) -> None:
    run(small.connection, "ALTER TABLE shop_stock ADD COLUMN last_token bigint")
    with pytest.raises(Exception, match=r"already exists|[Dd]uplicate column"):
        small.forwards(WhileInUse([COLUMN]), atomic=False)


def test_backwards_and_again(small: Steps) -> None:
    small.forwards(WhileInUse([COLUMN]), atomic=False)
    small.forwards(WhileInUse([TRIGGERS]), atomic=False)
    small.backwards()
    assert guard_of(small, "shop_stock", where="id = 17") is None
    small.backwards()
    assert run(small.connection, WRITE) == 1
    small.forwards(WhileInUse([COLUMN, TRIGGERS]), atomic=False)
    ensure_fenced(small)


def test_later_migrations_know_the_check(small: Steps) -> None:
    small.forwards(WhileInUse([COLUMN, TRIGGERS]), atomic=False)
    small.forwards(
        migrations.AlterField("stock", "last_token", models.BigIntegerField(default=0, db_default=0)),
        migrations.AlterField("stock", "last_token", COLUMN.field),
    )
    ensure_fenced(small)


@pytest.mark.parametrize("connection", ["postgresql", "sqlite"], indirect=True)
def test_a_migration_that_is_one_transaction_is_refused(small: Steps) -> None:
    """MariaDB has no transaction around DDL, whatever the migration says."""
    with pytest.raises(TransactionManagementError, match="atomic = False"):
        small.forwards(WhileInUse([COLUMN]))


def test_what_sqlmigrate_prints_does_it(small: Steps) -> None:
    before = small.states[-1]
    after = before.clone()
    operation = WhileInUse([COLUMN, TRIGGERS])
    operation.state_forwards("shop", after)
    with small.connection.schema_editor(collect_sql=True, atomic=False) as editor:
        operation.database_forwards("shop", editor, before, after)
    script: list[str] = [str(sql) for sql in editor.collected_sql]
    assert "last_token" not in columns(small)
    for sql in script:
        run(small.connection, sql.replace(";", "") if sql.startswith(("BEGIN", "COMMIT")) else sql)
    small.states.append(after)
    ensure_fenced(small)


def columns(steps: Steps) -> list[str]:
    with steps.connection.cursor() as cursor:
        description = steps.connection.introspection.get_table_description(cursor, "shop_stock")
    return [one.name for one in description]


def test_it_describes_itself_and_can_be_written() -> None:
    operation = WhileInUse([COLUMN, TRIGGERS], wait=1.5)
    assert (
        operation.describe()
        == "WhileInUse: Add field last_token to stock; Create constraint shop_stock_fence on model stock"
    )
    assert operation.reversible
    text, imports = OperationWriter(operation, indentation=0).serialize()
    assert text.startswith("fencing.operations.WhileInUse(") and "wait=1.5" in text and "patience" not in text
    assert {"import fencing.operations", "import fencing.guards", "import fencing.fields"} <= imports
