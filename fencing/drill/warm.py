"""Imported by the process that those of a drill are forked from: Django's set-up, which takes a second, once for all.

It opens no connection. Where it fails each process of the drill fails in the same way, and tells why.
"""

from __future__ import annotations

import os
from contextlib import suppress

import django

if "DJANGO_SETTINGS_MODULE" in os.environ:
    with suppress(Exception):
        django.setup()
        from fencing.drill import scratch, work  # noqa: F401
