"""The journal of one process: a JSON line per event, handed to the system at once, so that a killed process has told all."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Journal:
    """Notes the events of one process.

    Args:
        path: the file; it is made.
        worker: the process's name.
    """

    def __init__(self, path: str, worker: str) -> None:
        self.worker = worker
        # Not a buffered file: what is in a buffer dies with the process.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, attempt: str, **more: Any) -> None:
        """Note that ``what`` happened in an attempt, now: the clock is one for all processes of the machine."""
        event = {"at": time.monotonic(), "what": what, "worker": self.worker, "attempt": attempt, **more}
        os.write(self._file, json.dumps(event).encode() + b"\n")


def events_of(path: Path) -> Iterator[Event]:
    """The events of a journal in order, without a last line that its process could not finish."""
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)
