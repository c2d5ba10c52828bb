"""Stopping, waking and killing a process of the demonstration's own, and knowing that it has stopped."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from inventory_demo.server_support import wait_for

STOPPED = "T"


def thread_states(pid: int) -> str:
    """The state letters of all threads of a process, as procfs gives them; "" if there is no such process."""
    states = ""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            # The name in parentheses before it may hold anything.
            states += thread.read_text().rpartition(")")[2].split()[0]
    return states


def is_stopped(pid: int) -> bool:
    """Whether every thread of the process is stopped."""
    return set(thread_states(pid)) == {STOPPED}


def stop(pid: int, group: int) -> None:
    """Stop a process of a group, and return when all of its threads have stopped: that is some time after the signal.

    Raises:
        RuntimeError: it is no process of that group, or does not stop.
    """
    _signal(pid, group, signal.SIGSTOP)
    if not wait_for(lambda: is_stopped(pid), seconds=10):
        raise RuntimeError(f"Process {pid} does not stop: its threads are {thread_states(pid)}.")


def wake(pid: int, group: int) -> None:
    """Let a stopped process of a group go on.

    Raises:
        RuntimeError: it is no process of that group.
    """
    _signal(pid, group, signal.SIGCONT)


def kill(pid: int, group: int) -> None:
    """Kill a process of a group, as the kernel does when memory is short.

    Raises:
        RuntimeError: it is no process of that group.
    """
    _signal(pid, group, signal.SIGKILL)


def _signal(pid: int, group: int, number: signal.Signals) -> None:
    """Signal nothing but a process of that group: a process id may be anybody's by now."""
    try:
        mine = os.getpgid(pid) == group
    except ProcessLookupError:
        mine = False
    if not mine:
        raise RuntimeError(f"Process {pid} is none of the worker's.")
    os.kill(pid, number)
