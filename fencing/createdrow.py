"""How a fenced row comes into being: by Django's own INSERT, fenced where a lease of its resource is held."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from django.db import connections

from fencing import history, lockedrows, writes
from fencing.exceptions import ResourceMismatchError
from fencing.leases import Lease
from fencing.lifting import lifted
from fencing.naming import ModelFence, fence_of, name_of_new, owns_token, settle_name
from fencing.readrow import ReadRow, key_in
from fencing.scope import find_lease, lease_required
from fencing.statements import attempt
from fencing.tokens import check_token


class CreatedRow(ReadRow):
    """The part of a fenced model that creates its row."""

    class Meta:
        abstract = True

    def _do_insert(self, manager: Any, using: str, fields: Any, returning_fields: Any, raw: bool) -> Any:
        """Django's hook for the INSERT into one table."""
        fence, connection = fence_of(type(self)), connections[using]
        insert = partial(super()._do_insert, manager, using, fields, returning_fields, raw)  # type: ignore[misc]
        number = lifted(connection)
        if not owns_token(manager.model):
            return insert()
        if raw and number is None:
            token, lease = imported_token(self.last_token), None
        else:
            if not raw:
                settle_name(self)
            token, lease = number or 0, None if number is not None else self._fence_lease_to_create(fence)
        before = self.last_token
        steps: AbstractContextManager[dict[Lease, int]] = nullcontext({})
        if lease:
            steps = lockedrows.fenced_insert(connection, fence, {lease: [self.pk]})
        try:
            with steps as tokens:
                self.last_token = tokens[lease] if lease else token
                rows = insert()
                inserted = self._fence_inserted(fence, rows, returning_fields)
                key = key_in(fence, inserted)
                if lease:
                    self._fence_ensure_inserted_as(fence, lease, inserted)
                    lockedrows.pass_inserted(connection, fence, lease, [self.pk], self.last_token)
                    made = attempt(lease, fence, key, self.last_token, action="insert", seen=None)
                    history.record(connection, [made])
        except BaseException:
            self.last_token = before
            raise
        self._fence_pin, self._fence_loaded = self.last_token, inserted
        if lease:
            writes.settle(lease, connection, fence, key)
            lease.remember(connection, fence.label, self.last_token, key)
        if number is not None:
            writes.record_unfenced(connection, fence, [(key, self._fence_name_on_record(fence))], number, "insert")
        return rows

    def _fence_inserted(self, fence: ModelFence, rows: Any, returning_fields: Any) -> dict[str, Any]:
        """The new row's values of key and name: what was preset, or what the database returned for it."""
        returned = zip((field.attname for field in returning_fields), rows[0] if rows else (), strict=False)
        wanted = (*fence.attributes, *fence.keys)
        return fence.present(self, wanted) | {name: value for name, value in returned if name in wanted}

    def _fence_ensure_inserted_as(self, fence: ModelFence, lease: Lease, inserted: Mapping[str, Any]) -> None:
        """Undo an INSERT of a field that made another value than it had given for the name."""
        if fence.name(inserted) != lease.resource:
            raise ResourceMismatchError(lease.resource, fence.name(inserted), f"creating {fence.label}")

    def _fence_lease_to_create(self, fence: ModelFence) -> Lease | None:
        """The held lease of the new row's resource; None while its name, made of a key to come, is unknown."""
        name = name_of_new(self)
        lease = find_lease(name, fence.using) if name else None
        if lease is None and fence.inserts:
            raise lease_required([name], fence.template, f"creating {fence.label}")
        return lease


def imported_token(value: Any) -> int:
    """The number of a row that a file brings along: a token, or 0 for a row that has accepted nothing."""
    return 0 if type(value) is int and value == 0 else check_token(value)
