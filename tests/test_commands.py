"""``manage.py fencing leases | reigns | revoke``, on each kind of store, and what they do to holders."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextvars import Context
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from django.db import connection, transaction

from fencing import (
    LeaseBackendError,
    LeaseHeldError,
    LeaseLostError,
    StaleWriteError,
    history,
    lease,
    revocation,
    tokens,
)
from fencing.backends import LeaseBackend, get_backend
from fencing.backends.base import Granted, HolderInfo, NeedsRange, Place
from fencing.management.commands.fencing import Command
from fencing.management.output import as_table, as_time, write_table
from fencing.models import FencedResource, FencedWrite, Operation, Reign, TokenGrant, TokenRange
from fencing.ranges import reserve
from fencing.reigns import MARGIN, _counters
from fencing.revocation import revoke
from fencing.scope import holder_info
from inventory_demo.models import Stock
from tests.concurrency import BOUND, threads, wait_until, wait_until_expired, waiting_for_locks
from tests.services import PrivateValkey

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[1]

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    """A store that tests may flush, but not stop."""
    with PrivateValkey() as server:
        yield server


@pytest.fixture(params=["redis", "database"])
def backend(request: pytest.FixtureRequest, settings: Any) -> LeaseBackend:
    """The default alias on each kind of store, in a namespace that no other test uses."""
    entry: dict[str, Any] = {"NAMESPACE": f"n-{secrets.token_hex(6)}", "BLOCK": 10}
    if request.param == "redis":
        location = request.getfixturevalue("valkey").url()
        settings.CACHES = {
            **settings.CACHES,
            "own": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location},
        }
        entry |= {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "own"}
    else:
        entry["BACKEND"] = "fencing.backends.database.DatabaseBackend"
    settings.FENCING = {"BACKENDS": {"default": entry}}
    return get_backend()


def run(*args: Any) -> str:
    out = StringIO()
    call_command("fencing", *map(str, args), stdout=out)
    return out.getvalue()


def shown(*args: Any) -> dict[str, Any]:
    (line,) = run(*args, "--json").splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def elsewhere(function: Callable[[], Any]) -> Any:
    """What another holder does: in a context that holds nothing of ours."""
    return Context().run(function)


def grant(backend: LeaseBackend, resource: str) -> int:
    answer = tokens.acquire(backend, resource, secrets.token_hex(8), 30.0, HolderInfo())[1]
    assert isinstance(answer, Granted)
    return answer.token


# --- leases


def test_leases_are_listed_with_who_holds_them_and_for_how_long(backend: LeaseBackend) -> None:
    holder_info.set(HolderInfo(task_id="4711", task_name="stock.count"))
    with lease("stock:42", ttl=20) as first, lease("lager:Größe 4", ttl=20) as second:
        holder_info.set(HolderInfo())
        found = shown("leases")
        assert found["namespace"] == backend.config.namespace and found["truncated"] is False
        one, two = found["leases"]
        assert (one["resource"], one["token"], one["holder"]) == ("stock:42", first.token, first.holder)
        assert (one["task_id"], one["task_name"], two["resource"]) == ("4711", "stock.count", second.resource)
        assert 0 <= one["age"] < 10 and 10 < one["remaining"] <= 20
        table = run("leases").splitlines()
        assert table[0].split() == ["RESOURCE", "TOKEN", "HOLDER", "TASK", "AGE", "LEFT"]
        assert "lager:Größe 4" in table[2] and "stock.count 4711" in table[1]
        limited = shown("leases", "--limit", 1)
        assert len(limited["leases"]) == 1 and limited["truncated"]
        assert "--limit" in run("leases", "--limit", 1)
    assert shown("leases")["leases"] == []
    assert run("leases").strip() == "Nobody holds a lease."


@pytest.mark.django_db(transaction=True, databases=["default", "lite"])
@pytest.mark.parametrize("database", ["default", "lite"])
def test_projects_without_time_zones(backend: LeaseBackend, settings: Any, database: str) -> None:
    """C26: with USE_TZ off Django's times are naive, and SQLite takes no others."""
    settings.FENCING = {"BACKENDS": {"default": {**settings.FENCING["BACKENDS"]["default"], "DATABASE": database}}}
    settings.USE_TZ = False
    with lease("stock:42", ttl=20) as held:
        [found] = shown("leases")["leases"]
        assert 0 <= found["age"] < 10 and found["token"] == held.token
        assert "stock:42" in run("leases")
    history.collect("default")
    grant = TokenGrant.objects.using(database).get(namespace=held.namespace, token=held.token)
    assert grant.ended == "released" and grant.granted_at is not None
    assert abs((grant.granted_at - held.granted_at).total_seconds()) < 10
    assert len(shown("reigns")["reigns"]) == 1 and "reserved up to 10" in run("reigns")


