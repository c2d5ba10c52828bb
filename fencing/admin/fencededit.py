"""One POST of the admin that writes fenced rows: the leases that it holds, and why it was refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.db.models import Model, ProtectedError, QuerySet, RestrictedError
from django.db.models.deletion import Collector
from django.http import HttpRequest
from django.utils.translation import gettext as _

from fencing.backends.base import HolderInfo
from fencing.deletes import fenced_rows
from fencing.exceptions import FencingError
from fencing.leasing import lease
from fencing.naming import fence_of, name_of_new
from fencing.scope import holder_info
from fencing.statements import plain

TTL = 10.0
WAIT = 2.0
MAX_LEASES = 100


class NoLeasesError(FencingError):
    """A request writes rows that it cannot take the leases of: too many, or one without a name."""


class Resources:
    """The resources that a request is going to write, by the alias of their lease backend."""

    def __init__(self, limit: int = MAX_LEASES) -> None:
        self.limit = limit
        self.names: defaultdict[str, set[str]] = defaultdict(set)

    def add_rows(self, rows: Iterable[Any]) -> None:
        """Those of instances that were read."""
        for row in rows:
            if is_fenced(type(row)):
                self._add(fence_of(type(row)).using, row.fence_name)

    def add_deleted(self, rows: Any, using: str) -> None:
        """Those of every fenced row that Django deletes, or sets to NULL, when it deletes ``rows``."""
        collector = Collector(using=using, origin=None)
        try:
            collector.collect(rows)
        except (ProtectedError, RestrictedError):
            return  # Django is going to say so, and deletes nothing
        for model, keys in fenced_rows(collector):
            self._add_keys(model, keys, using)
        updates: Any = collector.field_updates
        for (field, _value), several in updates.items():
            for found in several if is_fenced(field.model) else ():
                self._add_keys(field.model, [row.pk for row in found], using)

    def _add_keys(self, model: type[Model], keys: Any, using: str) -> None:
        fence = fence_of(model)
        rows: QuerySet[Any] = plain(fence.owner, using).filter(pk__in=keys)
        for values in rows.values("pk", *fence.attributes)[: self.limit + 1]:
            self._add(fence.using, partial(fence.name, values))

    def _add(self, using: str, name: Callable[[], str]) -> None:
        try:
            self.names[using].add(name())
        except (TypeError, ValueError) as error:  # an empty text, or one that is too long
            raise NoLeasesError(str(error)) from error
        if sum(map(len, self.names.values())) > self.limit:
            text = _("These are more than %(limit)d fenced rows, which is the most that one request takes leases for.")
            raise NoLeasesError(text % {"limit": self.limit})


class Edit:
    """What one request of the admin holds, and what became of it.

    Attributes:
        leases: entered around the whole view, so that they end after the commit.
        refusal: why nothing was written; the form is shown once more then, with everything that was typed.
        gone: whether the row is no longer there, so that the form can only make a new one.
    """

    def __init__(self, request: HttpRequest, options: Any) -> None:
        self.leases = ExitStack()
        self.refusal: BaseException | None = None
        self.gone = False
        self.limit: int = getattr(options, "lease_limit", MAX_LEASES)
        self._ttl: float = getattr(options, "lease_ttl", TTL)
        self._wait: float = getattr(options, "lease_wait", WAIT)
        self._told = False
        user = getattr(request, "user", None)
        # For whoever finds the lease held, and for the history: it was no task.
        who = f"user {user.get_username()}"[:255] if user is not None else ""
        self._info = HolderInfo(task_name=f"admin {options.opts.label_lower}"[:255], task_id=who)

    def hold(self, resources: Resources) -> None:
        """Take the leases of all of these, or of none.

        Raises:
            LeaseHeldError, LeaseInsideTransactionError, LeaseBackendError: as :func:`fencing.lease`.
        """
        for using, names in sorted(resources.names.items()):
            self._take(sorted(names), using, inside=False)

    def hold_new(self, row: Any) -> None:
        """Take the lease of a row that is to be created, if its model wants one: what was typed has named it by now.

        A transaction is open, but the lease outlives it.
        """
        if not is_fenced(type(row)):
            return
        fence = fence_of(type(row))
        if row._state.adding and fence.inserts and (name := name_of_new(row)):
            self._take([name], fence.using, inside=True)

    def _take(self, names: list[str], using: str, *, inside: bool) -> None:
        before = holder_info.set(self._info)
        try:
            taken = lease(names, ttl=self._ttl, wait=self._wait, using=using, allow_in_transaction=inside)
            self.leases.enter_context(taken)
        finally:
            holder_info.reset(before)

    def to_tell(self) -> BaseException | None:
        """The refusal, for the first part of the page that asks."""
        told, self._told = self._told, True
        return None if told else self.refusal


def edit_of(request: HttpRequest) -> Edit | None:
    """The edit that this request has begun."""
    return getattr(request, "_fencing_edit", None)


def begin(request: HttpRequest, options: Any) -> Edit:
    """Begin the edit of a request to the admin ``options``."""
    edit = Edit(request, options)
    request._fencing_edit = edit  # type: ignore[attr-defined]
    return edit


def is_fenced(model: Any) -> bool:
    """Whether the rows of a model are fenced."""
    return hasattr(model, "fence_name")
