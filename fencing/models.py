"""The tables of the app, and ``FencedModel`` for the models of its users."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from fencing.conf import MAX_NAMESPACE_LENGTH, MAX_OPERATION_LENGTH, MAX_RESOURCE_LENGTH
from fencing.fenced import FencedModel
from fencing.querysets import FencedManager, FencedQuerySet

__all__ = [
    "FencedManager",
    "FencedModel",
    "FencedQuerySet",
    "FencedResource",
    "FencedWrite",
    "HeldLease",
    "Operation",
    "Reign",
    "ResourceFloor",
    "StoredCounter",
    "StoredEvent",
    "StoredLease",
    "TokenGrant",
    "TokenMark",
    "TokenRange",
]


class TokenRange(models.Model):
    """One row per namespace: the highest number ever reserved. Every partition reserves here."""

    namespace = models.CharField(_("namespace"), max_length=MAX_NAMESPACE_LENGTH, primary_key=True)
    space = models.CharField(_("namespace id"), max_length=32, help_text=_("random; part of every key in the store"))
    partitions = models.PositiveIntegerField(_("partitions"))
    ceiling = models.BigIntegerField(_("highest reserved token"))

    class Meta:
        verbose_name = _("token range")
        verbose_name_plural = _("token ranges")

    def __str__(self) -> str:
        return gettext("%(namespace)s: up to %(ceiling)d") % {"namespace": self.namespace, "ceiling": self.ceiling}


class Reign(models.Model):
    """One server's uninterrupted counting. A second reign tells that the store forgot, moved or was replaced."""

    namespace = models.CharField(_("namespace"), max_length=MAX_NAMESPACE_LENGTH)
    partition = models.PositiveIntegerField(_("partition"))
    reign = models.CharField(_("reign"), max_length=80)
    server = models.CharField(_("server"), max_length=80)
    first_token = models.BigIntegerField(_("first token"))
    opened_at = models.DateTimeField(_("opened"))

    class Meta:
        verbose_name = _("reign")
        verbose_name_plural = _("reigns")
        constraints = (models.UniqueConstraint(fields=("namespace", "partition", "reign"), name="fencing_reign_once"),)

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.partition}"
        return gettext("%(place)s from %(token)d") % {"place": place, "token": self.first_token}


class TokenGrant(models.Model):
    """One row per grant, collected from the store's outbox: who held what, from when to when."""

    class Ended(models.TextChoices):
        """How a grant ended, as far as anybody told."""

        OPEN = "", _("open")
        RELEASED = "released", _("released")
        EXPIRED = "expired", _("expired")
        LOST = "lost", _("lost")
        REVOKED = "revoked", _("revoked")

    namespace = models.CharField(_("namespace"), max_length=MAX_NAMESPACE_LENGTH)
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
        permissions = (("export_tokengrant", _("Can export grants")),)
        constraints = (models.UniqueConstraint(fields=("namespace", "token"), name="fencing_grant_token"),)
        indexes = (
            models.Index(fields=("namespace", "resource", "-token"), name="fencing_grant_resource"),
            # Ascending, though the newest are asked for first: a B-tree takes what comes last at its end for half as much.
            models.Index(fields=("granted_at", "id"), name="fencing_grant_time"),
            models.Index(
                fields=("ended", "granted_at", "id"),
                name="fencing_grant_unusual_end",
                condition=~models.Q(ended__in=("", "released")),
            ),
            models.Index(
                fields=("task_name", "granted_at", "id"),
                name="fencing_grant_task_name",
                condition=~models.Q(task_name=""),
            ),
            # A resource can have a million grants, and each new one ends those before it that nobody has told the end of.
            models.Index(fields=("namespace", "resource"), name="fencing_grant_open", condition=models.Q(ended="")),
            models.Index(fields=("task_id",), name="fencing_grant_task", condition=~models.Q(task_id="")),
        )

    def __str__(self) -> str:
        return f"{self.resource}: {self.token}"


