"""Django's ``TestCase`` and pytest's ``db`` fixture just work for the tests of a project that uses fencing (item 14)."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from contextvars import Context
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, TestCase, TransactionTestCase
from django.urls import path

from fencing import (
    LeaseHeldError,
    LeaseInsideTransactionError,
    LeaseRequiredError,
    StaleReadError,
    StaleWriteError,
    current_lease,
    lease,
    unfenced,
)
from fencing.backends import get_backend
from fencing.celery import fenced_task
from fencing.models import FencedResource, FencedWrite, Operation, TokenRange
from fencing.ranges import forget_database
from fencing.scope import held_leases
from fencing.tokens import place_of
from inventory_demo.celery import app
from inventory_demo.models import Stock
from tests.celery import tasks
from tests.concurrency import wait_until_expired


def ensure_clean() -> None:
    """What every test may rely on, whatever ran before it."""
    assert current_lease() is None
    assert held_leases() == ()
    for model in (Stock, FencedWrite, FencedResource, Operation):
        assert not model._default_manager.exists()


def overtake(stock: Stock) -> None:
    """Another holder takes the lease and writes."""
    with lease(stock, ttl=30, wait=5):
        Stock.objects.filter(pk=stock.pk).update(quantity=5)


def outcomes() -> list[str]:
    return list(FencedWrite.objects.order_by("id").values_list("outcome", flat=True))


def use_everything() -> None:
    """What a user's own test does; the lease is left to its exit each time, so the name is free for the next test."""
    ensure_clean()
    stock = Stock.objects.create(sku="same-in-every-test", quantity=10)
    with pytest.raises(LeaseRequiredError):
        stock.save()
    with lease(stock, ttl=30) as held:
        assert held_leases() == (held,)
        early, late = Stock.objects.get(), Stock.objects.get()
        late.quantity = 9
        late.save()
        with pytest.raises(StaleReadError):
            early.save()
        assert outcomes() == ["accepted", "stale-read"]
        assert held.once("order-1", lambda: {"left": 9}) == {"left": 9}
        assert held.once("order-1", lambda: pytest.fail("called twice")) == {"left": 9}
        with pytest.raises(LeaseHeldError):
            Context().run(overtake_at_once, stock)
    with unfenced("the audit counted seven") as number:
        Stock.objects.update(quantity=7)
    assert Stock.objects.get().last_token == number
    with lease(stock, ttl=0.1, renew=False):
        sleeper = Stock.objects.get()
        wait_until_expired(stock.fence_name())
        Context().run(overtake, stock)
        with pytest.raises(StaleWriteError), transaction.atomic():
            sleeper.save()
    assert Stock.objects.get().quantity == 5
    assert [one for one in outcomes() if one not in ("accepted", "unfenced")] == ["stale-read", "duplicate", "stale"]
    assert current_lease() is None


def overtake_at_once(stock: Stock) -> None:
    with lease(stock):
        pytest.fail("two holders")


class InTestCase(TestCase):
    """Twice, because the first could leave something for the second."""

    @classmethod
    def setUpTestData(cls) -> None:
        """Leases and writes work here, too."""
        ensure_clean()

    def test_everything(self) -> None:
        """The first of two."""
        use_everything()

    def test_everything_again(self) -> None:
        """The second of two."""
        use_everything()

    def test_a_lease_that_a_failing_test_left_is_given_back(self) -> None:
        """An exception leaves no lease behind, here as anywhere."""
        with pytest.raises(ZeroDivisionError), lease("left"):
            1 / 0  # noqa: B018
        with lease("left"):
            pass

    def test_eager_tasks_take_effect_once_and_a_limit_undoes_only_them(self) -> None:
        """With ``task_always_eager``, as in a project's own tests."""
        app.conf.task_always_eager = True
        self.addCleanup(app.conf.update, task_always_eager=False)
        Stock.objects.create(sku="eager", quantity=10)
        sent = tasks.retrying.delay("eager")
        again = tasks.retrying.apply_async(("eager",), task_id=sent.id)
        assert (sent.get(), again.get()) == (9, 9)
        with self.captureOnCommitCallbacks(execute=True):
            tasks.retrying.delay_on_commit("eager")  # type: ignore[attr-defined]
        assert isinstance(limited.delay("eager").result, SoftTimeLimitExceeded)
        assert Stock.objects.get().quantity == 8
        assert held_leases() == ()


@fenced_task(resource="stock:{sku}", name="tests.limited")
def limited(sku: str) -> None:
    """Be struck by a soft time limit after a write."""
    tasks.change(sku, -1)
    raise SoftTimeLimitExceeded


class InTransactionTestCase(TransactionTestCase):
    """Without a transaction around the test; the runner flushes the tables."""

    def test_everything(self) -> None:
        """The first of two."""
        use_everything()

    def test_everything_again(self) -> None:
        """The second of two."""
        use_everything()


