"""The app of the tests' models."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """An app without migrations: the test runner creates its tables, guards included."""

    name = "tests.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
