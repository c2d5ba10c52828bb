"""``python -m tests.waiters``: forks processes that take leases as they are told, for tests of waiting.

Reads one JSON object a line: the name of the process, which is forked for its first line; resource, ttl, wait, hold
(seconds; null: until the next line), rounds, rest (seconds between two rounds). The processes write one a line: name,
what, token and the time, by the clock that all processes share.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from threading import Thread
from types import TracebackType
from typing import Any, Self, TextIO

from tests.concurrency import wait_until

Event = dict[str, Any]


class Waiters:
    """Such processes, and what they said, in the order in which it arrived."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.events: list[Event] = []
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.waiters"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for event in self.said("ready"):
            # The parent has not waited for it, so the number is still its own.
            os.kill(event["pid"], signal.SIGKILL)
        with self._parent:
            self._parent.kill()
        self._reader.join(timeout=20)

    def start(self, *names: str) -> None:
        """Start processes, and wait until each is ready."""
        for name in names:
            self.tell(name)
        for name in names:
            self.until(name, "ready", seconds=60)

    def tell(self, name: str, **order: Any) -> None:
        """Let a process take leases, or end the one that it holds."""
        assert self._parent.stdin is not None
        print(json.dumps({"name": name, **order}), file=self._parent.stdin, flush=True)

    def send(self, name: str, number: signal.Signals) -> None:
        """Kill a process, stop it, or let it go on."""
        os.kill(self.until(name, "ready")["pid"], number)

    def until(self, name: str, what: str, count: int = 1, seconds: float = 20.0) -> Event:
        """Wait until a process has said something so many times; the last of them."""
        wait_until(lambda: len(self.said(what, name)) >= count, f"{name} says {what}", seconds)
        return self.said(what, name)[count - 1]

    def said(self, what: str, name: str = "") -> list[Event]:
        """What was said so far."""
        return [event for event in list(self.events) if event["what"] == what and name in ("", event["name"])]

    def _read(self) -> None:
        assert self._parent.stdout is not None
        for line in self._parent.stdout:
            self.events.append(json.loads(line))


def obey(name: str, orders: TextIO) -> None:
    """What one process does, until its orders end."""
    from fencing import FencingError, lease

    def say(what: str, **more: Any) -> None:
        line = json.dumps({"name": name, "what": what, "at": time.monotonic(), **more}) + "\n"
        # In one piece, because all processes share the pipe.
        os.write(1, line.encode())

    def take(order: dict[str, Any]) -> None:
        with lease(order["resource"], ttl=order.get("ttl", 30), wait=order.get("wait")) as held:
            say("granted", token=held.token)
            if (hold := order.get("hold")) is None:
                orders.readline()
            else:
                time.sleep(hold)
            last = time.monotonic()
        say("released", at=last, token=held.token)

    with lease(f"warm:{name}"):
        pass
    say("ready", pid=os.getpid())
    for line in iter(orders.readline, ""):
        order = json.loads(line)
        for _ in range(order.get("rounds", 1)):
            try:
                take(order)
            except FencingError as error:
                say(type(error).__name__)
            time.sleep(order.get("rest", 0))
        say("done")


def main() -> None:
    """Fork a process for each new name, and pass the orders on."""
    import django

    django.setup()
    pipes: dict[str, TextIO] = {}
    for line in iter(sys.stdin.readline, ""):
        name = json.loads(line)["name"]
        if name in pipes:
            print(line, end="", file=pipes[name], flush=True)
            continue
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.close(writing)
            with os.fdopen(reading) as orders:
                obey(name, orders)
            os._exit(0)
        os.close(reading)
        pipes[name] = os.fdopen(writing, "w")


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    main()
