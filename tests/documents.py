"""The project's documents: their code blocks, and a fresh Django project in which those run as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.db import connection

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]

# What only the reader's machine can say; everything else stands as printed.
OWN_ADDRESSES = """
DATABASES["default"] = {database!r}
CACHES["leases"]["LOCATION"] = {store!r}
CELERY_BROKER_URL = {broker!r}
CELERY_RESULT_BACKEND = {results!r}
CELERY_TASK_DEFAULT_QUEUE = {queue!r}
"""

# Recipes, so that they can be watched: beat is faster than the job, results have names, each request is a transaction.
WATCHED = """
CELERY_BEAT_SCHEDULE["sweep"]["schedule"] = 0.3
CELERY_RESULT_EXTENDED = True
DATABASES["default"]["ATOMIC_REQUESTS"] = True
ALLOWED_HOSTS = ["testserver"]
"""

# The examples of a document find no rows of an earlier one.
FRESH = """
import os

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
django.setup()

from fencing import unfenced
from fencing.models import FencedWrite
from shop.models import Stock

with unfenced("examples begin"):
    Stock.objects.all().delete()
FencedWrite.objects.all().delete()
"""
MARK = "--- example"


def section_of(path: Path, heading: str) -> str:
    """The text below a heading of the second level."""
    sections = re.split(r"^## ", path.read_text(), flags=re.MULTILINE)
    return next(text for text in sections if text.startswith(heading))


def marked(text: str, kind: str) -> list[tuple[str, str]]:
    """The code blocks below comments such as ``<!-- write: shop/models.py -->``, each with what the comment names."""
    return re.findall(rf"<!-- {kind}:? ?(\S*) -->\n```\w+\n(.*?)```", text, re.DOTALL)


def commands(text: str) -> list[str]:
    """The commands of the console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return re.findall(r"^\$ (.+)$", "".join(blocks), re.MULTILINE)


class Project:
    """A Django project in a folder and on a database of its own."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.database = database
        self.environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
        path = [str(Path(sys.executable).parent), self.environment.get("PATH", "")]
        self.environment |= {"PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT)}

    def run(self, command: str) -> str:
        """Run a command in the project and return what it printed."""
        done = subprocess.run(
            shlex.split(command),
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[None]:
        """Have a command running beside; it is ended as from a terminal."""
        process = subprocess.Popen(shlex.split(command), cwd=self.folder, env=self.environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)

    def write_files(self, text: str) -> None:
        """Write, or append to, the files that a document prints; the addresses are set last."""
        for name, block in marked(text, "write"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(block)
        for name, block in marked(text, "append"):
            with (self.folder / name).open("a") as file:
                file.write(block + (self._addresses() if name == "mysite/settings.py" else "\n"))

    def watch(self) -> None:
        """Let the recipes be seen at work."""
        with (self.folder / "mysite" / "settings.py").open("a") as file:
            file.write(WATCHED)

    def check_outputs(self, text: str) -> None:
        """Run the scripts whose output a document prints, and compare."""
        for script, output in marked(text, "output"):
            assert self.run(f"python {script}") == output

    def check_examples(self, text: str) -> None:
        """Run a document's examples one after the other in one process, and compare what they print."""
        blocks = re.findall(
            r"<!-- run -->\n```python\n(.*?)```\n(?:\n<!-- prints -->\n```text\n(.*?)```)?", text, re.DOTALL
        )
        script = "".join(f"print({MARK!r})\n{code}" for code, _ in blocks)
        (self.folder / "examples.py").write_text(FRESH + script)
        printed = self.run("python examples.py").split(f"{MARK}\n")[1:]
        assert printed == [output for _, output in blocks]

    def _addresses(self) -> str:
        return OWN_ADDRESSES.format(
            database={**settings.DATABASES["default"], "NAME": self.database},
            store=settings.CACHES["leases"]["LOCATION"],
            broker=settings.CELERY_BROKER_URL,
            results=settings.CELERY_RESULT_BACKEND,
            queue=self.database,
        )


@contextmanager
def quick_start(folder: Path) -> Iterator[Project]:
    """The README's project, up to its first migration; the database is dropped without force at the end."""
    project = Project(folder, f"readme_{os.getpid()}")
    text = section_of(ROOT / "README.md", "Quick start")
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {project.database}")
    try:
        install, start, app, *prepare = commands(text)[:-1]
        assert install.startswith("pip install ")
        project.run(start)
        project.run(app)
        project.write_files(text)
        for command in prepare:
            project.run(command)
        yield project
    finally:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE {project.database}")
