"""``makemigrations``, ``migrate`` and ``flush`` as users run them, on models that inherit ``FencedModel``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command, get_commands
from django.db import IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase, override_settings

from fencing.guards import guard_name_of
from fencing.management.commands import flush
from tests.shop.models import Bin, Crate, Parcel, Warehouse

from .conftest import ALIAS, run

ROW = "INSERT INTO shop_bin (id, last_token, label, quantity, changed_at) VALUES (1, 5, 'a', 10, '2026-01-01')"


@pytest.fixture
def tables(connection: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    """The tables of some fenced models, with a row that only an admitted statement can delete."""
    with connection.schema_editor() as editor:
        for model in (Warehouse, Bin, Crate):
            editor.create_model(model)
    run(connection, ROW)
    with pytest.raises(IntegrityError):
        run(connection, "DELETE FROM shop_bin")
    return connection


def test_plain_makemigrations_and_migrate_install_the_guard_and_remove_it(
    connection: BaseDatabaseWrapper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"shop_migrations_{connection.vendor}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with override_settings(MIGRATION_MODULES={"shop": package}):
        call_command("makemigrations", "shop", verbosity=0)
        written = (tmp_path / package / "0001_initial.py").read_text()
        for model in (Bin, Crate, Parcel):
            assert f"fencing.guards.FenceGuard(name='{model._meta.db_table}_fence')" in written
        importlib.invalidate_caches()
        call_command("makemigrations", "shop", check=True, dry_run=True, verbosity=0)
        migrate: dict[str, Any] = {"database": ALIAS, "verbosity": 0, "skip_checks": True}
        call_command("migrate", "shop", **migrate)
        run(connection, ROW)
        with pytest.raises(IntegrityError) as caught, transaction.atomic(using=ALIAS):
            run(connection, "UPDATE shop_bin SET quantity = 0")
        assert guard_name_of(caught.value) == "shop_bin_fence"
        call_command("migrate", "shop", "zero", **migrate)
        assert "shop_bin" not in connection.introspection.table_names()
        call_command("migrate", "shop", **migrate)


def test_flush_is_ours_and_has_cores_options() -> None:
    assert get_commands()["flush"] == "fencing"
    assert flush.Command.stealth_options == ("reset_sequences", "allow_cascade", "inhibit_post_migrate")


@pytest.mark.parametrize("reset_sequences", [True, False])
def test_flush_empties_guarded_tables(tables: BaseDatabaseWrapper, reset_sequences: bool) -> None:
    options = {"interactive": False, "verbosity": 0, "inhibit_post_migrate": True}
    call_command("flush", database=ALIAS, reset_sequences=reset_sequences, **options)
    assert not Bin.objects.using(ALIAS).exists()
    run(tables, ROW)
    with pytest.raises(IntegrityError):
        run(tables, "DELETE FROM shop_bin")


def test_flush_lifts_the_guard_for_nothing_else(tables: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = []

    def receiver(*_args: Any) -> None:
        run(tables, ROW)
        with pytest.raises(IntegrityError) as caught, transaction.atomic(using=ALIAS), tables.cursor() as cursor:
            cursor.execute("DELETE FROM shop_bin WHERE id = %s", [1])
        refusals.append(guard_name_of(caught.value))

    monkeypatch.setattr("django.core.management.commands.flush.emit_post_migrate_signal", receiver)
    call_command("flush", database=ALIAS, interactive=False, verbosity=0)
    assert refusals == ["shop_bin_fence"]


def test_teardown_of_a_transaction_test_case(tables: BaseDatabaseWrapper) -> None:
    class Case(TransactionTestCase):
        databases = {ALIAS}
        available_apps = ["tests.shop"]

    case: Any = Case("run")
    case._fixture_teardown()
    assert not Bin.objects.using(ALIAS).exists()
