"""Two holders of one resource, a superseded one and the live one, who go step by step in an order that is forced.

Each has a thread and a connection of its own, and goes on when it is told to. Whether one waits for a lock is asked
of the database; then the other one goes on. So nothing here depends on how fast anybody is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from django.db import DatabaseError, transaction
from django.db.models import F

from fencing import FencingError, Lease, history
from fencing.scope import holding
from tests.concurrency import BOUND, blocked_sessions
from tests.shop.models import Crate

# Seconds after which the database is asked whether somebody waits.
LOOK = 0.002


@dataclass(kw_only=True, eq=False)
class Holder:
    """One of the two in one run.

    Attributes:
        name: "old" or "new".
        alias: the database.
        lease: its lease.
        pk: the row that it writes.
        change: what it adds to the row's weight, unless it deletes the row.
        shape, write: names in ``SHAPES`` and ``WRITES``.
        wrote: how many rows its write has changed, as it was told.
        error: what ended it early, or None.
    """

    name: str
    alias: str
    lease: Lease
    pk: int
    change: int
    shape: str
    write: str
    wrote: int = 0
    error: Exception | None = None

    def read(self) -> Crate | None:
        """The row as it is."""
        return Crate.objects.using(self.alias).filter(pk=self.pk).first()

    def send(self, row: Crate | None) -> None:
        """Write what follows from the row that was read."""
        if row is not None:
            with holding(self.lease):
                self.wrote = WRITES[self.write](self, row)

    def leave(self) -> None:
        """What the end of ``with lease()`` does."""
        self.lease.release()
        history.write_all_waiting()


def save(who: Holder, row: Crate) -> int:
    """A value that was worked out from what was read."""
    row.weight += who.change
    row.save()
    return 1


def save_expression(who: Holder, row: Crate) -> int:
    """A value that the database works out."""
    row.weight = F("weight") + who.change
    row.save(update_fields=["weight"])
    return 1


def update(who: Holder, row: Crate) -> int:
    """One statement that has read nothing."""
    return Crate.objects.using(who.alias).filter(pk=row.pk).update(weight=F("weight") + who.change)


def update_joined(who: Holder, row: Crate) -> int:
    """The same through a relation, which takes steps."""
    rows = Crate.objects.using(who.alias).filter(pk=row.pk, warehouse__name="north")
    return rows.update(weight=F("weight") + who.change)


def bulk_update(who: Holder, row: Crate) -> int:
    """A value that was worked out from what was read, in steps."""
    row.weight += who.change
    return Crate.objects.using(who.alias).bulk_update([row], ["weight"])


def delete(_who: Holder, row: Crate) -> int:
    """The end of the row."""
    return row.delete()[0]


def delete_many(who: Holder, row: Crate) -> int:
    """The same by a queryset, through a relation."""
    return Crate.objects.using(who.alias).filter(pk=row.pk, warehouse__name="north").delete()[0]


WRITES: dict[str, Callable[[Holder, Crate], int]] = {
    one.__name__: one for one in (save, save_expression, update, update_joined, bulk_update, delete, delete_many)
}
PLAIN = {"save", "bulk_update"}
DELETES = {"delete", "delete_many"}


class UndoneError(Exception):
    """Rolls back."""


def autocommit(who: Holder) -> Iterator[str]:
    """A write that commits by itself."""
    row = who.read()
    yield "read"
    who.send(row)
    yield "landed"


def committed(who: Holder) -> Iterator[str]:
    """A read and a write in one transaction."""
    with transaction.atomic(using=who.alias):
        row = who.read()
        yield "read"
        who.send(row)
        yield "wrote"
    yield "landed"


def rolled_back(who: Holder) -> Iterator[str]:
    """The same, without effect."""
    with suppress(UndoneError), transaction.atomic(using=who.alias):
        row = who.read()
        yield "read"
        who.send(row)
        yield "wrote"
        raise UndoneError
    yield "undone"


def fenced(who: Holder) -> Iterator[str]:
    """A fenced transaction."""
    with who.lease.atomic(using=who.alias):
        yield "began"
        row = who.read()
        yield "read"
        who.send(row)
        yield "wrote"
    yield "landed"


def left(who: Holder) -> Iterator[str]:
    """A fenced transaction inside a transaction that goes on after the lease has been left."""
    with transaction.atomic(using=who.alias):
        with who.lease.atomic(using=who.alias):
            row = who.read()
            yield "read"
            who.send(row)
            yield "wrote"
        who.leave()
        yield "left"
    yield "landed"


SHAPES: dict[str, Callable[[Holder], Iterator[str]]] = {
    one.__name__: one for one in (autocommit, committed, rolled_back, fenced, left)
}
STEPS = {"autocommit": 2, "committed": 3, "rolled_back": 3, "fenced": 4, "left": 4}


def orders(old: str, new: str) -> Iterator[tuple[int, ...]]:
    """Every order of the steps of two shapes: 0 for a step of the old holder, 1 for one of the new."""
    count = STEPS[old] + STEPS[new]
    for places in combinations(range(count), STEPS[old]):
        yield tuple(int(place not in places) for place in range(count))


class Play:
    """Two holders on their two threads, and what they have done so far.

    Attributes:
        events: who has done what, in the order in which it took effect.
    """

    def __init__(self, pools: Sequence[Executor], holders: Sequence[Holder]) -> None:
        self.events: list[tuple[str, str]] = []
        self._pools = pools
        self._holders = holders
        self._alias = holders[0].alias
        self._steps = [SHAPES[one.shape](one) for one in holders]
        self._under_way: dict[int, Future[str]] = {}

    def run(self, order: Sequence[int]) -> None:
        """Have every step done, in this order as far as locks allow it."""
        left = list(order)
        while left or self._under_way:
            index = next((one for one in left if one not in self._under_way), None)
            if index is None:
                # They wait for each other, or one is left: the database ends that.
                assert wait(self._under_way.values(), BOUND, FIRST_COMPLETED).done, f"stuck after {self.events}"
                index = 0
            else:
                left.remove(index)
                self._under_way[index] = self._pools[index].submit(next, self._steps[index])
            self._settle()
            # In this order: what it has done may be what the other one has waited for.
            for one in (index, 1 - index):
                if one in self._under_way and self._under_way[one].done():
                    self._finish(one)
            left = [one for one in left if self._holders[one].error is None]
        for pool, holder in zip(self._pools, self._holders, strict=True):
            pool.submit(holder.leave).result(BOUND)

    def _settle(self) -> None:
        """Wait until each step that is under way is done or waits for a lock."""
        while True:
            running = [one for one in self._under_way.values() if not one.done()]
            if not running:
                return
            if not wait(running, LOOK, FIRST_COMPLETED).done and blocked_sessions(self._alias) >= len(running):
                return

    def _finish(self, index: int) -> None:
        holder = self._holders[index]
        try:
            what = self._under_way.pop(index).result()
        except (FencingError, DatabaseError) as error:
            holder.error, what = error, "failed"
        self.events.append((holder.name, what))
