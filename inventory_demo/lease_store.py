"""The lease store as the demo page sees it: whose lease there is now, and a store that forgets everything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import StringIO
from time import time

from django.conf import settings
from django.core.management import call_command
from django_redis import get_redis_connection

from fencing.models import TokenRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A lease that exists now: the token of its grant, and the time of day at which it ends unless it is renewed."""

    token: int
    ends: float


def namespace() -> str:
    """The namespace of the example project's tokens."""
    return str(settings.FENCING["BACKENDS"]["default"]["NAMESPACE"])


def live_lease(resource: str) -> Live | None:
    """The lease of a resource, as `manage.py fencing leases` tells it; None if nobody holds it."""
    output = StringIO()
    call_command("fencing", "leases", json=True, stdout=output)
    now = time()
    for lease in json.loads(output.getvalue())["leases"]:
        if lease["resource"] == resource:
            return Live(token=lease["token"], ends=now + lease["remaining"])
    return None


def flush() -> None:
    """Make the store forget all leases, queues and counters of this namespace, and nothing of anybody else's."""
    store = get_redis_connection("leases")
    for space in TokenRange._default_manager.filter(namespace=namespace()).values_list("space", flat=True):
        mark = f"fencing:{{{space}:".encode()
        if keys := [key for key in store.scan_iter(count=500) if mark in key]:
            store.delete(*keys)
