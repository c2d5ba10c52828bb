"""The example project: a small shop whose stock is fenced, with real servers, workers and a demonstration."""

from __future__ import annotations

# Celery finds the application here, and `delay()` uses it in every process of the project.
from inventory_demo.celery import app as celery_app

__all__ = ["celery_app"]
