"""Settings of a worker that a command or a test starts for itself (see `inventory_demo.worker`)."""

from __future__ import annotations

import json
import os

from inventory_demo.settings import *  # noqa: F403

# Celery warns of a memory leak otherwise.
DEBUG = False

# A test runs on a database of its own.
DATABASES["default"]["NAME"] = os.environ["WORKER_DATABASE"]  # noqa: F405

# The story shall be short.
STOCK_TTL = 2

# When and where the broker keeps what is not acknowledged; see kombu's options of the transport.
CELERY_BROKER_TRANSPORT_OPTIONS = json.loads(os.environ.get("WORKER_TRANSPORT_OPTIONS", "{}"))
