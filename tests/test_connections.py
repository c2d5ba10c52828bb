"""Statements that commit by themselves, whatever transaction the caller is in."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, OperationalError, connection, connections, transaction

from fencing import LeaseInsideTransactionError, lease
from fencing import connections as module
from fencing.connections import autocommit, in_test_environment, in_testcase, in_user_transaction, open_transactions
from fencing.databases import code_of, is_cut_off
from fencing.models import TokenRange

DEFAULT, LITE, MARIA = [
    pytest.param(alias, marks=pytest.mark.django_db(databases=["default", alias], transaction=True))
    for alias in ("default", "lite", "maria")
]


def own(alias: str = "default") -> bool:
    """Whether a connection other than the caller's is given."""
    with autocommit(alias) as given:
        return given is not connections[alias]


@contextmanager
def without_autocommit() -> Iterator[None]:
    transaction.set_autocommit(False)
    try:
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.django_db
def test_the_transaction_of_a_testcase_does_not_count() -> None:
    assert in_testcase(connection)
    assert not in_user_transaction(connection)
    assert open_transactions() == []
    with transaction.atomic():
        assert in_user_transaction(connection)
        assert open_transactions() == ["default"]
    assert not in_user_transaction(connection)


@pytest.mark.django_db
def test_inside_a_testcase_it_is_always_the_callers_connection() -> None:
    assert not own()
    with transaction.atomic(), transaction.atomic():
        assert not own()


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_it_is_the_callers_connection() -> None:
    assert not in_testcase(connection)
    assert not in_user_transaction(connection)
    assert open_transactions() == []
    assert not own()


@pytest.mark.parametrize("alias", [DEFAULT, LITE, MARIA])
def test_a_transaction_that_was_begun_in_sql_counts(alias: str) -> None:
    """Django does not know of it; what is reserved in it would be taken back by its rollback, and reserved again."""
    with connections[alias].cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            assert in_user_transaction(connections[alias])
            assert open_transactions() == [alias]
            assert own(alias)
            if alias == "default":
                with pytest.raises(DatabaseError):
                    cursor.execute("SELECT 1 / 0")
                assert in_user_transaction(connection), "a transaction that has failed is open as well"
        finally:
            cursor.execute("ROLLBACK")
    assert not in_user_transaction(connections[alias])
    assert not own(alias)


@pytest.mark.parametrize("alias", [DEFAULT, MARIA])
def test_a_range_survives_the_rollback_of_a_transaction_that_was_begun_in_sql(alias: str, settings: Any) -> None:
    backends = settings.FENCING["BACKENDS"]
    entry = {**backends["default"], "NAMESPACE": f"n-{secrets.token_hex(6)}", "DATABASE": alias}
    settings.FENCING = {**settings.FENCING, "BACKENDS": {**backends, "default": entry}}
    with connections[alias].cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            with pytest.raises(LeaseInsideTransactionError), lease("stock:42"):
                pass
            with lease("stock:42", allow_in_transaction=True) as held:
                pass
        finally:
            cursor.execute("ROLLBACK")
    reserved = TokenRange.objects.using(alias).get(namespace=held.namespace)
    assert reserved.ceiling >= held.token


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction_it_is_another_one() -> None:
    with transaction.atomic():
        assert in_user_transaction(connection)
        assert open_transactions() == ["default"]
        assert own()
    with without_autocommit():
        assert in_user_transaction(connection)
        assert own()


@pytest.mark.django_db(transaction=True)
def test_what_is_written_there_survives_the_callers_rollback() -> None:
    with transaction.atomic():
        Group.objects.create(name="rolled back")
        with autocommit("default") as given, given.cursor() as cursor:
            cursor.execute("INSERT INTO auth_group (name) VALUES ('kept')")
        transaction.set_rollback(True)
    assert [group.name for group in Group.objects.all()] == ["kept"]


@pytest.mark.django_db(transaction=True)
def test_the_callers_transaction_is_left_alone_by_a_failure_there() -> None:
    with transaction.atomic():
        Group.objects.create(name="kept")
        with pytest.raises(Exception, match="no_such_table"), autocommit("default") as given, given.cursor() as cursor:
            cursor.execute("SELECT * FROM no_such_table")
    assert Group.objects.filter(name="kept").exists()


@pytest.mark.django_db(transaction=True)
def test_a_broken_transaction_of_the_caller_is_no_obstacle() -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with autocommit("default") as given, given.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)


@pytest.mark.django_db(transaction=True)
def test_the_other_connection_is_closed_after_its_use() -> None:
    with transaction.atomic(), autocommit("default") as given:
        given.ensure_connection()
        raw = given.connection
    assert given.connection is None
    if connection.vendor == "postgresql":
        assert raw.closed


@pytest.mark.django_db(transaction=True)
def test_a_database_configured_without_autocommit(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    try:
        assert in_user_transaction(connection)
        with autocommit("default") as given, given.cursor() as cursor:
            cursor.execute("INSERT INTO auth_group (name) VALUES ('kept')")
    finally:
        monkeypatch.undo()
        connection.close()
    assert Group.objects.filter(name="kept").exists()


@pytest.mark.django_db(transaction=True)
def test_at_most_one_other_connection_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    taken, go_on = threading.Event(), threading.Event()

    def occupy() -> None:
        try:
            with transaction.atomic(), autocommit("default"):
                taken.set()
                go_on.wait(timeout=20)
        finally:
            connections.close_all()

    thread = threading.Thread(target=occupy)
    thread.start()
    try:
        assert taken.wait(timeout=20)
        with (
            transaction.atomic(),
            pytest.raises(OperationalError, match=r"'default' was in use"),
            autocommit("default"),
        ):
            pass
    finally:
        go_on.set()
        thread.join(timeout=20)
    with transaction.atomic():
        assert own(), "its turn comes again"


@pytest.mark.django_db(transaction=True)
def test_a_child_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    with transaction.atomic(), autocommit("default"):
        child = os.fork()
        if child == 0:
            os._exit(0 if module._turns["default"].acquire(timeout=1) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_the_test_environment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_test_environment()
    monkeypatch.delattr("django.core.mail.outbox")
    assert not in_test_environment()


@pytest.mark.parametrize("name", ["sqlstate", "pgcode"], ids=["psycopg 3", "psycopg 2"])
def test_codes_of_either_psycopg(name: str) -> None:
    def error(code: str | None) -> OperationalError:
        found, cause = OperationalError("refused"), Exception("refused")
        setattr(cause, name, code)
        found.__cause__ = cause
        return found

    assert code_of(error("55P03")) == "55P03"
    assert is_cut_off(error(None))
    assert not is_cut_off(error("55P03"))
