"""In the documents' project, beside its worker: beat sends a job faster than it runs; one runs, the others are skipped."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from typing import Any

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
django.setup()

from celery import current_app, states  # noqa: E402
from django.conf import settings  # noqa: E402
from shop.models import Stock  # type: ignore[import-not-found]  # noqa: E402

from fencing import history, lease  # noqa: E402
from fencing.models import TokenGrant  # noqa: E402
from inventory_demo.server_support import wait_for  # noqa: E402


def outcomes() -> Counter[str]:
    """How many runs of the job ended how."""
    store: Any = current_app.backend
    store = store.client
    kept = [json.loads(value) for key in store.scan_iter("celery-task-meta-*") if (value := store.get(key))]
    ours = [one for one in kept if one.get("queue") == settings.CELERY_TASK_DEFAULT_QUEUE]
    return Counter(one["status"] for one in ours if one["name"] == "shop.tasks.sweep")


def runs() -> int:
    """How many runs of the job held its lease."""
    history.collect()
    return TokenGrant.objects.filter(resource="sweep").count()


Stock.objects.create(sku="beat", quantity=-3)
beat = subprocess.Popen(["celery", "-A", "mysite", "beat", "--loglevel", "WARNING"])  # noqa: S607
try:
    # The first run waits for this while beat goes on.
    with lease("stock:beat", ttl=30):
        assert wait_for(lambda: outcomes()[states.IGNORED] >= 3, seconds=30), outcomes()
        assert (runs(), outcomes()[states.SUCCESS]) == (1, 0)
        assert Stock.objects.get(sku="beat").quantity == -3
    assert wait_for(lambda: outcomes()[states.SUCCESS] >= 2, seconds=30), outcomes()
finally:
    beat.terminate()
    beat.wait(timeout=30)
assert Stock.objects.get(sku="beat").quantity == 0
assert wait_for(lambda: runs() == outcomes()[states.SUCCESS], seconds=30), (runs(), outcomes())
assert outcomes().keys() == {states.SUCCESS, states.IGNORED}
