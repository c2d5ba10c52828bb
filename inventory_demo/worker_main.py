"""The program of `inventory_demo.worker`: `celery worker`, which ends with whoever started it.

It is a module of its own because gevent has to patch the standard library before anything else is imported.
"""

from __future__ import annotations

import os
import signal
import sys
from _thread import start_new_thread

from celery import maybe_patch_concurrency


def _end_with_starter() -> None:
    """End the worker with all of its children once its standard input ends, as it does however the starter ends."""
    os.read(0, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    # A thread of the system's: what gevent makes of `threading.Thread` would let nothing else run while it reads.
    start_new_thread(_end_with_starter, ())
    maybe_patch_concurrency()

    from inventory_demo.celery import app

    app.worker_main(["worker", *sys.argv[1:]])
