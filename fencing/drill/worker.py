"""A process of a drill: its jobs one after the other, until the time is over.

Nothing of Django's is imported before its set-up: this module is what a fresh process imports first.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from fencing.drill.faults import CAN_STOP, Chances, Faults
from fencing.drill.journal import Journal
from fencing.drill.plan import Fault, Job, Plan

# Seconds between two words to the conductor about how many writes there were.
TELL_EVERY = 0.2


def run(plan: Plan, worker: str, path: str, line: Connection, first: tuple[Job, ...]) -> None:
    """Be a process.

    Args:
        plan: the drill.
        worker: this process's name.
        path: where its journal is to be.
        line: to the conductor.
        first: what to begin with.
    """
    _stand_alone()
    journal = Journal(path, worker)
    try:
        _set_up(plan)
        _work(plan, worker, journal, line, list(first))
    except Exception:
        journal.note("crashed", "", error=traceback.format_exc())
        sys.exit(1)


def _stand_alone() -> None:
    """Be told to end by the conductor only, and end with it however that one ends."""
    # In a group of its own: Ctrl+C in a terminal goes to all of the foreground's group, and the system itself ends a
    # stopped group whose parent is gone.
    with suppress(AttributeError, OSError):
        os.setpgid(0, 0)
    # What this process was forked from ends when nobody is left that could want another fork: it must not wait for one
    # that has stopped, which itself waits for that end.
    own = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if (alive := getattr(own, "_forkserver_alive_fd", None)) is not None:
        os.close(alive)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _set_up(plan: Plan) -> None:
    """Set Django up as the drill wants it, and keep everything from the user's log and receivers."""
    os.environ["DJANGO_SETTINGS_MODULE"] = plan.settings
    import django

    django.setup()
    from django.conf import settings
    from django.db import connections

    settings.FENCING = plan.fencing
    for alias, name in plan.names.items():
        connections[alias].settings_dict["NAME"] = name
    _disconnect()
    logger = logging.getLogger("fencing")
    logger.handlers, logger.propagate = [logging.NullHandler()], False


def _disconnect() -> None:
    """Receivers of the user's, of whatever model, hear nothing of a drill: they may write what is the user's."""
    from django.db.models import signals as of_models
    from django.dispatch import Signal

    from fencing import signals

    own = [one for one in vars(signals).values() if isinstance(one, Signal)]
    names = ("pre_init", "post_init", "pre_save", "post_save", "pre_delete", "post_delete")
    for one in [*own, *(getattr(of_models, name) for name in names)]:
        one.receivers = []
        one.sender_receivers_cache.clear()


def _work(plan: Plan, worker: str, journal: Journal, line: Connection, waiting: list[Job]) -> None:
    from fencing.drill.scratch import scratch_model
    from fencing.drill.work import Work

    work = Work(plan, scratch_model(plan), journal, Faults(plan, journal, line))
    draw = random.Random(f"{plan.seed} {worker}")  # noqa: S311
    line.send(("ready",))
    until = line.recv()
    if until is None:
        return
    begun = until - plan.seconds
    chances, tally, sleepers = Chances(plan, worker), _Tally(line), sleeping_kinds(plan, worker)
    for number in itertools.count():
        if time.monotonic() >= until:
            break
        while line.poll():
            if (job := line.recv()) is None:
                return
            waiting.append(job)
        name = f"{worker}-{number}"
        job = waiting.pop(0) if waiting else _job(draw, plan, begun, name, chances.next(), sleepers)
        tally.add(work.do(name, job, chances.dawdle()))
        if job.key and not job.again and draw.random() < 0.5:
            waiting.append(_again(job))


class _Tally:
    """Tells the conductor how many writes there were, every now and then."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._counts = {"accepted": 0, "refused": 0}
        self._told = 0.0

    def add(self, outcome: str) -> None:
        if outcome not in ("held", "failed"):
            self._counts["accepted" if outcome == "accepted" else "refused"] += 1
        if time.monotonic() - self._told > TELL_EVERY:
            self._told = time.monotonic()
            self._line.send(("counts", dict(self._counts)))


def sleeping_kinds(plan: Plan, worker: str) -> Iterator[str]:
    """The kinds of work in which a process is stopped: in turn, the next process one further on, so that none is left out."""
    order = sorted(plan.sleepers)
    random.Random(f"{plan.seed} sleepers").shuffle(order)  # noqa: S311
    first = int(worker.partition(".")[0]) % len(order)
    return itertools.cycle([*order[first:], *order[:first]])


def _job(draw: random.Random, plan: Plan, begun: float, name: str, fault: Fault | None, sleepers: Iterator[str]) -> Job:
    if fault is not None and fault.what == "pause":
        kind = next(sleepers)
    else:
        kinds = plan.kinds_at(time.monotonic() - begun)
        (kind,) = draw.choices(list(kinds), list(kinds.values()))
    group = draw.randrange(plan.resources)
    return Job(
        kind=kind,
        group=group + 1,
        row=group * plan.rows + draw.randrange(plan.rows) + 1,
        delta=draw.randint(-9, 9),
        key=name if kind == "once" else "",
        fault=fault,
    )


def _again(job: Job) -> Job:
    """The same operation, as a broker would deliver it a second time."""
    return Job(kind=job.kind, group=job.group, row=job.row, delta=job.delta, key=job.key, again=True)


def cooperative() -> bool:
    """Whether processes have to pause by sleeping here."""
    return not CAN_STOP
