"""Committed rows and a real worker: both for a whole module, each test has an article of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from django.core.management import call_command
from pytest_django.plugin import DjangoDbBlocker

from inventory_demo.celery import app
from inventory_demo.factories import StockFactory
from inventory_demo.gate import Gate
from inventory_demo.models import Stock
from inventory_demo.worker import Worker
from tests.celery.helpers import Article
from tests.rabbitmq import reason_to_lack, running
from tests.services import missing

TASKS = ["tests.celery.tasks", "tests.celery.faulttasks"]


@pytest.fixture(scope="module")
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """In place of pytest-django's: the rows stay until the module ends, because the worker goes on from test to test.

    The name is what makes pytest-django set the test database up.
    """
    with django_db_blocker.unblock():
        yield
        call_command("flush", verbosity=0, interactive=False)


@pytest.fixture(scope="module")
def worker(transactional_db: None) -> Iterator[Worker]:
    """A prefork worker with two processes and the tasks of the tests."""
    with Worker(f"test-{uuid4().hex[:8]}", include=TASKS) as running:
        yield running


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[str]:
    """The address of a running RabbitMQ; without one here the test is skipped, and fails in CI."""
    if reason := reason_to_lack():
        missing(reason)
    with running() as url:
        yield url


@pytest.fixture
def article(transactional_db: None) -> Iterator[Article]:
    """A stock of ten pieces with a gate of its own."""
    with new_article() as made:
        yield made


@pytest.fixture
def other(transactional_db: None) -> Iterator[Article]:
    """Another one."""
    with new_article() as made:
        yield made


@contextmanager
def new_article() -> Iterator[Article]:
    """An article for the block."""
    stock: Stock = StockFactory.create(sku=f"test-{uuid4().hex[:8]}")
    gate = Gate(stock.sku)
    yield Article(stock.sku, gate)
    gate.remove()


@pytest.fixture
def broken_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be sent from this process."""
    # Celery makes its pools at their first use, and keeps them.
    monkeypatch.setattr(app, "_pool", None)
    monkeypatch.setattr(app.amqp, "_producer_pool", None)
    monkeypatch.setitem(app.conf, "broker_write_url", "redis+socket:///nowhere.sock")
    monkeypatch.setitem(app.conf, "broker_connection_timeout", 0.1)
