"""The test matrix for contributors who have nox (`pipx install nox`): an environment of its own for each session."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "venv"

MATRIX = [("3.11", "5.2"), ("3.12", "5.2"), ("3.12", "6.0"), ("3.13", "6.1")]


@nox.session(python="3.11")
def lint(session: nox.Session) -> None:
    """Check style, types, import layers and missing migrations."""
    session.install("-e", ".[test]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-logo")
    session.run("python", "manage.py", "makemigrations", "--check", "--dry-run")


@nox.session
@nox.parametrize("python,django", MATRIX)
def tests(session: nox.Session, django: str) -> None:
    """Run the suite on a supported pair of Python and Django."""
    session.install("-e", ".[test]", f"django~={django}.0")
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "2"]))
