"""The tables of the app, and ``FencedModel`` for the models of its users."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, Self

from django.db import DEFAULT_DB_ALIAS, connections, models, router, transaction
from django.utils.translation import gettext_lazy as _

from fencing import bulkwrites, history, writes
from fencing.conf import DEFAULT_ALIAS, MAX_OPERATION_LENGTH, MAX_RESOURCE_LENGTH
from fencing.exceptions import LeaseRequiredError, ResourceMismatchError
from fencing.fields import TokenField
from fencing.guards import FenceGuard, lifted
from fencing.leases import Lease, find_lease, held_leases, holding, require_lease
from fencing.naming import ModelFence, fence_of, name_of_new, owns_token
from fencing.querysets import FencedManager, FencedQuerySet
from fencing.writes import RowWrite, keeps_transaction


class TokenRange(models.Model):
    """One row per namespace: the highest number ever reserved. Every partition reserves here."""

    namespace = models.CharField(_("namespace"), max_length=100, primary_key=True)
    space = models.CharField(_("namespace id"), max_length=32, help_text=_("random; part of every key in the store"))
    partitions = models.PositiveIntegerField(_("partitions"))
    ceiling = models.BigIntegerField(_("highest reserved token"))

    class Meta:
        verbose_name = _("token range")
        verbose_name_plural = _("token ranges")

    def __str__(self) -> str:
        return f"{self.namespace}: up to {self.ceiling}"


class Reign(models.Model):
    """One server's uninterrupted counting. A second reign tells that the store forgot, moved or was replaced."""

    namespace = models.CharField(_("namespace"), max_length=100)
    partition = models.PositiveIntegerField(_("partition"))
    reign = models.CharField(_("reign"), max_length=80)
    server = models.CharField(_("server"), max_length=80)
    first_token = models.BigIntegerField(_("first token"))
    opened_at = models.DateTimeField(_("opened"))

    class Meta:
        verbose_name = _("reign")
        verbose_name_plural = _("reigns")
        constraints = (
            models.UniqueConstraint(fields=("namespace", "partition", "reign"), name="fencing_reign_once"),
        )

    def __str__(self) -> str:
        return f"{self.namespace}/{self.partition} from {self.first_token}"


