"""The README's quick start runs as printed, in a fresh project on a database of its own; then so do how-to and tutorial."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents import ROOT, commands, marked, quick_start, section_of


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_quick_start_how_to_and_tutorial_run_as_printed(tmp_path: Path) -> None:
    readme = section_of(ROOT / "README.md", "Quick start")
    tutorial, how_to = ((ROOT / "docs" / name).read_text() for name in ("tutorial.md", "howto.md"))
    assert commands(readme)[3:] == [
        "python manage.py makemigrations shop", "python manage.py migrate", "python story.py",
    ]  # fmt: skip
    [(_, worker)] = marked(tutorial, "worker")
    with quick_start(tmp_path) as project:
        project.check_outputs(readme)
        project.write_files(tutorial)
        project.write_files(how_to)
        project.watch()
        with project.running(worker.strip().removeprefix("$ ")):
            project.check_outputs(tutorial)
            project.check_examples(how_to)
            for recipe in ("beat", "command", "views"):
                project.run(f"python -m tests.recipes.{recipe}")
        project.run("python manage.py check")
        project.run("python manage.py makemigrations --check")


def test_the_two_commands_are_targets_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert commands(section_of(ROOT / "README.md", "See it")) == ["make demo", "make test"]
    for target in ("demo", "test", "serve", "clean"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
