"""Settings of the tests: the example project's, with a namespace of tokens for each test process."""

from __future__ import annotations

import os

os.environ["FENCING_NAMESPACE"] = f"test-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"

from inventory_demo.settings import *  # noqa: F403

# Logins of tests need no expensive hash.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [*INSTALLED_APPS, "tests.shop"]  # noqa: F405
