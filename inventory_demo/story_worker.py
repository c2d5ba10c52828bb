"""Receivers in the worker that plays the story: they report what happens and hold one process between read and write.

Imported by that worker only. The task knows nothing of it and sleeps nowhere.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from threading import current_thread, main_thread
from typing import Any

from celery import Task, current_task
from celery.signals import task_postrun, task_prerun
from django.db import connection
from django.db.models.signals import post_save, pre_save

from fencing import Lease, current_lease
from fencing.signals import lease_granted, lease_lost, write_rejected
from inventory_demo.gate import Gate, GateError
from inventory_demo.models import PlainStock, Stock

# Seconds after which a process at the gate goes on by itself.
PATIENCE = 30.0
# Seconds that every other holder takes between its read and its write: for people who look on.
WORK = float(os.environ.get("STORY_WORK", "0"))

UPDATE = re.compile(r'UPDATE ["`]?inventory_demo_(?:plain)?stock["`]? ')

gate = Gate(os.environ["STORY_RUN"])
# The lease under which this process is to wait: each process runs one task at a time.
_waiting: list[Lease] = []
# The task of each lease by its token: the heartbeat, which may notice that one is lost, runs in a thread of no task.
_tasks: dict[int, str] = {}
# The newest UPDATE of a stock that this process has sent, with its values.
_sent: list[str] = []


def on_start(task_id: str, **named: Any) -> None:
    """Report that a task runs; it asks for the lease first of all."""
    gate.report("asks", task=task_id)


def on_end(task_id: str, state: str, **named: Any) -> None:
    """Report how a task ended: its lease is free by then. RETRY means that somebody else held the lease."""
    gate.report("ended", task=task_id, state=state)
    _tasks.clear()


def on_granted(sender: Any, lease: Lease, **named: Any) -> None:
    """Report the grant, and make the holder wait once it has read, if it is the one that shall sleep."""
    if keep_statement not in connection.execute_wrappers:
        connection.execute_wrappers.append(keep_statement)
    task: Task[Any, Any] = current_task
    _tasks[lease.token] = task.request.id or ""
    _report("granted", lease)
    _waiting[:] = [lease] if gate.expects(_tasks[lease.token]) else []


def on_lost(sender: Any, lease: Lease, reason: str, **named: Any) -> None:
    """Report that the holder has noticed that it is none any more: its work, or its heartbeat, of which that hears nothing."""
    _report("lost", lease, reason=reason, heartbeat=current_thread() is not main_thread())


def before_save(sender: type[Stock | PlainStock], instance: Stock | PlainStock, **named: Any) -> None:
    """Report what is about to be written; between read and write is where the sleeper waits."""
    held = current_lease(f"stock:{instance.sku}")
    if held is None:
        return
    if held in _waiting:
        _waiting.clear()
        _report("waits", held, before=_row(sender, instance.sku), value=instance.quantity)
        with suppress(GateError):
            gate.wait(PATIENCE)
    else:
        time.sleep(WORK)
    _report("writes", held, before=_row(sender, instance.sku), value=instance.quantity)


def after_save(sender: type[Stock | PlainStock], instance: Stock | PlainStock, **named: Any) -> None:
    """Report an accepted write."""
    held = current_lease(f"stock:{instance.sku}")
    if held is not None:
        _report("wrote", held, after=_row(sender, instance.sku), sql=_sent[-1])


def on_rejected(sender: Any, lease: Lease, error: Any, **named: Any) -> None:
    """Report a refusal by the database."""
    sku = lease.resource.partition(":")[2]
    _report("refused", lease, seen=error.seen, after=_row(Stock, sku), sql=_sent[-1])


def keep_statement(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """Send a statement, and keep it if it is the one that the database decides about."""
    answer = execute(sql, params, many, context)
    if UPDATE.search(sql):
        # PostgreSQL is sent values apart from the text; here they stand in it.
        filled = getattr(connection.ops, "compose_sql", None)
        _sent[:] = [
            filled(sql, params) if filled else connection.ops.last_executed_query(context["cursor"], sql, params)
        ]
    return answer


def _report(event: str, lease: Lease, **facts: Any) -> None:
    gate.report(event, task=_tasks.get(lease.token, ""), resource=lease.resource, token=lease.token, **facts)


def _row(model: type[Stock | PlainStock], sku: str) -> list[int]:
    """The row as the database has it: its quantity, and its last token where it has one."""
    fields = ("quantity", "last_token") if model is Stock else ("quantity",)
    return [*model._default_manager.filter(sku=sku).values_list(*fields).get()]


task_prerun.connect(on_start)
task_postrun.connect(on_end)
lease_granted.connect(on_granted)
lease_lost.connect(on_lost)
write_rejected.connect(on_rejected)
for model in (Stock, PlainStock):
    pre_save.connect(before_save, sender=model)
    post_save.connect(after_save, sender=model)
