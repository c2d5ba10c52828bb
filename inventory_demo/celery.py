"""The Celery application of the example project."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "inventory_demo.settings")

app = Celery("inventory_demo")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
