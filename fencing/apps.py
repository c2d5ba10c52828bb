"""The app's configuration: checks, and what every new database connection needs."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.core.signals import request_finished
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class FencingConfig(AppConfig):
    """``INSTALLED_APPS = [..., "fencing"]``"""

    name = "fencing"
    verbose_name = _("Fencing")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, prepare connections for the guard, let deletes pass the fence, and namespaces have floors."""
        from fencing import cascades, checks, guards  # noqa: F401

        cascades.wrap_collector()
        if apps.is_installed("django.contrib.admin"):
            from fencing.admin import plainadmin

            plainadmin.wrap_admin()
        post_migrate.connect(_create_floors, sender=self)
        request_finished.connect(_write_refusals)


def _create_floors(*, using: str, apps: Any = apps, **_kwargs: Any) -> None:
    from fencing.floors import create_floors

    create_floors(using=using, apps=apps)


def _write_refusals(**_kwargs: Any) -> None:
    """Record what waited for the end of the request's transaction: its thread may end, or take no lease any more."""
    from fencing import history

    history.write_all_waiting()
