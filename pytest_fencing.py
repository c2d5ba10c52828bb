"""pytest's fixtures of django-fencing, found by pytest itself.

This stands outside the package, and imports what it needs when a test asks for it: pytest loads it at its start in every
project of the environment, also in those without Django.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fencing.testing import HandClock


@pytest.fixture
def fencing_clock() -> Iterator[HandClock]:
    """Keep leases in memory, by the clock that this returns: ``fencing_clock.advance(31)`` ends those of 30 seconds."""
    from fencing.testing import leases_in_memory

    with leases_in_memory() as clock:
        yield clock


@pytest.fixture
def fencing_stale_holder() -> Callable[..., Any]:
    """``fencing.testing.stale_holder``."""
    from fencing.testing import stale_holder

    return stale_holder


@pytest.fixture
def fencing_pause_after_acquire() -> Callable[..., Any]:
    """``fencing.testing.pause_after_acquire``."""
    from fencing.testing import pause_after_acquire

    return pause_after_acquire


@pytest.fixture
def fencing_history() -> ModuleType:
    """``outcomes``, ``assert_outcomes``, ``assert_nothing_refused`` and ``grants`` of ``fencing.testing``."""
    from fencing import testing

    return testing
