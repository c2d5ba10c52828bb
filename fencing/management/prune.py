"""``manage.py fencing prune``: forget what the settings do not keep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from fencing import conf
from fencing.management.output import as_bar, as_json, write_table
from fencing.pruning import Progress, Pruned, prune

ABOUT = "forget what the settings do not keep"
# Seconds between two pictures of the bar.
EVERY = 0.1


def add_arguments(parser: CommandParser) -> None:
    """The options of the sub-command."""
    parser.add_argument("--dry-run", action="store_true", help="only count")


def run(out: OutputWrapper, err: OutputWrapper, *, dry_run: bool, json: bool, **_options: Any) -> None:
    """Forget, with a bar where somebody looks, and print what went.

    Raises:
        CommandError: no setting says how long anything is kept.
    """
    if conf.retention() is None and conf.operation_retention() is None:
        raise CommandError(
            'Everything is kept for ever: set FENCING["RETENTION"], FENCING["OPERATION_RETENTION"] or both.'
        )
    shown = err.isatty()
    done: list[Pruned] = []
    try:
        for one in prune(dry_run=dry_run, progress=_bar(err) if shown else None):
            done.append(one)
    finally:
        if shown:
            err.write("\r\033[K", ending="")
    if json:
        out.write(as_json({"dry_run": dry_run, "pruned": [asdict(one) for one in done]}))
        return
    rows = [[one.database, one.what, one.rows, "" if one.floor is None else one.floor] for one in done]
    write_table(out, ["DATABASE", "FORGOTTEN", "WOULD GO" if dry_run else "ROWS", "FLOOR"], rows)


def _bar(err: OutputWrapper) -> Callable[[Progress], None]:
    """A function that draws how far it has come, one table after the other in the same line."""
    begun: dict[tuple[str, str], float] = {}
    drawn = 0.0

    def draw(now: Progress) -> None:
        nonlocal drawn
        moment = time.monotonic()
        since = begun.setdefault((now.database, now.what), moment)
        if moment - drawn < EVERY and now.done < now.whole:
            return
        drawn = moment
        rate = f", {now.done / (moment - since):.0f} rows/s" if moment - since > 1 else ""
        bar = as_bar(now.done / now.whole)
        err.write(
            f"\r\033[K{bar} {now.what} of {now.database}: {now.done} of {now.whole}{rate}", style_func=str, ending=""
        )
        err.flush()

    return draw
