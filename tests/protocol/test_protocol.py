"""No state of the model breaks I1, and without each protection one does: so the model can see what it is for."""

from __future__ import annotations

import pytest

from tests.protocol.explore import explore
from tests.protocol.model import BEGUN, Protections, start_without


@pytest.mark.slow
def test_i1_no_state_breaks_it() -> None:
    """Every state of two servers, two clients and one database within ten steps."""
    found = explore(10)
    assert not found.broken, found.way
    assert found.states > 250_000


def test_s11_no_state_breaks_it_when_the_database_is_set_back_and_opened() -> None:
    """The same from where a number was issued: as deep as the violations of an opening lie."""
    found = explore(7, start=BEGUN)
    assert not found.broken, found.way
    assert found.states > 60_000


@pytest.mark.parametrize("protection", Protections._fields)
def test_i1_is_broken_without(protection: str) -> None:
    """S2, S3, S11, L5: the shortest way to the violation is found."""
    found = explore(10, Protections()._replace(**{protection: False}), start_without(protection))
    assert found.broken
    assert len(found.way) == found.depth
