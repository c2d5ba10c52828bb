"""The benchmarks of tasks and of the admin run, at a size that measures nothing, and say what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.measure import Row
from inventory_demo.server_addresses import CHECKOUT

SMALL = """
from benchmarks import celery, measure, stage

with stage.stage():
    celery.stock_up()
    rows = [
        *celery.published(rounds=1, calls=5), *celery.worked(rounds=1, tasks=30), *celery.in_turn(rounds=1, tasks=8)
    ]
measure.report(rows, as_json=True)
"""


@pytest.mark.slow
def test_tasks_are_measured_in_real_workers() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FENCING_", "DJANGO_"))}
    done = subprocess.run(
        [sys.executable, "-c", SMALL], cwd=CHECKOUT, env=environment, check=True, stdout=subprocess.PIPE, timeout=300
    )
    rows = json.loads(done.stdout)["rows"]
    assert [row["goal"] for row in rows] == [1.0, 1.05, 1.2, None, 1.2, 0.8]
    assert all(row["ratio"] > 0 for row in rows)
    assert rows[0]["ratio"] == 1.0


@pytest.mark.slow
def test_every_page_of_the_admin_is_asked_for() -> None:
    """With few rows, on which no goal says anything; what the pages send is bounded all the same."""
    command = [sys.executable, "-m", "benchmarks.admin", "--rows", "3000", "--json", "--report"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FENCING_", "DJANGO_"))}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, stdout=subprocess.PIPE, timeout=300)
    found = json.loads(done.stdout)
    pages = found["pages"]
    assert found["rows"] == 3000 and found["goal_ms"] == 150.0
    asked = {"list", "filter_refused", "filter_ended", "search_resource", "search_token", "search_task", "detail"}
    assert asked | {"timeline", "live", "writes_list", "writes_refused", "list_older"} <= set(pages)
    assert all(page["ms"] > 0 for page in pages.values())
    lists = [page["queries"] for name, page in pages.items() if name.startswith(("list", "filter", "search", "writes"))]
    # Two of them are the session's and the user's.
    assert max(lists) <= 2 + 8
    assert [row["goal"] for row in found["figures"]] == [1.2, 1.2, 100_000.0, None, None]


def test_goal_is_met_within_its_bound_and_by_a_figure_that_has_none() -> None:
    assert Row("ratio", 1.2, 1.2).met
    assert not Row("ratio", 1.21, 1.2).met
    assert Row("rate", 0.8, 0.8, at_least=True).met
    assert not Row("rate", 0.79, 0.8, at_least=True).met
    assert Row("beside", 9.9, None).met
