"""The drill on MariaDB: its rows and numbers are there, its leases on Valkey, and then in MariaDB as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from fencing.drill.play import Played, new_plan, play
from fencing.models import FencedWrite, StoredCounter, TokenGrant, TokenRange

pytestmark = [
    pytest.mark.django_db(databases=["default", "maria"], transaction=True),
    pytest.mark.heavy,
    pytest.mark.slow,
]

STORES: dict[str, dict[str, Any]] = {
    "valkey": {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "leases"},
    "database": {"BACKEND": "fencing.backends.database.DatabaseBackend"},
}


@pytest.fixture(autouse=True, params=STORES)
def _nothing_is_left(
    request: pytest.FixtureRequest, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Each store; journals go to a folder of the test, and its drills leave nothing in MariaDB."""
    settings.FENCING = {"BACKENDS": {"default": {**STORES[request.param], "DATABASE": "maria"}}}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    connection = connections["maria"]
    assert [name for name in connection.introspection.table_names() if name.startswith("fencing_drill_")] == []
    for model in (TokenRange, TokenGrant, FencedWrite, StoredCounter):
        assert not model._base_manager.using("maria").exists(), model
    assert list(tmp_path.glob("fencing-drill-*")) == []


def played(**options: Any) -> Played:
    """A drill that is full of pauses; a longer one while it is inconclusive, as on a machine that is busy."""
    for seconds in (5.0, 10.0, 20.0):
        found = play(new_plan(**{"using": "default", "workers": 4, "seconds": seconds, **options}))
        if found.findings.attempted or found.findings.violations:
            break
    return found


def test_the_database_refuses_every_stale_write() -> None:
    drill = played()
    assert drill.plan.database == "maria"
    assert [(one.kind, one.text) for one in drill.findings.violations] == []
    assert drill.findings.refused == drill.findings.attempted > 0


def test_without_the_fence_it_accepts_them() -> None:
    drill = played(fenced=False, rows=1)
    assert drill.findings.count("wrongly accepted") > 0
