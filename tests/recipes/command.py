"""In the documents' project: two runs of a command do not meet, and SIGTERM leaves no lease behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
django.setup()


from shop.models import Stock  # type: ignore[import-not-found]  # noqa: E402

from fencing import lease  # noqa: E402
from fencing.backends import get_backend  # noqa: E402
from fencing.tokens import place_of  # noqa: E402
from inventory_demo.server_support import wait_for  # noqa: E402


def start() -> subprocess.Popen[str]:
    """The command, in a process of its own."""
    return subprocess.Popen([sys.executable, "manage.py", "restock"], stderr=subprocess.PIPE, text=True)


def is_held() -> bool:
    """Whether a run holds the command's lease."""
    backend = get_backend("default")
    return backend.peek(place_of(backend, "restock")) is not None


Stock.objects.create(sku="cron", quantity=0)
# The run waits for this as it would work.
with lease("stock:cron", ttl=30), start() as first:
    assert wait_for(is_held, seconds=30)
    with start() as second:
        assert second.wait(timeout=30) == 75
        assert second.stderr and "The lease of 'restock' is held by" in second.stderr.read()
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=15) == 128 + signal.SIGTERM
    assert not is_held(), "the lease stays until its ttl is over"
    assert Stock.objects.get(sku="cron").quantity == 0
with start() as third:
    assert third.wait(timeout=30) == 0
assert Stock.objects.get(sku="cron").quantity == 10
