"""``python -m tests.mutants [--share 2/3]``: remove each protection in turn from a copy, and see the tests notice.

A safety test that still passes without the protection tests nothing. An untouched copy must pass the same tests,
so that a failure is the mutant's and not the machine's. Exit status 1 when a mutant survives. With a share, only the
second of three mutants is tried, the fifth, and so on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from inventory_demo.server_addresses import CHECKOUT, addresses
from inventory_demo.servers import running
from tests import mariadb

# One more than the processors of a small machine, because the tests wait as often as they work.
PARALLEL = 3
BOUND = 300
BOUND_OF_ALL = 900
OPTIONS = ("-x", "-q", *(f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist", "faker", "hypothesispytest")))
COPIED = ("fencing", "inventory_demo", "tests", "manage.py", "pyproject.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One protection removed.

    Attributes:
        name: the protection.
        file: where it stands.
        old: its text, exactly once in the file.
        new: the text without it.
        tests: what has to notice, as arguments of pytest.
        tries: how often they may look: what real processes come upon is a matter of chance.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    tries: int = 1


POOLER = "tests/test_pgbouncer.py::"
BUSY = "tests/guards/test_busy_tables.py::"
AUDIT = "tests/guards/test_audit.py::"
SAVE = "tests/writes/test_save.py::"
MANY = "tests/writes/test_many_rows.py::"
PATHS = "tests/writes/test_odd_paths.py::"
SHAPES = "tests/writes/test_odd_models.py::"
AT_ONCE = "tests/writes/test_many_at_once.py::"
ROLLED_BACK = "tests/writes/test_rolled_back.py::"
INSERTS = "tests/writes/test_inserts_in_flight.py::"
CASCADES = "tests/writes/test_cascades.py::"
BAD = "tests/writes/test_bad_input.py::"
TRANSACTIONS = "tests/test_transactions.py::"
LEASES = "tests/test_leases.py::"
PRUNING = "tests/test_pruning.py::"
HISTORY = "tests/test_history.py::"
EXPIRY = "tests/test_expiry.py::"
RECORD = "tests/writes/test_record.py::test_history_keeps_what_the_setting_says"
REIGNS = "tests/backends/test_reigns.py"
WAITING = "tests/test_waiting.py::"
QUEUES = "tests/backends/test_waiting.py::"
DRILL = "tests/drill/test_play.py::"
CONTRACT = "tests/backends/test_contract.py::"
MARIADB = "tests/test_mariadb.py::"
MARIADB_STORE = "tests/backends/test_mariadb.py::"
HEARTBEAT = "tests/faults/test_heartbeat.py::"
REDIS = "tests/backends/test_redis.py::"
DATABASE = "tests/backends/test_database.py::"
ADMIN = "tests/admin/test_fenced_admin.py::"
REVOKE = "tests/admin/test_revoke.py::"
TIMELINE = "tests/admin/test_timeline.py::"
ADMIN_SECRETS = "tests/admin/test_fenced_admin_secrets.py::"
ADMIN_LISTS = "tests/admin/test_fenced_admin_lists.py::"
ADMIN_PLAIN = "tests/admin/test_fenced_admin_plain.py::"
COMMANDS = "tests/test_commands.py::"
OPERATOR = "tests/celery/test_operator.py::"
DELIVERIES = "tests/celery/test_deliveries.py::"
POLICY = "tests/celery/test_policy.py::"
CALLS = "tests/celery/test_calls.py::"
POOLS = "tests/celery/test_pools.py::"
ROWS = "tests/celery/test_rows.py::"
STRIKES = "tests/celery/test_interruptions.py::"
LIMITS = "tests/celery/test_time_limits.py::"
PAGE = "tests/inventory_demo/test_page.py::"

MUTANTS = (
    Mutant(
        name="the demonstration signals its own processes only",
        file="inventory_demo/processes.py",
        old="mine = os.getpgid(pid) == group",
        new="mine = os.getpgid(pid) >= 0",
        tests=(f"{PAGE}test_process_of_somebody_else_is_never_signalled",),
    ),
    Mutant(
        name="an option that is nearly ours is refused",
        file="fencing/celery/decorators.py",
        old="    _refuse_misspelt([",
        new="    _ = ([",
        tests=(POLICY + "test_option_that_is_nearly_ours_is_refused_at_decoration",),
    ),
    Mutant(
        name="a proxy is saved by one statement",
        file="fencing/fenced.py",
        old="if concrete._meta.parents else",
        new="if self._meta.parents else",
        tests=("tests/writes/test_prepared.py::test_save_of_a_proxy_is_one_statement_too",),
    ),
    Mutant(
        name="the demo page is there with DEBUG only",
        file="inventory_demo/page.py",
        old="if not settings.DEBUG:",
        new="if False:",
        tests=(f"{PAGE}test_page_is_there_for_a_developers_machine_only",),
    ),
    Mutant(
        name="the server of the demo page refuses to start without DEBUG",
        file="inventory_demo/management/commands/serve.py",
        old="if not settings.DEBUG:",
        new="if False:",
        tests=(f"{PAGE}test_server_of_the_page_is_for_a_developers_machine_only",),
    ),
    Mutant(
        name="a step that makes no sense now is refused",
        file="inventory_demo/stage.py",
        old="if not cue.possible:",
        new="if False:",
        tests=(f"{PAGE}test_step_that_makes_no_sense_is_refused_with_a_reason",),
    ),
    Mutant(
        name="who wanted the fence lifted is on record",
        file="fencing/maintenance.py",
        old="({who(by)})",
        new="({who()})",
        tests=("tests/test_reused_connections.py::test_who_wanted_it_is_on_record_with_the_process",),
    ),
    Mutant(
        name="that the fence is lifted ends with the transaction, also in a pool",
        file="fencing/lifting.py",
        old='(f"fencing.{setting}", value))',
        new='(f"fencing.{setting}", value)), cursor.execute(f"SET fencing.{setting} = \'{value}\'")',
        tests=("tests/test_reused_connections.py::test_connection_from_djangos_pool_is_fenced_for_the_next_thread",),
    ),
    Mutant(
        name="what MariaDB's connection was told is taken back when the block is left",
        file="fencing/databases.py",
        old="        raise\n    set_in_any_case(connection, assignment)",
        new="        raise",
        tests=("tests/test_reused_connections.py::test_block_inside_a_transaction_ends_before_it",),
    ),
    Mutant(
        name="SQLite's guard tells other programs what to do",
        file="fencing/guard_sql.py",
        old=""""unfenced": "fencing guard: Django writes this table, under a lease or in unfenced()",""",
        new=""""unfenced": "fencing_unfenced",""",
        tests=("tests/guards/test_other_programs.py::test_sqlite_tells_other_programs_what_to_do",),
    ),
    Mutant(
        name="that the fence is lifted ends with the transaction, also behind a pooler",
        file="fencing/lifting.py",
        old="""SELECT set_config(%s, %s, true)""",
        new="""SELECT set_config(%s, %s, false)""",
        tests=(POOLER + "test_lifted_fence_does_not_reach_the_next_client[never_leave]",),
    ),
    Mutant(
        name="bounds end with the transaction, also behind a pooler",
        file="fencing/bounds.py",
        old="ELSE %s END, true)",
        new="ELSE %s END, false)",
        tests=(POOLER + "test_bounds_do_not_reach_the_next_client",),
    ),
    Mutant(
        name="a driver's unknown count is no success",
        file="fencing/statements.py",
        old="return bool(rows) if isinstance(rows, list) else rows is not None and rows > 0",
        new="return bool(rows)",
        tests=(PATHS + "test_count_that_the_driver_makes_up",),
    ),
    Mutant(
        name="the CHECK of a table in use is added without reading the table",
        file="fencing/busytables.py",
        old="{check} NOT VALID",
        new="{check}",
        tests=(BUSY + "test_no_statement_reads_the_table_while_others_are_shut_out[postgresql]",),
    ),
    Mutant(
        name="and is validated afterwards",
        file="fencing/busytables.py",
        old=" VALIDATE CONSTRAINT {_check_name(editor, table, field)}",
        new=" ALTER id SET STATISTICS -1",
        tests=(BUSY + "test_a_migration_that_failed_in_between_goes_on[postgresql]",),
    ),
    Mutant(
        name="a change of a table in use waits a moment only",
        file="fencing/busytables.py",
        old="""self.editor.execute(f"SET LOCAL lock_timeout = '{milliseconds(self.wait)}'")""",
        new="self.editor.execute(\"SET LOCAL lock_timeout = '6s'\")",
        tests=(BUSY + "test_patience_ends[postgresql]",),
    ),
    Mutant(
        name="MariaDB adds the column at once, or refuses",
        file="fencing/busytables.py",
        old='", ALGORITHM=INSTANT" if',
        new='"" if',
        tests=(BUSY + "test_mariadb_says_so_where_it_would_have_to_copy_the_table",),
    ),
    Mutant(
        name="a migration that is one transaction keeps no lock while it reads the table",
        file="fencing/busytables.py",
        old="if self.connection.in_atomic_block:",
        new="if False:",
        tests=(BUSY + "test_a_migration_that_is_one_transaction_is_refused",),
    ),
    Mutant(
        name="a migration of a table in use goes on where it stopped",
        file="fencing/busytables.py",
        old='.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER")',
        new="",
        tests=(BUSY + "test_a_migration_that_failed_in_between_goes_on[postgresql]",),
    ),
    Mutant(
        name="a lease of another backend is refused by name",
        file="fencing/fenced.py",
        old="if lease.resource != name or lease.using != fence.using:",
        new="if lease.resource != name:",
        tests=(BAD + "test_lease_of_another_alias_and_namespace",),
    ),
    Mutant(
        name="a lease of another backend is none of the row's",
        file="fencing/scope.py",
        old="if held.resource == resource and held.using == using:",
        new="if held.resource == resource:",
        tests=(BAD + "test_lease_of_another_alias_and_namespace",),
    ),
    Mutant(
        name="the token of a row from a file is one",
        file="fencing/createdrow.py",
        old="token, lease = imported_token(self.last_token), None",
        new="token, lease = self.last_token, None",
        tests=(BAD + "test_fixture_with_what_is_no_token",),
    ),
    Mutant(
        name="the token of a revocation is one",
        file="fencing/revocation.py",
        old="        tokens.check_token(token)\n",
        new="        pass\n",
        tests=(BAD + "test_what_is_no_token_is_refused_before_any_sql",),
    ),
    Mutant(
        name="deletes that begin at an unfenced row are judged",
        file="fencing/cascades.py",
        old='reached = () if getattr(self, "fencing_judged", False) else fenced_rows(self)',
        new="reached: Any = ()",
        tests=(CASCADES + "test_cascade_to_rows_with_receivers", CASCADES + "test_cascade_to_multi_table_children"),
    ),
    Mutant(
        name="rows that Django has read are set to NULL through the fence",
        file="fencing/cascades.py",
        old='if getattr(rows, "_result_cache", ()) is not None:',
        new="if False:",
        tests=(CASCADES + "test_set_null_of_rows_that_django_has_read",),
    ),
    Mutant(
        name="the guard of a delete of several models hears the highest number",
        file="fencing/deletes.py",
        old="naming_token(connection, max(tokens))",
        new="naming_token(connection, tokens[-1])",
        tests=(CASCADES + "test_cascade_to_rows_of_several_resources_and_models",),
    ),
    Mutant(
        name="a delete takes no row with it that came after it was judged",
        file="fencing/deletes.py",
        old="return sum(_plain_raw_delete(queryset.filter(pk__in=part), using) for part in parts)",
        new="return _plain_raw_delete(queryset, using)",
        tests=(CASCADES + "test_row_that_came_while_a_delete_was_under_way_is_nobodys_to_delete",),
    ),
    Mutant(
        name="bulk_update notices that two objects of a row were read at different times",
        file="fencing/bulkwrites.py",
        old="if pins.setdefault(key, one._fence_pin) != one._fence_pin:",
        new="pins[key] = one._fence_pin\n        if False:",
        tests=(MANY + "test_bulk_update_of_one_row_read_at_different_times",),
    ),
    Mutant(
        name="none of several objects of a row is the row after a bulk_update",
        file="fencing/querysets.py",
        old="moved=different[key] == 1",
        new="moved=True",
        tests=(MANY + "test_bulk_update_of_objects_of_one_row",),
    ),
    Mutant(
        name="an upsert onto a row whose name is equal to the database only is undone",
        file="fencing/conflicts.py",
        old='return connection.vendor == "mysql" or not by_bytes',
        new="return False",
        tests=("tests/test_mariadb.py::test_i4_upsert_onto_a_row_whose_name_is_equal_to_the_database_only",),
    ),
    Mutant(
        name="an upsert does not change the name of the row that it meets",
        file="fencing/querysets.py",
        old='conflicts.without_names(fence_of(self.model), options["update_fields"])',
        new='options["update_fields"]',
        tests=("tests/test_mariadb.py::test_i4_upsert_onto_a_row_whose_name_is_equal_to_the_database_only",),
    ),
    Mutant(
        name="a child that is saved without its parent passes the parent's row",
        file="fencing/fenced.py",
        old="if not self._fence_with_parents and",
        new="if False and",
        tests=(SHAPES + "test_child_that_is_saved_without_its_parent",),
    ),
    Mutant(
        name="a refusal is mended with the commit, not before",
        file="fencing/refusals.py",
        old="        if connection.in_atomic_block:\n            # Django drops",
        new="        if False:\n            # Django drops",
        tests=(PATHS + "test_refusal_that_was_mended_by_what_was_undone",),
    ),
    Mutant(
        name="what was written inside an inner delete, the outer one knows",
        file="fencing/lifting.py",
        old="    if outer is not None and raised is not None and raised > max(token, outer):\n",
        new="    if outer is not None and raised is None:\n",
        tests=(CASCADES + "test_receiver_that_writes_a_row_inside_another_delete",),
    ),
    Mutant(
        name="a row that a receiver has taken out of a delete is not recorded as deleted",
        file="fencing/deletes.py",
        old="        if deleted.get(owner._meta.label, 0) != len(judged)\n",
        new="        if not judged\n",
        tests=(CASCADES + "test_receiver_that_takes_a_row_out_of_a_delete",),
    ),
    Mutant(
        name="an INSERT has its row before it passes the resource",
        file="fencing/lockedrows.py",
        old="            yield tokens\n",
        new="                pass_inserted(connection, fence, lease, keys[lease], tokens[lease])\n            yield tokens\n",
        tests=(INSERTS + "test_row_of_a_sleeper_in_a_fenced_transaction",),
    ),
    Mutant(
        name="a superseded INSERT that meets a row is a stale write",
        file="fencing/lockedrows.py",
        old="            if overtaken or guard_name_of(error):\n",
        new="            if guard_name_of(error):\n",
        tests=(INSERTS + "test_superseded_insert_that_meets_a_row_is_no_error_of_the_database",),
    ),
    Mutant(
        name="rows that were created at once count as accepted",
        file="fencing/querysets.py",
        old="            held.accepted += bool(made)\n",
        new="            pass\n",
        tests=(POLICY + "test_i6_body_with_a_committed_upsert_is_not_repeated",),
    ),
    Mutant(
        name="objects of a refused INSERT are new still",
        file="fencing/querysets.py",
        old="                obj.__dict__.update(values)\n                obj._state.adding, obj._state.db = adding, alias\n",
        new="                obj.__dict__.update(values)\n",
        tests=(INSERTS + "test_objects_of_a_refused_insert_are_new_still",),
    ),
    Mutant(
        name="what was passed and not committed, by whichever thread of the lease, refuses nobody",
        file="fencing/writes.py",
        old="        return send_statement(connection, lease, write, token, Way.RAISE)\n",
        new="        return send_statement(connection, lease, write, token)\n",
        tests=(
            TRANSACTIONS + "test_thread_of_a_lease_beside_one_that_has_not_committed",
            TRANSACTIONS + "test_save_passes_the_resource_although_its_raise_was_rolled_back",
        ),
    ),
    Mutant(
        name="threads of one lease take numbers of their own",
        file="fencing/leases.py",
        old="        with self._numbers:\n            number = self.advance() if self._used",
        new="        if True:\n            number = self.advance() if self._used",
        tests=(LEASES + "test_threads_of_one_lease_take_numbers_of_their_own",),
    ),
    Mutant(
        name="a refusal is mended in its own database",
        file="fencing/refusals.py",
        old="        key = (connection.alias, what)\n",
        new="        key = next((one for one in self._known if one[1] == what), (connection.alias, what))\n",
        tests=(PATHS + "test_refusal_is_not_mended_in_another_database",),
    ),
    Mutant(
        name="a wait that the body did not want is no lost lease",
        file="fencing/timeleft.py",
        old="return not self._lease.is_held() or monotonic() >= self._until",
        new="return True",
        tests=(PATHS + "test_wait_that_the_body_did_not_want_is_no_lost_lease",),
    ),
    Mutant(
        name="a body that was committed before a refusal is not repeated",
        file="fencing/transactions.py",
        old="            self.is_committed = True\n",
        new="",
        tests=("tests/celery/test_policy.py::test_i5_body_whose_commit_was_followed_by_a_refusal_is_not_repeated",),
    ),
    Mutant(
        name="a guard that is missing in another schema is noticed",
        file="fencing/guard_audit.py",
        old="if _names_schema(table) and _is_there(connection, table):",
        new="if False:",
        tests=(AUDIT + "test_table_of_another_schema",),
    ),
    Mutant(
        name="an instance of another database is held to the name of the row that it meets",
        file="fencing/fenced.py",
        old="            if self._state.db != using:",
        new="            if False:",
        tests=(PATHS + "test_row_of_another_database_has_its_own_name",),
    ),
    Mutant(
        name="a name that a collation takes for equal is another one",
        file="fencing/statements.py",
        old="    return row == dict(write.named)\n",
        new="    return plain(write.fence.owner, connection.alias).filter(pk=write.pk, **write.named).exists()\n",
        tests=(PATHS + "test_expression_does_not_reach_a_row_that_was_given_another_name",),
    ),
    Mutant(
        name="a name is that of the value with which the row is made",
        file="fencing/naming.py",
        old="    for one in fence.made:\n",
        new="    for one in ():\n",
        tests=(SHAPES + "test_name_that_is_made_when_the_row_is_saved",),
    ),
    Mutant(
        name="a row that was made under another name is undone",
        file="fencing/createdrow.py",
        old="        if fence.name(inserted) != lease.resource:\n",
        new="        if False:\n",
        tests=(SHAPES + "test_name_that_is_another_each_time",),
    ),
    Mutant(
        name="a row of many that was made under another name is undone",
        file="fencing/querysets.py",
        old="if fence.made and name_of_new(obj) !=",
        new="if False and name_of_new(obj) !=",
        tests=(SHAPES + "test_name_that_is_another_each_time",),
    ),
    Mutant(
        name="a refusal before a transaction that is undone still counts",
        file="fencing/transactions.py",
        old="            self.lease.accepted = self._accepted_before\n",
        new="            self.lease.refusals = type(self.lease.refusals)()\n",
        tests=(PATHS + "test_refusal_before_a_transaction_that_was_undone_counts",),
    ),
    Mutant(
        name="an expression reaches no row that was given another name",
        file="fencing/fenced.py",
        old="        if not write.compares:\n",
        new="        if False:\n",
        tests=(PATHS + "test_expression_does_not_reach_a_row_that_was_given_another_name",),
    ),
    Mutant(
        name="a receiver may write a row that is being deleted",
        file="fencing/writes.py",
        old="    if named is not None and named <= token:",
        new="    if False:",
        tests=(CASCADES + "test_receiver_that_writes_a_row_before_it_is_deleted",),
    ),
    Mutant(
        name="a name is made of what a field keeps",
        file="fencing/naming.py",
        old="return field.to_python(field.get_prep_value(value))",
        new="return value",
        tests=(SHAPES + "test_value_that_a_field_keeps_otherwise_than_it_was_given",),
    ),
    Mutant(
        name="a child with a key of its own is refused",
        file="fencing/naming.py",
        old="    if not shares_key(model):",
        new="    if False:",
        tests=("tests/test_checks.py::test_e017_child_with_a_key_of_its_own",),
    ),
    Mutant(
        name="a member of an enumeration is its value in a name",
        file="fencing/naming.py",
        old="return str.__str__(value)",
        new="return str(value)",
        tests=(SHAPES + "test_member_of_an_enumeration_is_its_value_in_a_name",),
    ),
    Mutant(
        name="an update records what it updated",
        file="fencing/bulkwrites.py",
        old="if updated != len(group):",
        new="if False:",
        tests=(TRANSACTIONS + "test_update_records_what_it_updated_and_no_row_that_stopped_to_match",),
    ),
    Mutant(
        name="ignored rows are not on record",
        file="fencing/querysets.py",
        old='if options["ignore_conflicts"]:\n                        made',
        new="if False:\n                        made",
        tests=(PATHS + "test_ignored_rows_are_not_on_record_as_accepted",),
    ),
    Mutant(
        name="an upsert with the fence lifted lowers no number",
        file="fencing/conflicts.py",
        old="one.last_token = max(one.last_token, highest.get(_values_of(one, names), 0))",
        new="pass",
        tests=(PATHS + "test_upsert_with_the_fence_lifted_lowers_no_number",),
    ),
    Mutant(
        name="a row that is gone before its name was read is refused",
        file="fencing/readrow.py",
        old="raise self._fence_gone(fence, rows.db, key_in(fence, loaded))",
        new="pass",
        tests=(PATHS + "test_row_that_is_gone_before_its_name_was_read",),
    ),
    Mutant(
        name="objects of the order among siblings are not compared with a read",
        file="fencing/querysets.py",
        old='blind = fields == ("_order",) and all(obj._state.adding for obj in objs)',
        new='blind = fields == ("_order",)',
        tests=(SHAPES + "test_order_among_siblings",),
    ),
    Mutant(
        name="a row has one name, whatever a proxy says",
        file="fencing/naming.py",
        old='template = getattr(owner, "fence_resource", "")',
        new='template = getattr(model, "fence_resource", "")',
        tests=(SHAPES + "test_name_and_backend_are_those_of_the_class_with_the_column",),
    ),
    Mutant(
        name="a tighter bound on waiting stays",
        file="fencing/bounds.py",
        old="CASE WHEN {tighter} THEN {present} ELSE %s END, true)",
        new="CASE WHEN {tighter} AND false THEN {present} ELSE %s END, true)",
        tests=(TRANSACTIONS + "test_bound_on_waiting_that_is_tighter_stays",),
    ),
    Mutant(
        name="the < of the row fence (one statement)",
        file="fencing/rowstatement.py",
        old="(SELECT 1 FROM old WHERE old.seen < %(token)s{compare})",
        new="(SELECT 1 FROM old WHERE (old.seen < %(token)s OR true){compare})",
        tests=(SAVE + "test_row_fence_alone_refuses_a_token_that_is_not_higher",),
    ),
    Mutant(
        name="the < of the row fence (steps)",
        file="fencing/statements.py",
        old="pk=write.pk, last_token__lt=token, **condition",
        new="pk=write.pk, **condition",
        tests=(SAVE + "test_row_fence_alone_refuses_a_token_that_is_not_higher",),
    ),
    Mutant(
        name="the < of the row fence (many rows)",
        file="fencing/lockedrows.py",
        old="stale = [row for row in rows if row.seen >= token]",
        new="stale: list[LockedRow] = []",
        tests=(MANY + "test_queryset_delete_by_a_superseded_holder", MANY + "test_update_by_a_superseded_holder"),
    ),
    Mutant(
        name="the comparison with what was read",
        file="fencing/expressions.py",
        old="return not chosen or not all(refers_to_column(value) for value in chosen)",
        new="return False",
        tests=(SAVE + "test_late_write_between_read_and_write_is_not_lost",),
    ),
    Mutant(
        name="the comparison with what was read (many rows)",
        file="fencing/lockedrows.py",
        old="moved = [row for row in rows if pins is not None and pins[row.pk] != row.seen]",
        new="moved: list[LockedRow] = []",
        tests=(MANY + "test_bulk_update_compares_object_by_object",),
    ),
    Mutant(
        name="the drill sees a row without its < (one statement)",
        file="fencing/rowstatement.py",
        old="(SELECT 1 FROM old WHERE old.seen < %(token)s{compare})",
        new="(SELECT 1 FROM old WHERE (old.seen < %(token)s OR true){compare})",
        tests=(DRILL + "test_sleepers_of_one_statement_overtaken_past_the_orm",),
        tries=3,
    ),
    Mutant(
        name="the drill sees rows without their < (many rows)",
        file="fencing/lockedrows.py",
        old="stale = [row for row in rows if row.seen >= token]",
        new="stale: list[LockedRow] = []",
        tests=(DRILL + "test_sleepers_of_many_rows_overtaken_past_the_orm",),
        tries=3,
    ),
    Mutant(
        name="the drill sees a guard without its <",
        file="fencing/guard_sql.py",
        old="WHEN ((NEW.last_token > OLD.last_token) IS NOT TRUE) EXECUTE",
        new="WHEN (false) EXECUTE",
        tests=(DRILL + "test_sleepers_past_the_orm",),
        tries=3,
    ),
    Mutant(
        name="the drill sees that nothing is compared with what was read",
        file="fencing/expressions.py",
        old="return not chosen or not all(refers_to_column(value) for value in chosen)",
        new="return False",
        tests=(DRILL + "test_sleepers_who_read_before_a_late_write",),
        tries=3,
    ),
    Mutant(
        name="the drill sees a release that does not ask whose lease it is",
        file="fencing/backends/scripts/release.lua",
        old="local ours = holder == ARGV[1]",
        new="local ours = holder ~= nil",
        tests=(DRILL + "test_sleepers_of_the_orm_overtaken_by_saves",),
        tries=3,
    ),
    Mutant(
        name="the drill sees a counter that starts again",
        file="fencing/tokens.py",
        old="backend.install(place, answer.reign, numbers[0], numbers[-1])\n    raise",
        new="backend.install(place, answer.reign, answer.next, answer.next + len(numbers))\n    raise",
        tests=(DRILL + "test_store_that_forgets",),
        tries=3,
    ),
    Mutant(
        name="the drill sees a resource that nobody passes",
        file="fencing/resources.py",
        old='f"passed AS ({raising(locked, begins=0)})"',
        new='"passed AS (SELECT 1 FROM old)"',
        tests=(DRILL + "test_sleepers_of_the_orm_overtaken_on_other_rows",),
        tries=3,
    ),
    Mutant(
        name="values worked out in Python are compared",
        file="fencing/expressions.py",
        old="    if isinstance(value, F):\n        return True\n",
        new="    if isinstance(value, (F, Value, Case, Func)):\n        return True\n",
        tests=(SAVE + "test_values_worked_out_in_python_are_compared",),
    ),
    Mutant(
        name="the pin does not move after an expression save of a moved row",
        file="fencing/fenced.py",
        old="moved=write.compares or verdict.seen == write.pin",
        new="moved=True",
        tests=(SAVE + "test_expression_save_does_not_pretend_to_have_read_the_row",),
    ),
    Mutant(
        name="last_token comes from the row's own read",
        file="fencing/readrow.py",
        old="            if self.last_token != self._fence_pin:\n                self._fence_pin = None\n",
        new="            self._fence_pin = self.last_token\n",
        tests=(SAVE + "test_partial_reads_never_leave_the_token_out",),
    ),
    Mutant(
        name="the resource's row (one statement)",
        file="fencing/resources.py",
        old='f"passed AS ({raising(locked, begins=0)})"',
        new='"passed AS (SELECT 1 FROM old)"',
        tests=(TRANSACTIONS + "test_begin_is_respected_by_an_older_row_write",),
    ),
    Mutant(
        name="the resource's row (steps)",
        file="fencing/statements.py",
        old="passed = seen is not None and pass_resource(connection, lease, begun=has_begun(connection, lease))",
        new="passed = seen is not None",
        tests=(SAVE + "test_superseded_holder_cannot_write_a_row_that_nobody_newer_has_touched",),
    ),
    Mutant(
        name="the resource's row (many rows)",
        file="fencing/lockedrows.py",
        old="    if not pass_resource(connection, lease, begun=has_begun(connection, lease)):\n        raise RefusalError(StaleWriteError, lease, tried, f",
        new="    if False:\n        raise RefusalError(StaleWriteError, lease, tried, f",
        tests=(MANY + "test_update_by_a_holder_who_was_superseded_on_another_row",),
    ),
    Mutant(
        name="the resource's row (inserts)",
        file="fencing/lockedrows.py",
        old="    if not pass_resource(connection, lease, begun=has_begun(connection, lease)):\n        raise RefusalError(StaleWriteError, lease, _insertion",
        new="    if False:\n        raise RefusalError(StaleWriteError, lease, _insertion",
        tests=(SAVE + "test_superseded_holder_cannot_bring_a_deleted_row_back",),
    ),
    Mutant(
        name="the resource's row is locked, not only read",
        file="fencing/resources.py",
        old=' AND {locked} FOR SHARE" if way',
        new=' AND {locked}" if way',
        tests=(
            TRANSACTIONS + "test_begin_waits_for_a_later_write_of_an_older_holder_too",
            TRANSACTIONS + "test_old_statement_that_waited_is_refused_although_it_had_passed_before",
        ),
    ),
    Mutant(
        name="the begin's refusal",
        file="fencing/transactions.py",
        old="        if begins is None:\n            raise",
        new="        if False:\n            raise",
        tests=(TRANSACTIONS + "test_superseded_holder_cannot_begin",),
    ),
    Mutant(
        name="the end's check",
        file="fencing/transactions.py",
        old="        if not held:\n",
        new="        if False:\n",
        tests=(TRANSACTIONS + "test_superseded_holder_has_no_effect_on_any_table",),
    ),
    Mutant(
        name="the count of begins",
        file="fencing/resources.py",
        old="{MINE} AND begins = %s",
        new="{MINE} AND begins >= %s",
        tests=(TRANSACTIONS + "test_two_transactions_of_one_lease_do_not_both_take_effect",),
    ),
    Mutant(
        name="the operation's key at the end",
        file="fencing/transactions.py",
        old="        if not taken:\n",
        new="        if False:\n",
        tests=(TRANSACTIONS + "test_concurrent_duplicates_take_effect_once",),
    ),
    Mutant(
        name="the operation's key at the begin",
        file="fencing/transactions.py",
        old="        if found is not None:\n            self._leave",
        new="        if False:\n            self._leave",
        tests=(TRANSACTIONS + "test_duplicate_gets_the_recorded_result_and_no_effect",),
    ),
    Mutant(
        name="a connection that closes without a word ends a sleeper's time",
        file="fencing/timeleft.py",
        old="was_cut_off = is_cut_off(error) and",
        new="was_cut_off = False and",
        tests=(
            TRANSACTIONS + "test_connection_that_ends_without_a_word_when_the_lease_is_over_is_the_end_of_its_time",
        ),
    ),
    Mutant(
        name="a commit without an answer is in doubt",
        file="fencing/timeleft.py",
        old=" and not in_doubt\n",
        new="\n",
        tests=(TRANSACTIONS + "test_commit_without_an_answer_is_not_taken_for_a_refusal",),
    ),
    Mutant(
        name="a connection that closes under a live lease is no end of its time",
        file="fencing/timeleft.py",
        old=" and not self._lease.is_held() and",
        new=" and",
        tests=(TRANSACTIONS + "test_connection_that_ends_under_a_live_lease_is_the_databases_own_error",),
    ),
    Mutant(
        name="swallowed refusals are raised at the end",
        file="fencing/transactions.py",
        old="        self.lease.refusals.raise_unmended(self._earlier)\n",
        new="",
        tests=(TRANSACTIONS + "test_swallowed_refusal_is_raised_at_the_end",),
    ),
    Mutant(
        name="a swallowed loss is raised at the end",
        file="fencing/writes.py",
        old='        lease.refusals.add(connection, f"{tried.model} {tried.object_pk}", error)\n',
        new="",
        tests=(PATHS + "test_lost_number_that_the_body_swallows",),
    ),
    Mutant(
        name="an unread row's own resource",
        file="fencing/fenced.py",
        old="not write.compares and fence.name(row) != self.fence_name()",
        new="False",
        tests=(PATHS + "test_expression_does_not_reach_a_row_of_another_resource",),
    ),
    Mutant(
        name="update() keeps a row in its resource",
        file="fencing/bulkwrites.py",
        old="        if _touches_name(fence, values):\n",
        new="        if False:\n",
        tests=(PATHS + "test_no_update_moves_a_row_to_another_resource",),
    ),
    Mutant(
        name="a number that was rolled back is not the next write's",
        file="fencing/leases.py",
        old="        if self.newest_token <= max(floor, sent):\n",
        new="        if self.newest_token <= floor:\n",
        tests=(
            PATHS + "test_number_of_a_write_that_was_rolled_back_is_not_the_next_ones",
            PATHS + "test_number_of_an_insert_that_was_rolled_back_is_not_the_next_ones",
        ),
    ),
    Mutant(
        name="an INSERT that met a row has read nothing",
        file="fencing/querysets.py",
        old="            if over:\n",
        new="            if False:\n",
        tests=(PATHS + "test_insert_that_met_another_row_has_read_nothing",),
    ),
    Mutant(
        name="bulk_update() of what was read only",
        file="fencing/bulkwrites.py",
        old="one._fence_pin is None or one._fence_is_unread(fence)",
        new="one._fence_pin is None",
        tests=(PATHS + "test_bulk_update_of_objects_that_did_not_read_their_rows",),
    ),
    Mutant(
        name="nothing is prepared behind a pooler",
        file="fencing/prepared.py",
        old="row[-1] == _greeter(connection)",
        new="row",
        tests=("tests/writes/test_prepared.py::test_nothing_is_prepared_behind_a_pooler",),
    ),
    Mutant(
        name="OPTIONS may forbid to prepare",
        file="fencing/prepared.py",
        old='asked = options["prepare_threshold"] is not None',
        new="asked = True",
        tests=("tests/writes/test_prepared.py::test_no_threshold_is_no",),
    ),
    Mutant(
        name="a prepared statement that has gone is sent in Django's way",
        file="fencing/prepared.py",
        old="        if connection.in_atomic_block or not connection.get_autocommit():\n            raise\n",
        new="        raise\n",
        tests=("tests/writes/test_prepared.py::test_prepared_statement_that_has_gone_is_sent_in_djangos_way",),
    ),
    Mutant(
        name="only plain values are bound",
        file="fencing/rowstatement.py",
        old="if not isinstance(value, bound_alike()):",
        new="if False:",
        tests=("tests/writes/test_prepared.py::test_values_that_can_be_bound",),
    ),
    Mutant(
        name="RECORD decides on lines of accepted writes (one statement)",
        file="fencing/rowstatement.py",
        old="write.fence.label if history.wanted(history.ACCEPTED) else None",
        new="write.fence.label",
        tests=(RECORD + "[default-refused]",),
    ),
    Mutant(
        name="RECORD decides on lines of accepted writes (many rows in one statement)",
        file="fencing/manyrows.py",
        old="recorded=history.wanted(history.ACCEPTED),",
        new="recorded=True,",
        tests=(RECORD + "[default-none]",),
    ),
    Mutant(
        name="RECORD decides on lines of steps",
        file="fencing/history.py",
        old="for attempt in attempts if wanted(attempt.outcome)]",
        new="for attempt in attempts]",
        tests=(RECORD + "[lite-refused]", RECORD + "[maria-refused]"),
    ),
    Mutant(
        name="RECORD says refused, and means everything that is not accepted",
        file="fencing/history.py",
        old="outcome != ACCEPTED)",
        new='outcome == "stale")',
        tests=(RECORD + "[lite-refused]",),
    ),
    Mutant(
        name="the < of the row fence (many rows in one statement)",
        file="fencing/manyrows.py",
        old="(seen < %(token)s AND (",
        new="((",
        tests=("tests/writes/test_many_at_once.py::test_row_fence_alone_refuses",),
    ),
    Mutant(
        name="the rows' own resource (many rows in one statement)",
        file="fencing/manyrows.py",
        old=' COLLATE "C" = %(resource)s)',
        new=" IS NOT NULL)",
        tests=("tests/writes/test_many_at_once.py::test_rows_of_another_resource",),
    ),
    Mutant(
        name="the resource's row (many rows in one statement)",
        file="fencing/manyrows.py",
        old="AND EXISTS (SELECT 1 FROM passed) RETURNING old.key",
        new="RETURNING old.key",
        tests=(MANY + "test_update_by_a_holder_who_was_superseded_on_another_row",),
    ),
    Mutant(
        name="the idling bound with the first lock",
        file="fencing/rowstatement.py",
        old="    bound = bounds_idling(connection, lease)\n",
        new="    bound = False\n",
        tests=(TRANSACTIONS + "test_sleeper_after_its_first_write_is_ended_by_the_database",),
    ),
    Mutant(
        name="the idling bound with the end",
        file="fencing/borders.py",
        old="    if idle:\n",
        new="    if False:\n",
        tests=(TRANSACTIONS + "test_sleeper_between_its_end_and_its_commit_is_ended_by_the_database",),
    ),
    Mutant(
        name="the begin comes before the snapshot",
        file="fencing/snapshots.py",
        old="if level and has_snapshot(connection, level):",
        new="if False:",
        tests=(TRANSACTIONS + "test_begin_under_repeatable_read_must_come_first",),
    ),
    Mutant(
        name="the refusal outlives the rollback",
        file="fencing/history.py",
        old="        with autocommit(connection.alias) as own:\n            record(own, [attempt])\n",
        new="        record(connection, [attempt])\n",
        tests=(SAVE + "test_refused_write_outlives_the_callers_rollback",),
    ),
    Mutant(
        name="the release's comparison of the holder",
        file="fencing/backends/scripts/release.lua",
        old="local ours = holder == ARGV[1]",
        new="local ours = holder ~= nil",
        tests=(LEASES + "test_release_of_a_lost_lease_spares_the_newer_holder",),
    ),
    Mutant(
        name="the renewal's comparison of the holder",
        file="fencing/backends/scripts/renew.lua",
        old="if holder ~= ARGV[1] then",
        new="if not holder then",
        tests=(LEASES + "test_heartbeat_notices_the_loss_and_leaves_the_others_lease_alone",),
    ),
    Mutant(
        name="the reign in the install",
        file="fencing/backends/scripts/install.lua",
        old="state.reign ~= ARGV[1] or ",
        new="",
        tests=(REIGNS,),
    ),
    Mutant(
        name="the reign of a lease that advances",
        file="fencing/backends/scripts/advance.lua",
        old="if state.server ~= server or state.reign ~= reign then",
        new="if false then",
        tests=(REIGNS,),
    ),
    Mutant(
        name="the time in a reign's name",
        file="fencing/backends/scripts/reign.lua",
        old="local reign = offer .. ':' .. time[1] .. '.' .. time[2]",
        new="local reign = offer",
        tests=(REIGNS,),
    ),
    Mutant(
        name="another server's hash is no base to count on",
        file="fencing/backends/scripts/reign.lua",
        old="if state.server ~= server or not state.reign then",
        new="if not state.reign then",
        tests=(REIGNS,),
    ),
    Mutant(
        name="a forked child holds nothing",
        file="fencing/leases.py",
        old="return not self._released and self._pid == os.getpid()",
        new="return not self._released",
        tests=(LEASES + "test_forked_child_holds_nothing_and_releases_nothing",),
    ),
    Mutant(
        name="nothing is left after an interruption",
        file="fencing/acquiring.py",
        old="        _give_back(backend, name, holder)\n        raise",
        new="        raise",
        tests=(LEASES + "test_interruption_after_the_store_answered_leaves_nothing",),
    ),
    Mutant(
        name="the guard",
        file="fencing/guards.py",
        old='return any(field.name == "last_token" for field in model._meta.local_concrete_fields)',
        new="return False",
        tests=(MANY + "test_raw_sql_meets_the_guard", "tests/guards/test_refusals.py"),
    ),
    Mutant(
        name="a trigger that is there and does something else is noticed",
        file="fencing/guard_audit.py",
        old='if SPELLING.sub("", wanted[name]).lower() != SPELLING.sub("", present[name]).lower():',
        new="if False:",
        tests=(AUDIT + "test_triggers_that_are_there_and_do_nothing",),
    ),
    Mutant(
        name="a guard that applied migrations have created is missed",
        file="fencing/modelchecks.py",
        old="_guards_in(loader.project_state()) - _guards_in(loader.project_state(applied))",
        new="_guards_in(loader.project_state())",
        tests=(AUDIT + "test_guard_that_migrate_is_about_to_create_is_not_missed",),
    ),
    Mutant(
        name="a guard of somebody else's table is left",
        file="fencing/guard_audit.py",
        old='detail, known = "no model here has this table", False',
        new='detail, known = "no model here has this table", True',
        tests=(AUDIT + "test_guard_of_a_table_that_no_model_here_has_is_left",),
    ),
    Mutant(
        name="the exit status of fencing guards",
        file="fencing/management/guards.py",
        old="    if amiss:\n",
        new="    if False:\n",
        tests=(AUDIT + "test_what_is_amiss_is_said_and_put_right",),
    ),
    Mutant(
        name="unfenced() carries a number",
        file="fencing/bulkwrites.py",
        old='_plain_update(queryset, {**values, "last_token": Greatest(F("last_token"), Value(lifter))})',
        new="_plain_update(queryset, values)",
        tests=("tests/test_maintenance.py::test_every_write_path_is_open_carries_the_number_and_is_on_record",),
    ),
    Mutant(
        name="a write with the fence lifted outnumbers what a holder has written since",
        file="fencing/maintenance.py",
        old="    if 0 < number < highest:\n",
        new="    if False:\n",
        tests=("tests/test_maintenance.py::test_holder_who_has_written_since_the_block_began_notices",),
    ),
    Mutant(
        name="an upsert with the fence lifted looks at the rows that it may meet",
        file="fencing/querysets.py",
        old="""highest = conflicts.highest_alike(connection, self.model, objs, options["unique_fields"] or ())""",
        new="highest = 0",
        tests=("tests/test_maintenance.py::test_holder_who_has_written_since_the_block_began_notices",),
    ),
    Mutant(
        name="a number of another partition is no number for the row",
        file="fencing/tokens.py",
        old="    number = draw(backend, resource)\n    if number > seen:\n        return number\n",
        new="    return draw(backend, 'unfenced')\n",
        tests=("tests/test_maintenance.py::test_holder_who_counts_in_another_partition_notices",),
    ),
    Mutant(
        name="a transaction that was begun in SQL is one",
        file="fencing/connections.py",
        old="return not connection.autocommit or _has_begun(connection)",
        new="return not connection.autocommit",
        tests=("tests/test_connections.py::test_a_range_survives_the_rollback_of_a_transaction_that_was_begun_in_sql",),
    ),
    Mutant(
        name="what a waiter in memory was told before it asked again is no grant",
        file="fencing/backends/memory.py",
        old="""        self._granted = None
        return self.backend""",
        new="        return self.backend",
        tests=("tests/backends/test_waiting.py::test_what_was_told_before_the_last_question_is_no_grant",),
    ),
    Mutant(
        name="also numbers that are no grants' keep the outbox at its cap",
        file="fencing/backends/database.py",
        old="                _trim(dialect, cursor, values, row[0])\n                return Granted",
        new="                return Granted",
        tests=("tests/backends/test_contract.py::test_cap_is_kept_whichever_numbers_grants_get",),
    ),
    Mutant(
        name="a mark is no older than its numbers",
        file="fencing/pruning.py",
        old="token=counted, at=timezone.now())",
        new="token=counted, at=before)",
        tests=("tests/test_pruning.py::test_mark_is_no_older_than_the_numbers_that_it_tells_of",),
    ),
    Mutant(
        name="a dead waiter is skipped",
        file="fencing/backends/scripts/queue.lua",
        old="return found.err or tonumber(found[2]) > 0",
        new="return true",
        tests=(QUEUES + "test_a_dead_waiter_is_skipped_also_where_somebody_hears_everything",),
    ),
    Mutant(
        name="a free lease for which somebody waits is not given away",
        file="fencing/backends/scripts/acquire.lua",
        old="redis.call('EXISTS', KEYS[1], KEYS[4]) == 0",
        new="redis.call('EXISTS', KEYS[1]) == 0",
        tests=(QUEUES + "test_a_newcomer_does_not_overtake_those_who_wait",),
    ),
    Mutant(
        name="nobody overtakes those who wait",
        file="fencing/backends/scripts/acquire_queued.lua",
        old="if waiter and waiter.holder ~= ARGV[1] then",
        new="if false then",
        tests=(QUEUES + "test_a_newcomer_does_not_overtake_those_who_wait",),
    ),
    Mutant(
        name="a release hands over",
        file="fencing/backends/scripts/release_queued.lua",
        old="hand_over(ARGV[3], ARGV[4])",
        new="",
        tests=(QUEUES + "test_releasing_hands_over_in_the_order_of_arrival",),
    ),
    Mutant(
        name="a revocation hands over",
        file="fencing/backends/scripts/revoke.lua",
        old="hand_over(ARGV[2], ARGV[3])",
        new="",
        tests=(QUEUES + "test_revoking_hands_over",),
    ),
    Mutant(
        name="whoever gives up returns the grant of that moment",
        file="fencing/backends/scripts/give_up.lua",
        old="if holder ~= ARGV[1] then",
        new="if true then",
        tests=(WAITING + "test_wait_that_ends_in_the_moment_of_the_grant_leaves_nothing",),
    ),
    Mutant(
        name="whoever gives up leaves the queue",
        file="fencing/backends/scripts/give_up.lua",
        old="  redis.call('LREM', KEYS[4], 1, entry)",
        new="",
        tests=(QUEUES + "test_giving_up_leaves_the_queue_or_hands_on",),
    ),
    Mutant(
        name="without a number the first waiter is woken",
        file="fencing/backends/scripts/queue.lua",
        old="    tell(waiter)\n",
        new="",
        tests=(WAITING + "test_release_without_a_number_wakes_the_first",),
    ),
    Mutant(
        name="a hand-over tests the reign",
        file="fencing/backends/scripts/reign.lua",
        old="    if not offer then\n      return nil, 'no reign'\n    end\n    state = begin_reign(counter, server, offer, state.next)",
        new="    state = offer and begin_reign(counter, server, offer, state.next) or state",
        tests=(WAITING + "test_release_without_a_number_wakes_the_first",),
    ),
    Mutant(
        name="a queue ends when everybody in it died",
        file="fencing/backends/scripts/queue.lua",
        old="  redis.call('PEXPIRE', KEYS[4], QUEUE_TTL)",
        new="",
        tests=(QUEUES + "test_no_key_is_left_when_everybody_dies",),
    ),
    Mutant(
        name="a waiter minds the ttl of those ahead",
        file="fencing/backends/waiting.py",
        old="min(held.remaining, held.unchanged, patience, LOOK_AGAIN)",
        new="min(held.remaining, patience, LOOK_AGAIN)",
        tests=(WAITING + "test_stopped_waiter_costs_the_others_its_ttl_and_no_more",),
    ),
    Mutant(
        name="a waiter wakes when the holder's time is over",
        file="fencing/backends/waiting.py",
        old="min(held.remaining, held.unchanged, patience, LOOK_AGAIN)",
        new="min(held.unchanged, patience, 1000.0)",
        tests=(WAITING + "test_store_that_forgets_everything_strands_nobody",),
    ),
    Mutant(
        name="a message that was heard late is no grant",
        file="fencing/acquiring.py",
        old="if granted is not None and monotonic() - asked < ttl / 3:",
        new="if granted is not None:",
        tests=(WAITING + "test_stopped_waiter_costs_the_others_its_ttl_and_no_more",),
    ),
    Mutant(
        name="the time of a handed lease counts from the grant",
        file="fencing/acquiring.py",
        old="asked if answer.remaining is None else asked + answer.remaining - ttl",
        new="asked",
        tests=(WAITING + "test_message_that_is_lost_costs_time_only",),
    ),
    Mutant(
        name="a connection with a place in the queue is not used again",
        file="fencing/backends/waiting.py",
        old="        if kind is None:\n",
        new="        if True:\n",
        tests=(QUEUES + "test_a_waiter_that_could_not_give_up_counts_as_dead",),
    ),
    Mutant(
        name="a connection is tried before it is waited on",
        file="fencing/backends/waiting.py",
        old='            self.hear("", 0)\n',
        new="            pass\n",
        tests=(QUEUES + "test_a_connection_that_died_between_two_waits_is_made_again",),
    ),
    Mutant(
        name="a forked child listens for itself",
        file="fencing/backends/waiting.py",
        old="if self._pid != os.getpid():",
        new="if False:",
        tests=(WAITING + "test_forked_child_listens_for_itself",),
    ),
    Mutant(
        name="wait=0 never queues",
        file="fencing/acquiring.py",
        old="            if give_up is not None and give_up <= monotonic():\n                raise _held_error(name, answer)\n",
        new="",
        tests=(WAITING + "test_refused_at_once_never_queues",),
    ),
    Mutant(
        name="a request whose connection broke is sent again",
        file="fencing/backends/redis_client.py",
        old="            except (BrokenConnection, *DEMOTED) as error:\n",
        new="            except DEMOTED as error:\n",
        tests=(REDIS + "test_a_reply_that_was_lost_does_not_lose_the_grant",),
    ),
    Mutant(
        name="a request that is sent again gets a new connection",
        file="fencing/backends/redis_client.py",
        old="return self._evaluate(self._call_again, script, sent)",
        new="return self._evaluate(self._call, script, sent)",
        tests=(
            REDIS + "test_connections_that_the_server_closed_are_made_again",
            REDIS + "test_a_server_that_was_restarted_is_asked_at_once",
        ),
    ),
    Mutant(
        name="a server that became a replica is not asked again",
        file="fencing/backends/redis_client.py",
        old="DEMOTED = (ReadOnlyError, MasterDownError)",
        new="DEMOTED = ()",
        tests=("tests/faults/test_failover.py::test_address_that_leads_to_the_new_primary_is_followed",),
    ),
    Mutant(
        name="a primary that a Sentinel has replaced is not asked again",
        file="fencing/backends/redis_client.py",
        old='        return pool if hasattr(pool, "master_address") else None',
        new="        return None",
        tests=(REDIS + "test_connections_to_a_primary_that_a_sentinel_has_replaced_are_dropped",),
    ),
    Mutant(
        name="a commit that SQLite refuses is undone",
        file="fencing/backends/database_sqlite.py",
        old='            cursor.execute("ROLLBACK")\n',
        new="            pass\n",
        tests=(DATABASE + "test_a_commit_that_sqlite_refuses_leaves_no_transaction_open",),
    ),
    Mutant(
        name="a reservation that collides is tried again",
        file="fencing/ranges.py",
        old="        if connection.in_atomic_block or code_of(error) not in SERIALIZATION_FAILURES:\n",
        new="        if True:\n",
        tests=("tests/test_tokens.py::test_a_reservation_that_collides_is_tried_again",),
    ),
    Mutant(
        name="a store that hangs costs no lease of another store",
        file="fencing/heartbeat.py",
        old="    known = _beats.get(using)\n",
        new="    using = DEFAULT_ALIAS\n    known = _beats.get(using)\n",
        tests=(HEARTBEAT + "test_store_that_hangs_costs_no_lease_of_another_store",),
    ),
    Mutant(
        name="an interrupted end of one lease ends the others",
        file="fencing/entering.py",
        old="            _leave(granted.pop())\n        except BaseException:\n            _leave_all(granted)\n",
        new="            _leave(granted.pop())\n        except BaseException:\n",
        tests=("tests/test_leases.py::test_interrupted_end_of_one_lease_ends_the_others_all_the_same",),
    ),
    Mutant(
        name="a namespace that a TestCase made goes with it",
        file="fencing/ranges.py",
        old="                made_in = testcase_block(connection)\n",
        new="",
        tests=("tests/test_testcase.py::test_namespace_that_a_testcase_made_goes_with_it",),
    ),
    Mutant(
        name="a renewal that comes after the release is no loss",
        file="fencing/leases.py",
        old="                if self.is_mine():\n                    self._lose(",
        new="                if True:\n                    self._lose(",
        tests=("tests/test_leases.py::test_renewal_that_is_refused_because_the_lease_was_just_released_is_no_loss",),
    ),
    Mutant(
        name="a receiver that wants to end the process stops no renewal",
        file="fencing/heartbeat.py",
        old="except (Exception, SystemExit):",
        new="except Exception:",
        tests=(HEARTBEAT + "test_receiver_that_ends_the_thread_it_runs_in_stops_no_renewal",),
    ),
    Mutant(
        name="a heartbeat that ended from outside is started again",
        file="fencing/heartbeat.py",
        old="if self._thread is None or not self._thread.is_alive():",
        new="if self._thread is None:",
        tests=(
            HEARTBEAT + "test_thread_that_ended_from_outside_is_started_again",
            HEARTBEAT + "test_thread_that_cannot_be_started_is_started_by_who_comes_next",
        ),
    ),
    Mutant(
        name="a lease needs no thread that cannot be started",
        file="fencing/heartbeat.py",
        old="        except RuntimeError as error:\n",
        new="        except ZeroDivisionError as error:\n",
        tests=(HEARTBEAT + "test_lease_is_taken_and_given_back_where_no_thread_can_be_started",),
    ),
    Mutant(
        name="one thread renews, though a handler took a lease while it was started",
        file="fencing/heartbeat.py",
        old="while self._thread is threading.current_thread():",
        new="while self._thread is not None:",
        tests=(HEARTBEAT + "test_handler_that_takes_a_lease_while_the_thread_is_started_leaves_one",),
    ),
    Mutant(
        name="a lease that was handed over long ago is renewed at once",
        file="fencing/leases.py",
        old="max(0.0, self.remaining() - self.ttl * 2 / 3)",
        new="self.ttl / 3",
        tests=(WAITING + "test_lease_that_was_handed_over_long_ago_is_renewed_at_once",),
    ),
    Mutant(
        name="a generator does not run after its lease",
        file="fencing/entering.py",
        old="        _check_body(function)\n",
        new="",
        tests=(LEASES + "test_decorator_refuses_what_a_call_would_only_prepare",),
    ),
    Mutant(
        name="a coroutine does not run after its lease",
        file="fencing/entering.py",
        old="                if inspect.iscoroutine(result):\n",
        new="                if False:\n",
        tests=(LEASES + "test_coroutine_that_looks_like_a_function_is_refused_when_it_is_called",),
    ),
    Mutant(
        name="a task is no coroutine, nor a generator",
        file="fencing/taskpolicy.py",
        old="(iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)",
        new="()",
        tests=(POLICY + "test_body_that_a_call_would_only_prepare_is_refused_at_decoration",),
    ),
    Mutant(
        name="a reader who leaves gets no traceback",
        file="fencing/management/commands/fencing.py",
        old="        with _reader_may_leave(self.stdout), _errors():\n",
        new="        with _errors():\n",
        tests=(COMMANDS + "test_reader_who_leaves_gets_no_traceback",),
    ),
    Mutant(
        name="a coroutine leaves what it entered itself by a plain with",
        file="fencing/entries.py",
        old="return get_ident(), this_coroutine()",
        new="return get_ident(), None",
        tests=("tests/test_async.py::test_exit_ends_its_own_entry_where_coroutines_enter_one_object_by_a_plain_with",),
    ),
    Mutant(
        name="whoever shares a lease() leaves what it entered itself",
        file="fencing/entries.py",
        old="        self._open.setdefault(who, []).append(entry)\n",
        new="        self._open.setdefault(0, []).append(entry)\n",
        tests=(
            LEASES + "test_exit_ends_its_own_entry_where_threads_share_one_object",
            "tests/test_async.py::test_exit_ends_its_own_entry_where_coroutines_share_one_object",
        ),
    ),
    Mutant(
        name="a coroutine that is thrown away leaves no lease",
        file="fencing/entering.py",
        old="        _end(lease)\n        return\n",
        new="        raise\n",
        tests=("tests/test_async.py::test_coroutine_that_is_thrown_away_with_its_loop_gives_its_lease_back",),
    ),
    Mutant(
        name="a coroutine that is thrown away waits no longer",
        file="fencing/asynchronous.py",
        old="(asyncio.CancelledError, GeneratorExit)",
        new="asyncio.CancelledError",
        tests=("tests/test_async.py::test_coroutine_that_is_thrown_away_while_it_waits_leaves_no_waiter",),
    ),
    Mutant(
        name="what was removed from a schedule is forgotten",
        file="fencing/heartbeat.py",
        old="            self._fresh.pop(key, None)\n",
        new="",
        tests=(HEARTBEAT + "test_what_was_removed_is_forgotten_long_before_it_would_have_been_due",),
    ),
    Mutant(
        name="what was removed is forgotten although another job stays before it",
        file="fencing/heartbeat.py",
        old="        if len(self._queue) > 2 * len(self._entries) + SLACK:\n",
        new="        if False:\n",
        tests=(HEARTBEAT + "test_what_was_removed_behind_a_job_that_stays_is_forgotten_as_well",),
    ),
    Mutant(
        name="a release that was not heard of is one",
        file="fencing/backends/redis.py",
        old="return bool(reply) or repeated",
        new="return bool(reply)",
        tests=(REDIS + "test_a_release_whose_reply_was_lost_is_one",),
    ),
    Mutant(
        name="what is silent is not asked again",
        file="fencing/backends/redis_client.py",
        old="            except (BrokenConnection, *DEMOTED) as error:\n",
        new="            except PROBLEMS as error:\n",
        tests=(REDIS + "test_a_server_that_is_silent_is_not_asked_again",),
    ),
    Mutant(
        name="a call has a deadline where the settings name none",
        file="fencing/backends/redis_client.py",
        old='            pool.connection_kwargs["socket_timeout"] = SOCKET_TIMEOUT\n',
        new="            pass\n",
        tests=("tests/faults/test_network.py::test_settings_without_a_timeout_get_one",),
    ),
    Mutant(
        name="an answer that may still come is nobody else's",
        file="fencing/backends/redis_client.py",
        old="            # An answer may still be on its way.\n            connection.disconnect()\n",
        new="            self._idle.append(connection)\n",
        tests=(REDIS + "test_an_interrupted_read_leaves_its_answer_to_nobody",),
    ),
    Mutant(
        name="a forked child uses no socket of its parent's",
        file="fencing/backends/redis_client.py",
        old="        if self._pid != os.getpid():\n",
        new="        if False:\n",
        tests=(REDIS + "test_a_forked_child_uses_no_connection_of_its_parents",),
    ),
    Mutant(
        name="a cluster that cannot be reached is a typed error",
        file="fencing/backends/redis_client.py",
        old="PROBLEMS = (RedisError, RedisClusterException)",
        new="PROBLEMS = (RedisError,)",
        tests=(REDIS + "test_an_unreachable_cluster_is_a_typed_error",),
    ),
    Mutant(
        name="a server without a replid of its own is refused",
        file="fencing/backends/scripts/reign.lua",
        old="  if #server ~= 40 or string.find(server, '%X') then",
        new="  if false then",
        tests=(REDIS + "test_a_server_without_a_replid_of_its_own_is_refused",),
    ),
    Mutant(
        name="without memory a lease ends all the same",
        file="fencing/backends/scripts/release.lua",
        old="  redis.call('DEL', KEYS[1])\nend\nnote(",
        new="  redis.call('XADD', KEYS[3], '*', 'kind', 'first')\n  redis.call('DEL', KEYS[1])\nend\nnote(",
        tests=(REDIS + "test_releasing_works_without_memory",),
    ),
    Mutant(
        name="a renewal sets the time, and adds none",
        file="fencing/backends/scripts/renew.lua",
        old="redis.call('PEXPIRE', KEYS[1], ARGV[2])",
        new="redis.call('PEXPIRE', KEYS[1], ARGV[2] + redis.call('PTTL', KEYS[1]))",
        tests=(LEASES + "test_heartbeat_renews_to_the_ttl_and_never_beyond",),
    ),
    Mutant(
        name="a renewal that failed is tried again",
        file="fencing/leases.py",
        old="                return min(self.ttl / 10, 1.0)\n",
        new="",
        tests=(LEASES + "test_heartbeat_survives_a_failed_call",),
    ),
    Mutant(
        name="a renewal that is refused is a loss",
        file="fencing/leases.py",
        old="        if not self._backend.renew(self._place, self.holder, self.ttl):\n            return False\n",
        new="        self._backend.renew(self._place, self.holder, self.ttl)\n",
        tests=(LEASES + "test_heartbeat_notices_the_loss_and_leaves_the_others_lease_alone",),
    ),
    Mutant(
        name="the local deadline counts from before the request",
        file="fencing/leases.py",
        old="        self._deadline = asked + self.ttl\n        return True",
        new="        self._deadline = monotonic() + self.ttl\n        return True",
        tests=(LEASES + "test_deadline_counts_from_before_the_request",),
    ),
    Mutant(
        name="nobody believes in a lease past its deadline",
        file="fencing/leases.py",
        old="max(0.0, self._deadline - monotonic()) if",
        new="self.ttl if",
        tests=(LEASES + "test_lease_without_renewal_ends_by_itself",),
    ),
    Mutant(
        name="the deadline is by a monotonic clock",
        file="fencing/leases.py",
        old="from time import monotonic",
        new="import time\n\nmonotonic = lambda: time.time()",
        tests=(LEASES + "test_wall_clock_does_not_matter",),
    ),
    Mutant(
        name="a holder's id is fresh for each call",
        file="fencing/acquiring.py",
        old="    holder = os.urandom(16).hex()\n",
        new='    holder = "the same"\n',
        tests=(LEASES + "test_late_release_of_an_earlier_grant_spares_the_next_one_of_the_same_caller",),
    ),
    Mutant(
        name="the heartbeat of a forked child is its own",
        file="fencing/heartbeat.py",
        old="        os.register_at_fork(after_in_child=self._start_empty)\n",
        new="",
        tests=(LEASES + "test_forked_child_renews_by_a_thread_of_its_own",),
    ),
    Mutant(
        name="a begin that commits by itself does not wait for the disk",
        file="fencing/raising.py",
        old='f", {NO_WAIT_FOR_DISK}" * alone',
        new='""',
        tests=("tests/test_transactions.py::test_begin_alone_does_not_wait_for_the_disk",),
    ),
    Mutant(
        name="a begin inside a transaction leaves that one's commit as it is",
        file="fencing/raising.py",
        old="    alone = bounded and not in_user_transaction(connection)\n",
        new="    alone = bounded\n",
        tests=("tests/test_transactions.py::test_begin_alone_does_not_wait_for_the_disk",),
    ),
    Mutant(
        name="two databases share no keys in one store",
        file="fencing/ranges.py",
        old="_insert_row(cursor, config, secrets.token_hex(8))",
        new='_insert_row(cursor, config, "0" * 16)',
        tests=("tests/test_tokens.py::test_s12_two_databases_with_the_same_namespace_share_nothing_in_one_store",),
    ),
    Mutant(
        name="a lease that was released is not entered again",
        file="fencing/scope.py",
        old="    return tuple([lease for lease in held if lease.is_mine()]) if held else held\n",
        new="    return held\n",
        tests=("tests/test_async.py::test_task_that_is_still_inside_at_the_outer_exit_holds_nothing",),
    ),
    Mutant(
        name="the heartbeat outlives a ttl without end",
        file="fencing/heartbeat.py",
        old="min(seconds, threading.TIMEOUT_MAX)",
        new="seconds",
        tests=(LEASES + "test_heartbeat_that_has_nothing_to_do_for_ages_serves_who_comes",),
    ),
    Mutant(
        name="a database's bounds have a bound",
        file="fencing/bounds.py",
        old="min(2**31 - 1, max(1, round(seconds * 1000)))",
        new="max(1, round(seconds * 1000))",
        tests=(LEASES + "test_endless_ttl_breaks_neither_writes_nor_the_renewal_of_others",),
    ),
    Mutant(
        name="a ttl is rounded up, never to nothing",
        file="fencing/backends/wire.py",
        old="return max(1, math.ceil(ttl * 1000))",
        new="return int(ttl * 1000)",
        tests=(LEASES + "test_tiny_ttl_is_rounded_up_and_never_endless",),
    ),
    Mutant(
        name="a ttl is finite and above 0",
        file="fencing/conf.py",
        old="    if not (0 < number < math.inf):\n",
        new="    if False:\n",
        tests=(LEASES + "test_ttl_that_cannot_be",),
    ),
    Mutant(
        name="who opens a range closes the reign",
        file="fencing/tokens.py",
        old="    backend.close_reign(place)\n",
        new="",
        tests=(
            COMMANDS + "test_opening_is_installed_at_once_and_logged_as_a_reign_of_its_own",
            COMMANDS + "test_a_client_that_is_faster_than_the_opening_gets_a_range_above_too",
        ),
    ),
    Mutant(
        name="an opening raises the database first",
        file="fencing/reigns.py",
        old="    _raise_ceiling(backend.config, places, by)\n    opened: dict[int, int] = {}\n",
        new="    opened: dict[int, int] = {}\n",
        tests=(COMMANDS + "test_s11_an_opened_range_is_above_what_a_restored_database_forgot",),
    ),
    Mutant(
        name="a closed reign has another name (redis)",
        file="fencing/backends/scripts/close.lua",
        old="local state = begin_reign(KEYS[1], server, ARGV[1], state_of(KEYS[1]).next)",
        new="local state = state_of(KEYS[1])\nredis.call('HSET', KEYS[1], 'ceiling', '0')",
        tests=(CONTRACT + "test_a_range_that_was_reserved_for_a_closed_reign_comes_too_late[valkey]",),
    ),
    Mutant(
        name="a closed reign has no number left (redis)",
        file="fencing/backends/scripts/reign.lua",
        old="'next', next, 'ceiling', '0')",
        new="'next', next)",
        tests=(CONTRACT + "test_no_number_of_a_closed_reign_is_issued[valkey]",),
    ),
    Mutant(
        name="a reign is closed (database)",
        file="fencing/backends/database_sql.py",
        old='"WHERE %(close)s OR {counter}',
        new='"WHERE {counter}',
        tests=(CONTRACT + "test_no_number_of_a_closed_reign_is_issued[default]",),
    ),
    Mutant(
        name="the reservation passes what a row has seen",
        file="fencing/tokens.py",
        old="            numbers = reserve(config, place, config.block, issued=answer.token, seen=seen)\n",
        new="            numbers = reserve(config, place, config.block, issued=answer.token)\n",
        tests=("tests/test_tokens.py::test_l2_the_next_number_is_above_what_was_seen",),
    ),
    Mutant(
        name="the reservation passes what the store has issued",
        file="fencing/tokens.py",
        old="        numbers = reserve(backend.config, place, backend.config.block, issued=answer.next - 1, reign=answer)\n",
        new="        numbers = reserve(backend.config, place, backend.config.block, reign=answer)\n",
        tests=("tests/test_tokens.py::test_i1_the_database_was_set_back",),
    ),
    Mutant(
        name="a refusal under a live lease raises the numbers",
        file="fencing/leases.py",
        old="            if self.advance() <= seen:\n",
        new="            if False:\n",
        tests=(LEASES + "test_row_with_a_higher_number_raises_the_next_grants",),
    ),
    Mutant(
        name="an invented number raises nothing",
        file="fencing/ranges.py",
        old="    if seen > reserved + MAX_RAISE:\n",
        new="    if False:\n",
        tests=("tests/test_tokens.py::test_l2_a_number_that_was_invented_raises_nothing",),
    ),
    Mutant(
        name="another number of partitions is refused",
        file="fencing/tokens.py",
        old="    if namespace.partitions != config.partitions:\n",
        new="    if False:\n",
        tests=("tests/test_tokens.py::test_another_number_of_partitions_is_refused",),
    ),
    Mutant(
        name="another server's counter is no base to count on (database)",
        file="fencing/backends/database_sql.py",
        old="WHERE {HERE} AND server = {self.server} ",
        new="WHERE {HERE} ",
        tests=(DATABASE + "test_another_server_begins_a_new_reign",),
    ),
    Mutant(
        name="the reign in the install (database)",
        file="fencing/backends/database.py",
        old="WHERE {HERE} AND reign = %(reign)s AND server = {dialect.server} AND next <= %(first)s",
        new="WHERE {HERE} AND server = {dialect.server} AND next <= %(first)s",
        tests=(DATABASE + "test_rows_that_vanished_begin_a_new_reign",),
    ),
    Mutant(
        name="the range lies above what was issued (database)",
        file="fencing/backends/database.py",
        old=" AND next <= %(first)s",
        new="",
        tests=(CONTRACT + "test_a_range_at_or_below_what_was_issued_is_refused[default]",),
    ),
    Mutant(
        name="the reign of a lease that advances (PostgreSQL)",
        file="fencing/backends/database_postgresql.py",
        old="{self.mine(sql_name('StoredCounter') + '.reign')}",
        new="{self.mine()}",
        tests=(DATABASE + "test_another_server_begins_a_new_reign",),
    ),
    Mutant(
        name="an advance looks at the lease again (PostgreSQL)",
        file="fencing/backends/database_postgresql.py",
        old='"SELECT token, reign FROM counted WHERE EXISTS (SELECT 1 FROM kept)"',
        new='"SELECT token, reign FROM counted"',
        tests=(DATABASE + "test_an_advance_that_waited_is_lost_when_the_lease_was_revoked_meanwhile",),
    ),
    Mutant(
        name="a lease is written over one that has ended only (database)",
        file="fencing/backends/database_sql.py",
        old="DO UPDATE SET {fresh} WHERE {lease}.deadline_ms <= {self.now} RETURNING",
        new="DO UPDATE SET {fresh} RETURNING",
        tests=(DATABASE + "test_two_that_find_the_lease_free_get_it_once",),
    ),
    Mutant(
        name="numbers wait for the disk (PostgreSQL)",
        file="fencing/backends/database_postgresql.py",
        old="WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)",
        new="WHEN 'remote_apply' THEN 'remote_apply' ELSE 'off' END, true)",
        tests=(DATABASE + "test_numbers_wait_for_the_disk",),
    ),
    Mutant(
        name="time passes inside a transaction (PostgreSQL)",
        file="fencing/backends/database_postgresql.py",
        old="clock_timestamp()",
        new="now()",
        tests=(DATABASE + "test_time_passes_inside_a_transaction",),
    ),
    Mutant(
        name="nobody waits for ever for the counter (PostgreSQL)",
        file="fencing/backends/database_postgresql.py",
        old='"CASE WHEN %(bounded)s THEN',
        new='"CASE WHEN %(bounded)s AND false THEN',
        tests=(DATABASE + "test_nobody_waits_for_ever",),
    ),
    Mutant(
        name="a serialization failure is tried again (database)",
        file="fencing/databases.py",
        old='SERIALIZATION_FAILURES = frozenset({"40001", "40P01", ',
        new="SERIALIZATION_FAILURES = frozenset({",
        tests=(DATABASE + "test_serialization_failures_are_tried_again",),
    ),
    Mutant(
        name="a connection that broke is replaced (database)",
        file="fencing/backends/database.py",
        old="        connection.close_if_unusable_or_obsolete()\n",
        new="",
        tests=(DATABASE + "test_a_connection_that_broke_is_replaced",),
    ),
    Mutant(
        name="names compare byte by byte (MariaDB)",
        file="fencing/migrations/0003_binary_names.py",
        old="COLLATE utf8mb4_nopad_bin",
        new="COLLATE utf8mb4_general_ci",
        tests=(MARIADB_STORE + "test_names_compare_byte_by_byte",),
    ),
    Mutant(
        name="a lease's time passes while a statement waits (MariaDB)",
        file="fencing/backends/database_mariadb.py",
        old="UNIX_TIMESTAMP(SYSDATE(6))",
        new="UNIX_TIMESTAMP(NOW(6))",
        tests=(MARIADB_STORE + "test_a_renewal_that_waited_past_the_end_is_refused",),
    ),
    Mutant(
        name="a lease's time does not depend on summer time (MariaDB)",
        file="fencing/backends/database_mariadb.py",
        old="SET STATEMENT time_zone = '+00:00', innodb",
        new="SET STATEMENT innodb",
        tests=(MARIADB_STORE + "test_clocks_that_are_put_back_change_nothing",),
    ),
    Mutant(
        name="another start is another server (MariaDB)",
        file="fencing/backends/database_mariadb.py",
        old="CONCAT(UNIX_TIMESTAMP() - CAST(VARIABLE_VALUE AS SIGNED), '-', ",
        new="CONCAT('-', ",
        tests=("tests/backends/test_mariadb_server.py",),
    ),
    Mutant(
        name="one after the other counts (MariaDB)",
        file="fencing/backends/database_mariadb.py",
        old="AND next <= ceiling FOR UPDATE",
        new="AND next <= ceiling",
        tests=(MARIADB_STORE + "test_two_that_find_the_lease_free_get_it_once",),
    ),
    Mutant(
        name="who has waited for the counter looks at the lease again (MariaDB)",
        file="fencing/backends/database_mariadb.py",
        old="IF issued IS NOT NULL AND others = 0 THEN",
        new="IF issued IS NOT NULL THEN",
        tests=(MARIADB_STORE + "test_two_that_find_the_lease_free_get_it_once",),
    ),
    Mutant(
        name="an advance looks at the lease again (MariaDB)",
        file="fencing/backends/database_mariadb.py",
        old="IF others = 1 THEN {self._count()}; ELSE",
        new="IF issued IS NOT NULL THEN {self._count()}; ELSE",
        tests=(MARIADB_STORE + "test_an_advance_that_waited_is_lost_when_the_lease_was_revoked_meanwhile",),
    ),
    Mutant(
        name="what is told counts inside a transaction only (MariaDB)",
        file="fencing/guard_sql.py",
        old="'^[0-9]{1,16}$' AND @@in_transaction\n",
        new="'^[0-9]{1,16}$'\n",
        tests=("tests/guards/test_refusals.py::test_mariadb_variables_count_inside_a_transaction_only",),
    ),
    Mutant(
        name="what is told ends with its block (MariaDB)",
        file="fencing/lifting.py",
        old="with setting_back(connection, as_before) if is_mariadb else nullcontext():",
        new="with nullcontext():",
        tests=("tests/guards/test_refusals.py::test_mariadb_nothing_told_reaches_the_next_user_of_the_connection",),
    ),
    Mutant(
        name="a connection that died in a block is what is told (MariaDB)",
        file="fencing/databases.py",
        old="        with suppress(Error):\n            set_in_any_case",
        new="        if True:\n            set_in_any_case",
        tests=(MARIADB + "test_connection_that_ends_with_the_fence_lifted_is_the_databases_own_error",),
    ),
    Mutant(
        name="what is told ends with its transaction (MariaDB)",
        file="fencing/lifting.py",
        old="connection.execute_wrappers.insert(0, _set_back_first)",
        new="pass",
        tests=("tests/guards/test_refusals.py::test_lift_that_is_never_left_ends_with_the_transaction",),
    ),
    Mutant(
        name="a pool hands on what nobody was told (MariaDB)",
        file="fencing/lifting.py",
        old='    if connection.vendor == "mysql":\n        set_in_any_case(connection, NOTHING)',
        new="    return",
        tests=("tests/guards/test_refusals.py::test_mariadb_pool_below_django_hands_on_a_clean_connection",),
    ),
    Mutant(
        name="a connection that cannot be cleaned is closed (MariaDB)",
        file="fencing/databases.py",
        old="        connection.close()\n        raise",
        new="        return",
        tests=("tests/guards/test_refusals.py::test_mariadb_connection_that_cannot_be_cleaned_is_closed",),
    ),
    Mutant(
        name="rows are read as they are (MariaDB)",
        file="fencing/databases.py",
        old="return rows.select_for_update(no_key=weaker)",
        new="return rows",
        tests=(MARIADB + "test_s1_old_statement_that_waited_for_the_row_is_refused",),
    ),
    Mutant(
        name="the rows that match are found as they are (MariaDB)",
        file="fencing/lockedrows.py",
        old='matched = [row["pk"] for row in locked(matched)]',
        new="pass",
        tests=(MARIADB + "test_rows_that_match_only_since_the_snapshot_are_judged_too",),
    ),
    Mutant(
        name="a row of a newer holder is not raised (MariaDB)",
        file="fencing/raising.py",
        old='f"last_token = %(grant_token)s WHERE {place} AND {PASSES.format(table=table)}"',
        new='f"last_token = %(grant_token)s WHERE {place}"',
        tests=(MARIADB + "test_superseded_holder_cannot_begin",),
    ),
    Mutant(
        name="the resource's row is shared as it is (MariaDB)",
        file="fencing/resources.py",
        old='return " LOCK IN SHARE MODE"',
        new='return ""',
        tests=(MARIADB + "test_s1_begin_waits_for_a_write_of_an_older_holder",),
    ),
    Mutant(
        name="a refusal says what is there now (MariaDB)",
        file="fencing/floors.py",
        old='share = " LOCK IN SHARE MODE" if connection.vendor == "mysql" and connection.in_atomic_block else ""',
        new='share = ""',
        tests=(MARIADB + "test_i4_newer_holder_that_has_only_begun_is_noticed_in_the_snapshot",),
    ),
    Mutant(
        name="a begin waits no longer than the lease has (MariaDB)",
        file="fencing/raising.py",
        old='before = "" if bound is None else waiting_at_most(bound)',
        new='before = ""',
        tests=(MARIADB + "test_begin_waits_no_longer_than_the_lease_has",),
    ),
    Mutant(
        name="a statement inside waits no longer than the lease has (MariaDB)",
        file="fencing/mariadb.py",
        old="innodb_lock_wait_timeout = LEAST({WAIT}, {whole_seconds(lease.remaining())})",
        new="innodb_lock_wait_timeout = {WAIT}",
        tests=(MARIADB + "test_lock_waits_inside_end_with_the_lease_and_bounds_are_set_back",),
    ),
    Mutant(
        name="bounds of a connection that was opened meanwhile stay (MariaDB)",
        file="fencing/databases.py",
        old='return f"{variable} = CAST(COALESCE(@{saved}, @@{variable}) AS UNSIGNED)"',
        new='return f"{variable} = COALESCE(@{saved}, @@{variable})"',
        tests=(MARIADB + "test_connection_that_ends_under_a_live_lease_is_the_databases_own_error",),
    ),
    Mutant(
        name="a connection that closes without a word is known by its number (MariaDB)",
        file="fencing/databases.py",
        old="return code_of(error) in CUT_OFF or ",
        new="return ",
        tests=(MARIADB + "test_connection_that_ended_is_known_by_the_number_of_either_driver",),
    ),
    Mutant(
        name="the end is in the transaction of the beginning (MariaDB)",
        file="fencing/mariadb.py",
        old='cursor.execute(f"RELEASE SAVEPOINT {mark}")',
        new="pass",
        tests=(MARIADB + "test_body_that_swallowed_a_deadlock_has_no_effect",),
    ),
    Mutant(
        name="a begin comes before the snapshot (MariaDB)",
        file="fencing/snapshots.py",
        old="if level and has_snapshot(connection, level):",
        new="if False:",
        tests=(MARIADB + "test_second_begin_must_come_before_the_snapshot",),
    ),
    Mutant(
        name="a refusal that SQLite has no turn for is tried again",
        file="fencing/history.py",
        old="if is_busy(error):",
        new="if False:",
        tests=("tests/writes/test_interleavings.py::test_refusal_while_a_reader_keeps_sqlite_busy",),
    ),
    Mutant(
        name="a write on SQLite waits for its turn before it reads",
        file="fencing/resources.py",
        old="    if not connection.features.has_select_for_update:\n        with",
        new="    if False:\n        with",
        tests=("tests/writes/test_interleavings.py::test_processes_on_one_file_of_sqlite",),
    ),
    Mutant(
        name="reads under a lease come from where the writes go",
        file="fencing/querysets.py",
        old="        return str(router.db_for_write(self.model, **self._hints))",
        new="        return str(super().db)",
        tests=("tests/test_replica.py::test_reads_under_a_lease_come_from_the_primary",),
    ),
    Mutant(
        name="what a replica showed is compared with the primary's row",
        file="fencing/expressions.py",
        old="return not chosen or not all(refers_to_column(value) for value in chosen)",
        new="return False",
        tests=("tests/test_replica.py::test_i3_save_of_what_a_replica_showed_is_refused",),
    ),
    Mutant(
        name="pruning is SQLite's writer before it reads",
        file="fencing/batches.py",
        old="            take_write_lock(connection)\n",
        new="",
        tests=(PRUNING + "test_pruning_is_sqlites_writer_before_it_reads",),
    ),
    Mutant(
        name="raising the floor reads nothing first on SQLite",
        file="fencing/floors.py",
        old="if features.has_select_for_update:",
        new="if True:",
        tests=(PRUNING + "test_pruning_is_sqlites_writer_before_it_reads",),
    ),
    Mutant(
        name="the drill's checker misses lines in the history",
        file="fencing/drill/checker.py",
        old="unrecorded = tuple(_not_on_record(found))",
        new="unrecorded = ()",
        tests=("tests/drill/test_checker.py::test_what_a_process_was_told_must_be_on_record",),
    ),
    Mutant(
        name="the drill sees refusals that are not on record",
        file="fencing/history.py",
        old="    if wanted(attempt.outcome):\n        _record_outside(connection, attempt)\n    tell_attempt(attempt)",
        new="    tell_attempt(attempt)",
        tests=(DRILL + "test_sleepers_of_the_orm_overtaken_by_saves",),
        tries=3,
    ),
    Mutant(
        name="sleepers of a drill meet every kind of work",
        file="fencing/drill/worker.py",
        old='first = int(worker.partition(".")[0]) % len(order)',
        new="first = 0",
        tests=("tests/drill/test_parts.py::test_sleepers_of_few_processes_meet_every_kind_of_work",),
    ),
    Mutant(
        name="a guard that is refused leaves no transaction open in a drill",
        file="fencing/drill/scratch.py",
        old='outside = connection.vendor == "postgresql"',
        new="outside = False",
        tests=(DRILL + "test_rights_that_lack_are_told_with_the_drill_to_remove",),
    ),
    Mutant(
        name="a drill under nohup ignores SIGHUP",
        file="fencing/drill/play.py",
        old="if signal.getsignal(number) != signal.SIG_IGN]",
        new="]",
        tests=(DRILL + "test_signal_that_is_ignored_stays_so",),
    ),
    Mutant(
        name="a begin does not wait once it has a snapshot",
        file="fencing/transactions.py",
        old="if in_user_transaction(beginning) and snapshot_level(beginning):",
        new="if False:",
        tests=("tests/test_snapshots.py::test_begin_that_has_to_wait_reads_what_it_waited_for",),
    ),
    Mutant(
        name="an upsert meets rows of its own resource only (MariaDB)",
        file="fencing/conflicts.py",
        old="keys = list(unique_keys(fence.owner, with_pk=any(one.pk is not None for one in objects)))",
        new="keys = []",
        tests=(MANY + "test_upsert[maria]",),
    ),
    Mutant(
        name="a number of many rows that was rolled back is not the next write's",
        file="fencing/bulkwrites.py",
        old="                lease.remember(connection, fence.label, number)\n",
        new="",
        tests=(ROLLED_BACK + "test_row_that_was_read_there_is_not_the_next_one[default-by_update]",),
    ),
    Mutant(
        name="a number of rows written in steps that was rolled back is not the next write's",
        file="fencing/bulkwrites.py",
        old="            lease.remember(connection, fence.label, token, row.pk)\n",
        new="            pass\n",
        tests=(ROLLED_BACK + "test_row_that_was_read_there_is_not_the_next_one[default-by_bulk_update]",),
    ),
    Mutant(
        name="a number of an upsert that was rolled back is not the next write's",
        file="fencing/querysets.py",
        old="key = None if update_conflicts else key_as_read(self.model, obj.pk)",
        new="key = key_as_read(self.model, obj.pk)",
        tests=(ROLLED_BACK + "test_row_that_was_upserted_there_is_not_the_next_one[default]",),
    ),
    Mutant(
        name="a transaction that Django does not know is one",
        file="fencing/leases.py",
        old="if connection.in_atomic_block or in_user_transaction(connection):",
        new="if connection.in_atomic_block:",
        tests=(ROLLED_BACK + "test_transaction_that_django_does_not_know_is_one",),
    ),
    Mutant(
        name="a store that does not answer lets no number be used twice",
        file="fencing/leases.py",
        old="except LeaseLostError:\n                    if self.newest_token",
        new="except (LeaseLostError, LeaseBackendError):\n                    if self.newest_token",
        tests=(ROLLED_BACK + "test_store_that_gives_no_further_number_refuses_the_next_write[default]",),
    ),
    Mutant(
        name="a value in another table is compared, too",
        file="fencing/fenced.py",
        old="compares([*values, *self._fence_values_elsewhere(fence, update_fields)])",
        new="compares(values)",
        tests=(SHAPES + "test_expression_in_the_rows_table_and_a_value_in_another",),
    ),
    Mutant(
        name="a delete leaves what has stopped to match",
        file="fencing/lockedrows.py",
        old="return [key for key in keys if key in still]",
        new="return keys",
        tests=(AT_ONCE + "test_delete_leaves_a_row_that_has_stopped_to_match_while_it_waited",),
    ),
    Mutant(
        name="a refusal inside a transaction that is undone still counts",
        file="fencing/transactions.py",
        old="            self.lease.accepted = self._accepted_before\n",
        new="            self.lease.refusals = type(self.lease.refusals)()\n",
        tests=(
            TRANSACTIONS + "test_swallowed_refusal_of_a_whole_transaction_is_raised_at_the_end[inside]",
            TRANSACTIONS + "test_refusal_that_is_swallowed_a_second_time_is_raised_at_the_end",
        ),
    ),
    Mutant(
        name="a refusal without a connection besides waits for the caller's",
        file="fencing/history.py",
        old="if isinstance(error, (OperationalError, InterfaceError)) and in_user_transaction(connection):",
        new="if False:",
        tests=(HISTORY + "test_refusal_for_which_there_was_no_connection_is_written_by_the_callers",),
    ),
    Mutant(
        name="a key that is written in another way is the same row",
        file="fencing/fenced.py",
        old="pk=key_as_read(fence.owner, pk_val)",
        new="pk=pk_val",
        tests=(ROLLED_BACK + "test_key_that_is_written_in_another_way_is_the_same_row[default-save]",),
    ),
    Mutant(
        name="a refused begin or end counts",
        file="fencing/transactions.py",
        old="        self.lease.refusals.add(connection, self._whole(), error)\n",
        new="",
        tests=(TRANSACTIONS + "test_swallowed_refusal_of_a_whole_transaction_is_raised_at_the_end",),
    ),
    Mutant(
        name="nothing is made good where nobody tells of a commit",
        file="fencing/refusals.py",
        old="        if not connection.in_atomic_block and in_user_transaction(connection):\n            return\n",
        new="",
        tests=(PATHS + "test_refusal_that_was_mended_where_nobody_tells_of_a_commit",),
    ),
    Mutant(
        name="the floor of forgotten resources (PostgreSQL)",
        file="fencing/raising.py",
        old="floor.token < %(grant_token)s AND {condition} FOR SHARE OF floor ",
        new="{condition} FOR SHARE OF floor ",
        tests=(PRUNING + "test_forgotten_resource_refuses_the_superseded_holder[default-begin]",),
    ),
    Mutant(
        name="the floor is locked, not only read",
        file="fencing/raising.py",
        old="{condition} FOR SHARE OF floor ",
        new="{condition} ",
        tests=(PRUNING + "test_begin_that_waits_while_its_resource_is_forgotten",),
    ),
    Mutant(
        name="the floor of forgotten resources (SQLite)",
        file="fencing/raising.py",
        old="floor.token < %(grant_token)s ON CONFLICT",
        new="true ON CONFLICT",
        tests=(PRUNING + "test_forgotten_resource_refuses_the_superseded_holder[lite-begin]",),
    ),
    Mutant(
        name="the floor of forgotten resources (MariaDB)",
        file="fencing/raising.py",
        old="floor.token < %(grant_token)s LOCK IN SHARE MODE",
        new="true LOCK IN SHARE MODE",
        tests=(PRUNING + "test_forgotten_resource_refuses_the_superseded_holder[maria-begin]",),
    ),
    Mutant(
        name="a resource that came into being meanwhile is no refusal",
        file="fencing/resources.py",
        old="    return seen <= lease.token\n",
        new="    return False\n",
        tests=(TRANSACTIONS + "test_first_write_of_the_newer_holder_waits_too",),
    ),
    Mutant(
        name="without a floor nothing gets in, and there is one",
        file="fencing/floors.py",
        old="        create_floor(connection, namespace)\n        return True\n",
        new="        return False\n",
        tests=(PRUNING + "test_without_a_floor_nothing_gets_in_until_there_is_one[default]",),
    ),
    Mutant(
        name="a floor that came meanwhile is no refusal",
        file="fencing/floors.py",
        old="return seen.token is None and seen.floor < token",
        new="return False",
        tests=(PRUNING + "test_floor_that_comes_while_a_statement_is_under_way",),
    ),
    Mutant(
        name="the floor is raised before a row goes",
        file="fencing/pruning.py",
        old="        if not dry_run and forgotten.exists():\n",
        new="        if False:\n",
        tests=(PRUNING + "test_forgotten_resource_refuses_the_superseded_holder[default-begin]",),
    ),
    Mutant(
        name="the floor stays below every live lease",
        file="fencing/pruning.py",
        old="return min([issued, *(lease.token - 1 for lease in _live(backend))])",
        new="return issued",
        tests=(PRUNING + "test_live_lease_is_never_forgotten[default]",),
    ),
    Mutant(
        name="pruning waits for nobody",
        file="fencing/batches.py",
        old="skip_locked=connection.features.has_select_for_update_skip_locked",
        new="",
        tests=(PRUNING + "test_row_that_somebody_holds_is_left[default]",),
    ),
    Mutant(
        name="who raises the floor stands in nobody's way",
        file="fencing/floors.py",
        old="nowait=features.has_select_for_update_nowait",
        new="",
        tests=(PRUNING + "test_floor_waits_for_rows_that_were_created_below_it_and_holds_nobody_up[default]",),
    ),
    Mutant(
        name="a pruned operation keeps its key",
        file="fencing/pruning.py",
        old="return rows.update(result=None)",
        new="return _delete(rows)",
        tests=(PRUNING + "test_pruned_operation_loses_its_result_and_keeps_its_key[default]",),
    ),
    Mutant(
        name="a pruned result is not told as None",
        file="fencing/transactions.py",
        old=" or not applied.kept:",
        new=":",
        tests=(PRUNING + "test_pruned_operation_loses_its_result_and_keeps_its_key[default]",),
    ),
    Mutant(
        name="the newest grant of a resource stays in the history",
        file="fencing/pruning.py",
        old="token__lt=Subquery(newest)",
        new="token__lte=Subquery(newest)",
        tests=(PRUNING + "test_newest_grant_of_each_resource_stays[default]",),
    ),
    Mutant(
        name="grants that have not ended stay in the history",
        file="fencing/pruning.py",
        old='ended_at__lt=before).exclude(ended="")',
        new="granted_at__lt=before)",
        tests=(PRUNING + "test_grant_that_nobody_told_the_end_of_stays",),
    ),
    Mutant(
        name="an opened reign counts above the floor",
        file="fencing/reigns.py",
        old='        yield floors.aggregate(highest=Max("token"))["highest"] or 0, f"the floor',
        new='        yield 0, f"the floor',
        tests=(PRUNING + "test_opened_reign_counts_above_the_floor",),
    ),
    Mutant(
        name="a mark is what every counter has passed",
        file="fencing/pruning.py",
        old="counted = min(draw_from_store",
        new="counted = max(draw_from_store",
        tests=(PRUNING + "test_marks_of_several_counters_are_at_the_one_that_is_least_far",),
    ),
    Mutant(
        name="the thread that collects keeps no session",
        file="fencing/history.py",
        old="    finally:\n        # No request or task ends in this thread, after which Django would drop a connection, dead or alive.\n"
        "        connections.close_all()\n",
        new="",
        tests=(HISTORY + "test_collecting_in_the_background_keeps_no_session",),
    ),
    Mutant(
        name="a task that is put back into the queue has spent no retry",
        file="fencing/celery/run.py",
        old="retries=request.retries, headers=headers, **shown",
        new="retries=(request.retries or 0) + 1, headers=headers, **shown",
        tests=(ROWS + "test_held_lease_puts_the_task_back_into_the_queue_and_costs_no_retry[prefork-valkey]",),
    ),
    Mutant(
        name="an earlier delivery of the same task is nobody else",
        file="fencing/celery/run.py",
        old="        if self.in_worker and self.task_id and error.task_id == self.task_id:\n",
        new="        if False:\n",
        tests=(ROWS + "test_i5_redelivery_beside_the_first_run_takes_effect_once[prefork-valkey]",),
    ),
    Mutant(
        name="an expired task is not put back",
        file="fencing/celery/run.py",
        old="            if self._has_expired():\n",
        new="            if False:\n",
        tests=(DELIVERIES + "test_busy_task_that_has_expired_meanwhile_is_revoked_and_not_sent_again[aware]",),
    ),
    Mutant(
        name="nobody in a chain waits for a task that was skipped",
        file="fencing/celery/run.py",
        old="self.called_directly or self.request.chain or self.request.chord",
        new="self.called_directly",
        tests=(ROWS + "test_skipping_in_a_chain_is_a_failure[prefork-valkey]",),
    ),
    Mutant(
        name="a stale write is still due",
        file="fencing/celery/run.py",
        old="REPEATABLE = (StaleWriteError, StaleReadError, LeaseLostError)",
        new="REPEATABLE = (StaleReadError, LeaseLostError)",
        tests=(POLICY + "test_i3_refused_body_is_repeated_with_fresh_reads",),
    ),
    Mutant(
        name="a stale read is read again",
        file="fencing/celery/run.py",
        old="REPEATABLE = (StaleWriteError, StaleReadError, LeaseLostError)",
        new="REPEATABLE = (StaleWriteError, LeaseLostError)",
        tests=(ROWS + "test_i3_body_that_wrote_what_it_had_read_too_early_runs_again[prefork-valkey]",),
    ),
    Mutant(
        name="a lease that was lost is taken again",
        file="fencing/celery/run.py",
        old="REPEATABLE = (StaleWriteError, StaleReadError, LeaseLostError)",
        new="REPEATABLE = (StaleWriteError, StaleReadError)",
        tests=(POLICY + "test_lost_lease_repeats_the_body",),
    ),
    Mutant(
        name="what has a part in the database is not repeated",
        file="fencing/celery/run.py",
        old="if committed and self.policy.max_stale_retries:",
        new="if False:",
        tests=(POLICY + "test_i6_body_with_a_committed_part_is_not_repeated",),
    ),
    Mutant(
        name="Celery does not repeat what no attempt can cure",
        file="fencing/celery/fencedtask.py",
        old="*[error for error in ours if error not in named]",
        new="",
        tests=("tests/celery/test_retries.py::test_s9_autoretry_does_not_repeat_a_body_with_a_committed_part",),
    ),
    Mutant(
        name="a message that goes back to the broker is not retried instead",
        file="fencing/celery/fencedtask.py",
        old="(*INCURABLE, Reject)",
        new="INCURABLE",
        tests=(DELIVERIES + "test_autoretry_leaves_a_message_that_goes_back_to_the_broker_alone",),
    ),
    Mutant(
        name="a retry that cannot be sent loses no task",
        file="fencing/celery/fencedtask.py",
        old="            if unsent is exc or not isinstance(failure, Exception):\n",
        new="            if True:\n",
        tests=(DELIVERIES + "test_retry_that_cannot_be_sent_fails_or_is_given_back",),
    ),
    Mutant(
        name="a body that swallows a refusal does not succeed",
        file="fencing/taskrun.py",
        old="    held.refusals.raise_unmended(earlier)\n",
        new="",
        tests=(POLICY + "test_i6_swallowed_refusal_is_raised_at_the_end",),
    ),
    Mutant(
        name="a pool's thread holds what it took itself, and nothing else",
        file="fencing/scope.py",
        old="""_held: ContextVar[tuple[Lease, ...]] = ContextVar("fencing_held", default=())""",
        new="""class _Shared:
    value: tuple[Lease, ...] = ()

    def get(self) -> tuple[Lease, ...]:
        return self.value

    def set(self, value: tuple[Lease, ...]) -> tuple[Lease, ...]:
        before, self.value = self.value, value
        return before

    def reset(self, before: tuple[Lease, ...]) -> None:
        self.value = before


