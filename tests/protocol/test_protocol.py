"""No state of the model breaks I1, and without each protection one does: so the model can see what it is for."""

from __future__ import annotations

import pytest

from tests.protocol.explore import explore
from tests.protocol.model import Protections


@pytest.mark.slow
def test_i1_no_state_breaks_it() -> None:
    """Every state of two servers, two clients and one database within ten steps."""
    found = explore(10)
    assert not found.broken, found.way
    assert found.states > 200_000


@pytest.mark.parametrize("protection", Protections._fields)
def test_i1_is_broken_without(protection: str) -> None:
    """S2, S3: the shortest way to the violation is found."""
    found = explore(10, Protections()._replace(**{protection: False}))
    assert found.broken
    assert len(found.way) == found.depth
