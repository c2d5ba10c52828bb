"""`manage.py demo`: what it prints, when it fails, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from rich.console import Console

from inventory_demo.models import Stock
from inventory_demo.server_addresses import CHECKOUT
from inventory_demo.server_support import wait_for
from inventory_demo.story import Event, Story
from inventory_demo.story_report import problems, table
from tests.services import missing

GOOD: dict[str, Any] = {
    "fenced": {
        "initial": 10,
        "final": 2,
        "expected": 2,
        "tokens": [1, 2, 3],
        "refused": 1,
        "paused": {"pid": 1, "state": "T", "seconds": 2.0},
        "writes": [
            {"token": 2, "outcome": "accepted", "seen": 0},
            {"token": 1, "outcome": "stale", "seen": 2},
            {"token": 3, "outcome": "accepted", "seen": 2},
        ],
    },
    "unfenced": {"initial": 10, "final": 7, "expected": 2},
}


@pytest.mark.slow
def test_demo_prints_one_object_with_what_happened(transactional_db: None) -> None:
    stdout, stderr = StringIO(), StringIO()
    call_command("demo", json=True, stdout=stdout, stderr=stderr)
    outcome = json.loads(stdout.getvalue())
    fenced, unfenced = outcome["fenced"], outcome["unfenced"]
    assert {*outcome} == {*GOOD}
    assert {*fenced} == {*GOOD["fenced"]}
    assert {*fenced["paused"]} == {*GOOD["fenced"]["paused"]}
    assert (fenced["initial"], fenced["final"], fenced["expected"], fenced["refused"]) == (10, 2, 2, 1)
    assert unfenced == {"initial": 10, "final": 7, "expected": 2}
    assert problems(outcome) == []
    assert "is stopped by SIGSTOP" in stderr.getvalue()


@pytest.mark.django_db
@pytest.mark.parametrize("width", [80, 100, 132])
def test_table_tells_what_became_of_each_write_at_every_width(width: int) -> None:
    story = Story(fenced=True, tell=lambda event: None)
    Stock.objects.create(sku=story.sku, quantity=2)
    heartbeat = "(heartbeat) finds that its lease is lost: it was not renewed in time"
    rows: list[list[int]] = [[10, 40_003], [5, 40_004]]
    story.events += [
        Event(at=2.05, process="A 14644", what=heartbeat, token=40_003),
        Event(
            at=2.08, process="A 14644", what="writes 7", token=40_003, before=rows[1], after=rows[1],
            verdict="refused: 40003 is not above 40004",
        ),
    ]  # fmt: skip
    console = Console(file=StringIO(), width=width)
    lines = table(story, console=console)
    assert console.measure(lines).minimum <= width
    with console.capture() as captured:
        console.print(lines)
    told = [re.split(r" *[|│] *", line) for line in captured.get().splitlines()]
    words = " ".join(" ".join(cells[3:4]) for cells in told)
    assert "writes 7: refused: 40003 is not above 40004" in re.sub(r"\s+", " ", words)
    assert "…" not in captured.get()
    assert captured.get().count("5 (40004)") == 2


def test_good_outcome_has_no_problems() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("fenced", "final"), 7),
        (("fenced", "refused"), 0),
        (("fenced", "refused"), 2),
        (("fenced", "tokens"), [1, 2]),
        (("fenced", "tokens"), [2, 1, 3]),
        (("fenced", "writes"), []),
        (("fenced", "writes", 1, "seen"), 1),
        (("fenced", "writes", 1, "outcome"), "accepted"),
        (("unfenced", "final"), 2),
    ],
)
def test_every_flaw_of_the_outcome_is_a_problem(path: tuple[Any, ...], value: Any) -> None:
    outcome = deepcopy(GOOD)
    place: Any = outcome
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert problems(outcome) != []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_demo_leaves_no_worker_behind(number: signal.Signals) -> None:
    if not Path("/proc/self").exists():
        missing("procfs")
    with subprocess.Popen(
        [sys.executable, "-u", "manage.py", "demo"],
        cwd=CHECKOUT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "inventory_demo.settings"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        said = next(said for said in demo.stdout if "stopped by SIGSTOP" in said)
        sleeper = int(said.split(" s  A ")[1].split()[0])
        assert is_process(sleeper)
        demo.send_signal(number)
        demo.stdout.read()
    assert wait_for(lambda: not is_process(sleeper), seconds=20)


def is_process(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
