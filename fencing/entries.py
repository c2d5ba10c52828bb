"""What was entered and not left yet, where several threads, or coroutines, share one context manager."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from threading import get_ident
from typing import Any, Generic, TypeVar

E = TypeVar("E")


class Entries(Generic[E]):
    """The entries of one context manager, by who entered."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[Hashable, list[E]] = {}

    def add(self, who: Hashable, entry: E) -> None:
        """Remember an entry of ``who``."""
        self._open.setdefault(who, []).append(entry)

    def take(self, who: Hashable) -> E:
        """Forget the last entry of ``who``: another one's lease may be good still, where this one's has ended.

        A generator that is closed late is left by somebody else than has entered; then it is the last entry of all.
        """
        if who not in self._open:
            who = next(reversed(self._open))
        entries = self._open[who]
        entry = entries.pop()
        if not entries:
            del self._open[who]
        return entry


def this_coroutine() -> asyncio.Task[Any] | None:
    """The task that is running, or None where its loop has gone."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def this_caller() -> tuple[int, asyncio.Task[Any] | None]:
    """The thread, and the task that is running in it, if any: coroutines take turns in one thread."""
    return get_ident(), this_coroutine()
