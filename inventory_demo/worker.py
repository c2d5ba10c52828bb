"""A real Celery worker for a command or a test: started, found ready, and ended with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from django.conf import settings
from django.db import connection
from kombu import Queue

from inventory_demo.celery import app
from inventory_demo.server_addresses import CHECKOUT
from inventory_demo.server_support import wait_for


class WorkerError(RuntimeError):
    """The worker did not start or end as it should; the message has the end of its log."""


class Worker:
    """A context manager around one prefork worker on a queue of its own, on this process's database and namespace.

    Args:
        queue: The queue, which goes away with the worker.
        include: Modules to import, for their tasks and receivers.
        concurrency: How many child processes.
        options: More of `celery worker`'s.
        environment: Variables for the worker's processes.
    """

    def __init__(
        self,
        queue: str,
        *,
        include: Sequence[str] = (),
        concurrency: int = 2,
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.queue = queue
        self.name = f"{queue}@fencing"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        self._command = [
            sys.executable, "-m", "inventory_demo.worker", "--pool=prefork", f"--concurrency={concurrency}",
            f"--queues={queue}", f"--hostname={self.name}", "--loglevel=INFO", "--without-gossip", "--without-mingle",
            "--without-heartbeat", *(f"--include={module}" for module in include), *options,
        ]  # fmt: skip
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "inventory_demo.worker_settings",
            "FENCING_NAMESPACE": settings.FENCING["BACKENDS"]["default"]["NAMESPACE"],
            "WORKER_DATABASE": str(connection.settings_dict["NAME"]),
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        # Its own session: a Ctrl-C is for the starter, and one signal reaches it with all of its children.
        self._process = subprocess.Popen(  # noqa: S603
            self._command, cwd=CHECKOUT, env=self._environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            if not wait_for(lambda: self._has_ended() or self.answers(), seconds=60) or self._has_ended():
                raise WorkerError(f"The Celery worker did not start:\n{self.log()}")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the worker's main process, and of the group with all of its children."""
        return self._process.pid

    def send(self, task: Any, *args: Any, **options: Any) -> Any:
        """Send a task to this worker; returns Celery's AsyncResult."""
        return task.apply_async(args, queue=self.queue, **options)

    def answers(self) -> bool:
        """Whether the worker consumes from its queue."""
        return bool(app.control.ping(destination=[self.name], timeout=0.2))

    def log(self, last: int = 6_000) -> str:
        """The last so many characters of what the worker has said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-last:]

    def stop(self) -> None:
        """End the worker, whatever state its processes are in, and remove its queue."""
        if not self._has_ended():
            self._signal(signal.SIGCONT)
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        # Also children that have outlived the main process.
        self._signal(signal.SIGKILL)
        self._process.wait(timeout=10)
        if self._process.stdin:
            self._process.stdin.close()
        self._log.close()
        with app.connection_for_write() as broker:
            Queue(self.queue)(broker.default_channel).delete()

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _end_with_starter() -> None:
    """End the worker with all of its children once its standard input ends, as it does however the starter ends."""
    os.read(0, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_starter, daemon=True).start()
    app.worker_main(["worker", *sys.argv[1:]])
