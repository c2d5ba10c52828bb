"""Two sites for the same models: one whose admins take leases, and one whose admins know nothing of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.sites import all_sites
from django.http import HttpResponse
from django.urls import path

from fencing import lease
from fencing.admin import FencedModelAdmin, FencedStackedInline, FencedTabularInline, without_leases
from fencing.scope import held_leases
from tests.shop.models import (
    Badge,
    Bin,
    BinProxy,
    Crate,
    ExpressBin,
    Parcel,
    Press,
    Rack,
    RackNote,
    Slot,
    Ticket,
    Warehouse,
)

if TYPE_CHECKING:
    PlainAdmin = admin.ModelAdmin[Any]
    PlainTabular = admin.TabularInline[Any, Any]
else:
    PlainAdmin = admin.ModelAdmin
    PlainTabular = admin.TabularInline

fenced = admin.AdminSite("fenced")
plain = admin.AdminSite("plain")


class ShopElsewhere:
    """A router that keeps the shop on a database of its own."""

    alias = "lite"

    def db_for_read(self, model: Any, **_hints: Any) -> str | None:
        return self.alias if model._meta.app_label == "shop" else None

    db_for_write = db_for_read

    def allow_relation(self, *_args: Any, **_hints: Any) -> bool:
        return True


class SlotInline(FencedTabularInline):
    model = Slot
    extra = 1


class NoteInline(PlainTabular):
    model = RackNote
    extra = 1


class CrateInline(FencedStackedInline):
    model = Crate
    extra = 0


class PlainSlotInline(PlainTabular):
    model = Slot
    extra = 0


@admin.register(Rack, site=fenced)
class RackAdmin(FencedModelAdmin):
    list_display = ("code", "size", "open", "kind", "checked_at", "fence_token")
    list_editable = ("size", "open", "kind", "checked_at")
    ordering = ("-size", "pk")
    readonly_fields = ("last_token",)
    prepopulated_fields = {"title": ("code",)}
    save_as = True
    lease_wait = 0.05
    lease_limit = 5
    inlines = (SlotInline, NoteInline)
    actions = ("double", "count", "tell")

    @admin.action(description="Double")
    def double(self, request: Any, queryset: Any) -> None:
        for rack in queryset:
            rack.size *= 2
            rack.save()

    @admin.action(description="Count")
    @without_leases
    def count(self, request: Any, queryset: Any) -> None:
        self.message_user(request, f"{queryset.count()} racks, {len(held_leases())} leases", messages.SUCCESS)

    @admin.action(description="Tell")
    @without_leases
    def tell(self, request: Any, queryset: Any) -> HttpResponse:
        with self.leases_for(request, queryset):
            return HttpResponse(", ".join(held.resource for held in held_leases()))


@admin.register(Bin, BinProxy, ExpressBin, Press, Ticket, site=fenced)
class BinAdmin(FencedModelAdmin):
    lease_wait = 0.05


@admin.register(Parcel, site=fenced)
class ParcelAdmin(FencedModelAdmin):
    lease_wait = 0.05


@admin.register(Warehouse, site=fenced)
class WarehouseAdmin(FencedModelAdmin):
    """Not fenced itself, with rows that go with it."""

    lease_wait = 0.05
    inlines = (CrateInline,)


class PlainRackAdmin(PlainAdmin):
    list_display = ("code", "size")
    list_editable = ("size",)
    inlines = (PlainSlotInline,)


class PlainWarehouseAdmin(PlainAdmin):
    inlines = (CrateInline,)
    lease_wait = 0.05


class OwnViewAdmin(PlainAdmin):
    def get_urls(self) -> Any:
        return [path("write/", self.admin_site.admin_view(self.write)), *super().get_urls()]

    def write(self, request: Any) -> HttpResponse:
        with lease("somewhere else"):
            Bin.objects.get().save()
        return HttpResponse("unreached")


plain.register(Rack, PlainRackAdmin)
plain.register(Warehouse, PlainWarehouseAdmin)
plain.register(Bin, OwnViewAdmin)
plain.register(Badge)
plain.register(Parcel)

# Beside the token history, as in a project of one site.
everything = admin.AdminSite("admin")
everything._registry |= admin.site._registry | {Rack: RackAdmin(Rack, everything)}

# The checks of the project itself look at every site.
for site in (fenced, plain, everything):
    all_sites.discard(site)

urlpatterns = [path("fenced/", fenced.urls), path("plain/", plain.urls), path("admin/", everything.urls)]
