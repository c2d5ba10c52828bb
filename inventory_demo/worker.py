"""A real Celery worker for a command or a test: started, found ready, and ended with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from celery import Celery
from django.conf import settings
from django.db import connection
from kombu import Queue

from inventory_demo.celery import app
from inventory_demo.server_addresses import CHECKOUT
from inventory_demo.server_support import wait_for


class WorkerError(RuntimeError):
    """The worker did not start or end as it should; the message has the end of its log."""


class Worker:
    """A context manager around one worker on a queue of its own, on this process's database and namespace.

    Args:
        queue: The queue, which goes away with the worker.
        include: Modules to import, for their tasks and receivers.
        pool: What runs its tasks: "prefork", "threads", "gevent" or "solo".
        concurrency: How many tasks at a time, in child processes, threads or greenlets.
        broker: The address of its broker; "" means that of the settings.
        options: More of `celery worker`'s.
        environment: Variables for the worker's processes.
    """

    def __init__(
        self,
        queue: str,
        *,
        include: Sequence[str] = (),
        pool: str = "prefork",
        concurrency: int = 2,
        broker: str = "",
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.queue = queue
        self.name = f"{queue}@fencing"
        self._app = Celery(broker=broker, set_as_current=False) if broker else app
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        self._command = [
            sys.executable, "-m", "inventory_demo.worker_main", f"--pool={pool}", f"--concurrency={concurrency}",
            f"--queues={queue}", f"--hostname={self.name}", "--loglevel=INFO", "--without-gossip", "--without-mingle",
            "--without-heartbeat", *(f"--include={module}" for module in include), *options,
        ]  # fmt: skip
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "inventory_demo.worker_settings",
            "FENCING_NAMESPACE": settings.FENCING["BACKENDS"]["default"]["NAMESPACE"],
            "WORKER_DATABASE": str(connection.settings_dict["NAME"]),
            "CELERY_BROKER_URL": self._app.conf.broker_url,  # read by Celery itself
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        # Its own session: a Ctrl-C is for the starter, and one signal reaches it with all of its children.
        self._process = subprocess.Popen(  # noqa: S603
            self._command, cwd=CHECKOUT, env=self._environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            if not wait_for(lambda: self.has_ended() or self.answers(), seconds=60) or self.has_ended():
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
        with self._app.producer_or_acquire() as producer:
            return task.apply_async(args, queue=self.queue, producer=producer, **options)

    @property
    def control(self) -> Any:
        """Celery's remote control over its broker."""
        return self._app.control

    def answers(self) -> bool:
        """Whether the worker consumes from its queue."""
        return bool(self.control.ping(destination=[self.name], timeout=1.0))

    @contextmanager
    def consuming(self, queue: str) -> Iterator[None]:
        """Have the worker take tasks from another queue, too, inside the block."""
        self.control.add_consumer(queue, destination=[self.name], reply=True)
        try:
            yield
        finally:
            self.control.cancel_consumer(queue, destination=[self.name], reply=True)

    def log(self, last: int = 6_000) -> str:
        """The last so many characters of what the worker has said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-last:]

    def kill(self) -> None:
        """Kill the worker with all of its children, as the kernel does when memory is short, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait(timeout=10)

    def has_ended(self) -> bool:
        """Whether the worker's main process is gone."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """End the worker, whatever state its processes are in, and remove its queue."""
        if not self.has_ended():
            self._signal(signal.SIGCONT)
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        # Also children that have outlived the main process.
        self.kill()
        if self._process.stdin:
            self._process.stdin.close()
        self._log.close()
        with self._app.connection_for_write() as broker:
            Queue(self.queue)(broker.default_channel).delete()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