_held = _Shared()""",
        tests=(ROWS + "test_tasks_at_a_time_hold_a_lease_each_for_longer_than_its_ttl[threads-valkey]",),
    ),
    Mutant(
        name="the next task of a thread does not bear the name of the last one",
        file="fencing/taskrun.py",
        old="    holder_info.set(info)\n    task_fields.set(fields)\n",
        new="    task_fields.set(fields)\n",
        tests=(ROWS + "test_every_way_to_end_undoes_the_body_and_leaves_nothing_behind[threads-valkey-error-states0]",),
    ),
    Mutant(
        name="whatever interrupts a greenlet leaves nothing in its context",
        file="fencing/taskrun.py",
        old="    except BaseException as error:\n        if isinstance(error, limit)",
        new="    except Exception as error:\n        if isinstance(error, limit)",
        tests=(POOLS + "test_greenlet_that_is_interrupted_anywhere_leaves_nothing_behind",),
    ),
    Mutant(
        name="a refusal is logged",
        file="fencing/history.py",
        old="        _record_outside(connection, attempt)\n    tell_attempt(attempt)",
        new="        _record_outside(connection, attempt)",
        tests=(HISTORY + "test_log_lines_have_named_fields[none]",),
    ),
    Mutant(
        name="a refusal outlives the rollback",
        file="fencing/history.py",
        old="        with autocommit(connection.alias) as own:\n            record(own, [attempt])",
        new="        record(connection, [attempt])",
        tests=(HISTORY + "test_refusal_outlives_every_rollback[default-savepoint]",),
    ),
    Mutant(
        name="a lost release does not undo how a grant ended",
        file="fencing/collector.py",
        old="AND ({ended} <> 'lost' OR {grants}.ended IN ('', 'expired'))",
        new="AND true",
        tests=(HISTORY + "test_merging_again_in_any_order_and_in_other_batches_changes_nothing[default]",),
    ),
    Mutant(
        name="what ends while grants are collected is collected next",
        file="fencing/history.py",
        old='    chores.remove(("collect", using))\n',
        new="",
        tests=(HISTORY + "test_lease_that_ends_while_grants_are_collected_is_collected_next",),
    ),
    Mutant(
        name="a grant that a newer one followed has expired",
        file="fencing/collector.py",
        old="AND resource IN (",
        new="AND false AND resource IN (",
        tests=(HISTORY + "test_what_merging_tells[default]",),
    ),
    Mutant(
        name="a store of one process does not end the grants of others",
        file="fencing/backends/memory.py",
        old="    is_shared = False\n",
        new="",
        tests=(EXPIRY + "test_memory_of_this_process_does_not_tell_that_a_lease_of_another_has_ended",),
    ),
    Mutant(
        name="a lease that is renewed has not expired, however old its grant is",
        file="fencing/expiry.py",
        old="if not _is_live(backend, one)]",
        new="]",
        tests=(EXPIRY + "test_lease_that_is_renewed_is_open_however_old",),
    ),
    Mutant(
        name="a grant whose end is told meanwhile has not expired",
        file="fencing/expiry.py",
        old="    history.collect(backend.config.alias)\n",
        new="",
        tests=(EXPIRY + "test_release_that_nobody_has_collected_is_a_release",),
    ),
    Mutant(
        name="an event that the database cannot keep stops no other",
        file="fencing/collector.py",
        old="        if not is_unkeepable(error):\n            raise",
        new="        raise",
        tests=(HISTORY + "test_outbox_is_emptied_of_what_the_database_cannot_keep",),
    ),
    Mutant(
        name="an event that the database cannot keep breaks no test's transaction",
        file="fencing/collector.py",
        old="        if before:\n            connection.savepoint_rollback(before)\n",
        new="",
        tests=(HISTORY + "test_event_that_the_database_cannot_keep_breaks_no_transaction_of_a_test",),
    ),
    Mutant(
        name="an annotation that decorates the body leaves the lease around it",
        file="fencing/celery/fencedtask.py",
        old="    del run.__wrapped__\n",
        new="",
        tests=(CALLS + "test_annotation_that_decorates_the_body_leaves_the_lease_around_it",),
    ),
    Mutant(
        name="an annotation does not lose what is never retried",
        file="fencing/celery/fencedtask.py",
        old="        cls.dont_autoretry_for = not_retried(",
        new="        not_retried(",
        tests=(CALLS + "test_annotation_may_except_errors_from_retries_beside_the_incurable",),
    ),
    Mutant(
        name="a task with a long name and id has a key, too",
        file="fencing/taskpolicy.py",
        old="    if len(name) <= MAX_OPERATION_LENGTH:\n        return name\n",
        new="    return name\n",
        tests=(DELIVERIES + "test_whatever_celery_takes_for_an_id_is_one_operation[long]",),
    ),
    Mutant(
        name="a UUID is an id, too",
        file="fencing/celery/run.py",
        old='task_id = str(self.request.id or "")',
        new='task_id = self.request.id or ""',
        tests=(DELIVERIES + "test_whatever_celery_takes_for_an_id_is_one_operation[UUID]",),
    ),
    Mutant(
        name="a task's name is checked in a direct call, too",
        file="fencing/celery/run.py",
        old='check_task("" if self.called_directly else task_id, task.name)',
        new='"" if self.called_directly else check_task(task_id, task.name)',
        tests=(CALLS + "test_name_that_the_history_cannot_keep_is_refused_before_the_store_is_told",),
    ),
    Mutant(
        name="a collector that was in the way of another begins again",
        file="fencing/collector.py",
        old="not in SERIALIZATION_FAILURES or not tries_left",
        new="not in ()",
        tests=(HISTORY + "test_collectors_that_block_each_other_begin_again",),
    ),
    Mutant(
        name="a child is told only of monitors that listen to tasks",
        file="fencing/celery/fencedtask.py",
        old="""and (not events.groups or "task" in events.groups)""",
        new="",
        tests=(OPERATOR + "test_child_is_told_whether_somebody_listens",),
    ),
    Mutant(
        name="an event that cannot be sent fails no task",
        file="fencing/celery/run.py",
        old="""        except Exception:  # each transport has errors of its own""",
        new="""        except ZeroDivisionError:""",
        tests=(OPERATOR + "test_event_that_cannot_be_sent_fails_no_task",),
    ),
    Mutant(
        name="the sender's own headers are not changed",
        file="fencing/taskreport.py",
        old="""dict(request.headers or ())""",
        new="""request.headers if request.headers is not None else {}""",
        tests=(OPERATOR + "test_request_shows_resource_and_grant_to_body_and_signals",),
    ),
    Mutant(
        name="refusals are expected beside what the task expects, in whichever form",
        file="fencing/celery/decorators.py",
        old="""(*([expected] if isinstance(expected, type) else expected), WriteRejectedError)""",
        new="""expected or WriteRejectedError""",
        tests=(OPERATOR + "test_what_is_expected_is_one_line_of_the_log",),
    ),
    Mutant(
        name="a task that ends refused says so in the log",
        file="fencing/celery/run.py",
        old="""                    self.report.failed(error)
""",
        new="",
        tests=(OPERATOR + "test_lines_of_a_task_name_it",),
    ),
    Mutant(
        name="a leased_task is for what may happen twice",
        file="fencing/taskchecks.py",
        old=""" and not task.fencing.leased_only:""",
        new=":",
        tests=("tests/celery/test_checks.py::test_w033_late_acknowledgement_without_once",),
    ),
    Mutant(
        name="a second message is of no matter to what takes effect once",
        file="fencing/taskchecks.py",
        old="""timeout is None or task.fencing.atomic:""",
        new="""timeout is None:""",
        tests=("tests/celery/test_checks.py::test_w032_is_of_no_matter_to_what_takes_effect_once",),
    ),
    Mutant(
        name="what a soft time limit interrupts leaves nothing in the context",
        file="fencing/taskrun.py",
        old="""        _restore_context(*before)
        raise
""",
        new="""        raise
""",
        tests=(STRIKES + "test_c07_wherever_the_limit_strikes_nothing_is_left_and_the_task_takes_effect_once",),
    ),
    Mutant(
        name="a release that a soft time limit keeps from beginning happens all the same",
        file="fencing/entering.py",
        old="""struck before the release; else this does nothing.
        lease.release()
""",
        new="""struck before the release; else this does nothing.
""",
        tests=(STRIKES + "test_c07_wherever_the_limit_strikes_nothing_is_left_and_the_task_takes_effect_once",),
    ),
    Mutant(
        name="a release that is interrupted is told to the store again",
        file="fencing/leases.py",
        old="""            with suppress(LeaseBackendError):
                self._backend.release(self._place, self.holder, self.token)
            raise
""",
        new="""            raise
""",
        tests=(STRIKES + "test_limit_in_the_release_does_not_make_others_wait_for_the_end_of_the_lease",),
    ),
    Mutant(
        name="an acquire that is interrupted gives back what it was granted",
        file="fencing/acquiring.py",
        old="""    except LeaseHeldError:
        raise
    except BaseException:
""",
        new="""    except LeaseHeldError:
        raise
    except ZeroDivisionError:
""",
        tests=(STRIKES + "test_limit_after_the_store_has_answered_gives_the_lease_back",),
    ),
    Mutant(
        name="a transaction whose end is interrupted is dropped",
        file="fencing/taskrun.py",
        old="            abandon_transactions(others)",
        new="            pass",
        tests=(STRIKES + "test_limit_in_the_commit_is_the_outcome_and_leaves_no_transaction",),
    ),
    Mutant(
        name="a limit in a task leaves the transaction around it alone",
        file="fencing/taskrun.py",
        old="            abandon_transactions(others)",
        new="            abandon_transactions(())",
        tests=("tests/test_testcase.py::InTestCase::test_eager_tasks_take_effect_once_and_a_limit_undoes_only_them",),
    ),
    Mutant(
        name="a soft time limit in the commit stays the outcome",
        file="fencing/transactions.py",
        old="    return None if cause is error else cause",
        new="    return None",
        tests=(STRIKES + "test_limit_in_the_commit_is_the_outcome_and_leaves_no_transaction",),
    ),
    Mutant(
        name="an interrupted statement does not run on in the database",
        file="fencing/transactions.py",
        old="""        if error is not None:
            stop_statement(connection)
""",
        new="",
        tests=(LIMITS + "test_soft_limit_in_the_middle_of_a_statement_undoes_the_body_and_leaves_a_usable_child",),
    ),
    Mutant(
        name="an interrupted commit does not run on in the database",
        file="fencing/transactions.py",
        old="""            stop_statement(connection)
            connection.in_atomic_block""",
        new="""            connection.in_atomic_block""",
        tests=(LIMITS + "test_c07_soft_limit_in_the_commit_undoes_it_and_the_task_can_be_sent_again",),
    ),
    Mutant(
        name="a task that others wait for in a chord is not skipped",
        file="fencing/celery/run.py",
        old="or self.request.chain or self.request.chord)",
        new="or self.request.chain)",
        tests=("tests/celery/test_canvas.py::test_skipping_in_a_chord_is_a_failure_of_the_chord",),
    ),
    Mutant(
        name="a body whose effect is recorded asks for no quiet retry",
        file="fencing/celery/fencedtask.py",
        old="if not throw and open_body.get() is not None:",
        new="if False:",
        tests=(
            ROWS
            + "test_every_way_to_end_undoes_the_body_and_leaves_nothing_behind[prefork-valkey-quiet retry-states4]",
        ),
    ),
    Mutant(
        name="an operation's key is a task's own",
        file="fencing/taskrun.py",
        old="        task=task_name,\n",
        new="",
        tests=("tests/celery/test_policy.py::test_one_key_of_two_tasks_is_two_operations",),
    ),
    Mutant(
        name="one key for other arguments is no duplicate",
        file="fencing/taskpolicy.py",
        old="return hashlib.sha256(_as_text(self.bound.arguments).encode()).hexdigest()",
        new="return hashlib.sha256(b'').hexdigest()",
        tests=("tests/celery/test_policy.py::test_one_key_for_two_calls_is_no_duplicate",),
    ),
    Mutant(
        name="a call is the same whether it names a default or not",
        file="fencing/taskpolicy.py",
        old="        bound.apply_defaults()\n",
        new="",
        tests=("tests/celery/test_calls.py::test_c10_same_call_is_the_same_name_however_it_is_written",),
    ),
    Mutant(
        name="arguments are the same in every process",
        file="fencing/taskpolicy.py",
        old="""        return sorted(map(_as_text, value))""",
        new="""        return [*map(_as_text, value)]""",
        tests=("tests/celery/test_calls.py::test_c10_arguments_are_the_same_in_every_process",),
    ),
    Mutant(
        name="an object is the same argument wherever in memory it is",
        file="fencing/taskpolicy.py",
        old="""ADDRESS.sub("", repr(value))""",
        new="""repr(value)""",
        tests=("tests/celery/test_calls.py::test_c10_arguments_are_the_same_in_every_process",),
    ),
    Mutant(
        name="a lazy text is the same argument as its text",
        file="fencing/taskpolicy.py",
        old="(*NAMEABLE, Promise)",
        new="NAMEABLE",
        tests=("tests/celery/test_calls.py::test_c10_lazy_text_is_the_same_argument_as_its_text",),
    ),
    Mutant(
        name="the keys of an argument are what a message makes of them",
        file="fencing/taskpolicy.py",
        old="""key if isinstance(key, str) else _key(key): _with_text_keys(one)""",
        new="""key: _with_text_keys(one)""",
        tests=("tests/celery/test_calls.py::test_c10_keys_of_a_dictionary_are_what_a_message_makes_of_them",),
    ),
    Mutant(
        name="a body runs again with the arguments as they came",
        file="fencing/celery/fencedtask.py",
        old="*own_copy(args), **own_copy(kwargs)",
        new="*args, **kwargs",
        tests=(DELIVERIES + "test_i6_body_that_empties_an_argument_runs_again_with_all_of_it",),
    ),
    Mutant(
        name="a body runs again with what follows it as it came",
        file="fencing/celery/run.py",
        old="                self.request.update(following)\n",
        new="",
        tests=(DELIVERIES + "test_body_that_adds_to_what_follows_it_runs_again_without_the_addition",),
    ),
    Mutant(
        name="a default that a body changes is the same argument afterwards",
        file="fencing/taskpolicy.py",
        old="one.replace(default=own_copy(one.default))",
        new="one",
        tests=("tests/celery/test_calls.py::test_i5_duplicate_is_one_though_the_body_has_changed_a_default",),
    ),
    Mutant(
        name="an argument may be called self",
        file="fencing/celery/fencedtask.py",
        old="def run(self: FencedTask, /, *args",
        new="def run(self: FencedTask, *args",
        tests=("tests/celery/test_calls.py::test_argument_may_have_any_name",),
    ),
    Mutant(
        name="a busy task hides the arguments that its sender hid",
        file="fencing/celery/run.py",
        old="headers=headers, **shown",
        new="headers=headers",
        tests=("tests/celery/test_canvas.py::test_hidden_arguments_stay_hidden_in_a_task_that_waits_for_its_lease",),
    ),
    Mutant(
        name="a task inside itself is a call of its own",
        file="fencing/celery/run.py",
        old="self.request.called_directly or _is_at_work(task.name, task_id)",
        new="self.request.called_directly",
        tests=(DELIVERIES + "test_task_called_inside_its_own_body_is_a_direct_call",),
    ),
    Mutant(
        name="no id of a task stops the collecting of the history",
        file="fencing/taskpolicy.py",
        old="        if len(text) > MAX_TASK_LENGTH or not text.isprintable():\n",
        new="        if False:\n",
        tests=(DELIVERIES + "test_task_id_that_the_history_cannot_keep_is_refused_before_the_grant",),
    ),
    Mutant(
        name="the time of a body is no waiting",
        file="fencing/celery/run.py",
        old="self.busy = Busy(since=time(), stale=self.busy.stale + 1)",
        new="self.busy.stale += 1",
        tests=(DELIVERIES + "test_body_that_was_refused_after_a_long_time_has_all_its_patience",),
    ),
    Mutant(
        name="what was committed under another lease is a part of the body, too",
        file="fencing/scope.py",
        old="        others[-1].accepted += lease.accepted\n",
        new="        pass\n",
        tests=(DELIVERIES + "test_s9_what_a_body_committed_under_another_lease_is_not_done_again",),
    ),
    Mutant(
        name="what was rolled back is no part that was committed",
        file="fencing/transactions.py",
        old="            self.lease.accepted = self._accepted_before\n",
        new="            pass\n",
        tests=(DELIVERIES + "test_body_whose_own_transaction_was_rolled_back_runs_again",),
    ),
    Mutant(
        name="a copy that cannot be put back is no failure of its first delivery",
        file="fencing/celery/run.py",
        old="""            if not (self.task.acks_late or is_copy):
""",
        new="""            if True:
""",
        tests=(DELIVERIES + "test_u5_copy_that_cannot_be_put_back_stores_nothing_over_its_first_delivery",),
    ),
    Mutant(
        name="a base may be a fenced task itself",
        file="fencing/celery/decorators.py",
        old="(base,) if issubclass(base, FencedTask) else ",
        new="",
        tests=("tests/celery/test_calls.py::test_base_may_be_a_fenced_task_itself",),
    ),
    Mutant(
        name="only who has the right to export may export",
        file="fencing/admin/export.py",
        old="            raise PermissionDenied\n",
        new="            pass\n",
        tests=("tests/admin/test_export.py::test_who_may_export",),
    ),
    Mutant(
        name="an export holds no formula",
        file="fencing/admin/export.py",
        old="""return FORMULA.sub(r"\\1'", value) if isinstance(value, str) else value""",
        new="return value",
        tests=("tests/admin/test_export.py::test_no_text_is_a_formula",),
    ),
    Mutant(
        name="an export holds no formula after a semicolon or a tab, which can end a cell",
        file="fencing/admin/export.py",
        old="(^|[;\\t\\r\\n])(?=",
        new="(^)(?=",
        tests=("tests/admin/test_export.py::test_no_part_of_a_text_is_a_formula_where_semicolons_end_cells",),
    ),
    Mutant(
        name="the admin signs a read for the row that was read, not for a key that was typed",
        file="fencing/admin/fencedforms.py",
        old="return signed(self._meta.model, {self.fence_key: read})",
        new="return signed(self._meta.model, {str(self.instance.pk): read})",
        tests=("tests/admin/test_fenced_admin.py::test_a_key_that_was_typed_is_not_the_key_of_what_was_read",),
    ),
    Mutant(
        name="the admin believes no read that it has not signed",
        file="fencing/admin/formreads.py",
        old='        reads = signing.loads(text or "", salt=_salt(model))\n',
        new='        reads = signing.JSONSerializer().loads(signing.b64_decode((text or "").partition(":")[0].encode()))\n',
        tests=(ADMIN + "test_a_read_that_was_altered_is_refused",),
    ),
    Mutant(
        name="a signed read of the admin counts for its own model only",
        file="fencing/admin/formreads.py",
        old='return f"fencing.admin.{fence_of(model).label}"',
        new='return "fencing.admin"',
        tests=(ADMIN + "test_a_forged_read_is_refused",),
    ),
    Mutant(
        name="the admin saves a form as the row that it was loaded from",
        file="fencing/admin/fencedforms.py",
        old="self.instance._fence_pin = read and read.token",
        new="pass",
        tests=(
            ADMIN + "test_a_form_that_was_loaded_before_a_write_is_refused_and_comes_back",
            ADMIN_LISTS + "test_a_row_that_somebody_wrote_meanwhile_refuses_all_of_the_list",
        ),
    ),
    Mutant(
        name="an invalid form of the admin keeps its read",
        file="fencing/admin/fencedforms.py",
        old=" if refused or self.fence_read is None else self.fence_read",
        new="",
        tests=(ADMIN + "test_an_invalid_form_keeps_the_read_that_its_values_come_from",),
    ),
    Mutant(
        name="an invalid list of the admin keeps its reads",
        file="fencing/admin/fencedforms.py",
        old="        read: Read | None = form.fence_read\n        return read\n",
        new="        return Read(form.fence_token)\n",
        tests=(ADMIN_LISTS + "test_an_invalid_list_keeps_its_reads",),
    ),
    Mutant(
        name="the admin saves a row under its lease",
        file="fencing/admin/fencedviews.py",
        old="        found.add_rows([row])\n        if is_fenced",
        new="        if is_fenced",
        tests=(ADMIN + "test_a_save_takes_the_lease_and_raises_the_token",),
    ),
    Mutant(
        name="the lease of the admin outlives the commit",
        file="fencing/admin/fencedviews.py",
        old="                edit.hold(_of_change(options, request, row, edit))\n",
        new="""                edit.hold(_of_change(options, request, row, edit))
                from django.db import transaction
                with transaction.atomic(), edit.leases:
                    return view(request, object_id, form_url, extra_context)
""",
        tests=(ADMIN + "test_the_lease_is_taken_before_the_transaction_and_released_after_the_commit",),
    ),
    Mutant(
        name="list_editable of the admin saves rows under their leases",
        file="fencing/admin/fencedviews.py",
        old="            edit.hold(_of_list(options, request, edit))\n",
        new="",
        tests=(ADMIN_LISTS + "test_several_rows_are_saved_under_their_leases",),
    ),
    Mutant(
        name="what was typed over a conflict in a list of the admin is meant",
        file="fencing/admin/fencedforms.py",
        old="return (self.fence_read is not None and self.fence_read.conflict) or super().has_changed()",
        new="return super().has_changed()",
        tests=(ADMIN_LISTS + "test_after_a_conflict_the_first_value_is_meant_too",),
    ),
    Mutant(
        name="a row of a list of the admin that nobody touched is not written",
        file="fencing/admin/fencedforms.py",
        old="field.show_hidden_initial = not (field.disabled or unseen)",
        new="pass",
        tests=(ADMIN_LISTS + "test_a_row_that_nobody_touched_here_is_no_conflict",),
    ),
    Mutant(
        name="a log that raises costs no refusal its row",
        file="fencing/history.py",
        old="    if wanted(attempt.outcome):\n        _record_outside(connection, attempt)\n    tell_attempt(attempt)\n",
        new="    tell_attempt(attempt)\n    if wanted(attempt.outcome):\n        _record_outside(connection, attempt)\n",
        tests=("tests/test_history.py::test_log_that_raises_costs_no_refusal_its_row",),
    ),
    Mutant(
        name="a refusal is remembered before anybody is told of it",
        file="fencing/writes.py",
        old="        lease.refusals.add(connection, one, error)\n    history.record_refusal(connection, dataclasses.replace(tried, outcome=OUTCOMES[kind], seen=seen))\n",
        new="        pass\n    history.record_refusal(connection, dataclasses.replace(tried, outcome=OUTCOMES[kind], seen=seen))\n    lease.refusals.add(connection, what, error)\n",
        tests=("tests/test_history.py::test_log_that_raises_lets_no_refused_transaction_commit",),
    ),
    Mutant(
        name="whatever keeps a refusal from the history, it stays a refusal",
        file="fencing/history.py",
        old="except (Error, FencingError, ValueError) as error:",
        new="except (DatabaseError, FencingError) as error:",
        tests=("tests/test_history.py::test_whatever_keeps_a_refusal_from_the_history_it_stays_a_refusal",),
    ),
    Mutant(
        name="what interrupts the writing of refusals that waited costs the others nothing",
        file="fencing/history.py",
        old="_waiting.setdefault(connection, []).extend(attempts)",
        new="pass",
        tests=("tests/test_history.py::test_what_interrupts_the_writing_of_waiting_refusals_costs_the_others_nothing",),
    ),
    Mutant(
        name="a refusal that waited in one test is none of the next",
        file="fencing/history.py",
        old="if test is None or test in connection.atomic_blocks:",
        new="if True:",
        tests=("tests/testing/test_helpers.py::NextTest",),
    ),
    Mutant(
        name="the helpers for tests keep namespaces apart",
        file="fencing/testing.py",
        old="found.filter(namespace=namespace, resource=",
        new="found.filter(resource=",
        tests=("tests/testing/test_helpers.py::test_one_resource_in_two_namespaces_is_two",),
    ),
    Mutant(
        name="refusals that waited are written when the request ends",
        file="fencing/apps.py",
        old="        request_finished.connect(_write_refusals)\n",
        new="",
        tests=("tests/test_history.py::test_refusal_in_a_request_outlives_its_rollback",),
    ),
    Mutant(
        name="a list of the admin has no hidden input with what an input never shows",
        file="fencing/admin/fencedforms.py",
        old="unseen = isinstance(field, forms.FileField) or is_secret(field)",
        new="unseen = isinstance(field, forms.FileField)",
        tests=(ADMIN_SECRETS + "test_no_hidden_input_has_a_secret",),
    ),
    Mutant(
        name="a refused form of the admin does not tell what an input never shows",
        file="fencing/admin/fencedforms.py",
        old="if name == self._meta.model._meta.pk.name or is_secret(field):",
        new="if name == self._meta.model._meta.pk.name:",
        tests=(ADMIN_SECRETS + "test_a_refused_form_tells_no_secret",),
    ),
    Mutant(
        name="the admin takes leases for no more rows than its limit",
        file="fencing/admin/fencededit.py",
        old="if sum(map(len, self.names.values())) > self.limit:",
        new="if False:",
        tests=(ADMIN_LISTS + "test_an_action_on_more_rows_than_leases_does_not_begin",),
    ),
    Mutant(
        name="the admin takes no lease for who may not write the row",
        file="fencing/admin/fencedviews.py",
        old="return row if row is not None and has_permission(request, row) else None",
        new="return row",
        tests=(ADMIN + "test_who_may_not_change_a_row_takes_no_lease_and_changes_nothing",),
    ),
    Mutant(
        name="a refused form of the admin is invalid",
        file="fencing/admin/fencedforms.py",
        old="            self.add_error(None, text_for_form(refusal, gone=edit.gone))\n",
        new="            pass\n",
        tests=(ADMIN + "test_a_held_lease_is_told_with_its_holder_and_nothing_typed_is_lost",),
    ),
    Mutant(
        name="a plain admin answers a refusal",
        file="fencing/admin/plainadmin.py",
        old="                answer = fencedviews.refused(request, error, self, undone=is_undone(view, request))\n",
        new="                raise\n",
        tests=(
            ADMIN_PLAIN + "test_a_change",
            ADMIN_PLAIN + "test_a_cascade_from_an_unfenced_parent",
        ),
    ),
    Mutant(
        name="who may not revoke cannot by a forged POST to the admin",
        file="fencing/admin/revoking.py",
        old="    if not may_revoke:",
        new='    if not may_revoke and request.method != "POST":',
        tests=(f"{REVOKE}test_who_may_not_revoke_cannot_even_by_a_forged_post",),
    ),
    Mutant(
        name="revoking in the admin takes its own right",
        file="fencing/admin/live.py",
        old='and request.user.has_perm("fencing.revoke_heldlease")',
        new="",
        tests=(f"{REVOKE}test_who_may_not_revoke_cannot_even_by_a_forged_post",),
    ),
    Mutant(
        name="the admin revokes the grant that was shown and no other",
        file="fencing/admin/revoking.py",
        old='token=given["token"], using=using',
        new="using=using",
        tests=(f"{REVOKE}test_a_lease_that_changed_hands_meanwhile_stays_and_is_shown",),
    ),
    Mutant(
        name="nothing but a POST revokes in the admin",
        file="fencing/admin/revoking.py",
        old='RevokeForm(request.POST) if request.method == "POST" else RevokeForm()',
        new="RevokeForm(request.POST or request.GET or None)",
        tests=(f"{REVOKE}test_nothing_but_a_post_revokes",),
    ),
    Mutant(
        name="a revocation in the admin is in no transaction of the request",
        file="fencing/admin/live.py",
        old="    @transaction.non_atomic_requests",
        new="",
        tests=(f"{REVOKE}test_a_request_in_a_transaction_is_no_hindrance",),
    ),
    Mutant(
        name="a timeline is for who may see grants and writes",
        file="fencing/admin/rights.py",
        old="may_view(site, request, TokenGrant) and may_view(site, request, FencedWrite)",
        new="may_view(site, request, TokenGrant) or may_view(site, request, FencedWrite)",
        tests=(f"{TIMELINE}test_it_needs_the_rights_to_see_grants_and_writes",),
    ),
    Mutant(
        name="the admin logs no refused deletion as done",
        file="fencing/admin/plainadmin.py",
        old="        with transaction.atomic(using=router.db_for_write(self.model)):\n",
        new="        if True:\n",
        tests=(ADMIN_PLAIN + "test_an_action",),
    ),
)


