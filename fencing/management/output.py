"""How the command prints: plain tables, or paragraphs, for people, one JSON object for programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import OutputWrapper

# As wide as a bar is.
BAR = 30


def as_json(found: Mapping[str, Any]) -> str:
    """``found`` as one line; times in ISO 8601."""
    return json.dumps(found, default=datetime.isoformat, ensure_ascii=False)


def write_table(out: OutputWrapper, titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows: as a table, or in a terminal that is too narrow for it as a paragraph for each."""
    text = as_table(titles, rows)
    if rows and out.isatty() and max(map(len, text.splitlines())) > shutil.get_terminal_size().columns:
        text = as_paragraphs(titles, rows)
    out.write(text)


def as_paragraphs(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows one below the other, a line for each cell, and an empty line between two."""
    width = max(map(len, titles))
    return "\n\n".join(
        "\n".join(f"{title:{width}}  {_printable(cell)}" for title, cell in zip(titles, row, strict=True))
        for row in rows
    )


def as_table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as their widest cell, numbers to the right."""
    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(len(line[at]) for line in [titles, *cells]) for at in range(len(titles))]
    numeric = [all(isinstance(row[at], int) for row in rows) for at in range(len(titles))]

    def line(texts: Sequence[str]) -> str:
        placed = zip(texts, widths, numeric, strict=True)
        return "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in placed).rstrip()

    return "\n".join(map(line, [titles, *cells]))


def as_time(seconds: float) -> str:
    """A length of time as people read it: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def as_bar(share: float) -> str:
    """How much of the whole is done, from 0 to 1."""
    filled = round(min(1.0, share) * BAR)
    return f"[{'#' * filled}{'.' * (BAR - filled)}]"


def _printable(cell: Any) -> str:
    text = str(cell) or "-"
    return "".join(each if each.isprintable() else "?" for each in text)
