"""Settings of `tests.celery.fire`: a namespace of its own, and a broker that delivers again whatever is not done soon.

Leases, broker and results are on the store that REDIS_URL names, each in a database of its own.
"""

from __future__ import annotations

from tests.mariadb import ALIAS
from tests.settings import *  # noqa: F403

DEBUG = False

# Django 6.1 asks each database of the settings when a worker starts, and this one does not run.
DATABASES.pop(ALIAS, None)  # noqa: F405

FENCING["BACKENDS"]["default"]["NAMESPACE"] += "-fire"  # noqa: F405

CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 3,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}

# Every pause is longer.
STOCK_TTL = 1
