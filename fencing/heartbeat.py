"""Daemon threads of a process that call jobs when they are due: one renews the leases of a store, one does chores.

They are apart because a database, or another store, that hangs must not cost anybody a lease.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from time import monotonic

from fencing.conf import DEFAULT_ALIAS

logger = logging.getLogger("fencing")

LINGER = 5.0
AGAIN = 1.0
# Jobs that were removed may stand in the queue until it is twice as long as it has to be, and by so many longer.
SLACK = 64

Job = Callable[[], float | None]


@dataclass(slots=True)
class _Entry:
    due: float
    job: Job


class Schedule:
    """Calls each job when it is due; the job answers in how many seconds again, or None for never.

    The thread starts with the first job and ends some seconds after the last. A forked child starts empty: it holds
    nothing of its parent's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._start_empty()
        os.register_at_fork(after_in_child=self._start_empty)

    def _start_empty(self) -> None:
        # Taken by itself where nobody waits: a Condition would do the same through functions of its own.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._entries: dict[Hashable, _Entry] = {}
        # What came since the thread last woke. Most leases end before it does, and are never planned.
        self._fresh: dict[Hashable, _Entry] = {}
        # By the time at which they are due, so that thousands of jobs cost no more than a few.
        self._queue: list[tuple[float, int, Hashable, _Entry]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    def __contains__(self, key: Hashable) -> bool:
        """Whether a job is known under ``key``."""
        return key in self._entries

    def add(self, key: Hashable, job: Job, delay: float) -> None:
        """Call ``job`` in ``delay`` seconds; a job already known under ``key`` stays as it is."""
        with self._lock:
            if key not in self._entries:
                entry = self._entries[key] = self._fresh[key] = _Entry(monotonic() + delay, job)
                # Most jobs are due long after the thread wakes anyway; waking it for each would cost every lease.
                if entry.due < self._wakes_at:
                    self._changed.notify()
            # It ends by itself, and what strikes it from outside must not end the renewal of all leases after it.
            if self._thread is None or not self._thread.is_alive():
                self._start_thread()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            # The process may have no more of them, or end; nobody's work fails for that, nor what it did before.
            logger.warning("The thread %s cannot be started; the next job tries it again: %s", self._name, error)

    def remove(self, key: Hashable) -> None:
        """Forget the job under ``key``; one that is running just now finishes."""
        with self._lock:
            self._entries.pop(key, None)
            self._fresh.pop(key, None)

    def _run(self) -> None:
        while (found := self._next()) is not None:
            key, entry = found
            try:
                delay = entry.job()
            except (Exception, SystemExit):
                # A receiver of a signal that calls sys.exit() would end this thread, and only this thread.
                logger.exception("A job of %s failed; it is tried again", self._name)
                delay = AGAIN
            with self._lock:
                if self._entries.get(key) is entry:
                    if delay is None:
                        del self._entries[key]
                    else:
                        entry.due = monotonic() + delay
                        self._fresh[key] = entry

    def _plan_fresh(self) -> None:
        while self._fresh:
            key, entry = self._fresh.popitem()
            heappush(self._queue, (entry.due, next(self._count), key, entry))
        if len(self._queue) > 2 * len(self._entries) + SLACK:
            self._queue = [line for line in self._queue if self._entries.get(line[2]) is line[3]]
            heapify(self._queue)

    def _next(self) -> tuple[Hashable, _Entry] | None:
        """The next due job, waited for; None when there was none for a while, and then the thread ends."""
        idle_since = monotonic()
        with self._lock:
            # A signal's handler that takes a lease while this thread is being started may have started another one.
            while self._thread is threading.current_thread():
                self._plan_fresh()
                now = monotonic()
                if self._queue:
                    _due, _number, key, entry = self._queue[0]
                    if self._entries.get(key) is not entry:
                        heappop(self._queue)
                        continue
                    idle_since = now
                    if entry.due <= now:
                        heappop(self._queue)
                        return key, entry
                    self._sleep(entry.due - now)
                elif now - idle_since >= LINGER:
                    self._thread = None
                else:
                    self._sleep(LINGER)
        return None

    def _sleep(self, seconds: float) -> None:
        self._wakes_at = monotonic() + seconds
        self._changed.wait(min(seconds, threading.TIMEOUT_MAX))
        self._wakes_at = 0.0


_beats: dict[str, Schedule] = {}


def beats_of(using: str) -> Schedule:
    """What renews all leases of the store with alias ``using``."""
    known = _beats.get(using)
    return known if known is not None else _beats.setdefault(using, Schedule("fencing-heartbeat"))


beats = beats_of(DEFAULT_ALIAS)
chores = Schedule("fencing-chores")
