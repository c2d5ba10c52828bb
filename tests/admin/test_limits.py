"""ADMIN_TIMEOUT: a statement of a page ends in time, on each database, and nothing of the bound stays behind."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.http import HttpRequest, HttpResponse

from fencing import conf
from fencing.admin.limits import time_limit, time_limited
from fencing.databases import is_cancelled, kind
from fencing.models import TokenRange

# Each would take far longer than any test waits.
ENDLESS = {
    "postgresql": "SELECT pg_sleep(60)",
    "mariadb": "SELECT SUM(a.seq * b.seq % 7) FROM seq_1_to_1000000 a, seq_1_to_1000000 b",
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
}
SETTING = {"postgresql": "SHOW statement_timeout", "mariadb": "SELECT @@max_statement_time", "sqlite": "SELECT 1"}

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)


def ask(alias: str, sql: str) -> Any:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


@pytest.fixture(
    params=[
        "default",
        "lite",
        pytest.param(
            "maria",
            marks=[pytest.mark.mariadb, pytest.mark.django_db(databases=["default", "maria"], transaction=True)],
        ),
    ]
)
def alias(request: pytest.FixtureRequest) -> str:
    alias: str = request.param
    return alias


@pytest.fixture
def short(settings: Any) -> None:
    settings.FENCING = {**settings.FENCING, "ADMIN_TIMEOUT": 0.2}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
def test_a_statement_that_takes_too_long_is_ended_and_the_connection_goes_on(alias: str, inside: bool) -> None:
    database = kind(connections[alias])
    outer = transaction.atomic(using=alias) if inside else time_limit()
    with outer:
        before, began = ask(alias, SETTING[database]), time.monotonic()
        with pytest.raises(DatabaseError) as found, time_limit(alias):
            ask(alias, ENDLESS[database])
        assert is_cancelled(found.value)
        assert time.monotonic() - began < 30
        with time_limit(alias):
            assert ask(alias, "SELECT 7") == 7
        assert ask(alias, SETTING[database]) == before
    assert ask(alias, SETTING[database]) == before


@pytest.mark.usefixtures("short")
def test_sqlite_is_not_interrupted_after_the_block() -> None:
    with time_limit("lite"):
        pass
    many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 3000000) SELECT count(*) FROM n"
    assert ask("lite", many) == 3_000_000


@pytest.mark.usefixtures("short")
def test_a_tighter_bound_of_the_role_stays() -> None:
    with transaction.atomic():
        ask("default", "SELECT set_config('statement_timeout', '50ms', true)")
        with time_limit("default"):
            assert ask("default", "SHOW statement_timeout") == "50ms"


@pytest.mark.parametrize(
    ("value", "expected"), [(None, 3.0), (0, 0.0), (False, 0.0), (0.5, 0.5)], ids=["default", "0", "False", "0.5"]
)
def test_the_setting(settings: Any, value: Any, expected: float) -> None:
    settings.FENCING = {**settings.FENCING, "ADMIN_TIMEOUT": value}
    assert conf.admin_timeout() == expected


@pytest.mark.parametrize("value", [-1, "3", True, float("nan")])
def test_a_bad_setting_is_named(settings: Any, value: Any) -> None:
    settings.FENCING = {**settings.FENCING, "ADMIN_TIMEOUT": value}
    with pytest.raises(ImproperlyConfigured, match="ADMIN_TIMEOUT"):
        conf.admin_timeout()


def test_without_a_bound_and_with_one_above_what_the_database_counts(settings: Any, alias: str) -> None:
    for value in (0, 10**11):
        settings.FENCING = {**settings.FENCING, "ADMIN_TIMEOUT": value}
        with time_limit(alias):
            assert ask(alias, "SELECT 7") == 7


class Views:
    """Any object with an ``admin_site``."""

    admin_site = admin.site

    @time_limited(TokenRange, narrower="?window=hour")
    def slow(self, request: HttpRequest) -> HttpResponse:
        ask("default", ENDLESS["postgresql"])
        return HttpResponse()

    @time_limited(TokenRange)
    def broken(self, request: HttpRequest) -> HttpResponse:
        raise IntegrityError("another error")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("asked", "offered"), [("", True), ("?window=hour", False)])
def test_a_page_that_takes_too_long_says_so_and_what_to_do(rf: Any, admin_user: Any, asked: str, offered: bool) -> None:
    request = rf.get(f"/somewhere/{asked}")
    request.user = admin_user
    response: Any = Views().slow(request)
    assert response.status_code == 200
    text = response.render().content.decode()
    assert "The database was asked for 0.2 s" in text
    assert "Ask for less" in text
    assert ('href="?window=hour"' in text) is offered


def test_other_errors_of_the_database_are_not_hidden(rf: Any) -> None:
    with pytest.raises(IntegrityError, match="another error"):
        Views().broken(rf.get("/"))
