"""The column that carries a row's last token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

from fencing.conf import MAX_TOKEN

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class TokenField(models.BigIntegerField):  # type: ignore[type-arg]  # Django 5.2 has no generic fields
    """A bigint with a CHECK from 0 to 2**53 - 1: a column's check goes where the column goes, children have none."""

    def db_check(self, connection: BaseDatabaseWrapper) -> str:
        """The condition of the column's CHECK."""
        column = connection.ops.quote_name(self.column or "")
        return f"{column} BETWEEN 0 AND {MAX_TOKEN}"
