"""A lease as its holder knows it: its numbers, its renewal, and how it ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from threading import RLock
from time import monotonic, time
from typing import Any

from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import history, signals, tokens
from fencing.backends.base import Granted, LeaseBackend, Lost, Place
from fencing.connections import in_user_transaction
from fencing.exceptions import InvalidTokenError, LeaseBackendError, LeaseLostError
from fencing.heartbeat import beats_of
from fencing.logs import task_fields, tell_lease
from fencing.refusals import Refusals
from fencing.transactions import FencedTransaction

logger = logging.getLogger("fencing")


class Lease:
    """A lease that this process was granted. Made by :func:`lease` only.

    Attributes:
        resource: the name of what is protected.
        token: the grant's number; it never changes.
        newest_token: the highest number issued under this grant: ``token``, or what :meth:`advance` gave last.
        holder: this grant's own id.
        ttl: seconds that the lease lives without renewal.
        using: alias of the lease backend.
        namespace: the namespace of the numbers.
        database: alias of the database that owns the numbers.
    """

    def __init__(
        self,
        backend: LeaseBackend,
        place: Place,
        holder: str,
        granted: Granted,
        *,
        ttl: float,
        asked: float,
        allow_in_transaction: bool,
    ) -> None:
        self.resource = place.resource
        self.token = granted.token
        self.newest_token = granted.token
        self.holder = holder
        self.ttl = ttl
        self.using = backend.config.alias
        self.namespace = backend.config.namespace
        self.database = backend.config.database
        self.allow_in_transaction = allow_in_transaction
        self.task_fields = task_fields.get()
        self.accepted = 0
        # Databases whose row of the resource carries this grant, unless what raised it was rolled back.
        self.passed: set[str] = set()
        self.refusals = Refusals()
        self._backend = backend
        self._place = place
        self._pid = os.getpid()
        self._granted = time()
        self._deadline = asked + ttl
        self._lost = ""
        self._released = False
        self._issued = {granted.token}
        self._used = False
        self._sent: dict[tuple[str, str, str | None], int] = {}
        # A number is chosen and marked as used in one go: two threads of the lease must not send the same one.
        self._numbers = RLock()

    def __repr__(self) -> str:
        return f"<Lease of {self.resource!r}, token {self.token}>"

    @property
    def granted_at(self) -> datetime:
        """When it was granted, by this process's clock; as Django's own ``timezone.now()`` told it."""
        return datetime.fromtimestamp(self._granted, UTC if settings.USE_TZ else None)

    def remaining(self) -> float:
        """Seconds until the lease ends by itself, as this process knows; 0.0 when it is not held."""
        return max(0.0, self._deadline - monotonic()) if self.is_mine() and not self._lost else 0.0

    def is_held(self) -> bool:
        """Whether this process has reason to believe that it holds the lease. The database does not ask."""
        return self.remaining() > 0.0

    def is_mine(self) -> bool:
        """Whether this process took the lease and has not released it: a forked child holds nothing."""
        return not self._released and self._pid == os.getpid()

    def ensure_held(self) -> None:
        """Raise :exc:`LeaseLostError` unless :meth:`is_held`."""
        if not self.is_held():
            raise self._lost_error()

    def ensure_mine(self) -> None:
        """Raise :exc:`LeaseLostError` if this process released the lease, or never took it."""
        if not self.is_mine():
            raise self._lost_error()

    def renew(self) -> None:
        """Set the remaining time back to ``ttl``, now.

        Raises:
            LeaseLostError: the lease is not this holder's any more.
            LeaseBackendError: the store did not answer.
        """
        self.ensure_mine()
        if self._lost or not self._ask_to_renew():
            self._lose("the store refused to renew it")
            raise self._lost_error()

    def advance(self) -> int:
        """Take the next number under this lease, and return it.

        Raises:
            LeaseLostError: the lease is not this holder's any more.
            LeaseBackendError: the store did not answer.
        """
        self.ensure_mine()
        with self._numbers:
            answer = Lost() if self._lost else tokens.advance(self._backend, self._place, self.holder)
            if isinstance(answer, Granted):
                self.newest_token = answer.token
                self._issued.add(answer.token)
                self._used = False
                return answer.token
        self._lose("the store gives it no further number")
        raise self._lost_error()

    def release(self) -> None:
        """Give the lease back; nothing happens if that was done, or if it is lost by now."""
        if not self.is_mine():
            return
        try:
            # First of all: whatever interrupts the rest, nothing is written under it any more, and nobody renews it.
            self._released = True
            beats_of(self.using).remove(self)
            was_held = self._backend.release(self._place, self.holder, self.token)
        except LeaseBackendError as error:
            logger.warning(
                "The lease of %r could not be released; it ends within %.3f s: %s", self.resource, self.ttl, error
            )
            return
        except BaseException:
            # Interrupted by a soft time limit: the store may not have been told, and somebody would wait for the ttl.
            with suppress(LeaseBackendError):
                self._backend.release(self._place, self.holder, self.token)
            raise
        if was_held:
            tell_lease(logging.DEBUG, "released", self, "Released %r, token %d", self.resource, self.token)
        else:
            self._lose("it had ended before its release")
        history.collect_soon(self.using)

    def atomic(self, operation: str | None = None, using: str | None = None) -> FencedTransaction:
        """A transaction that takes effect only if no newer holder has begun or written (design §4.5).

        Args:
            operation: a key under which the transaction takes effect at most once for this resource.
            using: alias of the database; default: the one that owns the numbers.

        Raises (on entry):
            StaleWriteError: a newer holder came first.
            AlreadyAppliedError: the operation took effect before.
            LeaseInsideTransactionError: a transaction is open and the lease does not allow that.
        """
        return FencedTransaction(self, operation=operation, using=using)

    def once(self, operation: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` at most once under ``operation``; every caller gets the recorded result, as JSON gives it."""
        return self.atomic(operation=operation).call(function, *args, **kwargs)

    def number_above(self, floor: int, sent: int = 0) -> int:
        """The number for a write onto a row that carries ``floor``: the newest one, or the next if that is not above.

        Args:
            floor: the row's last token.
            sent: what an open transaction has written onto the row before (see ``remember``); the number is above it,
                too, unless the lease is lost: then the database decides whether the row has consumed the newest one.
        """
        with self._numbers:
            if self.newest_token <= max(floor, sent):
                try:
                    self.advance()
                except LeaseLostError:
                    if self.newest_token <= floor:
                        raise
            self._used = True
            return self.newest_token

    def unused_number(self) -> int:
        """A number that no write has carried yet."""
        with self._numbers:
            number = self.advance() if self._used else self.newest_token
            self._used = True
            return number

    def remember(self, connection: BaseDatabaseWrapper, model: str, number: int, pk: object = None) -> None:
        """Remember the number that an open transaction wrote onto a row, or, without ``pk``, onto any of the model's.

        Whether it is rolled back nobody tells. An instance that it was written from, or that was read then, keeps the
        number, so no other write of the row may carry it: the instance would be taken for one that has read that write.
        """
        if connection.in_atomic_block or in_user_transaction(connection):
            self._sent[connection.alias, model, None if pk is None else str(pk)] = number

    def number_sent(self, connection: BaseDatabaseWrapper, model: str, pk: object) -> int:
        """The last number that an open transaction may have written onto a row under this lease, or 0."""
        if not self._sent:
            return 0
        return max(self._sent.get((connection.alias, model, one), 0) for one in (None, str(pk)))

    def issued(self, number: int) -> bool:
        """Whether ``number`` was issued under this very grant."""
        return number in self._issued

    def catch_up(self, seen: int, what: str) -> None:
        """After a refusal by ``seen``: if the store still says that the lease is ours, its numbers are behind; raise them.

        Raises:
            InvalidTokenError: nobody can have issued ``seen``, which ``what`` holds; nothing is raised.
        """
        try:
            if self.advance() <= seen:
                tokens.raise_above(self._backend, self._place, seen)
        except (LeaseLostError, LeaseBackendError):
            logger.debug("The lease of %r is not ours any more; its numbers stay", self.resource)
        except InvalidTokenError as error:
            raise InvalidTokenError(seen, f"{what} holds it; {error.detail}") from error

    def start_renewing(self) -> None:
        """Hand the lease to the heartbeat, which renews it when two thirds of its ttl are left."""
        # A lease that was handed over while its waiter slept may have less, and cannot wait for a third of its ttl.
        beats_of(self.using).add(self, self._beat, max(0.0, self.remaining() - self.ttl * 2 / 3))

    def _beat(self) -> float | None:
        """Renew once; seconds until the next time, None when there is nothing left to renew."""
        if not self.is_mine() or self._lost:
            return None
        try:
            if self.remaining() > 0:
                if self._ask_to_renew():
                    return self.ttl / 3
                if self.is_mine():
                    self._lose("the store refused to renew it")
                return None
        except LeaseBackendError:
            if self.remaining() > 0:
                logger.warning("The lease of %r could not be renewed; trying again", self.resource, exc_info=True)
                return min(self.ttl / 10, 1.0)
        self._lose("it was not renewed in time")
        return None

    def _ask_to_renew(self) -> bool:
        asked = monotonic()
        if not self._backend.renew(self._place, self.holder, self.ttl):
            return False
        self._deadline = asked + self.ttl
        return True

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = reason
            text = "The lease of %r with token %d is lost: %s"
            tell_lease(logging.WARNING, "lost", self, text, self.resource, self.token, reason)
            signals.announce(signals.lease_lost, Lease, lease=self, reason=reason)

    def _lost_error(self) -> LeaseLostError:
        if self._pid != os.getpid():
            return LeaseLostError(
                self.resource, self.token, "it belongs to another process; a forked child holds nothing"
            )
        if self._released:
            return LeaseLostError(self.resource, self.token, "this process has released it")
        return LeaseLostError(self.resource, self.token, self._lost or "its time is over")
