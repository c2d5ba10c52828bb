"""Holders that pause, are superseded and come back, in any order that Hypothesis thinks of, against what I1 to I5 allow.

The machine drives the real code and keeps a model of one resource: which numbers were issued, which holder is the
newest that wrote or began, what each row holds. A write is accepted exactly if the model allows it; only a holder
whose lease has ended in the store may lack a number for a write that would be in order.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from django.db import connections
from django.db.models import F
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fencing import AlreadyAppliedError, LeaseHeldError, LeaseLostError, WriteRejectedError, history
from fencing.acquiring import acquire
from fencing.backends import get_backend
from fencing.leases import Lease
from fencing.models import FencedWrite
from fencing.scope import holding
from inventory_demo.models import StockDelta
from tests.services import PrivateValkey
from tests.shop.models import Crate, Warehouse

# How many grants, or reads, ago: the newest ones are the ones that get in each other's way.
AGO = st.sampled_from([0, 0, 1, 2])
DELTAS = st.integers(-5, 5)
KEYS = st.sampled_from([f"order-{number}" for number in range(6)])
_serials = itertools.count()


@dataclass
class Row:
    """What a row of the database should be."""

    last_token: int
    weight: int = 0
    gone: bool = False


@dataclass
class Copy:
    """An instance that somebody read, and what the row was then."""

    crate: Crate
    last_token: int
    weight: int


class Machine(RuleBasedStateMachine):
    """One resource with some rows, and everybody who ever held its lease."""

    alias: ClassVar[str] = "default"
    in_memory: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.code = secrets.token_hex(4)
        self.thread = ThreadPoolExecutor(1)
        self.rows: dict[int, Row] = {}
        self.everybody: list[Lease] = []
        self.copies: list[Copy] = []
        self.live: Lease | None = None
        self.newest = 0
        self.done: dict[str, int] = {}

    @initialize()
    def open_warehouse(self) -> None:
        self.warehouse = Warehouse.objects.using(self.alias).create(name=self.code)
        self.resource = f"crate:{self.warehouse.pk}:{self.code}"
        self.take(overtakes=False, begins=False)
        self.create(0)
        # Three grants, the newest one live: each of the others may wake up at any time.
        self.take(overtakes=True, begins=False)
        self.take(overtakes=True, begins=True)

    def teardown(self) -> None:
        self.thread.submit(connections.close_all).result()
        self.thread.shutdown()
        if self.live:
            self.live.release()
        history.write_all_waiting()  # refusals that a transaction of the thread had kept out

    # What the store does

    @rule(overtakes=st.booleans(), begins=st.booleans())
    def take(self, overtakes: bool, begins: bool) -> None:
        """I1: the number of a grant is above all that were issued before. I4: after a begin nothing older lands."""
        if overtakes:
            self.end_unnoticed()
        before = self.numbers()
        try:
            held = acquire(self.resource, ttl=600, give_up=0, using="default", allow_in_transaction=False)
        except LeaseHeldError:
            assert self.live
            return
        assert self.live is None
        assert held.token > max(before, default=0)
        self.everybody.append(held)
        self.live = held
        if begins:
            assert self.begin(held)
            self.newest = held.token

    @rule()
    def end_unnoticed(self) -> None:
        """A pause: the lease ends in the store, and its holder goes on."""
        if self.live:
            assert self.live._backend.revoke(self.live._place, self.live.token)
            self.live = None

    @rule()
    def forget_everything(self) -> None:
        backend: Any = get_backend()
        if self.in_memory:
            backend._start()
        else:
            backend._client.redis.flushdb()
        self.live = None

    @rule(who=AGO)
    def advance(self, who: int) -> None:
        held = self.holder(who)
        before = self.numbers()
        try:
            number = held.advance()
        except LeaseLostError:
            assert held is not self.live
        else:
            assert held is self.live
            assert number > max(before)

    # What holders write

    @precondition(lambda self: sum(not row.gone for row in self.rows.values()) < 2)
    @rule(who=AGO)
    def create(self, who: int) -> None:
        held = self.holder(who)
        crate = Crate(warehouse=self.warehouse, code=self.code)
        with self.judged(held) as accepted:
            crate.save(lease=held, using=self.alias)
            accepted()
            self.rows[crate.pk] = Row(crate.last_token)
            self.copies.append(Copy(crate, crate.last_token, 0))

    @rule(who=AGO, which=AGO, anew=st.booleans(), delta=DELTAS)
    def save(self, who: int, which: int, anew: bool, delta: int) -> None:
        """I2, I3, I4: only onto the row that was read."""
        held, (one, row) = self.holder(who), self.copy(which, anew=anew)
        one.crate.weight = one.weight + delta
        with self.judged(held, row, fresh=one.last_token == row.last_token) as accepted:
            one.crate.save(lease=held)
            accepted()
            self.written(held, row, delta, one.crate.last_token)
            one.last_token, one.weight = row.last_token, row.weight
        if accepted.refused and not self.in_memory and not row.gone:
            # One statement locks the row, passes the resource, and only then compares: it has raised that one already.
            self.newest = max(self.newest, held.token)

    @rule(who=AGO, which=AGO, anew=st.booleans(), delta=DELTAS)
    def add(self, who: int, which: int, anew: bool, delta: int) -> None:
        """I2, I4: an expression is right whatever was read."""
        held, (one, row) = self.holder(who), self.copy(which, anew=anew)
        crate = deepcopy(one.crate)
        crate.weight = F("weight") + delta
        with self.judged(held, row) as accepted:
            crate.save(lease=held, update_fields=["weight"])
            accepted()
            self.written(held, row, delta, crate.last_token)

    @rule(who=AGO, delta=DELTAS)
    def add_everywhere(self, who: int, delta: int) -> None:
        held = self.holder(who)
        rows = {pk: row for pk, row in self.rows.items() if not row.gone}
        if not rows:
            return
        crates = Crate.objects.using(self.alias).filter(code=self.code)
        with self.judged(held) as accepted, holding(held):
            crates.update(weight=F("weight") + delta)
            accepted()
            for pk, token in crates.values_list("pk", "last_token"):
                self.written(held, rows[pk], delta, token)

    @rule(who=AGO, which=AGO)
    def delete(self, who: int, which: int) -> None:
        held, (one, row) = self.holder(who), self.copy(which)
        with self.judged(held, row) as accepted:
            deepcopy(one.crate).delete(lease=held)
            accepted()
            row.gone = True
            self.copies = [one, *(other for other in self.copies if other.crate.pk != one.crate.pk)]

    # Transactions and operations

    @rule(who=AGO, which=AGO, key=KEYS, delta=DELTAS)
    def transact(self, who: int, which: int, key: str, delta: int) -> None:
        """I4, I5: the effect on the row and the ledger, once."""
        held, (one, row) = self.holder(who), self.copy(which)
        if row.gone:
            return
        allowed = held.token >= self.newest
        with self.judged(held, fresh=key not in self.done) as accepted, held.atomic(key, using=self.alias):
            self.newest = max(self.newest, held.token)
            crate = Crate.objects.using(self.alias).get(pk=one.crate.pk)
            crate.weight += delta
            crate.save(lease=held)
            self.note_effect(key, delta)
            accepted()
        if accepted.reached:
            self.written(held, row, delta, crate.last_token)
            self.done[key] = delta
        elif allowed:
            self.newest = max(self.newest, held.token)

    @precondition(lambda self: not self.in_memory)
    @rule(who=AGO, other=AGO, key=KEYS, delta=DELTAS)
    def transact_meanwhile(self, who: int, other: int, key: str, delta: int) -> None:
        """I4: whoever begins while another's transaction is open supersedes it, unless he is the older one."""
        held, meanwhile = self.holder(who), self.holder(other)
        if held.token < self.newest or key in self.done:
            return
        self.newest, overtaken = held.token, False
        try:
            with held.atomic(key, using=self.alias):
                self.note_effect(key, delta)
                overtaken = self.thread.submit(self.begin, meanwhile).result()
        except WriteRejectedError:
            assert overtaken
        else:
            assert not overtaken
            self.done[key] = delta
        assert overtaken == (meanwhile.token >= held.token)
        self.newest = max(held.token, meanwhile.token)

    # Judging

    def holder(self, ago: int) -> Lease:
        return self.everybody[-1 - min(ago, len(self.everybody) - 1)]

    def copy(self, ago: int, *, anew: bool = False) -> tuple[Copy, Row]:
        """A copy that was read some time ago, or one of the same row that is read now."""
        one = self.copies[-1 - min(ago, len(self.copies) - 1)]
        row = self.rows[one.crate.pk]
        if anew and not row.gone:
            crate = Crate.objects.using(self.alias).get(pk=one.crate.pk)
            one = Copy(crate, row.last_token, row.weight)
            self.copies.append(one)
        return one, row

    def begin(self, held: Lease) -> bool:
        try:
            with held.atomic(using=self.alias):
                return True
        except WriteRejectedError:
            return False

    @contextmanager
    def judged(self, held: Lease, row: Row | None = None, *, fresh: bool = True) -> Iterator[Any]:
        """Accepted exactly if the holder is not superseded, the row is there, and ``fresh`` holds of the write."""
        allowed = fresh and held.token >= self.newest and not (row and row.gone)
        accepted = Accepted()
        try:
            yield accepted
        except LeaseLostError:
            accepted.reached = False
            assert held is not self.live
        except (WriteRejectedError, AlreadyAppliedError):
            accepted.reached, accepted.refused = False, True
            assert not allowed
        else:
            assert allowed
            self.newest = held.token

    def written(self, held: Lease, row: Row, delta: int, token: int) -> None:
        """I2: each accepted write of a row has a higher number of its holder's."""
        assert token > row.last_token
        assert held.issued(token)
        row.last_token, row.weight = token, row.weight + delta

    def note_effect(self, key: str, delta: int) -> None:
        operation = f"{key}:{self.code}:{next(_serials)}"
        StockDelta.objects.using(self.alias).create(sku=self.code, delta=delta, reason=key, operation=operation)

    def numbers(self) -> list[int]:
        """Every number that anybody was given."""
        return [number for held in self.everybody for number in held._issued]

    @invariant()
    def numbers_are_unique(self) -> None:
        """I1"""
        numbers = self.numbers()
        assert len(numbers) == len(set(numbers))

    @invariant()
    def rows_are_the_sum_of_what_was_accepted(self) -> None:
        found = Crate.objects.using(self.alias).filter(code=self.code).values_list("pk", "last_token", "weight")
        assert sorted(found) == sorted((pk, r.last_token, r.weight) for pk, r in self.rows.items() if not r.gone)

    @invariant()
    def operations_took_effect_once(self) -> None:
        """I5"""
        found = StockDelta.objects.using(self.alias).filter(sku=self.code).values_list("reason", "delta")
        assert sorted(found) == sorted(self.done.items())


