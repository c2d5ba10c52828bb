"""``manage.py fencing drill``: prove the installation by real stale writes."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError

from fencing.conf import DEFAULT_ALIAS
from fencing.drill.conductor import CrashError
from fencing.drill.plan import FAULTS, PAUSE_RATE, Plan
from fencing.drill.play import InterruptedDrillError, LeftBehindError, Played, new_plan, plan_of, play
from fencing.drill.report import as_object, progress, rows, stories, verdict
from fencing.drill.scratch import having, remove
from fencing.exceptions import FencingError
from fencing.management.output import as_json, write_table

# Each is a process with a connection to the database.
MOST_WORKERS = 200

ABOUT = "let real processes pause, die and wake up, and see the database refuse every stale write"


def add_arguments(parser: CommandParser) -> None:
    """The options of the sub-command."""
    parser.add_argument("--workers", type=_workers, default=8, help="processes at a time (default: %(default)s)")
    parser.add_argument("--seconds", type=_seconds, default=30.0, help="how long they work (default: 30)")
    parser.add_argument(
        "--pause-rate", type=_rate, default=PAUSE_RATE, metavar="RATE",
        help="how often in a second each process is stopped, on average (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--faults", type=_faults, default=FAULTS, metavar=",".join(FAULTS), help="which faults there are (default: all)"
    )
    parser.add_argument(
        "--database", help="alias of the database for the rows (default: the one that owns the numbers)"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides on the jobs and faults of each process")
    parser.add_argument(
        "--unfenced", action="store_true", help="the same work on a table without the fence: it must fail"
    )
    parser.add_argument("--keep", action="store_true", help="leave the table, the rows and the journals, and say where")
    parser.add_argument(
        "--remove", metavar="NAME", help="remove what a drill with --keep, or one that was killed, left"
    )


def run(
    out: OutputWrapper,
    err: OutputWrapper,
    *,
    using: str,
    database: str | None,
    json: bool,
    keep: bool,
    remove: str | None,
    unfenced: bool,
    workers: int,
    seconds: float,
    pause_rate: float,
    faults: tuple[str, ...],
    seed: int,
    **_options: Any,
) -> None:
    """Play a drill and print what was found.

    Raises:
        SystemExit: with status 1 where anything was wrong or nothing was shown, with 128 + its number after a signal.
        CommandError: the drill could not be played.
    """
    if remove is not None:
        _remove(out, remove, using, database, json=json)
        return
    plan = new_plan(
        using=using, database=database, workers=workers, seconds=seconds, pause_rate=pause_rate, faults=faults,
        seed=seed, fenced=not unfenced,
    )  # fmt: skip
    again = _removal(plan.name, using, database)
    shown = err.isatty()

    def show(passed: float, counts: dict[str, int]) -> None:
        if shown:
            err.write("\r" + progress(passed, plan.seconds, counts), ending="")
            err.flush()

    try:
        played = play(plan, keep=keep, progress=show)
    except InterruptedDrillError as interrupted:
        err.write("\nInterrupted. " + (_kept(plan, again) if keep else "Everything of the drill has been removed."))
        sys.exit(128 + interrupted.number)
    except CrashError as crash:
        raise CommandError(f"A process of the drill failed:\n{crash}{_kept_too(plan, again, keep)}") from crash
    except LeftBehindError as left:
        raise CommandError(f"{left}\n`{again}` tries it again.") from left
    except (FencingError, DatabaseError) as error:
        raise CommandError(f"The drill came to no end: {error}{_kept_too(plan, again, keep)}") from error
    if shown:
        err.write("\r\033[K", ending="")
    passed, line = verdict(played.findings, fenced=plan.fenced)
    if json:
        out.write(as_json(as_object(played.findings, played.begun)))
    else:
        _write(out, played, line)
    if keep:
        err.write(_kept(plan, again) + f" The table is {plan.table}, the journals are in {plan.folder}.")
    if not passed:
        sys.exit(1)


def _write(out: OutputWrapper, played: Played, line: str) -> None:
    write_table(out, ["WHAT", "COUNT", "MUST BE"], rows(played.findings, played.plan.seconds, played.forgets))
    out.write("")
    for text in stories(played.findings, played.begun, played.plan.seed):
        out.write(text)
    out.write(line)


def _kept_too(plan: Plan, again: str, keep: bool) -> str:
    return f"\n{_kept(plan, again)}" if keep else ""


def _kept(plan: Plan, again: str) -> str:
    return f"Everything was kept in namespace {plan.name}; `{again}` removes it."


def _removal(name: str, using: str, database: str | None) -> str:
    """The command that removes a drill: elsewhere it would find nothing, and say that nothing is left."""
    parts = ["fencing drill --remove", name]
    parts += ["--using", using] if using != DEFAULT_ALIAS else []
    parts += ["--database", database] if database is not None else []
    return " ".join(parts)


def _remove(out: OutputWrapper, name: str, using: str, database: str | None, *, json: bool) -> None:
    plan = plan_of(name, using=using, database=database)
    with having(plan.fencing):
        remove(plan)
    out.write(as_json({"removed": name}) if json else f"Nothing of {name} is left.")


def _workers(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 2 <= int(text) <= MOST_WORKERS:
        raise ArgumentTypeError(
            f"{text!r} is no number of processes; somebody has to overtake, so give 2 to {MOST_WORKERS}."
        )
    return int(text)


def _seconds(text: str) -> float:
    return _number(text, "number of seconds above 0")


def _rate(text: str) -> float:
    return _number(text, "rate; give a number above 0")


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{text!r} is no {what}.")
    return number


def _faults(text: str) -> tuple[str, ...]:
    named = tuple(filter(None, text.split(",")))
    if unknown := set(named) - set(FAULTS):
        raise ArgumentTypeError(f"{', '.join(sorted(unknown))}: unknown; there are {', '.join(FAULTS)}.")
    return named
