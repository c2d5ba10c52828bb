"""Somebody who reads a table and somebody who writes it, all the time, and how long they had to wait for an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from django.db import IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.concurrency import wait_until


class User:
    """Sends one statement again and again, on a connection of its own.

    Attributes:
        longest: seconds of the longest wait for an answer; a refusal is an answer.
        answers: how many came.
        failed: what ended it before its time.
    """

    def __init__(self, connection: BaseDatabaseWrapper, sql: str) -> None:
        self.longest = 0.0
        self.answers = 0
        self.failed: BaseException | None = None
        self._connection = connection
        self._sql = sql
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin, and wait until it is at work."""
        self._thread.start()
        wait_until(lambda: self.answers > 2 or self.failed, "the table's users are at work")

    def end(self) -> None:
        """Stop after the present statement."""
        self._enough.set()
        self._thread.join(60)
        assert self.failed is None and not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with closing(self._connection.copy()) as own:
                while not self._enough.is_set():
                    started = time.monotonic()
                    self._ask(own)
                    self.longest = max(self.longest, time.monotonic() - started)
                    self.answers += 1
        except BaseException as error:
            self.failed = error

    def _ask(self, own: BaseDatabaseWrapper) -> None:
        try:
            with own.cursor() as cursor:
                cursor.execute(self._sql)
                if cursor.description:
                    cursor.fetchall()
        except IntegrityError as error:
            if "fencing guard" not in str(error):
                raise


@contextmanager
def traffic(connection: BaseDatabaseWrapper, *statements: str) -> Iterator[list[User]]:
    """A user for each statement, at work inside the block."""
    users = [User(connection, sql) for sql in statements]
    for user in users:
        user.start()
    try:
        yield users
    finally:
        for user in users:
            user.end()
