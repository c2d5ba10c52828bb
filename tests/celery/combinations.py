"""Every pool of Celery's on every broker: which of them CI runs, and a worker of each."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from uuid import uuid4

import pytest

from inventory_demo.worker import Worker


@dataclass(frozen=True, slots=True)
class Combination:
    """A pool on a broker, "valkey" or "rabbitmq"."""

    pool: str
    broker: str

    def __str__(self) -> str:
        return f"{self.pool}-{self.broker}"

    @property
    def has_children(self) -> bool:
        """Whether tasks run in processes of their own, which the worker can end."""
        return self.pool == "prefork"

    @property
    def redelivers(self) -> bool:
        """Whether the broker notices at once that a worker is gone; Valkey waits for the visibility timeout."""
        return self.broker == "rabbitmq"

    def worker(self, broker_url: str) -> AbstractContextManager[Worker]:
        """A worker of this combination with two slots, if its pool has as many, and the tasks of the tests."""
        name = f"test-{uuid4().hex[:8]}"
        # The name of its database sessions.
        environment = {"PGAPPNAME": name}
        return Worker(name, include=["tests.celery.tasks"], pool=self.pool, broker=broker_url, environment=environment)


def params(combinations: Iterable[Combination]) -> list[object]:
    """For pytest: what CI does not run is marked `product`."""
    return [pytest.param(one, id=str(one), marks=[] if one in IN_CI else [pytest.mark.product]) for one in combinations]


def _all(*pools: str) -> list[Combination]:
    return [Combination(pool, broker) for pool in pools for broker in ("valkey", "rabbitmq")]


IN_CI = [*_all("prefork"), Combination("threads", "valkey"), Combination("gevent", "valkey")]
# Children that can be killed, and be told of a soft time limit.
PREFORK = params(_all("prefork"))
# In this order, so that these are the first ones of all: pytest groups the tests of one worker by number.
SEVERAL_SLOTS = params(_all("prefork", "threads", "gevent"))
ALL = params(_all("prefork", "threads", "gevent", "solo"))
