"""The admin: what was granted, what was attempted and what the database decided; and the admin of your fenced models."""

from __future__ import annotations

from django.contrib import admin

from fencing.admin.fencedadmin import FencedAdminMixin, FencedModelAdmin, without_leases
from fencing.admin.fencedinlines import FencedInlineMixin, FencedStackedInline, FencedTabularInline
from fencing.admin.grants import TokenGrantAdmin, TokenGrantAdminMixin
from fencing.admin.live import HeldLeaseAdmin
from fencing.admin.readonly import ReadOnlyAdmin, ReadOnlyAdminMixin
from fencing.admin.tables import (
    FencedResourceAdmin,
    FencedResourceAdminMixin,
    OperationAdmin,
    OperationAdminMixin,
    ReignAdmin,
    ReignAdminMixin,
    TokenRangeAdmin,
    TokenRangeAdminMixin,
)
from fencing.admin.writes import FencedWriteAdmin, FencedWriteAdminMixin
from fencing.models import FencedResource, FencedWrite, HeldLease, Operation, Reign, TokenGrant, TokenRange

__all__ = [
    "FencedAdminMixin",
    "FencedInlineMixin",
    "FencedModelAdmin",
    "FencedResourceAdminMixin",
    "FencedStackedInline",
    "FencedTabularInline",
    "FencedWriteAdminMixin",
    "OperationAdminMixin",
    "ReadOnlyAdmin",
    "ReadOnlyAdminMixin",
    "ReignAdminMixin",
    "TokenGrantAdminMixin",
    "TokenRangeAdminMixin",
    "without_leases",
]

admin.site.register(TokenGrant, TokenGrantAdmin)
admin.site.register(FencedWrite, FencedWriteAdmin)
admin.site.register(HeldLease, HeldLeaseAdmin)
admin.site.register(FencedResource, FencedResourceAdmin)
admin.site.register(Operation, OperationAdmin)
admin.site.register(Reign, ReignAdmin)
admin.site.register(TokenRange, TokenRangeAdmin)
