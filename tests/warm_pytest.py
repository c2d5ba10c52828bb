"""Run by its path: runs pytest on demand, each time in a fork of a process that has imported all but the project.

A line of JSON on standard input is an order: the `folder` to run in, pytest's `arguments`, the file for its `output`,
and the seconds that bound it. The answer is a line with the exit status; that of a run which did not end is negative.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

# Most of the time of a run of one test is in these. Not pytest's plugins: pytest rewrites what it loads itself.
LIBRARIES = (
    "pytest",
    "celery.app.base",
    "django.core.management",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.http",
    "django.test",
    "django.urls",
    "psycopg",
    "redis.asyncio",
)
# Imported here it would be this checkout's in every run.
PROJECT = {"fencing", "inventory_demo", "tests"}


def run(folder: str, arguments: list[str], output: str, bound: int) -> None:
    """Become the process that pytest runs in."""
    signal.alarm(bound)  # ends the process, as nobody handles it
    with open(os.devnull) as nothing, open(output, "w") as file:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    sys.path[0] = folder
    import pytest

    status = pytest.main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status))


def main() -> None:
    """Obey until the orders end."""
    for name in LIBRARIES:
        importlib.import_module(name)
    assert not PROJECT & set(sys.modules), "a copy of the project would not be tested"
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            try:
                run(**json.loads(line))
            finally:
                os._exit(70)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
