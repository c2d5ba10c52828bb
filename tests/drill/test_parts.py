"""Parts of the drill by themselves: journals, plans, chances, receivers, options."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from fencing.drill.faults import Chances
from fencing.drill.journal import Journal, events_of
from fencing.drill.plan import FAULTS, KINDS, Plan
from fencing.drill.worker import sleeping_kinds
from tests.documents import ROOT

PLAN = Plan(
    name="drill-01234567", settings="tests.settings", fencing={}, names={}, database="default", folder="", workers=4,
    seconds=9.0, seed=7,
)  # fmt: skip


def test_journal_is_told_at_once_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    journal = Journal(str(path), "1")
    before = time.monotonic()
    journal.note("asks", "1-0", key="k")
    (event,) = events_of(path)
    assert before <= event.pop("at") <= time.monotonic()
    assert event == {"what": "asks", "worker": "1", "attempt": "1-0", "key": "k"}
    with path.open("a") as file:
        file.write('{"at": 1.0, "wh')
    assert len(list(events_of(path))) == 1
    assert list(events_of(tmp_path / "none.jsonl")) == []


def test_one_seed_gives_the_same_kinds_and_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    def met(seed: int) -> list[str]:
        now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        chances, found = Chances(replace(PLAN, seed=seed), "2"), []
        for step in range(400):
            now = step / 10
            if (fault := chances.next()) is not None:
                found.append(f"{fault.what} {fault.at} {fault.seconds}")
        return found

    assert met(7) == met(7) != met(8)
    assert {each.split()[0] for each in met(7)} == {"pause", "kill"}
    kinds = [PLAN.kinds_at(second) for second in range(30)]
    assert kinds == [PLAN.kinds_at(second + 0.5) for second in range(30)]
    assert set().union(*kinds) == set(KINDS) and len({tuple(each) for each in kinds}) > 5
    assert all(each for each in kinds)


def test_sleepers_of_few_processes_meet_every_kind_of_work() -> None:
    found = [next(sleeping_kinds(PLAN, str(worker))) for worker in range(1, len(KINDS) + 1)]
    assert sorted(found) == sorted(KINDS)
    assert set(islice(sleeping_kinds(PLAN, "2.5"), len(KINDS))) == set(KINDS)


def test_pauses_outlive_the_lease_and_the_first_process_begins_with_one() -> None:
    fault = Chances(PLAN, "1").next()
    assert fault is not None and fault.what == "pause" and fault.seconds > PLAN.ttl
    assert Chances(PLAN, "2").next() is None
    assert Chances(replace(PLAN, faults=("kill", "forget")), "1").next() is None
    assert FAULTS == ("pause", "kill", "forget")


def test_receivers_of_the_user_hear_nothing() -> None:
    code = (
        "import django; django.setup()\n"
        "from django.db.models.signals import post_save\n"
        "from fencing.signals import write_rejected\n"
        "from fencing.drill.worker import _disconnect\n"
        "heard = []\n"
        "for signal in (post_save, write_rejected):\n"
        "    signal.connect(lambda **_named: heard.append(1), weak=False)\n"
        "    signal.send(sender=int)\n"
        "_disconnect()\n"
        "for signal in (post_save, write_rejected):\n"
        "    signal.send(sender=int)\n"
        "assert heard == [1, 1], heard\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), check=True, timeout=60)


def test_modules_of_a_fresh_process_import_no_models() -> None:
    code = "import sys, fencing.drill.worker; assert 'fencing.models' not in sys.modules and 'fencing.fenced' not in sys.modules"
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, timeout=60)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--workers=1", "somebody has to overtake"),
        ("--workers=x", "no number of processes"),
        ("--workers=8000", "give 2 to 200"),
        ("--seconds=0", "no number of seconds above 0"),
        ("--seconds=inf", "no number of seconds above 0"),
        ("--pause-rate=-1", "no rate"),
        ("--faults=pause,sleep", "sleep: unknown"),
        ("--using=none", "no alias 'none'"),
        ("--remove=default", "no name of a drill"),
    ],
)
def test_options_that_cannot_be_are_told(option: str, told: str) -> None:
    with pytest.raises(CommandError, match=told):
        call_command("fencing", "drill", option)
