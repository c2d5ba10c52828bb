"""The drill for real: processes that are stopped and killed, against the database and the store of the tests."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection
from django_redis import get_redis_connection

from fencing.drill.conductor import Conductor, CrashError
from fencing.drill.plan import Plan
from fencing.drill.play import Played, new_plan, plan_of, play
from fencing.models import TokenRange
from inventory_demo.processes import is_stopped
from tests.concurrency import wait_until
from tests.documents import ROOT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.heavy, pytest.mark.slow]

ALL = {"save": 1, "expression": 1, "update": 1, "once": 1, "raw": 1}


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Journals go to a folder of the test; whatever a test does, its drills leave nothing."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spaces.clear()
    yield
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)
    started.clear()
    assert left() == []
    keys = [key.decode() for key in get_redis_connection("leases").scan_iter(match="fencing:*")]
    assert [key for key in keys for space in spaces if f"{{{space}:" in key] == []
    assert list(tmp_path.glob("fencing-drill-*")) == []


# The namespaces' ids of the drills of a test: other tests may play on the same store.
spaces: set[str] = set()
started: list[subprocess.Popen[str]] = []


def note_spaces(*_progress: Any) -> None:
    spaces.update(TokenRange.objects.filter(namespace__startswith="drill-").values_list("space", flat=True))


def left() -> list[str]:
    """What there is of drills in the database."""
    tables = [name for name in connection.introspection.table_names() if name.startswith("fencing_drill_")]
    models = {model.__name__: model._base_manager for model in apps.get_app_config("fencing").get_models()}
    rows = [
        name
        for name, manager in models.items()
        if any(field.name == "namespace" for field in manager.model._meta.fields)
        and manager.filter(namespace__startswith="drill-").exists()
    ]
    stored = [name for name in ("StoredCounter", "StoredLease", "StoredEvent") if models[name].exists()]
    return tables + rows + stored


def played(kinds: Mapping[str, int], sleepers: Mapping[str, int] | None = None, **options: Any) -> Played:
    """A drill of one resource that is full of pauses; a longer one while it is inconclusive, as on a machine that is busy."""
    plan = {"using": "default", "workers": 4, "kinds": kinds, "sleepers": sleepers or kinds, "faults": ("pause",)}
    seconds = options.pop("seconds", 5.0)
    for longer in (1, 2, 4):
        found = play(new_plan(**{**plan, **options, "seconds": seconds * longer}), progress=note_spaces)
        assert spaces
        if found.findings.attempted or found.findings.violations:
            break
    return found


def faultless(drill: Played) -> None:
    assert [(one.kind, one.text) for one in drill.findings.violations] == []
    assert drill.findings.refused == drill.findings.attempted > 0


def test_sleepers_of_the_orm_overtaken_by_saves() -> None:
    faultless(played({"save": 1}))


def test_sleepers_of_the_orm_overtaken_on_other_rows() -> None:
    faultless(played({"save": 1}, rows=6))


def test_sleepers_who_read_before_a_late_write() -> None:
    faultless(played({"save": 1}, rows=1, seconds=8.0, dawdles=0.8))


def test_sleepers_of_one_statement_overtaken_past_the_orm() -> None:
    faultless(played({"raw": 1}, {"expression": 1}, rows=1))


def test_sleepers_of_many_rows_overtaken_past_the_orm() -> None:
    faultless(played({"raw": 1}, {"update": 1}, rows=1))


def test_sleepers_past_the_orm() -> None:
    faultless(played({"save": 1, "raw": 1}, {"raw": 1}, rows=1))


def test_sleepers_in_transactions_and_duplicates() -> None:
    faultless(played({"once": 1}, faults=("pause", "kill"), kill_rate=0.3))


def test_store_that_forgets() -> None:
    drill = played({"save": 1}, faults=("pause", "forget"))
    faultless(drill)
    assert drill.forgets > 2


def test_processes_that_sleep_by_themselves_where_signals_do_not_exist() -> None:
    faultless(played(ALL, cooperative=True))


def test_database_as_lease_store(settings: Any) -> None:
    settings.FENCING = {"BACKENDS": {"default": {"BACKEND": "fencing.backends.database.DatabaseBackend"}}}
    faultless(played(ALL, faults=("pause", "kill", "forget")))


def test_without_the_fence_the_same_work_loses_updates() -> None:
    """What a play meets is chance, and little of it on a machine that is busy."""
    kinds = {"wrongly accepted", "lost update", "duplicate"}
    seen: set[str] = set()
    for _ in range(5):
        seen |= {one.kind for one in played({"save": 2, "once": 1}, fenced=False, rows=1).findings.violations}
        if kinds <= seen:
            break
    assert seen >= kinds


# --- the command


def command(environment: Mapping[str, str], *args: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, ROOT / "manage.py", "fencing", "drill", *args],
        env={**environment, "TMPDIR": os.environ["TMPDIR"]}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    started.append(process)
    return process


def test_command_passes_with_status_0(process_environment: dict[str, str]) -> None:
    process = command(process_environment, "--workers", "4", "--seconds", "12", "--seed", "7", "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    (line,) = out.splitlines()
    found = json.loads(line)
    assert list(found) == [
        "attempted", "refused", "wrongly_accepted", "wrongly_refused", "out_of_order", "lost_updates", "duplicates",
        "longest_wait", "operations", "violations",
    ]  # fmt: skip
    assert found["refused"] == found["attempted"] > 0 and found["violations"] == []
    assert err == "", "a bar is for terminals only"


def test_command_without_the_fence_fails_with_status_1_and_a_timeline(process_environment: dict[str, str]) -> None:
    process = command(process_environment, "--workers", "4", "--seconds", "8", "--seed", "7", "--unfenced")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    assert out.splitlines()[0].split() == ["WHAT", "COUNT", "MUST", "BE"]
    assert "Wrongly accepted: token " in out and " stops " in out and " wakes " in out
    assert out.splitlines()[-1].startswith("FAILED without the fence, as it must: ")


def test_command_without_pauses_is_inconclusive(process_environment: dict[str, str]) -> None:
    process = command(process_environment, "--workers", "2", "--seconds", "1", "--faults", "")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    assert "INCONCLUSIVE" in out.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_command_that_is_interrupted_leaves_nothing(
    process_environment: dict[str, str], number: signal.Signals
) -> None:
    process = command(process_environment, "--workers", "3", "--seconds", "60", "--pause-rate", "2")
    workers = wait_for_work(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, out + err
    assert "Everything of the drill has been removed." in err
    wait_until_gone(workers)


def test_processes_end_with_a_conductor_that_is_killed_and_remove_clears_the_rest(
    process_environment: dict[str, str],
) -> None:
    process = command(process_environment, "--workers", "3", "--seconds", "60", "--pause-rate", "5")
    workers = wait_for_work(process.pid)
    wait_until(lambda: any(map(is_stopped, workers)), "one of them has stopped")
    process.kill()
    process.communicate(timeout=60)
    wait_until_gone(workers)
    (name,) = [name for name in left() if name.startswith("fencing_drill_")]
    removing = command(process_environment, "--remove", name.removeprefix("fencing_").replace("_", "-"))
    out, err = removing.communicate(timeout=60)
    assert removing.returncode == 0, out + err


def test_command_that_keeps_says_where(process_environment: dict[str, str]) -> None:
    process = command(process_environment, "--workers", "2", "--seconds", "1", "--keep", "--json")
    _, err = process.communicate(timeout=60)
    (name,) = [name for name in left() if name.startswith("fencing_drill_")]
    drill = name.removeprefix("fencing_").replace("_", "-")
    assert name in err and f"--remove {drill}" in err
    removing = command(process_environment, "--remove", drill)
    out, err = removing.communicate(timeout=60)
    assert removing.returncode == 0, out + err


def test_command_without_a_store_names_the_drill_and_leaves_no_table(process_environment: dict[str, str]) -> None:
    nowhere = {**process_environment, "REDIS_URL": "redis://127.0.0.1:1/1"}
    out, err = command(nowhere, "--workers", "2", "--seconds", "1").communicate(timeout=120)
    assert re.search(r"`fencing drill --remove drill-[0-9a-f]{8}` tries it again", err.splitlines()[-1]), out + err
    assert "Lease backend 'drill-" in err
    assert left() == []


def test_rights_that_lack_are_told_with_the_drill_to_remove(process_environment: dict[str, str]) -> None:
    """The role may create a table, but neither replace the guard's function nor delete from the app's tables."""
    role = f"poor_{secrets.token_hex(4)}"
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE ROLE {role} LOGIN PASSWORD 'poor'; GRANT USAGE, CREATE ON SCHEMA public TO {role}; "
            f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}; "
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}"
        )
    try:
        server = connection.settings_dict
        place = f"{quote(server['HOST'] or 'localhost', safe='')}:{server['PORT'] or 5432}"
        poor = {**process_environment, "DATABASE_URL": f"postgres://{role}:poor@{place}/{server['NAME']}"}
        out, err = command(poor, "--workers", "2", "--seconds", "1").communicate(timeout=120)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert "must be owner of function fencing_guard" in err, out + err
    assert "transaction is aborted" not in err, "what was in the way of the removal"
    assert left() == ["TokenRange"], "the table and the journals must go, whatever else cannot"
    found = re.search(r"--remove (drill-[0-9a-f]{8})", err)
    assert found is not None, err
    call_command("fencing", "drill", "--remove", found[1])


def test_crash_of_a_drill_that_keeps_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_plan: Plan, *_more: Any) -> None:
        raise CrashError("status 1")

    monkeypatch.setattr("fencing.drill.play._played", crash)
    with pytest.raises(CommandError, match=r"status 1\nEverything was kept in namespace drill-"):
        call_command("fencing", "drill", "--keep")


def test_command_to_remove_a_drill_names_its_store_and_its_database(
    settings: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Elsewhere the drill would not be found, and nothing of it be said to be left."""
    backends = settings.FENCING["BACKENDS"]
    other = {**backends["default"], "NAMESPACE": f"{backends['default'].get('NAMESPACE', 'default')}-other"}
    settings.FENCING = {**settings.FENCING, "BACKENDS": {**backends, "other": other}}

    def crash(_plan: Plan, *_more: Any) -> None:
        raise CrashError("status 1")

    monkeypatch.setattr("fencing.drill.play._played", crash)
    with pytest.raises(
        CommandError, match=r"`fencing drill --remove drill-[0-9a-f]{8} --using other --database default`"
    ):
        call_command("fencing", "drill", "--keep", "--using", "other", "--database", "default")
    call_command("fencing", "drill", "--remove", "drill-00000000", "--json")
    assert json.loads(capsys.readouterr().out) == {"removed": "drill-00000000"}


