"""The newest grants, which the stores keep until somebody collects them: before a page shows grants, it does."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.http import HttpRequest
from django.utils.translation import gettext as _

from fencing import history
from fencing.exceptions import FencingError

# Grant events to move for one page: what a long outage has left is the background's work.
MOST_COLLECTED = 2_000
# What a store that is down, or set up wrongly, answers with.
UNREACHABLE = (FencingError, DatabaseError, ImproperlyConfigured)


def collect_newest(request: HttpRequest, *aliases: str) -> None:
    """Collect from these lease backends. One that does not answer costs the newest rows and a message, never the page."""
    for alias in aliases:
        try:
            history.collect(alias, most=MOST_COLLECTED)
        except UNREACHABLE as error:
            text = _("The newest grants of the lease backend “%(alias)s” are missing here: %(error)s")
            messages.warning(request, text % {"alias": alias, "error": error}, fail_silently=True)
