"""A gate in Valkey at which a worker's process waits, and the reports that it sends; both end by themselves."""

from __future__ import annotations

import json
import os
from time import monotonic, time
from typing import Any

from django_redis import get_redis_connection

# Seconds that the keys of a run live: longer than any run.
KEPT = 600


class GateError(RuntimeError):
    """Nobody opened the gate, or nobody came to it, in time."""


class Gate:
    """The gate of one run; the same object on both sides.

    Args:
        run: The run's name: runs side by side do not meet.
    """

    def __init__(self, run: str) -> None:
        self._reports = f"inventory_demo:{run}:reports"
        self._open = f"inventory_demo:{run}:open"
        self._expected = f"inventory_demo:{run}:expected"
        self._store = get_redis_connection("leases")
        self._read = "0"

    def expect(self, task: str) -> None:
        """Let the task with this id wait at the gate before it writes, once."""
        self._store.delete(self._open)
        self._store.set(self._expected, task, ex=KEPT)

    def expects(self, task: str) -> bool:
        """Tell whether this task is to wait; it is told so once."""
        if self._store.get(self._expected) != task.encode():
            return False
        return bool(self._store.delete(self._expected))

    def open(self) -> None:
        """Let whoever waits go on, now or when it is awake again."""
        self._store.xadd(self._open, {"open": "1"})
        self._store.expire(self._open, KEPT)

    def wait(self, seconds: float) -> None:
        """Wait until the gate is open; raises GateError after so many seconds."""
        deadline = monotonic() + seconds
        # In short steps, because the client gives up on a reply after some seconds.
        while not self._store.xread({self._open: "0"}, block=1000):
            if monotonic() > deadline:
                raise GateError(f"Nobody opened the gate within {seconds:g} s.")

    def report(self, event: str, **facts: Any) -> None:
        """Tell the other side what happens in this process."""
        facts.update(event=event, pid=os.getpid(), at=time())
        self._store.xadd(self._reports, {"report": json.dumps(facts)})
        self._store.expire(self._reports, KEPT)

    def next_report(self, seconds: float) -> dict[str, Any]:
        """Wait for the next report and return it; raises GateError after so many seconds."""
        deadline = monotonic() + seconds
        while (report := self.report_now(block=500)) is None:
            if monotonic() > deadline:
                raise GateError(f"Nothing happened in the worker within {seconds:g} s.")
        return report

    def report_now(self, *, block: int | None = None) -> dict[str, Any] | None:
        """The next report, or None if there is none, now or within `block` milliseconds."""
        for _stream, entries in self._store.xread({self._reports: self._read}, count=1, block=block):
            self._read, fields = entries[0]
            report: dict[str, Any] = json.loads(fields[b"report"])
            return report
        return None

    def remove(self) -> None:
        """Leave nothing in the store."""
        self._store.delete(self._reports, self._open, self._expected)
