"""Acquiring in a thread for code that awaits: a cancelled caller abandons it, and then nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from asgiref.sync import sync_to_async
from django.db import connections

from fencing.leases import Lease


class Acquisition:
    """One acquisition, shared by the coroutine that awaits it and the thread that does it.

    Args:
        acquire: takes the lease; it is given what says whether nobody wants it any more.
    """

    def __init__(self, acquire: Callable[[Callable[[], bool]], Lease]) -> None:
        self._acquire = acquire
        self._turn = threading.Lock()
        self._abandoned = False
        self._granted: Lease | None = None

    async def in_djangos_thread(self) -> Lease:
        """Acquire in the thread that has the ORM's connections; for what does not wait."""
        return await self._awaited(sync_to_async(self._run, thread_sensitive=True))

    async def in_own_thread(self) -> Lease:
        """Acquire in a thread of its own, because Django's would be occupied by the wait."""
        return await self._awaited(sync_to_async(self._run_apart, thread_sensitive=False))

    async def _awaited(self, run: Callable[[], object]) -> Lease:
        try:
            await run()  # type: ignore[misc]
        except (asyncio.CancelledError, GeneratorExit) as end:
            with self._turn:
                self._abandoned = True
            # A coroutine that is thrown away, its loop gone, cannot await; nobody renews the lease, so it ends by itself.
            if self._granted is not None and not isinstance(end, GeneratorExit):
                await asyncio.shield(sync_to_async(self._granted.release, thread_sensitive=False)())
            raise
        assert self._granted is not None  # noqa: S101  (the thread ended without raising)
        return self._granted

    def _run(self) -> None:
        lease = self._acquire(lambda: self._abandoned)
        with self._turn:
            if not self._abandoned:
                self._granted = lease
                return
        lease.release()

    def _run_apart(self) -> None:
        try:
            self._run()
        finally:
            connections.close_all()
