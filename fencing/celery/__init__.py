"""Celery tasks that run under a lease. Of the whole app, only this package imports Celery.

What needs no Celery is outside of it: ``taskpolicy``, ``taskrun``, ``taskreport`` and ``taskchecks``.

    decorators  ``fenced_task`` and ``leased_task``: a task of a function
    fencedtask  the class of such tasks: the lease around the body, and what Celery does not retry
    run         one run of a task: it takes the lease or waits for it, and repeats a refused body
"""

from __future__ import annotations

try:
    from fencing.celery.decorators import fenced_task, leased_task
    from fencing.celery.fencedtask import FencedTask
except ModuleNotFoundError as missing:
    if missing.name != "celery":
        raise
    needed = 'fencing.celery needs Celery, which is not installed: pip install "django-fencing[celery]".'
    raise ModuleNotFoundError(needed, name=missing.name) from missing

__all__ = ["FencedTask", "fenced_task", "leased_task"]
