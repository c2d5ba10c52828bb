"""Who may see which of this app's pages that are no lists."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.contrib.auth import get_permission_codename
from django.db.models import Model
from django.http import HttpRequest

from fencing.models import FencedWrite, TokenGrant


def may_view(site: AdminSite, request: HttpRequest, model: type[Model]) -> bool:
    """Whether the user may see rows of ``model``: by this site's own rule for them, if it has one."""
    if site.is_registered(model):
        return site.get_model_admin(model).has_view_permission(request)
    return request.user.has_perm(f"{model._meta.app_label}.{get_permission_codename('view', model._meta)}")


def may_view_timelines(site: AdminSite, request: HttpRequest) -> bool:
    """Whether the user may see what a timeline shows: both grants and write attempts."""
    return may_view(site, request, TokenGrant) and may_view(site, request, FencedWrite)
