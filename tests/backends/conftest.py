"""Each store of the contract tests, and servers for tests that break them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.backends.stores import PrivateRedis, Store, memory_store, redis_store
from tests.services import PrivateValkey


@pytest.fixture(scope="session")
def valkey() -> Iterator[PrivateValkey]:
    """A Valkey that tests may flush, but not stop."""
    with PrivateValkey() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[PrivateRedis]:
    """The machine's own Redis, which tests may flush, but not stop."""
    with PrivateRedis() as server:
        yield server


@pytest.fixture(params=["valkey", "redis_server"])
def server(request: pytest.FixtureRequest) -> PrivateValkey:
    """Each kind of server that speaks Redis."""
    found: PrivateValkey = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["memory", "valkey", "redis_server"])
def store(request: pytest.FixtureRequest, settings: Any) -> Store:
    """Each store that keeps the contract, with a range of numbers from 1 to 1000."""
    if request.param == "memory":
        found = memory_store()
    else:
        found = redis_store(settings, request.getfixturevalue(request.param).url())
    found.open()
    return found