class Runner:
    """Runs pytest in copies of the project, one after the other."""

    def __init__(self, environment: dict[str, str]) -> None:
        program = Path(__file__).with_name("warm_pytest.py")
        self._process = subprocess.Popen(
            [sys.executable, program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder: Path, tests: tuple[str, ...], bound: int) -> tuple[int, str]:
        """Run tests in a copy; pytest's exit status and what it printed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        output = folder / "output.txt"
        order = {"folder": str(folder), "arguments": [*OPTIONS, *tests], "output": str(output), "bound": bound}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline()), output.read_text(errors="replace")

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


class Runners:
    """As many as run at once; each job gets one that is free."""

    def __init__(self, environment: dict[str, str], stack: ExitStack) -> None:
        self._free: SimpleQueue[Runner] = SimpleQueue()
        for _ in range(PARALLEL):
            runner = Runner(environment)
            stack.callback(runner.end)
            self._free.put(runner)

    def run(self, folder: Path, tests: tuple[str, ...], bound: int) -> tuple[int, str]:
        """See ``Runner.run``."""
        runner = self._free.get()
        try:
            return runner.run(folder, tests, bound)
        finally:
            self._free.put(runner)


def copy_project(folder: Path) -> Path:
    """A copy of what the tests need, with what Python has compiled."""
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy2(source, folder / name)
    return folder


def try_untouched(mutants: Sequence[Mutant], runners: Runners) -> tuple[int, str]:
    """All tests that any of the mutants names, in a copy without a mutant."""
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    with tempfile.TemporaryDirectory(prefix="fencing-mutant-") as name:
        return runners.run(copy_project(Path(name)), tests, BOUND_OF_ALL)


def try_mutant(mutant: Mutant, runners: Runners) -> tuple[bool, str]:
    """Whether the tests caught the mutant, and a line about it."""
    with tempfile.TemporaryDirectory(prefix="fencing-mutant-") as name:
        folder = copy_project(Path(name))
        file = folder / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            return False, f"STALE     {mutant.name}: its text is {text.count(mutant.old)} times in {mutant.file}"
        file.write_text(text.replace(mutant.old, mutant.new))
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()
        status, output = 0, ""
        for _ in range(mutant.tries):
            if status == 0:
                status, output = runners.run(folder, mutant.tests, BOUND)
    if status == 1:
        return True, f"caught    {mutant.name}"
    tail = "" if status == 0 else "\n" + output[-2000:]
    return False, f"{'SURVIVED ' if status == 0 else 'BROKEN   '} {mutant.name}{tail}"


def main() -> int:
    """Try the untouched copy and the mutants; print caught/total."""
    mutants = chosen()
    with running(), ExitStack() as stack:
        if not mariadb.reason_to_lack():
            stack.enter_context(mariadb.running())
        environment = {
            **os.environ,
            "MARIADB_URL": mariadb.url(),
            "DATABASE_URL": database_url(),
            "REDIS_URL": addresses().redis(0),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }
        runners = Runners(environment, stack)
        with ThreadPoolExecutor(PARALLEL) as pool:
            untouched = pool.submit(try_untouched, mutants, runners)  # first, as it takes longest
            caught = 0
            for was_caught, line in pool.map(lambda mutant: try_mutant(mutant, runners), mutants):
                caught += was_caught
                print(line, flush=True)
            status, output = untouched.result()
    print(f"{caught}/{len(mutants)} mutants caught")
    if status != 0:
        print(output)
        print("The tests fail without any mutant; nothing can be said.")
    return 0 if status == 0 and caught == len(mutants) else 1


def chosen() -> Sequence[Mutant]:
    """The mutants that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", default="1/1", metavar="N/M", help="only every M-th mutant, from the N-th on")
    parser.add_argument("--named", default="", metavar="TEXT", help="only mutants whose name has this in it")
    given = parser.parse_args()
    first, step = map(int, given.share.split("/"))
    found = [mutant for mutant in MUTANTS[first - 1 :: step] if given.named in mutant.name]
    if not found:
        # Without the name of a test pytest would run them all.
        parser.error("no mutant is chosen.")
    return found


def database_url() -> str:
    """The address of the checkout's database: a copy elsewhere would else start servers of its own."""
    from urllib.parse import quote

    if url := os.environ.get("DATABASE_URL"):
        return url
    database = addresses().database
    return f"postgres://{database['USER']}@{quote(database['HOST'], safe='')}:{database['PORT']}/{database['NAME']}"


if __name__ == "__main__":
    sys.exit(main())