class Accepted:
    """Called in the block that it judges, once the write was accepted."""

    reached = False
    refused = False

    def __call__(self) -> None:
        self.reached = True


class InMemory(Machine):
    """In memory, both store and database: a single writer, so nobody can act within another's transaction."""

    alias = "lite"
    in_memory = True


BOUNDED = settings(
    max_examples=70,
    stateful_step_count=25,
    deadline=None,
    database=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=list(HealthCheck),
)


def run(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=BOUNDED)
    assert_history_rises(machine.alias)


def assert_history_rises(alias: str) -> None:
    """I2, as the history tells it: the accepted numbers of a row rise."""
    last: dict[tuple[str, str], int] = {}
    accepted = FencedWrite.objects.using(alias).filter(outcome="accepted", action="update").order_by("id")
    for model, pk, token in accepted.values_list("model", "object_pk", "token"):
        assert token > last.get((model, pk), 0)
        last[model, pk] = token
    assert last


@pytest.mark.slow
@pytest.mark.django_db(transaction=True, databases=["default", "lite"])
def test_i1_to_i5_in_memory(settings: Any) -> None:
    backend = {**settings.FENCING["BACKENDS"]["default"], "BACKEND": "fencing.backends.memory.MemoryBackend"}
    settings.FENCING = {"BACKENDS": {"default": backend}}
    run(InMemory)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_i1_to_i5_on_valkey(settings: Any, valkey_server: Callable[..., PrivateValkey]) -> None:
    entry = {**settings.CACHES["leases"], "LOCATION": valkey_server().url()}
    settings.CACHES = {**settings.CACHES, "leases": entry}
    run(Machine)
