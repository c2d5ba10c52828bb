"""``python -m benchmarks.admin [--rows N] [--json] [--report] [--keep]``: the admin and a history of N grants and N writes.

Fills a database of its own, asks for every page of the history 15 times, compares one insert with that into empty
tables, and prunes the oldest tenth. Exit status 1 when a goal is missed, unless only a report is wanted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from benchmarks import admin_costs, admin_data, admin_pages
from benchmarks.measure import WIDTH, Row, no_chores, verdict
from benchmarks.stage import stage

TIMES = 15


def main() -> int:
    """Measure and print; the exit status says whether every goal is met."""
    given = arguments()
    name = f"benchmark_admin_{os.getpid()}"
    with stage(name, keep=given.keep), no_chores():
        admin_data.fill(given.rows)
        pages = list(admin_pages.ask_for_all(given.rows, times=TIMES))
        figures = [*admin_costs.inserts(given.rows, rounds=15, calls=100), *admin_costs.pruning()]
    report(pages, figures, given.rows, as_json=given.json)
    if given.keep:
        print(f"The database {name} was left.", file=sys.stderr)
    met = all(page.met for page in pages) and all(row.met for row in figures)
    return 0 if met or given.report else 1


def report(pages: Sequence[admin_pages.Page], figures: Sequence[Row], rows: int, *, as_json: bool) -> None:
    """Print what was found, and the slowest statement of each page that is too slow."""
    for page in pages:
        if not page.met:
            print(
                f"{page.name} took {page.ms:.0f} ms, of which {page.database_ms:.0f} ms for its statements. The longest of "
                f"them: {page.slowest}",
                file=sys.stderr,
            )
    if as_json:
        found = {page.name: {"ms": round(page.ms, 1), "queries": page.queries, "met": page.met} for page in pages}
        others = [{"name": r.name, "ratio": round(r.ratio, 4), "goal": r.goal, "met": r.met} for r in figures]
        print(json.dumps({"pages": found, "rows": rows, "goal_ms": admin_pages.GOAL, "figures": others}))
        return
    for page in pages:
        row = Row(f"page {page.name}, {page.queries} statements: ms", page.ms, admin_pages.GOAL)
        print(f"{row.name:{WIDTH}} {row.ratio:9.1f}  {verdict(row)}")
    for row in figures:
        print(f"{row.name:{WIDTH}} {row.ratio:9.3f}  {verdict(row)}")


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=rows_of, default=200_000, help="grants, and as many writes (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--report", action="store_true", help="exit status 0 also when a goal is missed")
    parser.add_argument("--keep", action="store_true", help="leave the database, and say its name")
    return parser.parse_args()


def rows_of(text: str) -> int:
    """How many rows; with fewer there would be no refused write to ask for."""
    if not text.isdecimal() or int(text) < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows; give at least 1000.")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
