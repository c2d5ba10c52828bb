"""Settings of the tests: the example project's, with a database, tokens and a task queue apart for each test process.

Programs that a test starts use them too: with `process_environment`, they work on the database of that test process.
"""

from __future__ import annotations

import os

# One name for the run, its workers and the programs they start, so that two runs at once do not meet.
RUN = os.environ.setdefault("FENCING_TEST_RUN", str(os.getpid()))
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
os.environ["FENCING_NAMESPACE"] = f"test-{RUN}-{WORKER}"

from inventory_demo.settings import *  # noqa: E402, F403
from tests import mariadb  # noqa: E402

# Logins of tests need no expensive hash.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [*INSTALLED_APPS, "tests.shop"]  # noqa: F405

# Whatever is promised for PostgreSQL holds on SQLite, and on a second alias.
DATABASES = {**DATABASES, "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}  # noqa: F405

# Nothing is started and no database is created unless a collected test names the alias.
if not mariadb.reason_to_lack():
    mariadb.use_driver()
    DATABASES[mariadb.ALIAS] = mariadb.database(f"test_fencing_{RUN}")

CELERY_TASK_DEFAULT_QUEUE = f"test-{RUN}-{WORKER}"

if DATABASES["default"]["ENGINE"].endswith("postgresql"):
    DATABASES["default"]["TEST"] = {"NAME": f"test_fencing_{RUN}"}  # xdist adds the worker
if "FENCING_TEST_DATABASE" in os.environ:
    DATABASES["default"]["NAME"] = os.environ["FENCING_TEST_DATABASE"]
