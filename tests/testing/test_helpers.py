"""``fencing.testing`` in Django's own test cases: what it plays is really refused by the database."""

from __future__ import annotations

from contextvars import Context
from typing import Any
from unittest import TestCase as PlainTestCase

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from fencing import AlreadyAppliedError, LeaseHeldError, LeaseLostError, StaleWriteError, lease
from fencing.backends import get_backend
from fencing.testing import (
    HandClock,
    assert_nothing_refused,
    assert_outcomes,
    grants,
    leases_in_memory,
    outcomes,
    pause_after_acquire,
    stale_holder,
)
from fencing.tokens import place_of
from inventory_demo.models import Stock
from inventory_demo.tasks import apply_delta

RESOURCE = "stock:42"


def sell(quantity: int) -> None:
    stock = Stock.objects.get(sku="42")
    stock.quantity -= quantity
    stock.save()


class Helpers:
    """The same tests for both of Django's test cases."""

    clock: HandClock

    def setUp(self: Any) -> None:
        self.clock = self.enterContext(leases_in_memory())
        self.stock = Stock.objects.create(sku="42", quantity=10)

    def test_stale_holder_is_refused(self) -> None:
        with stale_holder(RESOURCE, newer=lambda: sell(5)) as held:
            assert held.is_held(), "it has noticed nothing"
            with pytest.raises(StaleWriteError):
                self.stock.save()
        assert Stock.objects.get().quantity == 5
        assert_outcomes(RESOURCE, "accepted", "stale")

    def test_stale_holder_after_one_who_only_began(self) -> None:
        with stale_holder(self.stock), pytest.raises(StaleWriteError):
            self.stock.save()
        assert_outcomes(self.stock, "stale")

    def test_stale_holder_in_a_transaction(self) -> None:
        with pytest.raises(StaleWriteError), stale_holder(RESOURCE) as held, held.atomic():
            raise AssertionError("the begin is refused")
        with pytest.raises(StaleWriteError), stale_holder(RESOURCE), transaction.atomic():
            self.stock.save()
        assert outcomes() == ["stale", "stale"]

    def test_pause_after_acquire_lets_a_newer_holder_in(self) -> None:
        with pause_after_acquire(RESOURCE, newer=lambda: sell(5)):
            with pytest.raises(LeaseLostError), lease(RESOURCE):
                sell(3)
            with lease(RESOURCE):
                sell(1)
        assert Stock.objects.get().quantity == 4
        assert_outcomes(RESOURCE, "accepted", "lost", "accepted")

    def test_pause_after_acquire_in_a_task(self) -> None:
        with pause_after_acquire(RESOURCE, newer=lambda: sell(5)):
            apply_delta("42", -3, "test")
        assert Stock.objects.get().quantity == 2
        assert outcomes(RESOURCE)[0] == "accepted" and outcomes(RESOURCE)[-1] == "accepted"
        assert "stale" in outcomes(RESOURCE)

    def test_pause_that_pauses_nobody_is_an_error(self) -> None:
        with pytest.raises(AssertionError, match="'stock:42'"), pause_after_acquire(RESOURCE), lease("stock:43"):
            pass

    def test_error_of_the_newer_holder_is_raised(self) -> None:
        with pytest.raises(ZeroDivisionError), pause_after_acquire(RESOURCE, newer=lambda: 1 / 0), lease(RESOURCE):
            pass
        with pytest.raises(ZeroDivisionError), stale_holder(RESOURCE, newer=lambda: 1 / 0):
            pass

    def take(self) -> None:
        with lease(RESOURCE) as held, held.atomic():
            pass

    def test_clock_is_moved_by_hand(self) -> None:
        with lease(RESOURCE, ttl=30, renew=False) as held:
            self.clock.advance(29)
            with pytest.raises(LeaseHeldError):
                Context().run(self.take)
            self.clock.advance(1)
            Context().run(self.take)
            assert held.is_held(), "nobody told it"

    def test_history_is_asserted(self) -> None:
        with lease(RESOURCE):
            sell(1)
        assert_nothing_refused()
        assert_outcomes(RESOURCE, "accepted")
        with pytest.raises(AssertionError, match="Expected no attempt; on record: stock:42 update under token"):
            assert_outcomes(RESOURCE)
        with stale_holder(RESOURCE), pytest.raises(StaleWriteError):
            self.stock.save()
        with pytest.raises(AssertionError, match=r"Refused: stock:42 update under token .*: stale"):
            assert_nothing_refused(RESOURCE)
        assert_nothing_refused("stock:43")
        assert [grant.ended for grant in grants(RESOURCE)] == ["released", "revoked", "released"]

    def test_operations_take_effect_once(self) -> None:
        for _ in range(2):
            with lease(RESOURCE) as held:
                held.once("order:1", sell, 3)
        with pytest.raises(AlreadyAppliedError), lease(RESOURCE) as held, held.atomic(operation="order:1"):
            pass
        assert Stock.objects.get().quantity == 7
        assert_outcomes(RESOURCE, "accepted", "duplicate", "duplicate")


