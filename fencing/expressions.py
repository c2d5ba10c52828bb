"""Which saves must compare with what was read: all whose values hold anything that was worked out from a read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Case, ExpressionWrapper, F, Field, Func, Value
from django.db.models.expressions import CombinedExpression

Values = Sequence[tuple["Field[Any, Any]", Any, Any]]


def compares(values: Values) -> bool:
    """Whether a write must compare with what was read: unless every value refers to a column and to nothing read.

    Values that the field itself makes at each save (``auto_now``) do not count.
    """
    chosen = [value for field, _model, value in values if not getattr(field, "auto_now", False)]
    return not chosen or not all(refers_to_column(value) for value in chosen)


def refers_to_column(value: Any) -> bool:
    """Whether an expression is made of columns, and of Python values only as what a column is changed by."""
    if isinstance(value, F):
        return True
    if isinstance(value, CombinedExpression):
        sides = (value.lhs, value.rhs)
        return any(map(refers_to_column, sides)) and all(isinstance(s, Value) or refers_to_column(s) for s in sides)
    if isinstance(value, (Func, ExpressionWrapper)) and not isinstance(value, Case):
        parts = value.get_source_expressions()
        return bool(parts) and all(map(refers_to_column, parts))
    return False
