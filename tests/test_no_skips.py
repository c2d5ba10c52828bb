"""With CI=true a skip is a failure; elsewhere it is a skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TESTS = """
import unittest
import pytest

@pytest.mark.skip(reason="by its mark")
def test_marked(): ...

def test_inside():
    pytest.skip("from inside")

class TestCase(unittest.TestCase):
    @unittest.skip("by unittest")
    def test_unittest(self): ...

@pytest.mark.xfail(strict=True)
def test_expected_to_fail():
    raise AssertionError

def test_passing(): ...
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ci", "status", "summary"),
    [("true", 1, "2 failed, 1 passed, 1 xfailed, 2 errors"), ("", 0, "1 passed, 4 skipped, 1 xfailed")],
)
def test_skips_are_failures_in_ci(tmp_path: Path, ci: str, status: int, summary: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_file.py").write_text("import pytest\npytest.skip('as a whole', allow_module_level=True)\n")
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *options, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert summary in done.stdout
    for name, reason in {
        "test_marked": "by its mark",
        "test_inside": "from inside",
        "test_unittest": "by unittest",
        "test_file.py": "as a whole",
    }.items():
        assert (f"{name} was skipped, and with CI=true nothing may be: " in done.stdout) is (ci == "true")
        assert reason in done.stdout
