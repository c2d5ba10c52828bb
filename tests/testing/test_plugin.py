"""The pytest plugin: found by pytest, harmless where nobody wants it, and the example of the docs passes as printed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT, marked

SETTINGS = """
INSTALLED_APPS = ["django.contrib.contenttypes", "fencing", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
FENCING = {"BACKENDS": {"default": {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "none"}}}
"""
MODELS = """
from django.db import models
from fencing.models import FencedModel


class Stock(FencedModel):
    fence_resource = "stock:{sku}"

    sku = models.CharField(max_length=40, unique=True)
    quantity = models.IntegerField(default=0)
"""


def run(folder: Path, *args: str, environment: dict[str, str] | None = None) -> str:
    """Run pytest in a folder, with the plugin and without this project's own settings; what it printed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO", "FENCING", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_fencing", "-p", "no:cacheprovider", "-p", "no:valkey", *args],
        cwd=folder, env={**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", **(environment or {})},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one fenced model, and the example of the docs as its tests."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "models.py").write_text(MODELS)
    (tmp_path / "own_settings.py").write_text(SETTINGS)
    for name, block in marked((ROOT / "docs" / "testing.md").read_text(), "write"):
        (tmp_path / name).write_text(block)
    return tmp_path


@pytest.mark.slow
def test_example_of_the_docs_passes_as_printed(project: Path) -> None:
    settings = {"DJANGO_SETTINGS_MODULE": "own_settings"}
    assert "3 passed" in run(project, environment=settings)


@pytest.mark.slow
def test_example_passes_in_parallel(project: Path) -> None:
    settings = {"DJANGO_SETTINGS_MODULE": "own_settings"}
    assert "3 passed" in run(project, "-n", "2", environment=settings)


def test_project_without_django_notices_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_it():\n    assert not [name for name in sys.modules if name.startswith('fencing')]\n"
    )
    assert "1 passed" in run(tmp_path, "-p", "no:django", "-W", "error")


def test_fixtures_are_listed(tmp_path: Path) -> None:
    listed = run(tmp_path, "--fixtures", "-p", "no:django")
    for name in ("fencing_clock", "fencing_stale_holder", "fencing_pause_after_acquire", "fencing_history"):
        assert f"\n{name} " in listed


def test_pytest_finds_it() -> None:
    found = [one for one in entry_points(group="pytest11") if one.name == "pytest_fencing"]
    assert [one.value for one in found] == ["pytest_fencing"], "pip install --editable . again"


@pytest.mark.django_db
def test_fixtures_do_what_the_functions_do(request: pytest.FixtureRequest) -> None:
    from fencing import testing

    clock: Any = request.getfixturevalue("fencing_clock")
    assert isinstance(clock, testing.HandClock)
    assert request.getfixturevalue("fencing_stale_holder") is testing.stale_holder
    assert request.getfixturevalue("fencing_pause_after_acquire") is testing.pause_after_acquire
    assert request.getfixturevalue("fencing_history") is testing
