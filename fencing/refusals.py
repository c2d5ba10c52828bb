"""What a lease remembers of its refusals, and which accepted writes make them good.

A body may catch a refusal, but must not succeed then, unless it has written the same row after all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db.backends.base.base import BaseDatabaseWrapper

from fencing.connections import in_user_transaction
from fencing.exceptions import LeaseLostError, WriteRejectedError

Refusal = WriteRejectedError | LeaseLostError
# By database and row: a row of the same key in another database is another one.
Key = tuple[str, str]


class Refusals:
    """The refusals under one lease: the last one of each row, or of what else was refused."""

    __slots__ = ("_known", "_mends")

    def __init__(self) -> None:
        self._known: dict[Key, Refusal] = {}
        self._mends: dict[Key, _Mend] = {}

    def add(self, connection: BaseDatabaseWrapper, what: str, refusal: Refusal) -> None:
        """Remember that a write of ``what`` was refused."""
        self._known[connection.alias, what] = refusal

    def mend(self, connection: BaseDatabaseWrapper, what: str) -> None:
        """Forget that a write of ``what`` was refused, for another one was accepted; in a transaction with its commit.

        Where Django does not know of the transaction, or leaves it to the user, nobody tells of a commit: it stays.
        """
        key = (connection.alias, what)
        if key not in self._known or self._is_mended(key, self._known[key]):
            return
        if not connection.in_atomic_block and in_user_transaction(connection):
            return
        mend = self._mends[key] = _Mend(self, connection, key, self._known[key])
        if connection.in_atomic_block:
            # Django drops what a savepoint that it rolls back has registered: then nothing was mended.
            connection.on_commit(mend)
        else:
            mend()

    def is_empty(self) -> bool:
        """Whether there is nothing that a write could make good, or has made good in a transaction that is still open."""
        return not self._known

    def unmended(self) -> list[Refusal]:
        """The refusals that no accepted write of the same row has made good, as far as nothing is rolled back any more."""
        return [refusal for key, refusal in [*self._known.items()] if not self._is_mended(key, refusal)]

    def raise_unmended(self, earlier: Collection[Refusal]) -> None:
        """Raise the first refusal that the body caught and did not mend; ``earlier`` are those from before the body."""
        for refusal in self.unmended():
            if not any(refusal is one for one in earlier):
                raise refusal

    def _is_mended(self, key: Key, refusal: Refusal) -> bool:
        mend = self._mends.get(key)
        return mend is not None and mend.refusal is refusal and mend.is_pending()

    def _forget(self, key: Key, refusal: Refusal) -> None:
        if self._known.get(key) is refusal:
            del self._known[key]
        self._mends.pop(key, None)


@dataclass(eq=False, slots=True)
class _Mend:
    """An accepted write that makes a refusal good, once it is committed."""

    refusals: Refusals
    connection: BaseDatabaseWrapper
    key: Key
    refusal: Refusal

    def __call__(self) -> None:
        """It is."""
        self.refusals._forget(self.key, self.refusal)

    def is_pending(self) -> bool:
        """Whether the transaction is still open and has not undone it."""
        return any(entry[1] is self for entry in self.connection.run_on_commit)