class TokenGrant(models.Model):
    """One row per grant, collected from the store's outbox: who held what, from when to when."""

    class Ended(models.TextChoices):
        """How a grant ended, as far as anybody told."""

        OPEN = "", _("open")
        RELEASED = "released", _("released")
        EXPIRED = "expired", _("expired")
        LOST = "lost", _("lost")
        REVOKED = "revoked", _("revoked")

    namespace = models.CharField(_("namespace"), max_length=100)
    token = models.BigIntegerField(_("token"))
    resource = models.CharField(_("resource"), max_length=MAX_RESOURCE_LENGTH)
    holder = models.CharField(_("holder"), max_length=64)
    task_id = models.CharField(_("task id"), max_length=255, blank=True, default="")
    task_name = models.CharField(_("task"), max_length=255, blank=True, default="")
    ttl = models.FloatField(_("ttl (s)"), default=0.0)
    granted_at = models.DateTimeField(_("granted"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    ended = models.CharField(_("how it ended"), max_length=10, choices=Ended, blank=True, default=Ended.OPEN)

    class Meta:
        verbose_name = _("grant")
        verbose_name_plural = _("grants")
        ordering = ("-token",)
        constraints = (models.UniqueConstraint(fields=("namespace", "token"), name="fencing_grant_token"),)
        indexes = (
            models.Index(fields=("namespace", "resource", "-token"), name="fencing_grant_resource"),
            models.Index(fields=("-granted_at", "-id"), name="fencing_grant_time"),
            models.Index(fields=("task_id",), name="fencing_grant_task", condition=~models.Q(task_id="")),
        )

    def __str__(self) -> str:
        return f"{self.resource}: {self.token}"


class FencedWrite(models.Model):
    """One row per attempted write. Joined to its grant by (namespace, grant token): the grant's row arrives later."""

    class Outcome(models.TextChoices):
        """What the database decided."""

        ACCEPTED = "accepted", _("accepted")
        STALE = "stale", _("stale write")
        STALE_READ = "stale-read", _("stale read")
        MISSING = "missing", _("row missing")
        LOST = "lost", _("lease lost")
        DUPLICATE = "duplicate", _("duplicate")
        UNFENCED = "unfenced", _("unfenced")

    namespace = models.CharField(_("namespace"), max_length=100)
    token = models.BigIntegerField(_("token"))
    grant_token = models.BigIntegerField(_("token of the grant"))
    resource = models.CharField(_("resource"), max_length=MAX_RESOURCE_LENGTH)
    model = models.CharField(_("model"), max_length=200, blank=True, default="")
    object_pk = models.CharField(_("object"), max_length=200, blank=True, default="")
    action = models.CharField(_("action"), max_length=20)
    outcome = models.CharField(_("outcome"), max_length=10, choices=Outcome)
    seen = models.BigIntegerField(_("token seen"), null=True, blank=True)
    operation = models.CharField(_("operation"), max_length=MAX_OPERATION_LENGTH, blank=True, default="")
    note = models.CharField(_("note"), max_length=400, blank=True, default="")
    at = models.DateTimeField(_("time"))

    class Meta:
        verbose_name = _("write attempt")
        verbose_name_plural = _("write attempts")
        ordering = ("-id",)
        indexes = (
            models.Index(fields=("namespace", "grant_token"), name="fencing_write_grant"),
            models.Index(fields=("resource", "-id"), name="fencing_write_resource"),
            models.Index(fields=("-at", "-id"), name="fencing_write_time"),
            models.Index(
                fields=("-at", "-id"),
                name="fencing_write_refused",
                condition=~models.Q(outcome__in=("accepted", "unfenced")),
            ),
        )

    def __str__(self) -> str:
        return f"{self.resource}: {self.token} {self.outcome}"


class FencedResource(models.Model):
    """The resource fence: the highest grant that has written or begun, and who holds it."""

    namespace = models.CharField(_("namespace"), max_length=100)
    name = models.CharField(_("resource"), max_length=MAX_RESOURCE_LENGTH)
    last_token = models.BigIntegerField(_("last token"))
    holder = models.CharField(_("holder"), max_length=64)
    begins = models.BigIntegerField(_("transactions begun"), default=0)

    class Meta:
        db_table = "fencing_resource"
        verbose_name = _("resource")
        verbose_name_plural = _("resources")
        constraints = (models.UniqueConstraint(fields=("namespace", "name"), name="fencing_resource_name"),)

    def __str__(self) -> str:
        return f"{self.name}: {self.last_token}"


class Operation(models.Model):
    """An effect that happened, under its key, with its result: inserted in the transaction of the effect."""

    namespace = models.CharField(_("namespace"), max_length=100)
    resource = models.CharField(_("resource"), max_length=MAX_RESOURCE_LENGTH)
    task = models.CharField(_("task"), max_length=255, blank=True, default="")
    key = models.CharField(_("key"), max_length=MAX_OPERATION_LENGTH)
    digest = models.CharField(_("arguments' digest"), max_length=64, blank=True, default="")
    token = models.BigIntegerField(_("token"))
    result = models.JSONField(_("result"), null=True)
    applied_at = models.DateTimeField(_("applied"))

    class Meta:
        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        constraints = (
            models.UniqueConstraint(fields=("namespace", "resource", "task", "key"), name="fencing_operation_once"),
        )
        indexes = (models.Index(fields=("applied_at",), name="fencing_operation_time"),)

    def __str__(self) -> str:
        return f"{self.resource}: {self.key}"


class FencedModel(models.Model):
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

    # What the row was when it was read: its token, and the values that its key and its resource's name are made of.
    _fence_pin: int | None = None
    _fence_loaded: dict[str, Any] | None = None

    class Meta:
        abstract = True
        base_manager_name = "objects"
        constraints = (FenceGuard(name="%(app_label)s_%(class)s_fence"),)

    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Collection[Any], **options: Any) -> Self:
        """Django's, remembering what was read; Django 6.1 passes a ``fetch_mode``."""
        instance = super().from_db(db, field_names, values, **options)
        instance._fence_remember()
        return instance

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Sequence[str] | None = None,
        from_queryset: models.QuerySet[Self] | None = None,
    ) -> None:
        """Django's; a partial refresh of a row that has moved leaves an instance that may write expressions only."""
        if fields is None:
            super().refresh_from_db(using, None, from_queryset)
            self._fence_remember()
        elif fields:
            super().refresh_from_db(using, [*dict.fromkeys((*fields, "last_token"))], from_queryset)
            if self.last_token != self._fence_pin:
                self._fence_pin = None

    def fence_name(self) -> str:
        """The name of the row's resource: of the values that were loaded, or of the present ones while it is new.

        Raises:
            TypeError, ValueError: a value that the name needs is missing, empty or of another kind.
        """
        fence = fence_of(type(self))
        return fence.name(self._fence_now(fence) if self._fence_is_unread(fence) else self._fence_then(fence))

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
        """
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
        tables = transaction.atomic(using=alias) if self._meta.parents else nullcontext()
        with keeps_transaction(connections[alias]), tables:
            super().save_base(
                raw=raw, force_insert=force_insert, force_update=force_update, using=alias, update_fields=update_fields
            )

    save_base.alters_data = True  # type: ignore[attr-defined]

    def delete(
        self, using: str | None = None, keep_parents: bool = False, *, lease: Lease | None = None
    ) -> tuple[int, dict[str, int]]:
        """Delete under the lease of the row's resource; arguments and errors as in :meth:`save`."""
        if self.pk is None:
            return super().delete(using, keep_parents)
        fence = fence_of(type(self))
        connection = connections[using or router.db_for_write(type(self), instance=self)]
        with self._fence_under(lease), bulkwrites.fenced_steps(connection):
            if lifted(connection) is None:
                held = require_lease(self.fence_name(), fence.using, f"deleting {fence.label}")
                bulkwrites.ensure_there(connection, fence, held, self.pk)
            if keep_parents and fence.owner is not type(self)._meta.concrete_model:
                FencedQuerySet(type(self), using=connection.alias).filter(pk=self.pk).update()
            return bulkwrites.delete_rows(connection, [self], self, keep_parents=keep_parents)

    def _do_update(
        self, base_qs: Any, using: str, pk_val: Any, values: Any, update_fields: Any, forced_update: bool, *more: Any
    ) -> Any:
        """Django's hook for the UPDATE of one table; Django 6 passes the fields to return and wants rows."""
        if not owns_token(base_qs.model):
            return super()._do_update(base_qs, using, pk_val, values, update_fields, forced_update, *more)  # type: ignore[misc]
        fence, connection = fence_of(type(self)), connections[using]
        unread = self._fence_is_unread(fence)
        values = [one for one in values if one[0].attname != "last_token"]
        write = RowWrite(
            fence=fence, pk=pk_val, values=values, pin=None if unread else self._fence_pin,
            compares=writes.compares(values), returning=more[0] if more else (),
        )
        if (number := lifted(connection)) is not None:
            rows = writes.update_unfenced(self, number, connection, write)
            if rows:
                self._fence_accept(number)
            return rows
        if unread and not writes.plain(fence.owner, using).filter(pk=pk_val).exists():
            return [] if more else False
        self._fence_keep_resource(fence, write)
        lease = require_lease(self.fence_name(), fence.using, f"saving {fence.label} {pk_val}")
        token, verdict = writes.update_row(lease, using, write)
        self._fence_accept(token, moved=write.compares or verdict.seen == write.pin)
        if not more:
            self._fence_forget_expressions(values)
        return (verdict.rows if write.returning else [()]) if more else True

    def _do_insert(self, manager: Any, using: str, fields: Any, returning_fields: Any, raw: bool) -> Any:
        """Django's hook for the INSERT into one table."""
        fence, connection = fence_of(type(self)), connections[using]
        insert = partial(super()._do_insert, manager, using, fields, returning_fields, raw)  # type: ignore[misc]
        number = lifted(connection)
        if not owns_token(manager.model):
            return insert()
        if raw and number is None:
            token, lease = self.last_token, None
        else:
            token, lease = number or 0, None if number is not None else self._fence_lease_to_create(fence)
        before = self.last_token
        with bulkwrites.fenced_steps(connection) if lease else nullcontext():
            try:
                self.last_token = bulkwrites.admit_insert(connection, fence, lease, self.pk) if lease else token
                rows = insert()
            except BaseException:
                self.last_token = before
                raise
            key = self._fence_inserted_key(fence, rows, returning_fields)
            if lease:
                lease.accepted += 1
                history.record(
                    connection, [writes.attempt(lease, fence, key, self.last_token, action="insert", seen=None)]
                )
        self._fence_pin = self.last_token
        self._fence_loaded = {**self._fence_now(fence), fence.key: key}
        if number is not None:
            writes.record_unfenced(connection, fence, [(key, self.fence_name())], number, "insert")
        return rows

    def _fence_inserted_key(self, fence: ModelFence, rows: Any, returning_fields: Any) -> Any:
        """The new row's key: what was preset, or what the database returned for it."""
        key = getattr(self, fence.key)
        names = [field.attname for field in returning_fields]
        return rows[0][names.index(fence.key)] if key is None and rows and fence.key in names else key

    def _fence_lease_to_create(self, fence: ModelFence) -> Lease | None:
        """The held lease of the new row's resource; None while its name, made of a key to come, is unknown."""
        name = name_of_new(self)
        lease = find_lease(name, fence.using) if name else None
        if lease is None and fence.inserts:
            raise LeaseRequiredError(name, [one.resource for one in held_leases()], f"creating {fence.label}")
        return lease

    @contextmanager
    def _fence_under(self, lease: Lease | None) -> Iterator[None]:
        """Count an explicitly named lease among those held, after making sure that it is of this row's resource."""
        if lease is None:
            yield
            return
        lease.ensure_mine()
        fence = fence_of(type(self))
        name = name_of_new(self) if self._fence_is_unread(fence) else self.fence_name()
        if lease.resource != name or lease.using != fence.using:
            raise ResourceMismatchError(lease.resource, name or "(not named yet)", fence.label)
        with holding(lease):
            yield

    def _fence_keep_resource(self, fence: ModelFence, write: RowWrite) -> None:
        """Refuse a write that would move the row to another resource."""
        if self._fence_is_unread(fence):
            return
        then = self._fence_then(fence)
        for field, _model, value in write.values:
            attribute = field.attname
            if attribute in fence.attributes and value != then[attribute]:
                detail = f"{attribute} is {then[attribute]!r} in the row and {value!r} in the instance"
                raise ResourceMismatchError(fence.name(then), "another", detail)

    def _fence_is_unread(self, fence: ModelFence) -> bool:
        """Whether this instance is not the row that it came from, so that nothing is known of the row it names."""
        if self._state.adding or self._fence_loaded is None:
            return True
        return bool(self._fence_loaded.get(fence.key) != getattr(self, fence.key))

    def _fence_now(self, fence: ModelFence) -> dict[str, Any]:
        return {attribute: getattr(self, attribute) for attribute in fence.attributes}

    def _fence_then(self, fence: ModelFence) -> dict[str, Any]:
        """The values of the name as they were read; those that were not read are read now."""
        loaded = self._fence_loaded or {}
        if missing := [one for one in fence.attributes if one not in loaded]:
            rows = writes.plain(fence.owner, self._state.db or DEFAULT_DB_ALIAS).filter(pk=loaded[fence.key])
            loaded.update(rows.values(*missing).first() or {})
        return {attribute: loaded.get(attribute) for attribute in fence.attributes}

    def _fence_remember(self) -> None:
        """Take the loaded values for what the row is."""
        fence = fence_of(type(self))
        self._fence_pin = self.__dict__.get("last_token")
        loaded = self.__dict__
        self._fence_loaded = {one: loaded[one] for one in (*fence.attributes, fence.key) if one in loaded}

    def _fence_accept(self, token: int, *, moved: bool = True) -> None:
        """Follow a write that the database accepted; ``moved``: the row's other values are still the ones read."""
        fence = fence_of(type(self))
        self.last_token = token
        if moved:
            self._fence_pin = token
        if self._fence_loaded is None or self._fence_is_unread(fence):
            self._fence_loaded = {**self._fence_now(fence), fence.key: getattr(self, fence.key)}

    def _fence_forget_expressions(self, values: Any) -> None:
        """Django 5.2 leaves a written expression on the instance, where the next save would apply it again."""
        for field, _model, value in values:
            if hasattr(value, "resolve_expression"):
                self.__dict__.pop(field.attname, None)
