"""What a refusal says to whoever sits before the admin: what happened, to which resource, and what to do."""

from __future__ import annotations

import logging

from django.db import IntegrityError
from django.http import HttpRequest
from django.utils.translation import gettext as _

from fencing import conf
from fencing.admin.fencededit import NoLeasesError
from fencing.admin.formreads import UnreadFormError
from fencing.backends import get_backend
from fencing.backends.base import LiveLease
from fencing.exceptions import (
    FencingError,
    LeaseBackendError,
    LeaseHeldError,
    LeaseLostError,
    LeaseRequiredError,
    ResourceMismatchError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    WriteRejectedError,
)
from fencing.guards import guard_name_of
from fencing.tokens import place_of

logger = logging.getLogger("fencing")

# What an editor can put right, or wait for.
EDITORS = (LeaseHeldError, LeaseLostError, NoLeasesError, UnreadFormError, WriteRejectedError)
ADVICE = (
    "In the admin, FencedModelAdmin and the fenced inlines take leases; the check fencing.W006 names what does not."
)


def text_of(error: BaseException, outcome: str, advice: str = "") -> str:
    """What became of it, what happened, and what to do now."""
    return " ".join(filter(None, (outcome, _what_happened(error), advice)))


def text_for_form(error: BaseException, *, gone: bool) -> str:
    """The same for a form that comes back; ``gone``: as one that makes a new row."""
    if gone:
        advice = _("What you typed is still here; saving it makes a new one.")
    elif isinstance(error, LeaseHeldError):
        advice = _("What you typed is still here; save it again in a moment.")
    elif isinstance(error, WriteRejectedError | UnreadFormError):
        advice = _("What you typed is still here, with the present values where they differ. Saving overwrites them.")
    else:
        advice = _("What you typed is still here.")
    return text_of(error, _("Nothing was saved."), advice)


def _what_happened(error: BaseException) -> str:
    if isinstance(error, LeaseHeldError):
        return _held(error)
    if isinstance(error, StaleReadError) and error.seen is None:
        text = _("%(row)s was to be saved without having been read, so nobody can tell what that would overwrite.")
        return text % {"row": error.what or error.resource}
    if isinstance(error, StaleReadError):
        text = _("%(resource)s has changed since this page was loaded: its last token is %(seen)s now.")
        return text % {"resource": error.resource or error.what, "seen": error.seen}
    if isinstance(error, StaleWriteError):
        text = _("A newer holder of %(resource)s came first: token %(seen)s, after %(token)d of this request.")
        return text % {"resource": error.resource, "seen": error.seen, "token": error.token}
    if isinstance(error, RowMissingError):
        return _("%(row)s was deleted meanwhile.") % {"row": error.what or error.resource}
    if isinstance(error, LeaseLostError):
        text = _("The lease of %(resource)s with token %(token)d was lost: %(reason)s.")
        return text % {"resource": error.resource, "token": error.token, "reason": error.reason}
    if isinstance(error, UnreadFormError):
        return _(
            "The form does not prove which state of the row it was loaded from: “_fence_read” is missing or was altered."
        )
    if isinstance(error, NoLeasesError):
        return str(error)
    if isinstance(error, ResourceMismatchError):
        text = _("What protects this row cannot change: it is %(lease)s, and would be %(row)s.")
        return text % {"lease": error.lease_resource, "row": error.row_resource}
    if isinstance(error, LeaseBackendError):
        return _("The lease store does not answer. Try again in a moment, or ask whoever runs the site.")
    return _("What this page would write is protected, and it is not set up for that. Ask whoever runs the site.")


def tell_operator(error: BaseException, request: HttpRequest) -> None:
    """Log what whoever runs the site has to put right; no editor could make anything of that."""
    unread = isinstance(error, StaleReadError) and error.seen is None
    if unread or not isinstance(error, EDITORS):
        advice = ADVICE if isinstance(error, (LeaseRequiredError, IntegrityError)) else ""
        text = " ".join(f"{error} {advice}".split())  # a database tells in several lines
        logger.warning("%s %r was refused in the admin: %s", request.method, request.path, text)


def _held(error: LeaseHeldError) -> str:
    live = _live(error)
    who = f"{live.info.task_name} {live.info.task_id}".strip() if live else error.task_id
    text = _("%(resource)s is held by %(holder)s; the lease ends in %(seconds).1f s unless it is renewed.")
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
