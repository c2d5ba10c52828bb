"""Fencing tokens for Django: a paused worker's late write is refused by the database.

    with lease("stock:42", ttl=30, wait=5) as held:
        stock = Stock.objects.get(sku="42")
        stock.quantity -= 3
        stock.save()

The model mixin is ``fencing.models.FencedModel``: an app's package must not import models.
"""

from __future__ import annotations

from fencing.exceptions import (
    AlreadyAppliedError,
    FencingError,
    InvalidTokenError,
    LeaseBackendError,
    LeaseError,
    LeaseHeldError,
    LeaseInsideTransactionError,
    LeaseLostError,
    LeaseRequiredError,
    OperationMismatchError,
    PartialEffectError,
    ResourceMismatchError,
    RowMissingError,
    StaleReadError,
    StaleWriteError,
    TokensExhaustedError,
    WriteRejectedError,
)
from fencing.leases import Lease
from fencing.leasing import lease
from fencing.maintenance import unfenced
from fencing.scope import current_lease

__version__ = "0.1.0"

__all__ = [
    "AlreadyAppliedError",
    "FencingError",
    "InvalidTokenError",
    "Lease",
    "LeaseBackendError",
    "LeaseError",
    "LeaseHeldError",
    "LeaseInsideTransactionError",
    "LeaseLostError",
    "LeaseRequiredError",
    "OperationMismatchError",
    "PartialEffectError",
    "ResourceMismatchError",
    "RowMissingError",
    "StaleReadError",
    "StaleWriteError",
    "TokensExhaustedError",
    "WriteRejectedError",
    "current_lease",
    "lease",
    "unfenced",
]
