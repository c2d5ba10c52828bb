"""What bad input gets: typed errors that say what is wrong, before anything is sent where that can be known."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.core import serializers
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from fencing import (
    InvalidTokenError,
    LeaseLostError,
    LeaseRequiredError,
    ResourceMismatchError,
    StaleWriteError,
    lease,
)
from fencing.lifting import lift, naming_token
from fencing.models import FencedResource, FencedWrite
from fencing.revocation import revoke
from fencing.scope import holding
from fencing.tokens import check_token
from inventory_demo.models import Stock

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)

MEMORY = "fencing.backends.memory.MemoryBackend"
NO_TOKENS = [True, 1.0, "1", Decimal(1), -1, 2**53, 2**63, float("nan"), b"1", [1]]


def stock(alias: str, sku: str = "42") -> Stock:
    Stock.objects.using(alias).create(sku=sku, quantity=10)
    return Stock.objects.using(alias).get(sku=sku)


def told(context: Any) -> None:
    with context:
        raise AssertionError("it was let in")


@pytest.mark.parametrize("value", [*NO_TOKENS, 0, False], ids=repr)
def test_what_is_no_token_is_refused_before_any_sql(value: Any) -> None:
    entries: list[Callable[[], Any]] = [
        lambda: check_token(value),
        lambda: told(naming_token(connection, value)),
        lambda: revoke("stock:42", "a test", token=value),
    ]
    # 0 stands for a row that has accepted nothing, and for a lifted fence that raises nothing.
    if not (isinstance(value, int) and value == 0 and not isinstance(value, bool)):
        entries.append(lambda: told(lift(connection, value)))
        entries.append(lambda: Stock(sku="42", last_token=value).save_base(raw=True))
    with transaction.atomic(), CaptureQueriesContext(connection) as sent:
        for entry in entries:
            with pytest.raises(InvalidTokenError, match=r"is an integer from 1 to 2\*\*53 - 1"):
                entry()
    assert list(sent) == []
    assert not Stock.objects.exists() and not FencedResource.objects.exists()


@pytest.mark.parametrize("value", [-1, 2**53, 2**63])
def test_fixture_with_what_is_no_token(alias: str, value: int) -> None:
    row = {"model": "inventory_demo.stock", "pk": 5, "fields": {"sku": "42", "quantity": 1, "last_token": value}}
    (one,) = serializers.deserialize("json", json.dumps([row]), using=alias)
    with pytest.raises(InvalidTokenError, match=str(value)):
        one.save(using=alias)
    assert not Stock.objects.using(alias).exists()


def writes_of(alias: str, row: Stock, held: Any) -> list[Callable[[], Any]]:
    """One write of each kind that takes a lease by name or from the context."""
    rows = Stock.objects.using(alias)

    def with_it(write: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with holding(held):
                return write()

        return run

    return [
        lambda: row.save(lease=held),
        lambda: row.delete(lease=held),
        with_it(lambda: rows.update(quantity=1)),
        with_it(lambda: rows.bulk_update([row], ["quantity"])),
        with_it(lambda: rows.all().delete()),
    ]


def test_lease_of_another_resource(alias: str) -> None:
    row = stock(alias)
    with lease("stock:43") as other:
        for write in writes_of(alias, row, other):
            with pytest.raises(ResourceMismatchError, match=r"stock:43'.*'stock:42'"):
                write()
        with pytest.raises(LeaseRequiredError, match=r"'stock:42'.*held here: 'stock:43'"):
            row.save()
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (10, 0)


def test_lease_that_was_released(alias: str) -> None:
    row = stock(alias)
    with lease("stock:42") as held:
        pass
    named, deleted, *others = writes_of(alias, row, held)
    for write in (named, deleted):
        with pytest.raises(LeaseLostError, match="this process has released it"):
            write()
    for write in others:
        with pytest.raises(LeaseRequiredError):
            write()
    with pytest.raises(LeaseLostError), held.atomic(using=alias):
        raise AssertionError("the body ran")
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (10, 0)


def test_lease_of_another_alias_and_namespace(alias: str, settings: Any) -> None:
    """Numbers of two namespaces are never compared, though the resources are called the same."""
    backends = settings.FENCING["BACKENDS"]
    settings.FENCING = {"BACKENDS": {**backends, "other": {"BACKEND": MEMORY, "NAMESPACE": "other"}}}
    row = stock(alias)
    with lease("stock:42", using="other") as other:
        named, deleted, *others = writes_of(alias, row, other)
        for write in (named, deleted):
            with pytest.raises(ResourceMismatchError, match="'other'"):
                write()
        for write in others:
            with pytest.raises(LeaseRequiredError):
                write()
        with pytest.raises(LeaseRequiredError, match="'stock:42'"):
            row.save()
        with lease("stock:42") as own:
            row.save()
            assert own.namespace != other.namespace
    assert Stock.objects.using(alias).get().last_token == own.token


@pytest.mark.parametrize("way", ["save", "update", "delete", "bulk_update"])
def test_row_imported_with_a_token_above_everything_reserved(alias: str, way: str) -> None:
    """Refused once, with a message that says what the row holds; the next grant is above it."""
    imported = 5_000_000_000

    def write() -> None:
        rows = Stock.objects.using(alias)
        row = rows.get()
        row.quantity = 7
        ways: dict[str, Callable[[], Any]] = {
            "save": row.save,
            "update": lambda: rows.update(quantity=7),
            "delete": row.delete,
            "bulk_update": lambda: rows.bulk_update([row], ["quantity"]),
        }
        ways[way]()

    text = serializers.serialize("json", [Stock(pk=5, sku="42", quantity=10, last_token=imported)])
    for one in serializers.deserialize("json", text, using=alias):
        one.save(using=alias)
    with lease("stock:42") as held:
        with pytest.raises(StaleWriteError, match=str(imported)) as caught:
            write()
        assert caught.value.token < imported
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (10, imported)
    with lease("stock:42") as later:
        assert held.token < imported < later.token
        write()
    assert [*Stock.objects.using(alias).values_list("quantity", flat=True)] == ([] if way == "delete" else [7])
    outcomes = FencedWrite.objects.using(alias).order_by("id").values_list("outcome", flat=True)
    assert list(outcomes) == ["stale", "accepted"]


def test_row_with_a_number_that_somebody_made_up(alias: str) -> None:
    """L2: raised above it, the namespace would have no numbers left; the message names the row."""
    row = stock(alias)
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE inventory_demo_stock SET last_token = %s", [2**52])
    late = Stock.objects.using(alias).get()
    for write in (late.save, lambda: Stock.objects.using(alias).update(quantity=1), late.delete):
        with lease("stock:42"), pytest.raises(InvalidTokenError, match=f"{2**52}.*inventory_demo.stock.*holds it"):
            write()
    with lease("stock:42") as held:
        assert held.token < 2**30
    assert Stock.objects.using(alias).values_list("quantity", "last_token").get() == (10, 2**52)
    assert row.pk == late.pk