class InTestCase(Helpers, TestCase):
    """Inside the transaction that Django opens around a test."""


@pytest.mark.django_db(transaction=True)
class InTransactionTestCase(Helpers, TransactionTestCase):
    """With real commits."""


class WithoutMemory(TestCase):
    """On the store of the settings."""

    def test_stale_holder_works_on_every_store(self) -> None:
        stock = Stock.objects.create(sku="42", quantity=10)
        with stale_holder(stock), pytest.raises(StaleWriteError):
            stock.save()
        assert_outcomes(stock, "stale")


class OutsideDatabases(PlainTestCase):
    """The settings come back."""

    def test_backends_come_back(self) -> None:
        before = type(get_backend())
        with leases_in_memory():
            assert type(get_backend()).__name__ == "MemoryBackend"
        assert type(get_backend()) is before


class NextTest(TestCase):
    """What a test has left waiting for the end of its transaction was rolled back with it."""

    def refuse(self) -> None:
        self.enterContext(leases_in_memory())
        stock = Stock.objects.create(sku="42")
        with transaction.atomic(), lease(stock, renew=False, allow_in_transaction=True) as held:
            backend = get_backend()
            backend.revoke(place_of(backend, held.resource), held.token)
            Context().run(self.overtake)
            with pytest.raises(StaleWriteError):
                stock.save()

    @staticmethod
    def overtake() -> None:
        with lease(RESOURCE, allow_in_transaction=True) as newer, newer.atomic():
            pass

    def test_it_is_on_record_in_the_same_test(self) -> None:
        self.refuse()
        assert_outcomes(RESOURCE, "stale")

    def test_refusal_of_one_test_is_none_of_the_next(self) -> None:
        """A test and the next one, as far as the database knows: each in a transaction that ``TestCase`` rolls back."""
        blocks = self._enter_atomics()  # type: ignore[attr-defined]
        self.refuse()
        self._rollback_atomics(blocks)  # type: ignore[attr-defined]
        assert_nothing_refused()
        assert_outcomes(RESOURCE)


TWO = {alias: {"BACKEND": "fencing.backends.memory.MemoryBackend", "NAMESPACE": alias} for alias in ("default", "b")}


@pytest.mark.django_db
def test_one_resource_in_two_namespaces_is_two(settings: Any) -> None:
    settings.FENCING = {"BACKENDS": TWO, "RECORD": "all"}
    stock = Stock.objects.create(sku="42")
    with lease(RESOURCE, using="b"):
        pass
    with lease(stock) as held:
        stock.save()
    assert_outcomes(stock, "accepted")
    assert_outcomes(RESOURCE, using="b")
    assert outcomes() == ["accepted"]
    assert [grant.token for grant in grants(stock)] == [held.token]
    assert [grant.namespace for grant in grants(RESOURCE, using="b")] == ["b"]


@pytest.mark.django_db
def test_what_is_misspelt_passes_no_assertion() -> None:
    for wrong in ("refused", "Stale", ["stale"], None):
        with pytest.raises(ValueError, match=r"no outcome .*: accepted, .*stale-read"):
            assert_outcomes(RESOURCE, "accepted", wrong)  # type: ignore[arg-type]
    for call in (outcomes, assert_nothing_refused):
        with pytest.raises(ImproperlyConfigured, match="'misspelt'"):
            call(using="misspelt")
    with pytest.raises(ImproperlyConfigured, match="'misspelt'"), pause_after_acquire(RESOURCE, using="misspelt"):
        raise AssertionError("entered")
