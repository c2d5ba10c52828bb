"""A superseded holder and the live one: every order of their steps, for real, and what must be true after each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

import pytest
from django.db import DatabaseError, OperationalError

from fencing import LeaseLostError, RowMissingError, StaleReadError, StaleWriteError
from fencing.acquiring import acquire
from fencing.databases import code_of
from fencing.leases import Lease
from fencing.models import FencedWrite
from tests.shop.models import Crate, Warehouse
from tests.writes.interleavings import DELETES, PLAIN, SHAPES, WRITES, Holder, Play, orders
from tests.writes.two_threads import sqlite_file, two_threads

OUTCOMES = {StaleWriteError: "stale", StaleReadError: "stale-read", RowMissingError: "missing", LeaseLostError: "lost"}
START = 100
DEADLOCK = {"40P01", "1213"}
SERIALIZATION = {"40001"}

LITE = pytest.mark.django_db(databases=["default", "lite"], transaction=True)
MARIA = pytest.mark.django_db(databases=["default", "maria"], transaction=True)
POSTGRES = pytest.mark.django_db(transaction=True)

Event = tuple[str, str]


@dataclass(frozen=True)
class Run:
    """What the two do, and in which order; ``has_passed``: the old one has passed the resource before."""

    shapes: tuple[str, str]
    writes: tuple[str, str]
    one_row: bool
    has_passed: bool
    order: tuple[int, ...]


def runs(seed: str, number: int | None = None) -> list[Run]:
    """Every order of the steps of every two shapes, each with writes drawn by lot; or so many of them."""
    lot = Random(seed)  # noqa: S311  # the same runs each time
    found = [
        Run(
            (old, new),
            (lot.choice(list(WRITES)), lot.choice(list(WRITES))),
            lot.random() < 0.6,
            lot.random() < 0.5,
            order,
        )
        for old, new in product(SHAPES, repeat=2)
        for order in orders(old, new)
    ]
    return found if number is None else lot.sample(found, number)


def holders(run: Run, alias: str, code: str, warehouse: Warehouse) -> list[Holder]:
    """The two, and what they are going to write: two rows of one resource, or one."""
    rows = [Crate(warehouse=warehouse, code=code, weight=START) for _ in range(2)]
    for one in rows:
        one.save(using=alias)

    def holder(name: str, index: int, row: Crate) -> Holder:
        lease = granted(f"crate:{warehouse.pk}:{code}")
        if name == "old":
            with lease.atomic(using=alias) if run.has_passed else nullcontext():
                lease._backend.revoke(lease._place, lease.token)
        return Holder(
            name=name, alias=alias, lease=lease, pk=row.pk, change=10**index, shape=run.shapes[index],
            write=run.writes[index],
        )  # fmt: skip

    return [holder("old", 0, rows[0]), holder("new", 1, rows[0 if run.one_row else 1])]


def granted(resource: str) -> Lease:
    return acquire(resource, ttl=30, give_up=0, using="default", allow_in_transaction=True)


def judge(both: list[Holder], events: list[Event], errors: set[str]) -> None:
    """Whatever happened, it was in order, and there was a reason for whatever did not happen."""
    old, new = both
    landed = [one for name, what in events for one in both if (name, what) == (one.name, "landed") and one.wrote]
    if old in landed and ("new", "began") in events:
        assert events.index(("old", "landed")) < events.index(("new", "began")), "I4: landed after a newer begin"
    assert landed in ([], [old], [new], [old, new]), "I2: landed after a newer write"

    expected = {one.pk: (START, 0) for one in both}
    for one in landed:
        if one.write in DELETES:
            del expected[one.pk]
        else:
            # I3: each accepted change is there, so nobody has written from what was read before another's.
            expected[one.pk] = (expected[one.pk][0] + one.change, one.lease.token)
    rows = Crate.objects.using(old.alias).filter(pk__in=[old.pk, new.pk])
    assert {pk: (weight, token) for pk, weight, token in rows.values_list("pk", "weight", "last_token")} == expected

    written = FencedWrite.objects.using(old.alias).filter(resource=old.lease.resource).order_by("id")
    accepted = [(one.grant_token, int(one.object_pk)) for one in written if one.outcome == "accepted"]
    assert accepted == [(one.lease.token, one.pk) for one in landed]
    refused = {(one.grant_token, one.outcome) for one in written if one.outcome != "accepted"}
    assert len(written) == len(accepted) + len(refused)
    assert refused == {
        (one.lease.token, OUTCOMES[type(one.error)])
        for one in both
        if one.error and not isinstance(one.error, DatabaseError)
    }
    for one, other in ((old, new), (new, old)):
        assert has_reason(one, other, events, errors), repr(one.error)


def has_reason(one: Holder, other: Holder, events: list[Event], errors: set[str]) -> bool:
    """Whether what befell one of the two follows from what the other one did before."""
    before = events[: events.index((one.name, "failed"))] if one.error else events
    read = before.index((one.name, "read")) if (one.name, "read") in before else 0
    landed = before.index((other.name, "landed")) if (other.name, "landed") in before and other.wrote else None
    same_row = landed is not None and one.pk == other.pk
    match one.error:
        case None:
            gone = same_row and other.write in DELETES
            return one.wrote == 1 or gone
        case StaleWriteError():
            # A statement of a newer grant that was refused as the read is stale has passed the resource all the same,
            # and a begin inside a transaction that takes a snapshot has done so in a statement of its own before.
            passed = isinstance(other.error, StaleReadError) and other.shape == "autocommit"
            passed |= other.shape == "left" and any(name == "new" for name, _what in before)
            return one.name == "old" and (landed is not None or ("new", "began") in before or passed)
        case StaleReadError():
            return same_row and landed is not None and landed > read and one.write in PLAIN
        case RowMissingError():
            return same_row and other.write in DELETES
        case LeaseLostError():
            return one.name == "old" and same_row and landed is not None and landed < read
        case OperationalError():
            return (code_of(one.error) or str(one.error)) in errors
    return False


@pytest.mark.parametrize(
    ("alias", "level", "number", "errors"),
    [
        pytest.param("default", "read committed", None, DEADLOCK, marks=[POSTGRES, pytest.mark.heavy]),
        pytest.param("default", "read committed", 200, DEADLOCK, marks=POSTGRES),
        pytest.param("default", "repeatable read", 100, DEADLOCK | SERIALIZATION, marks=POSTGRES),
        pytest.param("default", "serializable", 100, DEADLOCK | SERIALIZATION, marks=POSTGRES),
        pytest.param("maria", "read committed", 50, DEADLOCK, marks=MARIA),
        pytest.param("maria", "repeatable read", 30, DEADLOCK, marks=MARIA),
        pytest.param("maria", "serializable", 40, DEADLOCK, marks=MARIA),
        pytest.param("lite", "", 100, {"database is locked"}, marks=LITE),
    ],
    ids=[
        "all orders",
        "postgresql",
        "repeatable",
        "serializable",
        "maria",
        "maria-repeatable",
        "maria-serializable",
        "lite",
    ],
)
def test_any_order(alias: str, level: str, number: int | None, errors: set[str], tmp_path: Path) -> None:
    ends = play(runs(f"{alias} {level}", number), alias, level, errors, tmp_path)
    assert min(ends["NoneType"], ends["StaleWriteError"], ends["StaleReadError"] + ends["OperationalError"]) > 0


@LITE
def test_refusal_while_a_reader_keeps_sqlite_busy(tmp_path: Path) -> None:
    """Its line in the history cannot be written at once, and is not lost."""
    run = Run(("fenced", "fenced"), ("save", "bulk_update"), False, False, (0, 1, 0, 1, 0, 0, 1, 1))
    assert play([run], "lite", "", set(), tmp_path) == {"StaleWriteError": 1, "NoneType": 1}


def play(chosen: list[Run], alias: str, level: str, errors: set[str], folder: Path) -> Counter[str]:
    """Play runs and judge each; how often which error came, or none."""
    ends: Counter[str] = Counter()
    on_file = sqlite_file(folder / "lite.sqlite3") if alias == "lite" else nullcontext()
    with on_file, two_threads(alias, level) as pools:
        warehouse = Warehouse.objects.using(alias).create(name="north")
        for count, run in enumerate(chosen):
            both = holders(run, alias, f"{count}", warehouse)
            play = Play(pools, both)
            play.run(run.order)
            try:
                judge(both, play.events, errors)
            except AssertionError as error:
                raise AssertionError(f"{run}: {play.events}, {[one.error for one in both]}: {error}") from error
            ends.update(type(one.error).__name__ for one in both)
    return ends


@POSTGRES
def test_processes_on_one_row(process_environment: dict[str, str]) -> None:
    """Live holders and overtaken ones at once: every accepted change is there, each above the one before."""
    ends = race("default", process_environment, processes=4, rounds=36)
    assert ends["late StaleWriteError"] > 0
    assert not ends["live StaleWriteError"]


@LITE
def test_processes_on_one_file_of_sqlite(process_environment: dict[str, str], tmp_path: Path) -> None:
    """C22: "database is locked" is the database's own error, is no refusal, and loses no line of the history."""
    file = tmp_path / "lite.sqlite3"
    with sqlite_file(file):
        ends = race("lite", {**process_environment, "RACERS_FILE": str(file)}, processes=2, rounds=200)
    assert ends["late StaleWriteError"] > 0
    assert not ends["live StaleWriteError"]
    # SQLite refuses at once who has read in the same transaction; a write by itself waits for its turn.
    locked = {end for end in ends if "OperationalError" in end}
    assert locked and locked <= {f"OperationalError SQLITE_BUSY {where}" for where in ("atomic", "fenced")}


