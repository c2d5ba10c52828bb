"""What a refusal says to whoever sits before the admin: what happened, to which resource, and what to do."""

from __future__ import annotations

from django.db import IntegrityError
from django.utils.translation import gettext as _

from fencing import conf
from fencing.admin.formreads import UnreadFormError
from fencing.backends import get_backend
from fencing.backends.base import LiveLease
from fencing.exceptions import (
    FencingError,
    LeaseBackendError,
    LeaseHeldError,
    LeaseInsideTransactionError,
    LeaseLostError,
    LeaseRequiredError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
)
from fencing.guards import guard_name_of
from fencing.tokens import place_of


def text_of(error: BaseException) -> str:
    """One or two sentences; nothing was written in any case."""
    return f"{_('Nothing was saved.')} {_what_happened(error)}"


def _what_happened(error: BaseException) -> str:
    if isinstance(error, LeaseHeldError):
        return _held(error)
    if isinstance(error, StaleReadError):
        text = _(
            "%(resource)s has changed since this page was loaded: its last token is %(seen)s now. What you typed is "
            "still here. Saving it once more overwrites the present values."
        )
        return text % {"resource": error.resource or error.what, "seen": error.seen}
    if isinstance(error, StaleWriteError):
        text = _(
            "A newer holder of %(resource)s came first: token %(seen)s, after %(token)d of this request. Check the "
            "present values, and save again."
        )
        return text % {"resource": error.resource, "seen": error.seen, "token": error.token}
    if isinstance(error, RowMissingError):
        return _("%(row)s was deleted meanwhile.") % {"row": error.what or error.resource}
    if isinstance(error, LeaseLostError):
        text = _("The lease of %(resource)s with token %(token)d was lost before the save. Save again.")
        return text % {"resource": error.resource, "token": error.token}
    if isinstance(error, UnreadFormError):
        return _(
            "The form does not prove which state of the row it was loaded from: “_fence_read” is missing or was "
            "altered. What you typed is still here. Compare it with the present values before you save again."
        )
    return _setup(error)


def _setup(error: BaseException) -> str:
    """What whoever runs the site has to put right."""
    if isinstance(error, LeaseRequiredError):
        text = _("A fenced row can be written under its lease only, which this page does not take: %(error)s")
        return text % {"error": error}
    if isinstance(error, LeaseInsideTransactionError):
        text = _("This page runs in a transaction of its own, and a lease would end before the commit: %(error)s")
        return text % {"error": error}
    if isinstance(error, LeaseBackendError):
        return _("The lease store does not answer: %(error)s") % {"error": error}
    return str(error)


def _held(error: LeaseHeldError) -> str:
    live = _live(error)
    who = f"{live.info.task_name} {live.info.task_id}".strip() if live else error.task_id
    text = _(
        "%(resource)s is held by %(holder)s; the lease ends in %(seconds).1f s unless it is renewed. What you typed is "
        "still here: save again in a moment."
    )
    holder = f"{who} ({error.holder})" if who else error.holder
    return text % {"resource": error.resource, "holder": holder, "seconds": error.retry_after}


def _live(error: LeaseHeldError) -> LiveLease | None:
    """The lease that is in the way, if it still is; the error tells the holder's id only."""
    for alias in conf.backend_aliases():
        try:
            backend = get_backend(alias)
            live = backend.peek(place_of(backend, error.resource))
        except FencingError:
            continue
        if live is not None and live.holder == error.holder:
            return live
    return None


def is_refusal(error: BaseException) -> bool:
    """Whether this package, or the guard in the database, refused something."""
    return isinstance(error, FencingError) or (isinstance(error, IntegrityError) and bool(guard_name_of(error)))
