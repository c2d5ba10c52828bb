"""What an instance remembers of the row that it was read from, and what it knows of the one that it names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from django.db import DEFAULT_DB_ALIAS, connections, models

from fencing import writes
from fencing.exceptions import RowMissingError, WriteRejectedError
from fencing.lifting import lifted
from fencing.naming import ModelFence, fence_of
from fencing.querysets import FencedQuerySet
from fencing.scope import held_leases
from fencing.statements import attempt, plain


class ReadRow(models.Model):
    """The part of a fenced model that follows its row: from the read through each write to the next read."""

    last_token: Any

    # What the row was when it was read: its token, and the values that its key and its resource's name are made of.
    _fence_pin: int | None = None
    _fence_loaded: dict[str, Any] | None = None
    # Whether it is being saved with its parents; of what comes from a file, Django saves the child's table alone.
    _fence_with_parents: bool = False

    class Meta:
        abstract = True

    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Collection[Any], **options: Any) -> Self:
        """Django's, remembering what was read; Django 6.1 passes a ``fetch_mode``."""
        instance = super().from_db(db, field_names, values, **options)
        instance._fence_remember()
        return instance

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Self] | None = None,
    ) -> None:
        """Django's; a partial refresh of a row that has moved leaves an instance that may write expressions only."""
        if from_queryset is None:
            # Not through a manager: the model's own may hide the row.
            from_queryset = FencedQuerySet(type(self), using=using, hints={"instance": self})
        if fields is None:
            super().refresh_from_db(using, None, from_queryset)
            self._fence_remember()
        elif fields := list(fields):
            super().refresh_from_db(using, [*dict.fromkeys((*fields, "last_token"))], from_queryset)
            if self.last_token != self._fence_pin:
                self._fence_pin = None

    def fence_name(self) -> str:
        """The name of the row's resource: of the values that were loaded, or of the present ones while it is new.

        Raises:
            TypeError, ValueError: a value that the name needs is missing, empty or of another kind.
        """
        fence = fence_of(type(self))
        return fence.name(self._fence_named_by(fence))

    def _fence_is_unread(self, fence: ModelFence) -> bool:
        """Whether this instance is not the row that it came from, so that nothing is known of the row it names."""
        if self._state.adding or self._fence_loaded is None:
            return True
        loaded, present = self._fence_loaded, self.__dict__
        if all(one in loaded and one in present and loaded[one] == present[one] for one in fence.keys):
            return False
        present = fence.present(self, fence.keys)
        return any(loaded.get(one) != present.get(one) for one in fence.keys)

    def _fence_now(self, fence: ModelFence) -> dict[str, Any]:
        return dict.fromkeys(fence.attributes) | fence.present(self, fence.attributes)

    def _fence_named_by(self, fence: ModelFence) -> Mapping[str, Any]:
        """The values that the name of the row's resource is made of."""
        return self._fence_now(fence) if self._fence_is_unread(fence) else self._fence_then(fence)

    def _fence_name_on_record(self, fence: ModelFence) -> str:
        return fence.name_on_record(self._fence_named_by(fence))

    def _fence_then(self, fence: ModelFence) -> dict[str, Any]:
        """The values of the name as they were read; those that were not read are read now."""
        loaded = self._fence_loaded or {}
        if missing := [one for one in fence.attributes if one not in loaded]:
            rows = plain(fence.owner, self._state.db or DEFAULT_DB_ALIAS).filter(pk=key_in(fence, loaded))
            loaded.update(rows.values(*missing).first() or {})
            if not loaded.keys() >= {*missing} and lifted(connections[rows.db]) is None:
                raise self._fence_gone(fence, rows.db, key_in(fence, loaded))
        return {attribute: loaded.get(attribute) for attribute in fence.attributes}

    def _fence_gone(self, fence: ModelFence, using: str, pk: Any) -> WriteRejectedError:
        """The refusal of a row that is gone before its name was read; under which lease is as good as any."""
        held = [lease for lease in held_leases() if lease.using == fence.using]
        if not held:
            return RowMissingError("", 0, None, f"{fence.label} {pk}")
        tried = attempt(held[-1], fence, pk, held[-1].newest_token, action="update", seen=None)
        return writes.refused(RowMissingError, held[-1], connections[using], tried)

    def _fence_remember(self) -> None:
        """Take the loaded values for what the row is."""
        fence = fence_of(type(self))
        self._fence_pin = self.__dict__.get("last_token")
        loaded = self.__dict__
        self._fence_loaded = {one: loaded[one] for one in (*fence.attributes, *fence.keys) if one in loaded}

    def _fence_accept(self, token: int, *, moved: bool = True) -> None:
        """Follow a write that the database accepted; ``moved``: the row's other values are still the ones read."""
        fence = fence_of(type(self))
        self.last_token = token
        if moved:
            self._fence_pin = token
        if self._fence_loaded is None or self._fence_is_unread(fence):
            self._fence_loaded = fence.present(self, (*fence.attributes, *fence.keys))

    def _fence_forget_row(self) -> None:
        """The row that this instance became may be another's, with values that nobody read here."""
        self._fence_pin = self._fence_loaded = None

    def _fence_forget_expressions(self, names: Iterable[str]) -> None:
        """Django leaves a written expression on the instance, where the next save would apply it again."""
        for name in names:
            attribute = self._meta.get_field(name).attname  # type: ignore[union-attr]
            if hasattr(self.__dict__.get(attribute), "resolve_expression"):
                del self.__dict__[attribute]


def key_in(fence: ModelFence, values: Mapping[str, Any]) -> Any:
    """The primary key among attribute values, as Django writes it: a tuple if it has several columns."""
    keys = tuple(values.get(one) for one in fence.keys)
    return keys if len(keys) > 1 else keys[0]