def race(alias: str, environment: dict[str, str], *, processes: int, rounds: int) -> Counter[str]:
    """Let processes write one row, and compare how their attempts ended with the row and its history."""
    row = Crate(warehouse=Warehouse.objects.using(alias).create(name="north"), code="a")
    row.save(using=alias)
    program = [sys.executable, "-m", "tests.writes.racers", alias, *map(str, (row.pk, processes, rounds))]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=True)
    ends: Counter[str] = Counter()
    for line in done.stdout.splitlines():
        ends.update(json.loads(line))
    assert ends.total() == processes * rounds
    written = FencedWrite.objects.using(alias).order_by("id")
    accepted = list(written.filter(outcome="accepted", action="update").values_list("token", "seen"))
    assert len(accepted) == ends["live accepted"] + ends["late accepted"] == Crate.objects.using(alias).get().weight
    # Nobody has written from what was read before another's write: each has seen what the one before it left.
    assert [seen for _token, seen in accepted] == [0, *(token for token, _seen in accepted[:-1])]
    assert [token for token, _seen in accepted] == sorted({token for token, _seen in accepted})
    refused = Counter(written.exclude(outcome="accepted").values_list("outcome", flat=True))
    assert refused == {
        outcome: count
        for error, outcome in OUTCOMES.items()
        if (count := ends[f"late {error.__name__}"] + ends[f"live {error.__name__}"])
    }
    return ends
