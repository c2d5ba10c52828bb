"""A drill from its beginning to its end: prepared, played, judged, and removed again, however it ends."""

from __future__ import annotations

import os
import re
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, transaction

from fencing.backends import get_backend
from fencing.backends.memory import MemoryBackend
from fencing.drill.attempts import Version, attempts_of
from fencing.drill.checker import Findings, check
from fencing.drill.conductor import Conductor
from fencing.drill.histories import Histories
from fencing.drill.journal import events_of
from fencing.drill.plan import Plan
from fencing.drill.scratch import create_table, forget, having, own_rows, own_setting, remove, scratch_model
from fencing.drill.worker import cooperative
from fencing.exceptions import LeaseBackendError
from fencing.tables import table

Progress = Callable[[float, dict[str, int]], None]


class LeftBehindError(Exception):
    """Something of the drill could not be removed.

    Args:
        name: the drill's.
        error: what was in the way.
        before: what had ended the drill already, or None.
    """

    def __init__(self, name: str, error: Exception, before: BaseException | None) -> None:
        super().__init__(name, error, before)
        self.name = name
        self.error = error
        self.before = before

    def __str__(self) -> str:
        first = f"{self.before} Then something of it" if self.before else "Something of it"
        return f"Drill {self.name}: {first} could not be removed: {self.error}"


class InterruptedDrillError(Exception):
    """A signal ended the drill; everything has been removed. ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A drill that was played to its end: its plan, what was found, when it began, how often the store forgot."""

    plan: Plan
    findings: Findings
    begun: float
    forgets: int


def new_plan(*, using: str, database: str | None = None, **options: Any) -> Plan:
    """A plan with a name of its own.

    Args:
        using: alias of the lease backend that is tried.
        database: alias of the database for the rows; default: the one that owns the numbers.
        options: see ``Plan``.

    Raises:
        ImproperlyConfigured: several processes cannot share this backend, this database or these settings.
    """
    backend = get_backend(using)
    if isinstance(backend, MemoryBackend):
        raise ImproperlyConfigured(
            f"{using!r} keeps its leases in the memory of one process, so several processes cannot share them. "
            "Drill the backend of your workers: --using."
        )
    plan = plan_of(f"drill-{secrets.token_hex(4)}", using=using, database=database, **options)
    for alias in plan.names:
        if connections[alias].vendor == "sqlite" and connections[alias].is_in_memory_db():  # type: ignore[attr-defined]
            raise ImproperlyConfigured(f"Database {alias!r} is in the memory of one process; a drill needs several.")
    return plan


def plan_of(name: str, *, using: str, database: str | None = None, **options: Any) -> Plan:
    """The plan of a drill that has a name.

    Raises:
        ImproperlyConfigured: that is no name of a drill, or the settings come from no module.
    """
    if not re.fullmatch("drill-[0-9a-f]{8}", name):
        raise ImproperlyConfigured(f"{name!r} is no name of a drill; it looks like drill-0123abcd.")
    module = os.environ.get(ENVIRONMENT_VARIABLE)
    if not module:
        raise ImproperlyConfigured("The settings come from no module, so other processes cannot have them.")
    numbers = get_backend(using).config.database
    database = database or numbers
    return Plan(
        name=name,
        settings=module,
        fencing=own_setting(name, using),
        names={alias: connections[alias].settings_dict["NAME"] for alias in (database, numbers)},
        database=database,
        folder=str(Path(tempfile.gettempdir()) / f"fencing-{name}"),
        **{"cooperative": cooperative(), "workers": 8, "seconds": 30.0, **options},
    )


def play(plan: Plan, *, keep: bool = False, progress: Progress = lambda _seconds, _counts: None) -> Played:
    """Play a drill.

    Args:
        plan: what to do.
        keep: leave the table, the rows and the journals.
        progress: is told every now and then how far it is.

    Raises:
        InterruptedDrillError: a signal came.
        CrashError: a process failed.
        LeaseBackendError, DatabaseError: the store or the database did.
        LeftBehindError: something could not be removed, whatever came before.
    """
    with _signals() as caught, having(plan.fencing):
        # A database that is not migrated is told before there is anything to remove from it.
        for rows in own_rows(plan, get_backend(plan.name).config.database):
            rows.exists()
        try:
            played = _played(plan, progress, caught)
        except BaseException as error:
            if not keep:
                _remove(plan, before=error)
            raise
        if not keep:
            _remove(plan, before=None)
    return played


def _remove(plan: Plan, *, before: BaseException | None) -> None:
    try:
        remove(plan)
    except (DatabaseError, LeaseBackendError) as error:
        raise LeftBehindError(plan.name, error, before) from error


def _played(plan: Plan, progress: Progress, caught: list[int]) -> Played:
    backend = get_backend(plan.name)
    Path(plan.folder).mkdir(mode=0o700)
    create_table(plan, scratch_model(plan))
    conductor = Conductor(plan, lambda: forget(backend), lambda: bool(caught))
    conductor.play(progress)
    if caught:
        raise InterruptedDrillError(caught[0])
    final, history = _left(plan)
    events = [event for path in sorted(Path(plan.folder).glob("*.jsonl")) for event in events_of(path)]
    found = Histories(
        attempts=attempts_of(events), final=final, history=history, forgets=conductor.forgets, ttl=plan.ttl,
        recorded=recorded_outcomes(plan),
    )  # fmt: skip
    return Played(plan=plan, findings=check(found), begun=conductor.begun, forgets=len(conductor.forgets))


def recorded_outcomes(plan: Plan) -> tuple[str, ...]:
    """The outcomes that must be on record: on SQLite a refusal may wait for its turn until its process has ended."""
    if not plan.fenced:
        return ()
    return ("accepted",) if connections[plan.database].vendor == "sqlite" else ("accepted", "stale", "stale-read")


def _left(plan: Plan) -> tuple[list[Version], dict[int, tuple[str, int]]]:
    """The rows, and what is on record: locked, so that a statement of a killed process is over before."""
    history: dict[int, tuple[str, int]] = {}
    with transaction.atomic(using=plan.database):
        rows: list[Any] = list(scratch_model(plan)._base_manager.using(plan.database).select_for_update())
        recorded = table("FencedWrite")._base_manager.using(plan.database).filter(namespace=plan.name)
        for grant, outcome, number in recorded.values_list("grant_token", "outcome", "token"):
            if history.get(grant, ("",))[0] != "accepted":
                history[grant] = (outcome, number)
    final = [
        Version(
            row=row.pk, number=row.last_token, previous=row.previous, quantity=row.quantity, count=row.count, at=0.0
        )
        for row in rows
    ]
    return final, history


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask to end, so that nothing is left half done; where none can be caught, none are.

    Those that this process was started to ignore, as by ``nohup``, stay ignored.
    """
    caught: list[int] = []

    def catch(number: int, _frame: FrameType | None) -> None:
        caught.append(number)

    wanted = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        wanted = []
    wanted = [number for number in wanted if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, catch) for number in wanted}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
