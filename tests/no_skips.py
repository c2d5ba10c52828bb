"""Where CI is set, a skipped test turns the run red: what was not run has proved nothing."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

R = TypeVar("R", pytest.TestReport, pytest.CollectReport)


def in_force() -> bool:
    """Whether nothing may be skipped in this run."""
    return os.environ.get("CI") == "true"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that was skipped, by a mark or from inside."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file that was skipped as a whole."""
    return _judged((yield))


def _judged(report: R) -> R:
    # What is expected to fail was run; only in pytest's books it counts as skipped.
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped, and with CI=true nothing may be: {reason.removeprefix('Skipped: ')}"
        )
    return report
