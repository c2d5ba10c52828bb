"""The page of one resource: its grants and writes over time."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

RIGHTS = ("fencing.view_tokengrant", "fencing.view_fencedwrite")


def timeline_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """One resource's timeline, for who may see grants and writes."""
    if not request.user.has_perms(RIGHTS):
        raise PermissionDenied
    context = {
        **site.each_context(request),
        "title": _("Timeline of a resource"),
        "namespace": request.GET.get("namespace", ""),
        "resource": request.GET.get("resource", ""),
    }
    return TemplateResponse(request, "admin/fencing/timeline.html", context)
