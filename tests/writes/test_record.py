"""The setting RECORD: which attempts the history keeps, whatever the way to write and the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db.models import F

from fencing import (
    AlreadyAppliedError,
    Lease,
    LeaseLostError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    lease,
    unfenced,
)
from fencing.models import FencedWrite, Operation
from fencing.scope import holding
from inventory_demo.models import Stock

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

ACCEPTED = {"accepted": 6}
REFUSED = {"stale": 1, "stale-read": 1, "missing": 1, "lost": 2, "duplicate": 1, "unfenced": 2}


@pytest.mark.parametrize(
    ("record", "kept"),
    [("all", ACCEPTED | REFUSED), ("refused", REFUSED), ("none", {})],
    ids=["all", "refused", "none"],
)
def test_history_keeps_what_the_setting_says(
    settings: Any, alias: str, overtaken: Callable[[str], Any], record: str, kept: dict[str, int]
) -> None:
    settings.FENCING = {**settings.FENCING, "RECORD": record}
    rows = Stock.objects.using(alias)
    rows.create(sku="42", quantity=1)
    late = rows.get()
    with overtaken("stock:42") as (sleeper, newer):
        with holding(newer):
            write_in_every_way(alias, newer)
        with holding(sleeper):
            be_refused_in_every_way(alias, late)
    with unfenced("an audit", database=alias):
        rows.get().save()
    outcomes = FencedWrite.objects.using(alias).values_list("outcome", flat=True)
    assert Counter(outcomes) == kept
    # What happened does not depend on what is kept of it.
    assert rows.values_list("sku", "quantity").get() == ("42", 4)
    assert Operation.objects.using(alias).values_list("key", "result").get() == ("order-7", 4)


def write_in_every_way(alias: str, held: Lease) -> None:
    """Six writes that are accepted, the last of them once, and three refusals that need no sleeper."""
    rows = Stock.objects.using(alias)
    late = rows.get()
    rows.get().save()  # one statement, on PostgreSQL
    assert rows.update(quantity=F("quantity") + 1) == 1  # one statement of many rows there, now that it is known
    one = rows.get()
    rows.bulk_update([one], ["quantity"])  # steps everywhere
    with pytest.raises(StaleReadError):
        late.save()
    with lease("stock:gone") as gone:
        other = rows.create(sku="gone")
        assert rows.filter(pk=other.pk).delete()[0] == 1
        with pytest.raises(RowMissingError):
            other.save(lease=gone, force_update=True)

    def effect() -> int:
        one.quantity += 2
        one.save()
        return int(one.quantity)

    for _ in range(2):
        with suppress(AlreadyAppliedError), held.atomic(operation="order-7", using=alias) as once:
            once.result = effect()


def be_refused_in_every_way(alias: str, late: Stock) -> None:
    """Writes of a holder that was overtaken, which gets no number for a second one."""
    rows = Stock.objects.using(alias)
    with pytest.raises(StaleWriteError):
        late.save()
    for write in (lambda: rows.update(quantity=0), rows.all().delete):
        with pytest.raises(LeaseLostError):
            write()
