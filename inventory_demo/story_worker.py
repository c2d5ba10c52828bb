"""Receivers in the worker that plays the story: they report what happens and hold one process between read and write.

Imported by that worker only. The task knows nothing of it and sleeps nowhere.
"""

from __future__ import annotations

import os
from typing import Any

from django.db.models.signals import post_save, pre_save

from fencing import Lease, current_lease
from fencing.signals import lease_granted, write_rejected
from inventory_demo.gate import Gate
from inventory_demo.models import PlainStock, Stock

# Seconds after which a process at the gate gives up.
PATIENCE = 30.0

gate = Gate(os.environ["STORY_RUN"])
# The lease under which this process is to wait: each process runs one task at a time.
_waiting: list[Lease] = []


def on_granted(sender: Any, lease: Lease, **named: Any) -> None:
    """Report the grant, and make the holder wait once it has read, if it is the one that shall sleep."""
    gate.report("granted", resource=lease.resource, token=lease.token)
    _waiting[:] = [lease] if gate.expects(lease.resource) else []


def before_save(sender: type[Stock | PlainStock], instance: Stock | PlainStock, **named: Any) -> None:
    """Report what is about to be written; between read and write is where the sleeper waits."""
    held = current_lease(f"stock:{instance.sku}")
    if held is None:
        return
    if held in _waiting:
        _waiting.clear()
        gate.report(
            "waits",
            resource=held.resource,
            token=held.token,
            before=_row(sender, instance.sku),
            value=instance.quantity,
        )
        gate.wait(PATIENCE)
    gate.report(
        "writes", resource=held.resource, token=held.token, before=_row(sender, instance.sku), value=instance.quantity
    )


def after_save(sender: type[Stock | PlainStock], instance: Stock | PlainStock, **named: Any) -> None:
    """Report an accepted write."""
    held = current_lease(f"stock:{instance.sku}")
    if held is not None:
        gate.report("wrote", resource=held.resource, token=held.token, after=_row(sender, instance.sku))


def on_rejected(sender: Any, lease: Lease, error: Any, **named: Any) -> None:
    """Report a refusal by the database."""
    sku = lease.resource.partition(":")[2]
    gate.report("refused", resource=lease.resource, token=error.token, seen=error.seen, after=_row(Stock, sku))


def _row(model: type[Stock | PlainStock], sku: str) -> list[int]:
    """The row as the database has it: its quantity, and its last token where it has one."""
    fields = ("quantity", "last_token") if model is Stock else ("quantity",)
    return [*model._default_manager.filter(sku=sku).values_list(*fields).get()]


lease_granted.connect(on_granted)
write_rejected.connect(on_rejected)
for model in (Stock, PlainStock):
    pre_save.connect(before_save, sender=model)
    post_save.connect(after_save, sender=model)
