"""The one way for modules below ``models`` to reach the tables: through the app registry, when it is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import apps

if TYPE_CHECKING:
    from django.db.models import Model


def table(name: str) -> type[Model]:
    """The model ``fencing.<name>``: TokenRange, Reign, TokenGrant, FencedWrite, FencedResource or Operation."""
    return apps.get_model("fencing", name)


def sql_name(name: str) -> str:
    """The table behind ``fencing.<name>`` as SQL names it: without quotes, which differ between databases."""
    return table(name)._meta.db_table
