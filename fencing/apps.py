"""The app's configuration: checks, and what every new database connection needs."""

from __future__ import annotations

from django.apps import AppConfig


class FencingConfig(AppConfig):
    """``INSTALLED_APPS = [..., "fencing"]``"""

    name = "fencing"
    verbose_name = "Fencing"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks and prepare SQLite connections for the guard."""
        from fencing import checks, guards  # noqa: F401
