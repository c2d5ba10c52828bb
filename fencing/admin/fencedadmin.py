"""``FencedModelAdmin``: what is edited in the admin passes the fence like any other write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings
from django.contrib import admin
from django.db import transaction
from django.db.models import Model
from django.forms import BaseModelFormSet
from django.http import HttpRequest, HttpResponse
from django.template.loader import select_template
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from fencing.admin import fencedviews
from fencing.admin.cells import digits
from fencing.admin.fencededit import MAX_LEASES, TTL, WAIT, Edit, Resources, edit_of, is_fenced
from fencing.admin.fencedforms import (
    FencedObjectForm,
    FencedRowForm,
    form_class,
    formset_class,
)
from fencing.admin.formreads import INPUT, ReadField
from fencing.admin.links import TIMELINE, url_if_there
from fencing.admin.rights import may_view_timelines
from fencing.conf import backend_config
from fencing.naming import fence_of

if TYPE_CHECKING:
    MixinBase = admin.ModelAdmin[Any]
    BaseAdmin = admin.ModelAdmin[Any]
else:
    MixinBase = object
    BaseAdmin = admin.ModelAdmin

Action = TypeVar("Action", bound=Callable[..., Any])

TEMPLATE = "admin/fencing/fenced_change_form.html"


def without_leases(action: Action) -> Action:
    """Mark an action of a :class:`FencedModelAdmin` that writes no selected row, or takes leases by itself.

    No lease is held around it then, and the number of selected rows is not limited.
    """
    action.fence_leases = False  # type: ignore[attr-defined]
    return action


class FencedAdminMixin(MixinBase):
    """``FencedModelAdmin`` without its base, to be put before the ``ModelAdmin`` of an admin theme.

    Attributes:
        lease_ttl: seconds that a lease of the admin outlives a web process that was killed.
        lease_wait: seconds to wait for whoever holds it, before the form comes back with a message.
        lease_limit: the most rows that one request takes leases for.
    """

    fences_rows = True
    lease_ttl: float = TTL
    lease_wait: float = WAIT
    lease_limit: int = MAX_LEASES

    @admin.display(description=_("last token"), ordering="last_token", empty_value="-")
    def fence_token(self, row: Any) -> str:
        """The row's ``last_token`` digit by digit, for ``list_display`` and ``readonly_fields``."""
        return digits(row.last_token)

    def get_urls(self) -> Any:
        """Django's; with ``ATOMIC_REQUESTS`` a lease would end before the commit, so these open their own transaction."""
        patterns = super().get_urls()
        for pattern in patterns:
            for alias in settings.DATABASES:
                transaction.non_atomic_requests(alias)(pattern.callback)
        return patterns

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Save under the leases of the row and of its inlines' rows; a refused form comes back."""
        return fencedviews.change(self, super().changeform_view, request, object_id, form_url, extra_context)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Save the changed rows under their leases; a refused list comes back."""
        return fencedviews.change_list(self, super().changelist_view, request, extra_context)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> Any:
        """Delete under the leases of the row and of what goes with it."""
        return fencedviews.delete(self, super().delete_view, request, object_id, extra_context)

    def response_action(self, request: HttpRequest, queryset: Any, *where: Any, **named: Any) -> Any:
        """Act under the leases of the selected rows; Django 6.1 says where the action was offered."""
        return fencedviews.act(self, super().response_action, request, queryset, *where, *named.values())

    @contextmanager
    def leases_for(self, request: HttpRequest, rows: Any) -> Iterator[None]:
        """Hold the leases of rows, in an action that is marked :func:`without_leases` or in a view of your own.

        Args:
            request: the request; its user is named to whoever finds a lease held.
            rows: instances or a queryset, of at most ``lease_limit`` rows.

        Raises:
            LeaseHeldError, LeaseInsideTransactionError, LeaseBackendError: as :func:`fencing.lease`.
        """
        found = Resources(self.lease_limit)
        found.add_rows(rows)
        edit = Edit(request, self)
        with edit.leases:
            edit.hold(found)
            yield

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Django's, tied to the row that it was loaded from."""
        return form_class(FencedObjectForm, super().get_form(request, obj, change=change, **kwargs), edit_of(request))

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Any:
        """Django's, but never in the pass that only shows a refused form once more."""
        edit = edit_of(request)
        if edit is not None and edit.refusal is not None:
            raise edit.refusal
        return super().save_form(request, form, change)

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Django's, each tied to the row that it was loaded from."""
        form = super().get_changelist_form(request, **kwargs)
        return form_class(FencedRowForm, form, edit_of(request)) if is_fenced(self.model) else form

    def get_changelist_formset(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Django's, which carries what each row was loaded from."""
        if is_fenced(self.model):
            kwargs["formset"] = formset_class(kwargs.get("formset", BaseModelFormSet), edit_of(request))
        return super().get_changelist_formset(request, **kwargs)

    def get_formset_kwargs(self, request: HttpRequest, obj: Any, inline: Any, prefix: str) -> Any:
        """Django's; of a row that is gone the inline rows went with it, and what was typed makes new ones."""
        values = super().get_formset_kwargs(request, obj, inline, prefix)
        edit = edit_of(request)
        if edit is not None and edit.gone:
            _make_new(values["data"], prefix, inline)
        return values

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> Any:
        """Django's, with what the row was loaded from, and the way to its token history."""
        form, row = context["adminform"].form, context["original"]
        if row is not None and is_fenced(type(row)):
            if isinstance(form, FencedObjectForm) and self.has_change_permission(request, row):
                form.fields[INPUT] = ReadField(initial=form.fence_signed)
                context["adminform"].fieldsets.append((None, {"classes": ("hidden",), "fields": (INPUT,)}))
            context["fence_history"] = self._history_url(request, row)
        response = super().render_change_form(request, context, add, change, form_url, obj)
        return _with_tools(response) if context.get("fence_history") else response

    def _history_url(self, request: HttpRequest, row: Any) -> str:
        """The timeline of the row's resource; "" for who may not see it, and where this site has none."""
        if not may_view_timelines(self.admin_site, request):
            return ""
        namespace = backend_config(fence_of(type(row)).using).namespace
        try:
            resource = row.fence_name()
        except (TypeError, ValueError):  # a row that has no name is not fenced by one either
            return ""
        return url_if_there(self.admin_site.name, TIMELINE, namespace=namespace, resource=resource)


class FencedModelAdmin(FencedAdminMixin, BaseAdmin):
    """The admin of a fenced model: what is saved or deleted here passes the fence, and a stale form is refused.

    Every save, delete and action takes the leases of its rows for the time of the request. A form that was loaded before
    somebody else's write comes back with everything that was typed, and the present values beside.
    """


def _with_tools(response: HttpResponse) -> HttpResponse:
    """The same page with a button more: its template is extended, whichever it is."""
    if isinstance(response, TemplateResponse) and response.context_data is not None:
        names = response.template_name
        response.context_data["fence_parent"] = select_template([names] if isinstance(names, str) else list(names))  # type: ignore[arg-type]
        response.template_name = TEMPLATE
    return response


def _make_new(data: Any, prefix: str, inline: Any) -> None:
    """Let the rows of a formset that was posted be new ones."""
    data[f"{prefix}-INITIAL_FORMS"] = "0"
    keys = [
        field.name for field in inline.opts.concrete_fields if field.primary_key or _is_to(field, inline.parent_model)
    ]
    for name in list(data):
        if name.startswith(f"{prefix}-") and name.rpartition("-")[2] in keys:
            data[name] = ""


def _is_to(field: Any, parent: type[Model]) -> bool:
    return field.remote_field is not None and issubclass(parent, field.remote_field.model)
