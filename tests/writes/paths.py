"""``python -m tests.writes.paths`` writes docs/writing.md: every way to write, and what becomes of it.

The entries (``ways_of_one``, ``ways_of_many``) are what the documentation says, and what ``test_paths`` does for real,
on each database: under a live lease, under one that is superseded, and under none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

DOCUMENT = File(__file__).resolve().parent.parent.parent / "docs" / "writing.md"

WRITTEN = "written"
CREATED = "created"
NOTHING = "nothing to write"
UNFENCED = "written, not fenced"

STATES = ("live", "superseded", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is written to.

    Attributes:
        make: creates what there is before, on an alias, for a key that is fresh; returns the fenced instance, or None.
        resource: the resource of the row with that key, given what ``make`` returned.
        more: what else the writer needs, made after that.
    """

    make: Callable[[str, str], Any]
    resource: Callable[[str, Any], str]
    more: Callable[[str, Any], Any] = lambda alias, row: None


@dataclass(slots=True, kw_only=True)
class Scene:
    """One attempt: where, what was read before, and the lease of whoever tries.

    Attributes:
        alias: the database of the rows.
        key: what tells this attempt's rows from those of others.
        row: the fenced instance as the writer has read it, before somebody newer came.
        more: what else the subject has made.
        lease: the lease that the writer takes for its own, or None.
    """

    alias: str
    key: str
    row: Any
    more: Any
    lease: Any = None

    def mine(self) -> Any:
        """The row as a queryset of its model's default manager."""
        return type(self.row)._default_manager.using(self.alias).filter(pk=self.row.pk)

    def changed(self, **values: Any) -> Any:
        """The row as it was read, with values that differ."""
        for name, value in values.items():
            setattr(self.row, name, value)
        return self.row


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way to write.

    Attributes:
        how: what the documentation calls it, in Markdown.
        subject: what it writes to.
        write: does it.
        methods: the public methods that it shows, as ``QuerySet.update``.
        live, superseded, none: what becomes of it in the three states.
        since: the version of Django that has it.
    """

    how: str
    subject: Subject
    write: Callable[[Scene], Any]
    methods: tuple[str, ...] = ()
    live: str = WRITTEN
    superseded: str = "StaleWriteError"
    none: str = "LeaseRequiredError"
    since: tuple[int, int] = (5, 2)


INTRODUCTION = """\
# Every way to write

What becomes of a write to a fenced row that exists, by the way that it takes and by the lease that the writer holds:
the **live** one of the row's resource; one that is **superseded**, after whom a newer holder has written or begun; or
**none**. The answers are the same on PostgreSQL, MariaDB and SQLite.

Where an exception is named, nothing at all was written. *{written}*: the row carries the lease's number, and the
history has a line. *{created}*: the new row starts with the lease's number, without a lease at 0.
*{nothing}*: it neither writes nor raises. *{unfenced}*: it is not the fence's business. A superseded holder
that reads the row anew would need a higher number than it has; the lease store refuses it: `LeaseLostError`.

This page is generated from the tests, which do all of this on each database: `python -m tests.writes.paths` writes it,
and a test fails when it differs, or when Django has a public method to write that is not here.
"""

CONCLUSION = """\
## What no table can tell

- An expired lease is sent like a live one: with nobody newer, a late write is in order, and is accepted.
- Under a live lease, plain values of a row that has changed since it was read are a `StaleReadError`, whoever changed it.
- A row that is gone is a `RowMissingError`, and is never inserted again.
- A row that was created without a lease carries 0, and 0 is nobody's number: one that is created without a lease under a
  key that another had, after that one's delete or after a rollback, is not told from it. Create rows whose keys can come
  again under a lease; `fence_inserts` insists on it.
- What was read in one database and is saved to another is compared by the row's number and name there; rows that nobody has
  written under a lease carry 0 in both.
- An upsert, `bulk_create(update_conflicts=True)`, must not meet a row of another resource: its `unique_fields`, on MariaDB
  every unique key of the model, hold what the name of the resource is made of, else it is a `NotSupportedError`.
- `last_token` is set by the fence: `update(last_token=…)`, and `bulk_update()` of it, is a `TypeError`.
- Several objects of one row in one `bulk_update()` must have read it at the same time, else it is a `StaleReadError`; one
  of them is written, and each must be read again before it is saved.
- A row that is created while a delete that would take it along is under way is not deleted; the database's foreign key then
  refuses the delete, as an `IntegrityError`. With `DB_CASCADE` it is the database that deletes, and takes such a row along
  if its number is lower than the one that the delete has named to the guard. What `DB_SET_NULL` and `DB_SET_DEFAULT` would
  set is set before the delete, under the leases of its rows.
- A refusal leaves the caller's transaction as it was, and its line in the history outlives that transaction. Where Django
  opens an `atomic(savepoint=False)` of its own, in `set()`, and in `add()`, `remove()` and `clear()` with `bulk=False`, the
  caller's transaction takes no further query then: put those into a savepoint where the refusal is to be caught.
- Under REPEATABLE READ and SERIALIZABLE a statement that had to wait for a newer holder's is ended by the database itself:
  its serialization failure, an `OperationalError`, is no refusal and has no line in the history. Repeat the transaction.
- `TRUNCATE`, `DROP`, and triggers that an administrator disables are not fenced. PostgreSQL fires none where
  `session_replication_role` is `replica`: what logical replication brings, `pg_restore --disable-triggers`.
- SQLite's `REPLACE INTO` by another program is not fenced, nor another statement with `OR REPLACE`, as far as it replaces rows.
- PostgreSQL moves a row of a partitioned table to another partition by a `DELETE`, so an `UPDATE` that does is refused
  by the guard even under a live lease, as an `IntegrityError`, unless its transaction has named a number as for a `DELETE`.
- `COPY` adds rows as `INSERT` does, and changes none. `MERGE`, `REPLACE INTO` on MariaDB and upserts of another program are
  refused like its `UPDATE` and `DELETE`.
- MariaDB's own cascades (`ON DELETE …` of a foreign key) fire no triggers there. A delete by Django is judged all the
  same; one that another program sends to the parent's table is not.
"""


def cell(answer: str) -> str:
    """An answer as a table shows it: names of exceptions as code."""
    return f"`{answer}`" if answer.endswith("Error") else answer


def table(paths: Iterable[Path]) -> list[str]:
    """The lines of one table."""
    lines = ["| way to write | live lease | superseded | no lease |", "|---|---|---|---|"]
    for path in paths:
        since = "" if path.since == (5, 2) else f" (Django {'.'.join(map(str, path.since))})"
        answers = " | ".join(map(cell, (path.live, path.superseded, path.none)))
        lines.append(f"| {path.how}{since} | {answers} |")
    return lines


def document(families: dict[str, tuple[Path, ...]]) -> str:
    """The whole page."""
    lines = [INTRODUCTION.format(written=WRITTEN, created=CREATED, nothing=NOTHING, unfenced=UNFENCED)]
    for title, paths in families.items():
        lines += [f"## {title}", "", *table(paths), ""]
    return "\n".join([*lines, CONCLUSION])


def main() -> int:
    """Write the page."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from tests.writes.ways import FAMILIES

    DOCUMENT.write_text(document(FAMILIES))
    print(f"wrote {DOCUMENT.name}: {sum(map(len, FAMILIES.values()))} ways to write")
    return 0


if __name__ == "__main__":
    sys.exit(main())
