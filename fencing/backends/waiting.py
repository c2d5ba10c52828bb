"""Waiting in the queue of a store that tells waiters on channels: one connection for each wait that goes on.

A connection of its own, because a client repeats or abandons a read that blocks; no thread, because a waiter has
nothing else to do than to read. A connection stays subscribed between two waits, so that most waits need none made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Protocol

from fencing.backends.base import Granted, Held, HolderInfo, LeaseBackend, NeedsRange, Place, Waiter
from fencing.backends.wire import text

# Seconds after which a waiter asks again though nothing happened: a store may forget its queue, and a message or a
# connection may be lost without a sign. Well below the time that a queue is kept (queue.lua).
LOOK_AGAIN = 10.0
# Seconds before a connection that broke is made again.
PAUSE = 0.1
# A connection that nobody used for so many seconds may be gone without a sign.
IDLE = 60.0
# How many connections a process keeps between waits.
KEPT = 4


class Listener:
    """A connection that hears what is said on its channels; one wait at a time has it.

    Args:
        connect: makes a connection that repeats nothing, to the server behind a pool.
        broken: what it raises when it is of no use any more.
    """

    def __init__(self, connect: Callable[[Any], Any], broken: type[Exception]) -> None:
        # Outlives a connection that breaks, so that the place in the queue does.
        self.name = os.urandom(8).hex()
        self.pool: Any = None
        self._connect = connect
        self._broken = broken
        self._connection: Any = None
        self._channels: set[bytes] = set()

    def listen(self, channel: bytes, pool: Any) -> None:
        """Return once the server behind ``pool`` counts this as a subscriber of ``channel``, or raise its error."""
        if pool is not self.pool:
            self.close()
        if self._connection is not None:
            # What an earlier wait left; and a server that was restarted shows here.
            self.hear("", 0)
        if self._connection is None:
            self._connection, self.pool = self._connect(pool), pool
        elif channel in self._channels:
            return
        try:
            self._connection.send_command("SUBSCRIBE", channel)
            while text(self._connection.read_response()[0]) != "subscribe":
                pass
        except BaseException:
            self.close()
            raise
        self._channels.add(channel)

    def hear(self, holder: str, seconds: float) -> list[str] | None:
        """What ``holder`` is told within ``seconds``; None for nothing, also when the connection broke."""
        until = monotonic() + seconds
        try:
            while self._connection.can_read(max(0.0, until - monotonic())):
                message = self._connection.read_response()
                told, *words = text(message[-1]).split(" ")
                if told == holder:
                    return words
        except self._broken:
            self.close()
            time.sleep(min(PAUSE, max(0.0, until - monotonic())))
        return None

    def close(self) -> None:
        """End the connection: the store takes whoever waits on it for dead."""
        connection, self._connection, self._channels = self._connection, None, set()
        if connection is not None:
            connection.disconnect()


class Listeners:
    """The listeners of this process that are between two waits; a forked child has none of its parent's."""

    def __init__(self, make: Callable[[], Listener]) -> None:
        self._make = make
        self._pid = os.getpid()
        self._idle: list[tuple[float, Listener]] = []

    def take(self) -> Listener:
        """A listener for one wait."""
        if self._pid != os.getpid():
            self._pid, self._idle = os.getpid(), []
        while self._idle:
            since, listener = self._idle.pop()
            if monotonic() - since < IDLE:
                return listener
            listener.close()
        return self._make()

    def put_back(self, listener: Listener) -> None:
        """Keep a listener whose wait ended well for the next one."""
        if len(self._idle) < KEPT:
            self._idle.append((monotonic(), listener))
        else:
            listener.close()


class Ask(Protocol):
    """Acquire or queue, and be told on the listener's channel."""

    def __call__(
        self, place: Place, holder: str, ttl: float, info: HolderInfo, listener: Listener
    ) -> Granted | Held | NeedsRange:
        """The store's answer."""


class QueueWaiter(Waiter):
    """One wait in a queue: first come, first served."""

    def __init__(
        self, backend: LeaseBackend, holder: str, ttl: float, info: HolderInfo, *, listeners: Listeners, ask: Ask
    ) -> None:
        super().__init__(backend, holder, ttl, info)
        self._listeners = listeners
        self._listener = listeners.take()
        self._ask = ask

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the connection, or end it where the queue may still hold a place that is told of on it."""
        if kind is None:
            self._listeners.put_back(self._listener)
        else:
            self._listener.close()

    def ask(self, place: Place) -> Granted | Held | NeedsRange:
        """See the base class."""
        return self._ask(place, self.holder, self.ttl, self.info, self._listener)

    def sleep(self, held: Held, patience: float) -> Granted | None:
        """See the base class: until it is told something, or somebody's time may be over."""
        seconds = min(held.remaining, held.unchanged, patience, LOOK_AGAIN)
        told = self._listener.hear(self.holder, max(0.001, seconds))
        if not told:
            return None
        token, reign = told
        return Granted(token=int(token), reign=reign)