def test_signal_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup."""
    monkeypatch.setattr("fencing.drill.play._played", lambda *_args: signal.getsignal(signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert play(new_plan(using="default")) == signal.SIG_IGN  # type: ignore[comparison-overlap]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_end_is_asked_for_while_processes_are_started() -> None:
    plan = new_plan(using="default", workers=1000)
    conductor = Conductor(plan, lambda: None, lambda: True)
    conductor.play(lambda *_args: None)
    assert conductor.begun == 0


def wait_for_work(conductor: int) -> list[int]:
    """Every process of a drill but the first, once their journals say that they work."""
    folder = Path(os.environ["TMPDIR"])

    def works() -> bool:
        note_spaces()
        return bool(spaces) and any(path.stat().st_size for path in folder.glob("fencing-drill-*/*.jsonl"))

    wait_until(works, "the processes work", 60)
    found = descendants(conductor)
    assert len(found) >= 3
    return found


def wait_until_gone(processes: list[int]) -> None:
    """The process that they were forked from notices its parent's end by itself; those that had stopped end, too."""
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), "all processes end")


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(one for child in children for one in descendants(child))]


# --- what cannot be drilled


def test_leases_in_memory_are_refused(settings: Any) -> None:
    settings.FENCING = {"BACKENDS": {"default": {"BACKEND": "fencing.backends.memory.MemoryBackend"}}}
    with pytest.raises(ImproperlyConfigured, match="memory of one process"):
        new_plan(using="default")


@pytest.mark.django_db(transaction=True, databases=["default", "lite"])
def test_databases_in_memory_are_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="'lite' is in the memory of one process"):
        new_plan(using="default", database="lite")


def test_settings_without_a_module_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    with pytest.raises(ImproperlyConfigured, match="come from no module"):
        new_plan(using="default")


def test_only_drills_are_removed() -> None:
    for name in ("default", "drill-", "drill-1234567", "drill-1234567G", f"drill-{secrets.token_hex(4)}x"):
        with pytest.raises(ImproperlyConfigured, match="no name of a drill"):
            plan_of(name, using="default")
