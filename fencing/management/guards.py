"""``manage.py fencing guards``: the guards of the databases beside those that the models declare."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError

from fencing.guard_audit import AMISS, WAIT, GuardState, audit, fenced_databases, repair
from fencing.management.output import as_json, write_table

logger = logging.getLogger("fencing")


def add_arguments(parser: CommandParser) -> None:
    """The options of the sub-command."""
    parser.add_argument(
        "--database", action="append", help="an alias; may be repeated (default: where fenced models migrate to)"
    )
    parser.add_argument(
        "--install", action="store_true", help="install what is missing or differs, drop what is surplus"
    )
    parser.add_argument(
        "--lock-timeout",
        type=float,
        default=WAIT,
        metavar="SECONDS",
        help="how long --install waits for each table (default: %(default)s)",
    )


def run(
    out: OutputWrapper,
    *,
    database: Sequence[str] | None,
    install: bool,
    lock_timeout: float,
    json: bool,
    **_options: Any,
) -> None:
    """Print how the guards stand; with ``install`` after repairing them.

    Raises:
        CommandError: one is amiss.
    """
    aliases = database or fenced_databases()
    found = _audited(aliases)
    tried: dict[GuardState, str] = {}
    if install:
        tried = {one: _repaired(one, lock_timeout) for one in found if one.repairable}
        found = _audited(aliases)
    amiss = [one for one in found if one.state in AMISS]
    if json:
        repaired = [asdict(one) for one, error in tried.items() if not error]
        failed = [asdict(one) | {"error": error} for one, error in tried.items() if error]
        guards = [asdict(one) for one in found]
        out.write(as_json({"guards": guards, "amiss": len(amiss), "repaired": repaired, "failed": failed}))
    else:
        _write(out, found, tried)
    if amiss:
        remedy = "See what is said of each." if install else "--install repairs them where it can."
        raise CommandError(f"{len(amiss)} of {len(found)} guards are amiss. {remedy}")


def _audited(aliases: Sequence[str]) -> list[GuardState]:
    return [one for alias in aliases for one in audit(alias)]


def _repaired(found: GuardState, wait: float) -> str:
    """Why it could not be repaired, or ""."""
    try:
        repair(found, wait)
    except DatabaseError as error:
        logger.warning("Guard %s of table %s was not repaired: %s", found.guard, found.table, error)
        return str(error).strip()
    return ""


def _write(out: OutputWrapper, found: Sequence[GuardState], tried: Mapping[GuardState, str]) -> None:
    if not found:
        out.write("No fenced model migrates to these databases.")
        return
    rows = [[one.database, one.table, one.guard, one.state, one.detail] for one in found]
    write_table(out, ["DATABASE", "TABLE", "GUARD", "STATE", ""], rows)
    for one, error in tried.items():
        what = f"{one.guard} of {one.table} in {one.database} (was: {one.state})"
        out.write(f"Not repaired: {what}: {error}" if error else f"Repaired: {what}.")
