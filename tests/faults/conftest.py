"""Servers that may be broken, and a shop whose lease store they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.proxy import Proxy
from tests.faults.servers import KINDS, Servers
from tests.faults.shop import Shop
from tests.services import PrivateValkey


@pytest.fixture(params=list(KINDS))
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Valkey from its wheel, and the machine's own Redis."""
    with ExitStack() as stack:
        yield Servers(request.param, stack)


@pytest.fixture
def shop(transactional_db: None, settings: Any) -> Shop:
    """A namespace of this test alone, not yet at any store."""
    return Shop(settings)


@pytest.fixture
def proxied() -> Iterator[tuple[PrivateValkey, Proxy]]:
    """A Valkey, and the proxy in front of it."""
    with PrivateValkey() as server, Proxy(server) as proxy:
        yield server, proxy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder is heavy; the hook is asked about the items of every folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.heavy)
