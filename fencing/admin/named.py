"""A form's field for the name of a resource."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from fencing.conf import MAX_RESOURCE_LENGTH
from fencing.naming import check_resource


def _check(name: str) -> None:
    try:
        check_resource(name)
    except ValueError as error:
        raise ValidationError(str(error)) from error


class ResourceField(forms.CharField):
    """The whole name, as it is: white space at its ends belongs to it."""

    default_validators = [_check]

    def __init__(self, **options: Any) -> None:
        super().__init__(label=_("Resource"), max_length=MAX_RESOURCE_LENGTH, strip=False, **options)
