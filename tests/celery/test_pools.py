"""What only some pools and brokers do: an interrupted greenlet, and a message that comes again while its first run goes on."""

from __future__ import annotations

import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from fencing.models import FencedWrite
from inventory_demo.server_addresses import CHECKOUT
from inventory_demo.server_support import wait_for
from tests.celery import tasks
from tests.celery.combinations import Combination
from tests.celery.helpers import BEFORE_CELERY_5_7, Article
from tests.faults.proxy import Proxy

pytestmark = pytest.mark.slow


def test_greenlet_that_is_interrupted_anywhere_leaves_nothing_behind(
    article: Article, process_environment: dict[str, str]
) -> None:
    """Celery's hard time limit there: an exception that Python code cannot mistake for its own, wherever it waits."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.celery.interrupted_greenlets", article.sku],
        cwd=CHECKOUT,
        env=process_environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    interrupted, last = done.stdout.split()
    assert int(interrupted) >= 20 and last == "done"
    accepted = FencedWrite.objects.filter(resource=article.resource, outcome="accepted").count()
    assert article.quantity == 10 - accepted


def test_i5_message_that_comes_again_after_a_lost_connection_takes_effect_once(rabbitmq: str, article: Article) -> None:
    """RabbitMQ gives the message to the worker once more as soon as it is connected again: the first run goes on."""
    address = urlsplit(rabbitmq)
    assert address.hostname is not None
    with Proxy((address.hostname, address.port or 5672)) as proxy:
        through = address._replace(netloc=f"{address.username}:{address.password}@127.0.0.1:{proxy.port}").geturl()
        with Combination("prefork", "rabbitmq").worker(through) as worker:
            result = worker.send(tasks.at_gate_late, article.sku)
            first = article.report()
            proxy.refuse()
            proxy.accept_again()
            # Before Celery 5.7 it waits for the busy child though another is free, and never finds the lease held.
            told = f"[{result.id}] received" if BEFORE_CELERY_5_7 else "an earlier delivery of this task"
            assert wait_for(lambda: told in worker.log(60_000).partition("Connection to broker lost")[2], seconds=30)
            assert result.state == "PENDING"
            article.gate.open()
            assert result.get(timeout=15) == 9
            assert wait_for(lambda: "duplicate" in article.outcomes(), seconds=30)
            worker.kill()
    assert article.outcomes() == ["accepted", "duplicate"]
    assert article.reports() == []
    assert article.quantity == 9
    assert first["held"] == [article.resource]
