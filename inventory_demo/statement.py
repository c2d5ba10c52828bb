"""The statement that decided about a write, as the worker's connection sent it: the part that matters, and all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# A comparison of tokens: in PostgreSQL's statement the row's is `old.seen`, elsewhere it is the column.
COMPARISON = re.compile(r"""[\w."`]*(?:seen|last_token)["`]? < \d+""")
# Parts of a statement of several that say what is compared, and what is written.
DECISIVE = ("old", "fenced")
PART = re.compile(r"(?:WITH|,) (\w+) AS (?:MATERIALIZED )?\(")
CLAUSE = re.compile(r" (?=(?:SET|FROM|WHERE|AND|FOR|RETURNING) )")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement for people: pieces of text of its decisive part, each with whether it is the comparison; and all."""

    pieces: list[tuple[str, bool]]
    whole: str


def statement(sql: str) -> Statement:
    """Cut the decisive part out of a statement, and mark the comparison of tokens in it."""
    parts = dict(_parts(sql))
    chosen = [f"{name} AS (\n  {_in_lines(parts[name])}\n)" for name in DECISIVE if name in parts]
    text = f"WITH {', …, '.join(chosen)} …" if chosen else _in_lines(sql)
    return Statement(pieces=[*_pieces(text)], whole=sql)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    done = 0
    for found in COMPARISON.finditer(text):
        yield text[done : found.start()], False
        yield found[0], True
        done = found.end()
    yield text[done:], False


def _parts(sql: str) -> Iterator[tuple[str, str]]:
    """The parts of `WITH name AS (…), name AS (…) SELECT …` by their names; nothing for any other statement."""
    depths = _depths(sql)
    for head in PART.finditer(sql):
        inside = depths[head.end() - 1]
        end = next(at for at in range(head.end(), len(sql)) if depths[at] < inside)
        yield head[1], sql[head.end() : end]


def _in_lines(sql: str) -> str:
    """A statement with a line for each clause of its own; what stands in parentheses stays as it is."""
    depths = _depths(sql)
    return CLAUSE.sub(lambda found: "\n  " if depths[found.start()] == 0 else " ", sql)


def _depths(sql: str) -> list[int]:
    """For each character, in how many parentheses it is; those in quoted text do not count."""
    depth, quoted, found = 0, False, []
    for character in sql:
        quoted ^= character == "'"
        if not quoted:
            depth += (character == "(") - (character == ")")
        found.append(depth)
    return found