class HeldLease(TokenGrant):
    """The leases that exist now, which only their store knows: a name for their page in the admin, and for its rights."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        permissions = (("revoke_heldlease", _("Can revoke live leases")),)
        verbose_name = _("live lease")
        verbose_name_plural = _("live leases")


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

    namespace = models.CharField(_("namespace"), max_length=MAX_NAMESPACE_LENGTH)
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
        permissions = (("export_fencedwrite", _("Can export write attempts")),)
        indexes = (
            models.Index(fields=("namespace", "grant_token"), name="fencing_write_grant"),
            models.Index(fields=("resource", "id"), name="fencing_write_resource"),
            models.Index(fields=("at", "id"), name="fencing_write_time"),
            # A grant can have a million writes that landed, and what was refused among them is what people look for.
            models.Index(
                fields=("namespace", "grant_token", "outcome"),
                name="fencing_write_refusals",
                condition=~models.Q(outcome__in=("accepted", "unfenced")),
            ),
            models.Index(
                fields=("namespace", "resource", "grant_token", "outcome"),
                name="fencing_write_refusals_of",
                condition=~models.Q(outcome__in=("accepted", "unfenced")),
            ),
            models.Index(
                fields=("at", "id"),
                name="fencing_write_refused",
                condition=~models.Q(outcome__in=("accepted", "unfenced")),
            ),
            models.Index(fields=("at", "id"), name="fencing_write_unfenced", condition=models.Q(outcome="unfenced")),
            models.Index(fields=("object_pk",), name="fencing_write_object", condition=~models.Q(object_pk="")),
            # Numbers that a lease took for its second and later writes of a row.
            models.Index(
                fields=("namespace", "token"),
                name="fencing_write_advanced",
                condition=~models.Q(token=models.F("grant_token")),
            ),
        )

    def __str__(self) -> str:
        return f"{self.resource}: {self.token} {self.get_outcome_display()}"


class FencedResource(models.Model):
    """The resource fence: the highest grant that has written or begun, and who holds it."""

    namespace = models.CharField(_("namespace"), max_length=MAX_NAMESPACE_LENGTH)
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


class ResourceFloor(models.Model):
    """What is left of resources that were forgotten: an unknown one is refused tokens up to its namespace's floor."""

    namespace = models.CharField(_("namespace"), max_length=MAX_NAMESPACE_LENGTH, primary_key=True)
    token = models.BigIntegerField(_("floor"))

    class Meta:
        verbose_name = _("floor of resources")
        verbose_name_plural = _("floors of resources")

    def __str__(self) -> str:
        return f"{self.namespace}: above {self.token}"


class TokenMark(models.Model):
    """How far a namespace had counted when it was pruned: the tokens up to there are older than that moment."""

    namespace = models.CharField(_("namespace"), max_length=MAX_NAMESPACE_LENGTH)
    token = models.BigIntegerField(_("token"))
    at = models.DateTimeField(_("time"))

    class Meta:
        verbose_name = _("mark")
        verbose_name_plural = _("marks")
        indexes = (models.Index(fields=("namespace", "at"), name="fencing_mark_time"),)

    def __str__(self) -> str:
        return f"{self.namespace}: {self.token} at {self.at}"


class Operation(models.Model):
    """An effect that happened, under its key, with its result: inserted in the transaction of the effect."""

    namespace = models.CharField(_("namespace"), max_length=MAX_NAMESPACE_LENGTH)
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


class StoredCounter(models.Model):
    """Database backend: one partition's counting, as far as a range was installed for its reign."""

    space = models.CharField(_("namespace id"), max_length=32)
    partition = models.PositiveIntegerField(_("partition"))
    reign = models.CharField(_("reign"), max_length=80)
    server = models.CharField(_("server"), max_length=80)
    next = models.BigIntegerField(_("next token"))
    ceiling = models.BigIntegerField(_("last token that may be issued"))
    dropped = models.BigIntegerField(_("dropped events"), default=0)

    class Meta:
        verbose_name = _("stored counter")
        verbose_name_plural = _("stored counters")
        constraints = (models.UniqueConstraint(fields=("space", "partition"), name="fencing_counter_place"),)

    def __str__(self) -> str:
        return f"{self.space}/{self.partition}: next {self.next}"


class StoredLease(models.Model):
    """Database backend: a lease that exists now, or that ended by itself. Times are the database's, in milliseconds."""

    space = models.CharField(_("namespace id"), max_length=32)
    partition = models.PositiveIntegerField(_("partition"))
    resource = models.CharField(_("resource"), max_length=MAX_RESOURCE_LENGTH)
    holder = models.CharField(_("holder"), max_length=64)
    token = models.BigIntegerField(_("token"))
    reign = models.CharField(_("reign"), max_length=80)
    deadline_ms = models.BigIntegerField(_("deadline (ms)"))
    granted_ms = models.BigIntegerField(_("granted (ms)"))
    task_id = models.CharField(_("task id"), max_length=255)
    task_name = models.CharField(_("task"), max_length=255)

    class Meta:
        verbose_name = _("stored lease")
        verbose_name_plural = _("stored leases")
        constraints = (models.UniqueConstraint(fields=("space", "partition", "resource"), name="fencing_lease_place"),)

    def __str__(self) -> str:
        return f"{self.resource}: {self.token}"


class StoredEvent(models.Model):
    """Database backend: a line of the outbox, until it is collected into ``TokenGrant``."""

    space = models.CharField(_("namespace id"), max_length=32)
    partition = models.PositiveIntegerField(_("partition"))
    kind = models.CharField(_("kind"), max_length=10)
    token = models.BigIntegerField(_("token"))
    resource = models.CharField(_("resource"), max_length=MAX_RESOURCE_LENGTH)
    holder = models.CharField(_("holder"), max_length=64)
    at_ms = models.BigIntegerField(_("time (ms)"))
    ttl_ms = models.BigIntegerField(_("ttl (ms)"))
    task_id = models.CharField(_("task id"), max_length=255)
    task_name = models.CharField(_("task"), max_length=255)

    class Meta:
        verbose_name = _("stored event")
        verbose_name_plural = _("stored events")
        indexes = (models.Index(fields=("space", "partition", "id"), name="fencing_event_order"),)

    def __str__(self) -> str:
        return f"{self.resource}: {self.token} {self.kind}"
