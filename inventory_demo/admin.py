"""The stock in the admin, edited under leases like anywhere else, and the ledger to look at."""

from __future__ import annotations

from django.contrib import admin

from fencing.admin import FencedModelAdmin, ReadOnlyAdmin
from inventory_demo.models import Stock, StockDelta


@admin.register(Stock)
class StockAdmin(FencedModelAdmin):
    """Stocks, with the highest token that each has accepted."""

    list_display = ("sku", "quantity", "fence_token")
    list_editable = ("quantity",)
    readonly_fields = ("fence_token",)
    search_fields = ("sku",)


@admin.register(StockDelta)
class StockDeltaAdmin(ReadOnlyAdmin):
    """The ledger, the newest line first."""

    list_display = ("applied_at", "sku", "delta", "reason", "operation")
    search_fields = ("sku", "operation")
    ordering = ("-id",)
