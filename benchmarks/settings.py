"""Settings of the benchmarks: the example project's, with a store and a database of their own (`benchmarks.stage`)."""

from __future__ import annotations

import os

from inventory_demo.settings import *  # noqa: F403

# Django would keep every query.
DEBUG = False

INSTALLED_APPS = [*INSTALLED_APPS, "benchmarks"]  # noqa: F405

# Celery would end the connection before and after each task, which costs more than any task of the benchmarks.
CELERY_DB_REUSE_MAX = 1_000_000

DATABASES["default"]["NAME"] = os.environ.get("BENCHMARK_DATABASE", DATABASES["default"]["NAME"])  # noqa: F405
CACHES["leases"]["LOCATION"] = os.environ["BENCHMARK_STORE"]  # noqa: F405
