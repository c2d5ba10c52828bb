"""Inlines whose rows are fenced: each is saved under its own lease, as the row that its form was loaded from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from fencing.admin.fencededit import edit_of, is_fenced
from fencing.admin.fencedforms import FencedRowForm, form_class, formset_class

if TYPE_CHECKING:
    MixinBase = admin.options.InlineModelAdmin[Any, Any]
    BaseTabular = admin.TabularInline[Any, Any]
    BaseStacked = admin.StackedInline[Any, Any]
else:
    MixinBase = object
    BaseTabular = admin.TabularInline
    BaseStacked = admin.StackedInline


class FencedInlineMixin(MixinBase):
    """The fenced inlines without their base, to be put before the inline of an admin theme.

    The parent's admin takes the leases: a ``FencedModelAdmin``, or a plain ``ModelAdmin`` if the parent is not fenced.
    """

    fences_rows = True

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        """Django's, which carries what each row was loaded from."""
        if is_fenced(self.model):
            edit = edit_of(request)
            kwargs["form"] = form_class(FencedRowForm, kwargs.get("form", self.form), edit)
            kwargs["formset"] = formset_class(kwargs.get("formset", self.formset), edit)
        return super().get_formset(request, obj, **kwargs)


class FencedTabularInline(FencedInlineMixin, BaseTabular):
    """A table of fenced rows on their parent's page."""


class FencedStackedInline(FencedInlineMixin, BaseStacked):
    """Fenced rows one below the other on their parent's page."""
