"""The promise itself, with a real worker process stopped between read and write by SIGSTOP."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from fencing.models import FencedWrite
from inventory_demo.gate import Gate
from inventory_demo.models import Stock, StockDelta
from inventory_demo.story import Event, Story
from inventory_demo.worker import Worker


@pytest.fixture
def run(transactional_db: None) -> Iterator[tuple[Worker, Gate]]:
    """A worker that plays the story on the test's own database, and its gate."""
    name = f"test-{uuid4().hex[:8]}"
    gate = Gate(name)
    with Worker(name, include=["inventory_demo.story_worker"], environment={"STORY_RUN": name}) as worker:
        yield worker, gate
    gate.remove()


@pytest.mark.slow
def test_i2_write_of_a_sleeping_worker_reaches_the_database_and_is_refused_there(run: tuple[Worker, Gate]) -> None:
    events: list[Event] = []
    story = Story(fenced=True, tell=events.append)
    story.play(*run)

    old, newer, again = story.tokens
    assert old < newer < again

    stale = FencedWrite.objects.get(resource=story.resource, outcome="stale")
    assert (stale.action, stale.token, stale.seen) == ("update", old, newer)
    accepted = FencedWrite.objects.filter(resource=story.resource, outcome="accepted").order_by("id")
    assert [*accepted.values_list("token", flat=True)] == [newer, again]

    stock = Stock.objects.get(sku=story.sku)
    assert (stock.quantity, stock.last_token) == (2, again)
    assert [*StockDelta.objects.filter(sku=story.sku).order_by("id").values_list("delta", flat=True)] == [-5, -3]

    assert story.pause is not None
    assert story.pause.state == "T"
    assert story.pause.seconds > 1, "the lease has to expire meanwhile"
    assert [event.verdict for event in events if event.verdict] == [
        "accepted",
        f"refused: {old} is not above {newer}",
        "accepted",
    ]
