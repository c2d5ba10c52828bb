"""The example project's app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class InventoryConfig(AppConfig):
    """The stock of a small shop."""

    name = "inventory_demo"
    verbose_name = _("Inventory")
    default_auto_field = "django.db.models.BigAutoField"
