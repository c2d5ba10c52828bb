"""What a form was loaded from: the ``last_token`` of each of its rows, signed, so that nobody makes one up.

A form that comes back says by it which state of the row its values were made from, and the fenced statement compares
that with the row. No Python code here accepts a write by it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from django import forms
from django.core import signing
from django.db.models import Model

from fencing.exceptions import FencingError
from fencing.naming import fence_of

# The hidden input; in a formset with the formset's prefix.
INPUT = "_fence_read"


class Read(NamedTuple):
    """One row as a form was loaded from it.

    Attributes:
        token: its ``last_token`` then.
        conflict: whether the form came back with the row's present values beside the typed ones.
    """

    token: int
    conflict: bool = False


class UnreadFormError(FencingError):
    """A form does not prove which state of a row it was loaded from."""


def signed(model: type[Model], reads: dict[str, Read]) -> str:
    """The rows of a form by their keys as text, for its hidden input."""
    return signing.dumps(reads, salt=_salt(model), compress=True)


def unsigned(model: type[Model], text: str | None) -> dict[str, Read]:
    """The same from a form that came back; nothing of one that was altered, or is of another model."""
    try:
        reads = signing.loads(text or "", salt=_salt(model))
    except signing.BadSignature:
        return {}
    return {key: Read(*read) for key, read in reads.items()}


def _salt(model: type[Model]) -> str:
    return f"fencing.admin.{fence_of(model).label}"


class ReadField(forms.CharField):
    """The hidden input. It shows what the server says, never again what was sent.

    A browser may restore the inputs of a page that it reloads: all of them or, by ``autocomplete``, some. This one must
    not be among the exceptions, or old values would be sent with a newer read.
    """

    def __init__(self, initial: Any) -> None:
        super().__init__(required=False, label="", widget=forms.HiddenInput, initial=initial)

    def bound_data(self, data: Any, initial: Any) -> Any:
        """What the server says."""
        return initial

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Nobody edits it."""
        return False
