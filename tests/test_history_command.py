"""``manage.py fencing history``: the story of a night in a terminal, exact, bounded, and there when the store is not."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fencing import StaleWriteError, history
from fencing.backends import get_backend
from fencing.backends.base import HolderInfo
from fencing.historyreads import Asked, look_up
from fencing.models import FencedWrite, TokenGrant
from fencing.revocation import revoke
from fencing.scope import holder_info
from inventory_demo.models import Stock
from tests.test_transactions import grant

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

BIG = 2**53 - 1


def run(*args: Any) -> str:
    out = StringIO()
    call_command("fencing", "history", *map(str, args), stdout=out, stderr=out)
    return out.getvalue()


def shown(*args: Any) -> dict[str, Any]:
    (line,) = run(*args, "--json").splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def tokens(*args: Any) -> list[int]:
    return [one["token"] for one in shown(*args)["grants"]]


def a_grant(token: int, resource: str = "stock:42", *, age: float = 0.0, **values: Any) -> TokenGrant:
    at = timezone.now() - timedelta(seconds=age)
    row = {"resource": resource, "holder": f"holder-{token}", "ttl": 30.0, "granted_at": at, **values}
    return TokenGrant.objects.create(namespace=get_backend().config.namespace, token=token, **row)


def a_write(
    token: int, outcome: str = "accepted", *, age: float = 0.0, using: str = "default", **values: Any
) -> FencedWrite:
    return FencedWrite.objects.using(using).create(
        namespace=get_backend().config.namespace, outcome=outcome, at=timezone.now() - timedelta(seconds=age),
        **{"token": token, "grant_token": token, "resource": "stock:42", "action": "update", **values},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_waits() -> None:
    """What other tests left in the store belongs to none of these."""
    history.collect()
    TokenGrant.objects.all().delete()


def test_the_story_of_a_night() -> None:
    """Which token had A, who overtook it, was its write refused."""
    Stock.objects.create(sku="42", quantity=10)
    holder_info.set(HolderInfo(task_id="task-a", task_name="stock.count"))
    asleep = grant()
    late = Stock.objects.get()
    holder_info.set(HolderInfo(task_id="task-b", task_name="stock.ship"))
    newer = grant()
    holder_info.set(HolderInfo())
    Stock.objects.get().save(lease=newer)
    with pytest.raises(StaleWriteError):
        late.save(lease=asleep)
    found = shown()
    assert (found["using"], found["namespace"], found["truncated"]) == ("default", newer.namespace, False)
    two, one = found["grants"]
    assert (one["token"], one["task_id"], one["task_name"]) == (asleep.token, "task-a", "stock.count")
    assert (one["holder"], one["outcomes"]) == (asleep.holder, {"stale": 1})
    assert one["overtaken_by"]["token"] == newer.token and one["overtaken_by"]["task_id"] == "task-b"
    assert [(each["outcome"], each["seen"]) for each in one["refused"]] == [("stale", newer.token)]
    assert (two["outcomes"], two["overtaken_by"], two["refused"]) == ({"accepted": 1}, None, [])
    at = datetime.fromisoformat(one["granted_at"])
    assert at.utcoffset() is not None and abs(timezone.now() - at) < timedelta(minutes=5)
    table = run().splitlines()
    assert table[0].split()[:4] == ["TOKEN", "RESOURCE", "HOLDER", "TASK"]
    assert "1 stale write" in table[2] and table[2].endswith(f"  {newer.token} stock.ship task-b")
    assert table[4].split()[:3] == ["REFUSED", "TOKEN", "OF"] and str(newer.token) in table[5]


def test_why_a_grant_was_revoked_and_by_whom() -> None:
    held = grant()
    revoke("stock:42", reason="hangs since 3:14", by="user 7", token=held.token)
    for number in range(2):
        a_write(held.token, "unfenced", action=f"other-{number}", note="no revocation")
    a_grant(held.token + 50)
    other, one = shown()["grants"]
    assert (one["token"], one["ended"], one["revoked"]) == (held.token, "revoked", "hangs since 3:14 (user 7)")
    assert other["revoked"] is None
    assert f"Token {held.token} was revoked: hangs since 3:14 (user 7)" in run().splitlines()


@pytest.mark.parametrize(
    ("ended", "outcome", "overtaken"),
    [
        ("released", "accepted", False), ("released", "stale-read", False), ("released", "missing", False),
        ("", "accepted", False), ("released", "stale", True), ("released", "lost", True), ("", "stale", True),
        ("expired", "accepted", True), ("lost", "accepted", True), ("revoked", "accepted", True),
    ],
)  # fmt: skip
def test_next_grant_overtook_only_who_had_not_ended_in_order(ended: str, outcome: str, overtaken: bool) -> None:
    """Whoever released its lease, and had nothing refused by somebody newer, was followed and not overtaken."""
    a_grant(1, ended=ended, ended_at=timezone.now())
    a_write(1, outcome)
    a_grant(2, ended="released")
    newer, older = shown("stock:42")["grants"]
    assert ((older["overtaken_by"] or {}).get("token"), newer["overtaken_by"]) == (2 if overtaken else None, None)
    assert run("stock:42").splitlines()[2].endswith("  2 holder-2") is overtaken


def test_each_search_and_the_window() -> None:
    a_grant(1, age=200_000, ended="released", ended_at=timezone.now(), task_id="t-1")
    a_grant(2, age=5000)
    a_grant(3, "lager:7", task_id="t-3")
    a_write(1, "stale", age=150_000, seen=2)
    a_write(2, "stale-read", seen=2), a_write(3), a_write(3, "duplicate")
    assert tokens() == [3, 2] and tokens("--since", "1h") == [3] and tokens("--since", "7d") == [3, 2, 1]
    assert tokens("--since", "2026-01-01") == tokens("--since", "2026-01-01T08:15+02:00") == [3, 2, 1]
    assert tokens("--resource", "stock:42") == [2, 1] and tokens("--resource", "stock") == []
    assert tokens("--resource", "stock:42", "--since", "24h") == [2]
    assert tokens("stock:42") == tokens("stock:42", "--resource", "stock:42") == [2, 1] and tokens("lager:7") == [3]
    assert tokens("--since", "24h", "stock:42") == [2] and tokens("stock") == []
    assert tokens("--token", 1) == [1] and tokens("--task-id", "t-1") == [1] and tokens("--token", 99) == []
    assert tokens("--outcome", "refused") == [2] and tokens("--outcome", "refused", "--since", "7d") == [2, 1]
    assert tokens("--outcome", "accepted") == tokens("--outcome", "duplicate") == [3]
    assert tokens("--outcome", "stale", "--resource", "stock:42") == [1]
    assert tokens("--outcome", "stale", "--task-id", "t-3") == [] and tokens("--outcome", "stale", "--token", 1) == [1]
    assert "No such grant since 20" in run("--outcome", "lost") and run("--token", "7") == "No such grant.\n"


def test_no_more_than_the_limit_and_it_is_said() -> None:
    for token in range(1, 6):
        a_grant(token)
        a_write(token, "stale"), a_write(token, "stale")
    for args in ([], ["--outcome", "refused"], ["--resource", "stock:42", "--outcome", "stale"]):
        found = shown(*args, "--limit", 3)
        assert [one["token"] for one in found["grants"]] == [5, 4, 3] and found["truncated"]
        assert "more than 3" in run(*args, "--limit", 3)
        assert not shown(*args, "--limit", 5)["truncated"]


def test_writes_of_other_databases_count_and_those_without_a_grant_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fencing.historyreads.databases", lambda: ["default", "lite"])
    a_grant(1), a_grant(2)
    a_write(1), a_write(1, using="lite"), a_write(1, "stale", using="lite", seen=2), a_write(77, "stale", using="lite")
    (one,) = shown("--token", 1)["grants"]
    assert one["outcomes"] == {"accepted": 2, "stale": 1} and one["refused"][0]["seen"] == 2
    found = shown("--outcome", "refused")
    assert [each["token"] for each in found["grants"]] == [1] and found["writes_without_grant"] == [77]
    assert "grants are not: 77." in run("--outcome", "refused")


def test_numbers_and_names_are_exact_and_odd_ones_break_no_line(settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR, settings.LANGUAGE_CODE = True, "de"
    odd = "a/b {c} \"d\" 'e' Größe\n\t" + "x" * 170
    a_grant(BIG, odd, holder="h'; --")
    a_write(BIG, "stale", resource=odd, seen=BIG - 1, object_pk="7\n8")
    (one,) = shown("--resource", odd)["grants"]
    assert (one["token"], one["resource"], one["refused"][0]["seen"]) == (BIG, odd, BIG - 1)
    lines = run("--resource", odd).splitlines()
    assert len(lines) == 5 and str(BIG) in lines[1] and "Größe??x" in lines[1] and str(BIG - 1) in lines[4]


def test_store_that_is_down_costs_the_newest_rows_only(settings: Any) -> None:
    a_grant(1)
    location = {"LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 1}}
    settings.CACHES = {**settings.CACHES, "leases": {"BACKEND": "django_redis.cache.RedisCache", **location}}
    entry = {**settings.FENCING["BACKENDS"]["default"]}
    entry |= {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "leases"}
    settings.FENCING = {"BACKENDS": {"default": entry}}
    out, err = StringIO(), StringIO()
    call_command("fencing", "history", "--json", stdout=out, stderr=err)
    assert [one["token"] for one in json.loads(out.getvalue())["grants"]] == [1]
    assert "newest grants are missing" in err.getvalue() and "did not answer" in err.getvalue()


def test_times_have_an_offset_in_projects_without_time_zones(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "America/New_York"
    connection.close()  # its session has the old zone
    a_grant(1, ended="released", ended_at=datetime.now())  # noqa: DTZ005  as such a project has it
    (one,) = shown("--since", "2026-01-01")["grants"]
    assert datetime.fromisoformat(one["granted_at"]).utcoffset() in (timedelta(hours=-5), timedelta(hours=-4))
    assert one["ended_at"] is not None and abs(one["held_seconds"]) < 60
    connection.close()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--since", "yesterday"], "30m, 24h or 7d"), (["--since", "99999999999d"], "no time"),
        (["--since", "2026-02-31"], "no time"), (["--limit", "0"], "from 1 to"), (["--limit", "x"], "from 1 to"),
        (["--token", "0"], "no token"), (["--token", "9007199254740992"], "no token"), (["--outcome", "bad"], "refused"),
        (["--using", "nobody"], "nobody"), (["--resource", "a\0b"], "NUL|0x00"),
        (["stock:42", "--resource", "stock:43"], "'stock:42' and --resource 'stock:43'; give one"),
        (["", "--resource", "stock:43"], "'' and --resource 'stock:43'"), (["stock:42", "stock:43"], "stock:43"),
    ],
)  # fmt: skip
def test_bad_input_is_named(args: list[str], named: str) -> None:
    with pytest.raises(CommandError, match=f"(?s){named}"):
        run(*args)


def test_database_that_was_not_migrated_is_told_in_words() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE fencing_tokengrant RENAME TO elsewhere")
        try:
            with pytest.raises(CommandError, match=r"^The database lacks the tables of the app fencing: run "):
                run()
        finally:
            cursor.execute("ALTER TABLE elsewhere RENAME TO fencing_tokengrant")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="its plans are read")
def test_no_question_reads_a_whole_table() -> None:
    namespace = get_backend().config.namespace
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO fencing_tokengrant (namespace, token, resource, holder, task_id, task_name, ttl, granted_at, ended)"
            " SELECT %s, n, 'stock:' || mod(n, 500), 'h', 't-' || n, 'count', 30, now() - interval '1 minute' * n, 'released'"
            " FROM generate_series(1, 40000) AS n",
            [namespace],
        )
        cursor.execute(
            "INSERT INTO fencing_fencedwrite (namespace, token, grant_token, resource, model, object_pk, action, outcome,"
            " operation, note, at) SELECT %s, n, n, 'stock:' || mod(n, 500), 'm', '1', 'update',"
            " CASE WHEN mod(n, 100) = 0 THEN 'stale' ELSE 'accepted' END, '', '', now() - interval '1 minute' * n"
            " FROM generate_series(1, 40000) AS n",
            [namespace],
        )
        cursor.execute("ANALYZE fencing_tokengrant, fencing_fencedwrite")
    day = timezone.now() - timedelta(days=1)
    for asked in (
        Asked(since=day), Asked(resource="stock:7"), Asked(token=77), Asked(task_id="t-77"),
        Asked(outcome="refused", since=day), Asked(outcome="stale", resource="stock:0"),
        Asked(outcome="accepted", since=day), Asked(outcome="refused", task_id="t-100"),
    ):  # fmt: skip
        with CaptureQueriesContext(connection) as sent:
            assert look_up(get_backend().config, asked).grants
        assert len(sent) <= 8
        for query in list(sent):
            with connection.cursor() as cursor:
                sql = query["sql"]
                cursor.execute("EXPLAIN " + sql[sql.index("SELECT") :].replace("%", "%%"), [])
                plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan on fencing_tokengrant" not in plan, (asked, plan)
            assert "Seq Scan on fencing_fencedwrite" not in plan, (asked, plan)