# --- reigns


def test_reigns_are_listed_with_their_ranges_and_the_ceiling(backend: LeaseBackend) -> None:
    assert shown("reigns") == {
        "using": "default", "namespace": backend.config.namespace, "partitions": 1, "ceiling": 0, "reigns": [], "opened": [],
    }  # fmt: skip
    for number in range(12):
        grant(backend, f"stock:{number}")
    forget(backend)
    grant(backend, "stock:again")
    found = shown("reigns")
    assert found["ceiling"] == 30
    assert [(one["first_token"], one["last_token"]) for one in found["reigns"]] == [(1, 20), (21, 30)]
    assert "up to 30" in run("reigns") and run("reigns").count("\n") == 4


def forget(backend: LeaseBackend) -> None:
    """What a restart does to a store."""
    if hasattr(backend, "_client"):
        backend._client.redis.flushall()
    else:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE fencing_storedcounter SET server = 'another', next = 1")


def test_s11_an_opened_range_is_above_what_a_restored_database_forgot(backend: LeaseBackend) -> None:
    """Backup, grants, the store forgets, the backup is restored: without an opened range they are issued again."""
    grant(backend, "stock:1")
    backup = TokenRange.objects.get(namespace=backend.config.namespace).ceiling
    issued = [grant(backend, f"stock:{number}") for number in range(2, 40)]
    forget(backend)
    TokenRange.objects.filter(namespace=backend.config.namespace).update(ceiling=backup)
    (opened,) = shown("reigns", "--open")["opened"]
    assert opened["first"] > max(issued)
    assert grant(backend, "stock:new") == opened["first"]


def test_who_asked_for_a_range_before_the_opening_installs_none_after_it(backend: LeaseBackend) -> None:
    for number in range(10):
        grant(backend, f"stock:{number}")
    place = tokens.place_of(backend, "stock:late")
    asked = backend.acquire(place, "late", 30.0, HolderInfo())
    assert isinstance(asked, NeedsRange)
    numbers = reserve(backend.config, place, 10, issued=asked.next - 1, reign=asked)
    (opened,) = shown("reigns", "--open")["opened"]
    assert not backend.install(place, asked.reign, numbers[0], numbers[-1])
    assert grant(backend, "stock:late") == opened["first"] > numbers[-1] + MARGIN


