"""The stock in the admin: to look at. Changing a fenced row needs its lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from inventory_demo.models import Stock, StockDelta

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Any]
else:
    BaseAdmin = admin.ModelAdmin


class ReadOnlyAdmin(BaseAdmin):
    """Shows rows and changes none."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds one."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody changes one."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes one."""
        return False


@admin.register(Stock)
class StockAdmin(ReadOnlyAdmin):
    """Stocks, with the highest token that each has accepted."""

    list_display = ("sku", "quantity", "last_token")
    search_fields = ("sku",)


@admin.register(StockDelta)
class StockDeltaAdmin(ReadOnlyAdmin):
    """The ledger, the newest line first."""

    list_display = ("applied_at", "sku", "delta", "reason", "operation")
    search_fields = ("sku", "operation")
    ordering = ("-id",)