@pytest.mark.django_db
class TestTheDbFixture:
    @pytest.mark.parametrize("_time", [1, 2])
    def test_everything(self, _time: int) -> None:
        use_everything()


@pytest.mark.django_db(transaction=True)
class TestTheTransactionalDbFixture:
    @pytest.mark.parametrize("_time", [1, 2])
    def test_everything(self, _time: int) -> None:
        use_everything()


# ATOMIC_REQUESTS


def change(request: HttpRequest) -> HttpResponse:
    """A view that needs the lease."""
    with lease("stock:atomic"):
        stock = Stock.objects.get()
        stock.quantity -= 1
        stock.save()
    return HttpResponse(str(stock.quantity))


@transaction.non_atomic_requests
def change_alone(request: HttpRequest) -> HttpResponse:
    """The same view outside the request's transaction."""
    return change(request)


urlpatterns = [path("atomic", change), path("non-atomic", change_alone)]


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    Stock.objects.create(sku="atomic", quantity=10)


class AtomicRequests:
    def test_a_lease_inside_the_requests_transaction_is_refused(self, atomic_requests: None, client: Client) -> None:
        with pytest.raises(LeaseInsideTransactionError, match="non_atomic_requests"):
            client.get("/atomic")
        assert Stock.objects.get().quantity == 10

    def test_a_non_atomic_view_takes_its_lease(self, atomic_requests: None, client: Client) -> None:
        assert client.get("/non-atomic").content == b"9"


@pytest.mark.django_db
class TestAtomicRequestsInATestsTransaction(AtomicRequests):
    """The test's own transaction does not count, the request's does."""


@pytest.mark.django_db(transaction=True)
class TestAtomicRequests(AtomicRequests):
    """Without a transaction around the test."""


# The test database of a project of its own

PROJECT = {
    "settings.py": """
        SECRET_KEY = "for tests"
        INSTALLED_APPS = ["fencing", "shop"]
        DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
        USE_TZ = True
        DATABASES = {databases!r}
        CACHES = {caches!r}
        FENCING = {{"BACKENDS": {{"default": {{"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "leases"}}}}}}
    """,
    "manage.py": """
        import os
        import sys

        from django.core.management import execute_from_command_line

        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        execute_from_command_line(sys.argv)
    """,
    "shop/__init__.py": "",
    "shop/models.py": """
        from django.db import models
        from fencing.models import FencedModel


        class Stock(FencedModel):
            quantity = models.IntegerField(default=0)
    """,
    "shop/tests.py": """
        from django.db import transaction
        from django.test import TestCase, TransactionTestCase
        from fencing import StaleReadError, lease
        from fencing.models import FencedWrite

        from shop.models import Stock


        class Refusal:
            def test_a_refusal_inside_atomic(self):
                stock = Stock.objects.create(quantity=10)
                with lease(stock, ttl=3):
                    Stock.objects.update(quantity=9)
                    with self.assertRaises(StaleReadError), transaction.atomic():
                        stock.save()
                self.assertEqual(FencedWrite.objects.filter(outcome="stale-read").count(), 1)


        class Here(Refusal, TestCase):
            pass


        class There(Refusal, TransactionTestCase):
            pass
    """,
}


def test_the_test_database_can_be_dropped_each_time(tmp_path: Path) -> None:
    database = {**settings.DATABASES["default"], "NAME": f"mini_{os.getpid()}", "TEST": {}}
    values = {"databases": {"default": database}, "caches": settings.CACHES}
    for name, text in PROJECT.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(dedent(text).format(**values) if name == "settings.py" else dedent(text))
    for _time in range(2):
        # Without --noinput: a database that was left behind would ask a question, and nobody answers.
        run = subprocess.run(
            [sys.executable, "manage.py", "test"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        said = run.stdout + run.stderr
        assert run.returncode == 0, said
        assert "Ran 2 tests" in said
        assert "being accessed by other users" not in said
        assert "Warning" not in said


class First(TestCase):
    """Not collected by itself: it is the first in its process to use fencing."""

    __test__ = False

    def runTest(self) -> None:  # noqa: N802  (unittest's name)
        with lease("stock:42"):
            pass


@pytest.mark.django_db(transaction=True)
def test_namespace_that_a_testcase_made_goes_with_it() -> None:
    """Else this process and every other one would take leases under different names from then on."""
    TokenRange.objects.all().delete()
    forget_database("default")
    result = unittest.TestResult()
    unittest.TestSuite([First()]).run(result)
    assert result.testsRun == 1 and result.wasSuccessful(), result.errors
    assert not TokenRange.objects.exists()
    with lease("stock:42"):
        here = place_of(get_backend(), "stock:42").space
    forget_database("default")
    assert place_of(get_backend(), "stock:42").space == here, "as another process knows it"
