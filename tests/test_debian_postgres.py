"""The oldest PostgreSQL that is supported, from Debian's package: what leans most on the database, in a run of its own.

`make matrix` runs all of it, on each version that the machine has.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inventory_demo.server_support import ServerError
from tests.debian_postgres import OLDEST, PACKAGES, binaries, lacking, run_tests, running
from tests.services import missing

MIGRATIONS = "tests/guards/test_migrations.py::"
REFUSALS = "tests/guards/test_refusals.py::"
BUSY = "tests/guards/test_busy_tables.py::"
PREPARED = "tests/writes/test_prepared.py::"
SAVE = "tests/writes/test_save.py::"
TRANSACTIONS = "tests/test_transactions.py::"

# On PostgreSQL alone: the other databases have been asked before.
SHARP = (
    *(MIGRATIONS + f"test_guard_and_rows_survive[postgresql-{change}-True]" for change in ("alter type", "alter key")),
    MIGRATIONS + "test_guard_and_rows_survive[postgresql-null to not null-False]",
    MIGRATIONS + "test_rename_model_as_makemigrations_writes_it[postgresql]",
    MIGRATIONS + "test_removal_and_backwards[postgresql]",
    MIGRATIONS + "test_addition_to_an_existing_table[postgresql]",
    REFUSALS + "test_i2_raw_update_that_does_not_raise_last_token_is_refused[postgresql-quantity = 0]",
    REFUSALS + "test_i2_raw_delete_is_refused[postgresql]",
    REFUSALS + "test_refusal_says_what_and_what_to_do[postgresql]",
    REFUSALS + "test_lift_does_not_leak_to_the_next_transaction[postgresql-True]",
    BUSY + "test_no_statement_reads_the_table_while_others_are_shut_out[postgresql]",
    BUSY + "test_a_migration_that_failed_in_between_goes_on[postgresql]",
    PREPARED + "test_save_is_one_statement_and_prepared",
    PREPARED + "test_refusal_by_a_prepared_statement",
    PREPARED + "test_schema_changes_under_a_prepared_statement",
    SAVE + "test_refused_write_outlives_the_callers_rollback",
    TRANSACTIONS + "test_effect_key_and_result_commit_together",
    TRANSACTIONS + "test_concurrent_duplicates_take_effect_once",
)


@pytest.mark.slow
def test_the_sharp_ones_pass_on_the_oldest() -> None:
    if reason := lacking(OLDEST):
        missing(reason)
    with running(OLDEST) as server:
        done = run_tests(server, ["-x", *SHARP])
    assert done.returncode == 0, done.stdout
    assert f"servers: PostgreSQL {OLDEST}." in done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= len(SHARP)


def test_a_path_is_the_folder_of_a_servers_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert binaries("17") == PACKAGES / "17" / "bin"
    monkeypatch.chdir(tmp_path)
    for path in ("./bin", str(tmp_path / "bin")):
        assert binaries(path) == tmp_path / "bin"
        assert lacking(path) == f"no initdb and postgres and pg_ctl in {tmp_path / 'bin'}"


def test_programs_that_cannot_be_run_are_told(tmp_path: Path) -> None:
    """As where a library is missing, or the folder is closed to the user that PostgreSQL runs as."""
    for name in ("initdb", "postgres", "pg_ctl"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 127\n")
        (tmp_path / name).chmod(0o755)
    assert lacking(str(tmp_path)) == ""
    with pytest.raises(ServerError, match="postgres cannot be run"), running(str(tmp_path)):
        raise AssertionError("the server runs")