@pytest.mark.parametrize("when", ["before the close", "after the close"])
def test_a_store_that_forgets_while_it_is_opened_counts_above_as_well(
    backend: LeaseBackend, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    before = grant(backend, "stock:1")
    close = backend.close_reign

    def forgetful(place: Place) -> NeedsRange:
        if when == "before the close":
            forget(backend)
        answer = close(place)
        if when == "after the close":
            forget(backend)
        return answer

    monkeypatch.setattr(backend, "close_reign", forgetful)
    (opened,) = shown("reigns", "--open")["opened"]
    assert grant(backend, "stock:2") == opened["first"] > before + MARGIN
    forget(backend)
    assert grant(backend, "stock:3") > opened["first"]


def test_a_client_that_is_faster_than_the_opening_gets_a_range_above_too(
    backend: LeaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes first: whoever hears of the new reign reserves above everything."""
    before, close, faster = grant(backend, "stock:1"), backend.close_reign, []

    def overtaken(place: Place) -> NeedsRange:
        answer = close(place)
        faster.append(grant(backend, "stock:fast"))
        return answer

    monkeypatch.setattr(backend, "close_reign", overtaken)
    (opened,) = shown("reigns", "--open")["opened"]
    assert before + MARGIN < faster[0] < opened["first"]
    assert grant(backend, "stock:2") == opened["first"]


@pytest.mark.parametrize("where", ["row", "resource", "grant", "ceiling"])
def test_an_opened_range_is_above_every_number_in_the_database(backend: LeaseBackend, where: str) -> None:
    tokens.place_of(backend, "stock:42")
    namespace, number = backend.config.namespace, 2**37
    if where == "row":
        Stock.objects.create(sku="42")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE inventory_demo_stock SET last_token = %s", [number])
    elif where == "resource":
        FencedResource.objects.create(namespace=namespace, name="stock:42", last_token=number, holder="x")
    elif where == "grant":
        TokenGrant.objects.create(namespace=namespace, token=number, resource="x", holder="x")
    else:
        TokenRange.objects.filter(namespace=namespace).update(ceiling=number)
    (opened,) = shown("reigns", "--open")["opened"]
    assert opened["first"] > number + MARGIN
    assert grant(backend, "stock:42") >= opened["first"]


def test_opening_is_installed_at_once_and_logged_as_a_reign_of_its_own(backend: LeaseBackend) -> None:
    first = grant(backend, "stock:1")
    told = run("reigns", "--open")
    now = grant(backend, "stock:2")
    assert now > first + MARGIN and f"counts from {now} on" in told
    old, opening, new = shown("reigns")["reigns"]
    assert old["last_token"] == opening["first_token"] - 1
    assert opening["server"].startswith("opened by ") and opening["reign"].startswith("opening:")
    assert new["first_token"] == opening["last_token"] + 1 == now - 1
    assert new["server"] == old["server"] and new["reign"] != old["reign"]
    run("reigns", "--open")
    assert grant(backend, "stock:3") > now + MARGIN


def test_every_partition_is_opened(backend: LeaseBackend, settings: Any) -> None:
    entry = {**settings.FENCING["BACKENDS"]["default"], "PARTITIONS": 3, "NAMESPACE": f"n-{secrets.token_hex(6)}"}
    settings.FENCING = {"BACKENDS": {"default": entry}}
    before = max(grant(get_backend(), f"stock:{number}") for number in range(20))
    opened = shown("reigns", "--open")["opened"]
    assert [one["partition"] for one in opened] == [0, 1, 2]
    assert min(grant(get_backend(), f"lager:{number}") for number in range(20)) > before + MARGIN


def test_a_partition_that_does_not_answer_is_named_and_the_others_are_opened(
    backend: LeaseBackend, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster whose second node fails in between."""
    entry = {**settings.FENCING["BACKENDS"]["default"], "PARTITIONS": 3, "NAMESPACE": f"n-{secrets.token_hex(6)}"}
    settings.FENCING = {"BACKENDS": {"default": entry}}
    backend = get_backend()
    before = [grant(backend, f"stock:{number}") for number in range(20)]
    close, away = backend.close_reign, [1]

    def closed(place: Place) -> NeedsRange:
        if place.partition in away:
            raise LeaseBackendError("default", "the node is away")
        return close(place)

    monkeypatch.setattr(backend, "close_reign", closed)
    with pytest.raises(CommandError, match=r"of 3 partitions, these may count on as before: 1\..*the node is away"):
        run("reigns", "--open")
    numbers = {place.partition: backend.draw(place).token for place in _counters(backend) if place.partition != 1}  # type: ignore[union-attr]
    assert sorted(numbers) == [0, 2] and min(numbers.values()) > max(before) + MARGIN
    away.clear()
    assert [one["partition"] for one in shown("reigns", "--open")["opened"]] == [0, 1, 2]
    assert min(grant(backend, f"lager:{number}") for number in range(20)) > max(numbers.values())


def test_a_number_that_was_invented_opens_nothing(backend: LeaseBackend) -> None:
    tokens.place_of(backend, "stock:42")
    FencedResource.objects.create(
        namespace=backend.config.namespace, name="stock:42", last_token=2**52, holder="nobody"
    )
    with pytest.raises(CommandError, match=rf"{2**52}.*resource in database 'default'"):
        run("reigns", "--open")
    assert shown("reigns")["ceiling"] == 0


# --- revoke


def test_a_holder_that_never_notices_is_refused_by_the_database(backend: LeaseBackend) -> None:
    """Nobody newer has come: it is the revocation itself that refuses."""
    stock = Stock.objects.create(sku="42", quantity=10)
    with lease(stock, ttl=30, renew=False) as held:
        stock.quantity = 9
        done = shown("revoke", "stock:42", "--reason", "it hangs", "--token", held.token)
        assert done["token"] > held.token and done["removed"] is True and done["databases"] == ["default"]
        assert done["lease"]["holder"] == held.holder
        assert held.is_held(), "it has not noticed"
        with pytest.raises(StaleWriteError):
            stock.save()
        with pytest.raises(StaleWriteError), held.atomic():
            pass
        with pytest.raises(LeaseLostError):
            held.renew()
        assert elsewhere(lambda: lease(stock, renew=False).__enter__()).token > done["token"], "the lease is free"
    stock.refresh_from_db()
    assert stock.quantity == 10


def test_the_row_is_raised_before_the_lease_is_removed(backend: LeaseBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next holder could come, and the old one write, in between."""
    seen: list[int] = []
    remove = backend.revoke

    def look_first(place: Any, token: int) -> bool:
        seen.extend(FencedResource.objects.filter(name="stock:42").values_list("last_token", flat=True))
        return remove(place, token)

    monkeypatch.setattr(backend, "revoke", look_first)
    with lease("stock:42", renew=False) as held:
        done = revoke("stock:42", "it hangs")
    assert seen == [done.token] and done.token > held.token


def test_a_revocation_is_in_the_history_with_its_reason(backend: LeaseBackend) -> None:
    with lease("stock:42", renew=False) as held:
        run("revoke", "stock:42", "--reason", "it hangs")
    write = FencedWrite.objects.get(action="revoke")
    assert (write.outcome, write.grant_token, write.resource) == ("unfenced", held.token, "stock:42")
    assert write.note.startswith("it hangs (") and write.token > held.token
    assert TokenGrant.objects.get(namespace=held.namespace, token=held.token).ended == "revoked"


def test_a_transaction_that_is_open_while_its_lease_is_revoked_has_no_effect(backend: LeaseBackend) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer")
    held = lease("stock:42", renew=False)
    with threads() as start, held as holder, pytest.raises(StaleWriteError), holder.atomic(operation="order-1"):
        start(lambda: revoke("stock:42", "it hangs")).result(BOUND)
    assert not Operation.objects.exists()


def test_another_grant_than_the_one_that_was_shown_is_left_alone(backend: LeaseBackend) -> None:
    stock = Stock.objects.create(sku="42", quantity=10)
    with lease(stock, renew=False) as old:
        pass
    with lease(stock, renew=False) as held:
        with pytest.raises(CommandError, match=rf"--token {old.token}: .* held by {held.holder}"):
            run("revoke", "stock:42", "--reason", "it hangs", "--token", old.token)
        with pytest.raises(LeaseHeldError):
            revoke("stock:42", "it hangs", token=old.token)
        stock.quantity = 9
        stock.save()
    assert not FencedWrite.objects.filter(action="revoke").exists()


def test_who_comes_between_the_number_and_the_look_is_not_refused_by_mistake(
    backend: LeaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is released and granted again just then; the row must not be raised above the new holder."""
    held = lease("stock:42", renew=False)
    old = held.__enter__()
    newer: list[Any] = []
    draw = tokens.draw_from_store

    def released_meanwhile(*args: Any) -> Any:
        drawn = draw(*args)
        if not newer:
            held.__exit__(None, None, None)
            newer.append(elsewhere(lambda: lease("stock:42", renew=False).__enter__()))
        return drawn

    monkeypatch.setattr(tokens, "draw_from_store", released_meanwhile)
    with pytest.raises(LeaseHeldError):
        revoke("stock:42", "it hangs", token=old.token)
    with newer[0].atomic():
        pass


def test_without_a_lease_whoever_held_it_last_is_refused(backend: LeaseBackend) -> None:
    stock = Stock.objects.create(sku="42", quantity=10)
    with lease(stock, ttl=0.2, renew=False) as held:
        wait_until_expired("stock:42")
        told = run("revoke", "stock:42", "--reason", "it sleeps", "--token", held.token)
        assert told.startswith("Nobody held the lease of 'stock:42'.")
        stock.quantity = 9
        with pytest.raises(StaleWriteError):
            stock.save()


def test_a_name_that_nobody_ever_held_is_told_apart(backend: LeaseBackend) -> None:
    """A typing error would else look like a revocation that came too late; a revocation itself makes no name known."""
    namespace = backend.config.namespace
    for _ in range(2):
        told = run("revoke", "stokc:42", "--reason", "it hangs")
        assert told.startswith(f"'stokc:42' is not known in namespace '{namespace}':") and "is refused for it" in told
        assert shown("revoke", "stokc:42", "--reason", "it hangs")["known"] is False
    with lease("stock:42", renew=False):
        assert shown("revoke", "stock:42", "--reason", "it hangs")["known"] is True
    with lease("stock:43", renew=False):
        pass
    assert run("revoke", "stock:43", "--reason", "it hung").startswith("Nobody held the lease of 'stock:43'.")
    TokenGrant.objects.all().delete()
    FencedResource.objects.create(namespace=namespace, name="stock:44", last_token=1, holder="x")
    assert run("revoke", "stock:44", "--reason", "it hung").startswith("Nobody held the lease of 'stock:44'.")
    FencedResource.objects.create(namespace="another", name="stock:45", last_token=1, holder="x")
    assert "not known" in run("revoke", "stock:45", "--reason", "it hangs")


def test_a_name_of_which_nothing_can_be_told_is_not_called_unknown(
    backend: LeaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_using: str) -> int:
        raise LeaseBackendError("default", "it is away")

    monkeypatch.setattr(history, "collect", fails)
    assert run("revoke", "stock:42", "--reason", "it hangs").startswith("Nobody held the lease of 'stock:42'.")


def test_a_row_with_a_higher_number_raises_the_store_as_well(backend: LeaseBackend) -> None:
    grant(backend, "stock:41")
    FencedResource.objects.create(namespace=backend.config.namespace, name="stock:42", last_token=5000, holder="x")
    assert revoke("stock:42", "imported").token > 5000
    with elsewhere(lambda: lease("stock:42", renew=False).__enter__()).atomic():
        pass


@on_postgresql
def test_it_waits_for_a_statement_in_flight_and_not_for_ever(
    backend: LeaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = Stock.objects.create(sku="42", quantity=10)
    with threads() as start, lease(stock, renew=False) as held:
        with transaction.atomic():
            stock.quantity = 9
            stock.save()
            late = start(lambda: revoke("stock:42", "it hangs"))
            wait_until(lambda: waiting_for_locks() == 1, "the revocation waits")
        assert late.result(BOUND).lease.token == held.token
    monkeypatch.setattr(revocation, "LOCK_BOUND", 0.2)
    with threads() as start, elsewhere(lambda: lease(stock, renew=False).__enter__()).atomic():
        with connection.cursor() as cursor:
            cursor.execute("UPDATE fencing_resource SET begins = begins")
        with pytest.raises(Exception, match=r"could not be raised, so the lease was left.*lock timeout"):
            start(lambda: revoke("stock:42", "it hangs")).result(BOUND)
        assert backend.peek(tokens.place_of(backend, "stock:42")) is not None


def test_a_revocation_outlives_the_rollback_of_its_caller(backend: LeaseBackend) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer")
    with transaction.atomic():
        Stock.objects.create(sku="41")
        revoke("stock:42", "it hangs")
        transaction.set_rollback(True)
    assert FencedResource.objects.filter(name="stock:42").exists()
    assert FencedWrite.objects.filter(action="revoke").exists()


# --- bad input


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["leases", "--using", "elsewhere"], "'elsewhere'.*has: default"),
        (["leases", "--limit", "0"], "'0'"),
        (["leases", "--limit", "many"], "'many'"),
        (["revoke", "stock:42"], "--reason"),
        (["revoke", "stock:42", "--reason", " "], "1 to 300 characters"),
        (["revoke", "stock:42", "--reason", "x" * 301], "1 to 300 characters"),
        (["revoke", "", "--reason", "x"], "needs a name"),
        (["revoke", "stock:42", "--reason", "x", "--token", "0"], "'0' is no token"),
        (["revoke", "stock:42", "--reason", "x", "--token", "five"], "'five' is no token"),
        (["revoke", "stock:42", "--reason", "x", "--database", "elsewhere"], "--database.*'elsewhere'"),
        (["unknown"], "'unknown'"),
        ([], "required"),
    ],
)
def test_bad_input_is_named(args: list[str], named: str, settings: Any) -> None:
    settings.FENCING = {"BACKENDS": {"default": {"BACKEND": "fencing.backends.memory.MemoryBackend"}}}
    with pytest.raises(CommandError, match=f"(?s){named}"):
        run(*args)
    assert not FencedResource.objects.exists()


def test_a_store_that_does_not_answer_is_told_and_nothing_is_done(settings: Any) -> None:
    location = {"LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 1}}
    settings.CACHES = {**settings.CACHES, "leases": {"BACKEND": "django_redis.cache.RedisCache", **location}}
    for args in (["leases"], ["reigns", "--open"], ["revoke", "stock:42", "--reason", "x"]):
        with pytest.raises(CommandError, match="did not answer"):
            run(*args)
    assert not FencedResource.objects.exists() and not Reign.objects.exists()


def test_reader_who_leaves_gets_no_traceback(process_environment: dict[str, str]) -> None:
    """As `fencing reigns | head -1` does."""
    reading, writing = os.pipe()
    os.close(reading)
    # The checks would look at every database, also one that only other tests start.
    command = [sys.executable, "manage.py", "fencing", "reigns", "--skip-checks"]
    with open(writing, "wb") as gone:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=process_environment,
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_tables_are_aligned_and_show_what_is_odd() -> None:
    table = as_table(["NAME", "N"], [["a", 5], ["long\tname", 12345]])
    assert table.splitlines() == ["NAME           N", "a              5", "long?name  12345"]
    assert as_table(["NAME", "N"], []) == "NAME  N"
    assert [as_time(each) for each in (0.44, 12.9, 200, 7500)] == ["0.4 s", "12 s", "3 min 20 s", "2 h 5 min"]


def test_terminal_that_is_too_narrow_for_a_table_gets_paragraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    def written(to: StringIO, columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        write_table(OutputWrapper(to), ["NAME", "N"], [["long\tname", 12345], ["", 5]])
        return to.getvalue()

    table = "NAME           N\nlong?name  12345\n-              5\n"
    assert written(Terminal(), 16) == table
    assert written(Terminal(), 15) == "NAME  long?name\nN     12345\n\nNAME  -\nN     5\n"
    assert written(StringIO(), 15) == table, "a program that reads it gets a line for each row"


@pytest.mark.parametrize(
    "command",
    [
        "leases",
        "reigns",
        "history --limit 5",
        "guards",
        "prune --dry-run",
        "drill --remove drill-00000000",
        "revoke x --reason y",
    ],
)
def test_options_of_every_command_are_known_after_the_sub_command(settings: Any, command: str) -> None:
    settings.FENCING = {**settings.FENCING, "RETENTION": 60}
    own = ["--settings", "tests.settings", "--pythonpath", ".", "--traceback", "--no-color", "--skip-checks", "-v", "0"]
    parser = Command().create_parser("manage.py", "fencing")
    given = parser.parse_args([*command.split(), *own])
    assert (given.settings, given.pythonpath, given.verbosity) == ("tests.settings", ".", 0)
    assert given.traceback and given.no_color and given.skip_checks and not given.force_color
    before = parser.parse_args(["-v", "2", "--traceback", *command.split()])
    assert (before.verbosity, before.traceback, before.no_color) == (2, True, False)
