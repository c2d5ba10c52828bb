"""The page of the leases that exist now, from their stores, each with what the database says of its holder."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _

from fencing.admin import links
from fencing.admin.live_cells import store_cells
from fencing.admin.live_stores import stores
from fencing.admin.named import ResourceField
from fencing.admin.readonly import ReadOnlyAdmin
from fencing.admin.revoking import revoke_view


class Asked(forms.Form):
    """What is looked for."""

    resource = ResourceField(required=False)


class HeldLeaseAdmin(ReadOnlyAdmin):
    """Live leases: who holds what, for how long, who waits, and whether the database still takes the holder's writes."""

    def get_urls(self) -> list[Any]:
        """The page that revokes a lease, too."""
        revoke = path("revoke/", self.admin_site.admin_view(self.revoke_view), name=links.REVOKE)
        return [revoke, *super().get_urls()]

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Whether the user may revoke a lease: a right of its own, beside that to see them."""
        return self.has_view_permission(request) and request.user.has_perm("fencing.revoke_heldlease")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The leases of all stores, or that of one resource."""
        self._check_view(request)
        form = Asked(request.GET)
        resource = form.cleaned_data["resource"] if form.is_valid() else ""
        found = list(stores(resource)) if form.is_valid() else []
        context = {
            **self.admin_site.each_context(request),
            "title": _("Live leases"),
            "opts": self.opts,
            "form": form,
            "resource": resource,
            "stores": [store_cells(self.admin_site, store) for store in found],
            "may_revoke": self.has_revoke_permission(request),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/fencing/live.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """A lease of Django's log: its grant in the history, which outlives it."""
        self._check_view(request)
        url = links.url_if_there(self.admin_site.name, "fencing_tokengrant_change", object_id)
        if not url:
            raise Http404
        return HttpResponseRedirect(url)

    # A revocation commits statement by statement, and must not be held up by a transaction of the whole request.
    @transaction.non_atomic_requests
    def revoke_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a reason, then revoke."""
        return revoke_view(self, request, may_revoke=self.has_revoke_permission(request))

    def _check_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied
