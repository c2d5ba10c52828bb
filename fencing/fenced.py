"""``FencedModel``: Django's own hooks of save and delete, decided by the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.translation import gettext_lazy as _

from fencing import deletes, lockedrows, writes
from fencing.conf import DEFAULT_ALIAS
from fencing.createdrow import CreatedRow
from fencing.exceptions import ResourceMismatchError
from fencing.expressions import Values, compares
from fencing.fields import TokenField
from fencing.guards import FenceGuard
from fencing.leases import Lease
from fencing.lifting import lifted
from fencing.naming import ModelFence, as_read, fence_of, key_as_read, name_of_new, settle_name
from fencing.querysets import FencedManager, FencedQuerySet
from fencing.scope import holding, require_lease
from fencing.statements import RowWrite, plain
from fencing.writes import keeps_transaction


class FencedModel(CreatedRow):
    """A model whose rows the database fences: inherit it, run ``makemigrations``, and write under a lease.

    Attributes:
        fence_resource: how a row's resource is named: placeholders in braces are ``pk`` or char, slug, integer, UUID
            or foreign key fields of the row. Default: ``"<app_label>.<model_name>:{pk}"``.
        fence_using: alias of the lease backend whose numbers the rows carry.
        fence_inserts: whether creating a row needs the lease, too.
        last_token: the highest token that the row has accepted. Read it, never set it.
    """

    fence_resource: ClassVar[str] = ""
    fence_using: ClassVar[str] = DEFAULT_ALIAS
    fence_inserts: ClassVar[bool] = False

    last_token = TokenField(_("last token"), default=0, db_default=0, editable=False)

    objects = FencedManager()

    class Meta:
        abstract = True
        base_manager_name = "objects"
        constraints = (FenceGuard(name="%(app_label)s_%(class)s_fence"),)

    def save(self, *args: Any, lease: Lease | None = None, **kwargs: Any) -> None:
        """Save under the lease of the row's resource: Django's ``save``, decided by the database.

        Args:
            lease: the lease to use; default: the one of the row's resource that this context holds.

        Raises:
            LeaseRequiredError: the row exists and no lease of its resource is held.
            ResourceMismatchError: ``lease`` is of another resource, or a field in the resource's name was changed.
            StaleWriteError: a newer holder came first.
            StaleReadError: the row is no longer the one that was read.
            RowMissingError: the row is gone; it is not inserted again.
            LeaseLostError: the lease was released here, or has no further number for a row it wrote before.
            LeaseBackendError: it needs a further number, and the store does not answer.
        """
        if lease is None:
            super().save(*args, **kwargs)
            return
        with self._fence_under(lease):
            super().save(*args, **kwargs)

    def save_base(
        self,
        raw: bool = False,
        force_insert: Any = False,
        force_update: bool = False,
        using: str | None = None,
        update_fields: Any = None,
    ) -> None:
        """Django's; a refusal leaves the caller's transaction usable, because nothing of the write is in it."""
        alias = using or router.db_for_write(type(self), instance=self)
        concrete: Any = self._meta.concrete_model  # a proxy has parents, too, but one table all the same
        tables = self._fence_tables(alias, raw=raw) if concrete._meta.parents else nullcontext()
        with keeps_transaction(connections[alias]), tables:
            super().save_base(
                raw=raw, force_insert=force_insert, force_update=force_update, using=alias, update_fields=update_fields
            )

    save_base.alters_data = True  # type: ignore[attr-defined]

    @contextmanager
    def _fence_tables(self, alias: str, *, raw: bool) -> Iterator[None]:
        """All of a model's tables in one transaction; when it is undone, the instance forgets it, too."""
        before = {name: value for name, value in self.__dict__.items() if hasattr(value, "resolve_expression")}
        before |= {"_fence_pin": self._fence_pin, "_fence_loaded": self._fence_loaded, "last_token": self.last_token}
        outer, self._fence_with_parents = self._fence_with_parents, not raw
        try:
            with transaction.atomic(using=alias):
                yield
        except BaseException:
            self.__dict__.update(before)
            raise
        finally:
            self._fence_with_parents = outer

    def delete(
        self, using: str | None = None, keep_parents: bool = False, *, lease: Lease | None = None
    ) -> tuple[int, dict[str, int]]:
        """Delete under the lease of the row's resource; arguments and errors as in :meth:`save`."""
        if self.pk is None:
            return super().delete(using, keep_parents)
        fence = fence_of(type(self))
        connection = connections[using or router.db_for_write(type(self), instance=self)]
        with self._fence_under(lease), lockedrows.fenced_steps(connection):
            if lifted(connection) is None:
                held = require_lease(self.fence_name(), fence.using, f"deleting {fence.label} {self.pk}")
                deletes.ensure_there(connection, fence, held, self.pk)
            if keep_parents and fence.owner is not type(self)._meta.concrete_model:
                FencedQuerySet(type(self), using=connection.alias).filter(pk=self.pk).update()
            return deletes.delete_rows(connection, [self], self, keep_parents=keep_parents)

    async def asave(self, *args: Any, lease: Lease | None = None, **kwargs: Any) -> None:
        """:meth:`save` for coroutines."""
        await sync_to_async(self.save)(*args, lease=lease, **kwargs)

    asave.alters_data = True  # type: ignore[attr-defined]

    async def adelete(
        self, using: str | None = None, keep_parents: bool = False, *, lease: Lease | None = None
    ) -> tuple[int, dict[str, int]]:
        """:meth:`delete` for coroutines."""
        return await sync_to_async(self.delete)(using, keep_parents, lease=lease)

    adelete.alters_data = True  # type: ignore[attr-defined]

    def _do_update(  # type: ignore[override]  # the two versions of Django differ
        self, base_qs: Any, using: str, pk_val: Any, values: Any, update_fields: Any, forced_update: bool, *more: Any
    ) -> Any:
        """Django's hook for the UPDATE of one table; Django 6 passes the fields to return and wants rows."""
        fence, connection = fence_of(type(self)), connections[using]
        if base_qs.model is not fence.owner:
            if lifted(connection) is None:
                if not self._fence_with_parents and base_qs.filter(pk=pk_val).exists():
                    self._fence_row_of_child(fence, connection, pk_val)
                if not self._fence_is_unread(fence):
                    keep_resource(fence, self._fence_then(fence), values)
            return super()._do_update(base_qs, using, pk_val, values, update_fields, forced_update, *more)
        unread = self._fence_is_unread(fence)
        values = [one for one in values if one[0].attname != "last_token"]
        write = RowWrite(
            fence=fence,
            pk=key_as_read(fence.owner, pk_val),
            values=values,
            pin=None if unread else self._fence_pin,
            compares=compares([*values, *self._fence_values_elsewhere(fence, update_fields)]),
            returning=more[0] if more else (),
        )
        if lifted(connection) is not None:
            number, rows = writes.update_unfenced(self._fence_name_on_record(fence), connection, write)
            if rows:
                # Nothing was compared, so the row's other values need not be the ones that were read.
                self._fence_accept(number, moved=False)
            return in_djangos_terms(rows, more)
        if unread and not self._fence_finds_row(fence, using, write):
            return in_djangos_terms(False, more)
        then = self._fence_now(fence) if unread else self._fence_then(fence)
        if not unread:
            keep_resource(fence, then, values)
            if self._state.db != using:
                self._fence_ensure_named_alike(fence, using, pk_val, fence.name(then))
        lease = require_lease(fence.name(then), fence.using, f"saving {fence.label} {pk_val}")
        if not write.compares:
            write.named = {one: then[one] for one in fence.attributes if one not in fence.keys}
        token, verdict = writes.update_row(lease, connection, write)
        self._fence_accept(token, moved=write.compares or verdict.seen == write.pin)
        if not more:
            self._fence_forget_expressions(
                [field.attname for field, _model, value in values if hasattr(value, "resolve_expression")]
            )
        return in_djangos_terms(verdict.rows, more)

    def _fence_values_elsewhere(self, fence: ModelFence, update_fields: Any) -> Values:
        """What a save writes besides into the model's other tables: it takes effect with the row's own, or not at all."""
        if not self._fence_with_parents:
            return ()
        return [
            (field, None, getattr(self, field.attname))
            for field in self._meta.concrete_fields
            if field.model._meta.concrete_model is not fence.owner
            and not (field.primary_key or field.generated or getattr(field.remote_field, "parent_link", False))
            and (update_fields is None or not {field.name, field.attname}.isdisjoint(update_fields))
        ]

    def _fence_row_of_child(self, fence: ModelFence, connection: BaseDatabaseWrapper, pk: Any) -> None:
        """Fence the row of a child whose own table is written alone, without its parents'."""
        row = plain(fence.owner, connection.alias).filter(pk=pk).values(*fence.attributes).get()
        lease = require_lease(fence.name(row), fence.using, f"saving {self._meta.label_lower} {pk}")
        pin = None if self._fence_is_unread(fence) else self._fence_pin
        token, _verdict = writes.update_row(
            lease, connection, RowWrite(fence=fence, pk=key_as_read(fence.owner, pk), values=(), pin=pin, compares=True)
        )
        self._fence_accept(token)

    @contextmanager
    def _fence_under(self, lease: Lease | None) -> Iterator[None]:
        """Count an explicitly named lease among those held, after making sure that it is of this row's resource."""
        if lease is None:
            yield
            return
        lease.ensure_mine()
        fence = fence_of(type(self))
        if self._state.adding:
            settle_name(self)
        name = name_of_new(self) if self._fence_is_unread(fence) else self.fence_name()
        if lease.resource != name or lease.using != fence.using:
            alias = f" of backend {fence.using!r}, the lease is of {lease.using!r}" * (lease.using != fence.using)
            raise ResourceMismatchError(lease.resource, name or "(not named yet)", fence.label + alias)
        with holding(lease):
            yield

    def _fence_ensure_named_alike(self, fence: ModelFence, using: str, pk: Any, name: str) -> None:
        """Refuse an instance of another database, where the row of its key may be of another resource than here."""
        if set(fence.attributes) <= set(fence.keys):
            return
        row = plain(fence.owner, using).filter(pk=pk).values(*fence.attributes).first()
        if row is not None and fence.name(row) != name:
            detail = f"{fence.label} {pk} was read from database {self._state.db!r}, this is {using!r}"
            raise ResourceMismatchError(name, fence.name(row), detail)

    def _fence_finds_row(self, fence: ModelFence, using: str, write: RowWrite) -> bool:
        """Whether there is a row for an instance that did not read it; it must be of the resource that is claimed."""
        row = plain(fence.owner, using).filter(pk=write.pk).values("pk", *fence.attributes).first()
        # Values are refused anyway, because nothing was read that they could be compared with.
        if row is not None and not write.compares and fence.name(row) != self.fence_name():
            raise ResourceMismatchError(self.fence_name(), fence.name(row), f"{fence.label} {write.pk} was not read")
        return row is not None


def keep_resource(fence: ModelFence, then: Mapping[str, Any], values: Values) -> None:
    """Refuse a write of ``values`` that would move a row to another resource; ``then`` is what its name was made of."""
    for field, _model, value in values:
        attribute = field.attname
        if attribute not in fence.attributes:
            continue
        value = value if hasattr(value, "resolve_expression") else as_read(field, value)
        if value != then[attribute]:
            detail = f"{attribute} is {then[attribute]!r} in the row and {value!r} in the instance"
            moved = "another" if hasattr(value, "resolve_expression") else fence.name({**then, attribute: value})
            raise ResourceMismatchError(fence.name(then), moved, detail)


def in_djangos_terms(rows: Any, more: tuple[Any, ...]) -> Any:
    """What ``_do_update`` answers: a bool in Django 5.2; in 6, which passes ``more``, the returned row of each row."""
    if not more:
        return bool(rows)
    return rows if isinstance(rows, list) else [()] * bool(rows)
