"""What a played story amounts to: lines and a table for people, one object for programs, and whether it went right."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from inventory_demo.story import EXPECTED, INITIAL, Event, Story

# Columns where the output is no terminal and has no width of its own.
PLAIN_WIDTH = 132


def console_for(file: Any) -> Console:
    """A console that is plain where `file` is no terminal."""
    console = Console(file=file, highlight=False)
    return console if console.is_terminal else Console(file=file, highlight=False, width=PLAIN_WIDTH)


def line(event: Event) -> str:
    """One event while the story runs."""
    token = f" under token {event.token}" if event.token else ""
    verdict = f": {event.verdict}" if event.verdict else ""
    return f"{event.at:6.2f} s  {event.process} {event.what}{token}{verdict}"


def table(story: Story, *, console: Console) -> Table:
    """All events of a story; what happened is what wraps where the terminal is narrow."""
    lines = Table(
        title=f"{'Fenced' if story.fenced else 'Unfenced'}: {INITIAL} - 3 - 5 = {story.final}",
        caption="Row: the quantity, and its last token in brackets" if story.fenced else None,
        box=box.ROUNDED if console.is_terminal else box.ASCII2,
    )
    for name in ("time", "process", "what", "token", "row before", "row after"):
        lines.add_column(name, justify="right" if name in ("time", "token") else "left", no_wrap=name != "what")
    for event in story.events:
        style = "" if event.verdict in ("", "accepted") else "bold green" if story.fenced else "bold red"
        what = f"{event.what}: {event.verdict}" if event.verdict else event.what
        lines.add_row(
            f"{event.at:.2f} s", event.process, what, str(event.token or ""), _row(event.before), _row(event.after),
            style=style,
        )  # fmt: skip
    return lines


def _row(row: list[int] | None) -> str:
    """A row's quantity, and its last token if it has one."""
    if row is None:
        return ""
    return str(row[0]) if len(row) == 1 else f"{row[0]} ({row[1]})"


def as_object(fenced: Story, unfenced: Story) -> dict[str, Any]:
    """The outcome, for `--json`."""
    return {
        "fenced": {
            "initial": INITIAL,
            "final": fenced.final,
            "expected": EXPECTED,
            "tokens": fenced.tokens,
            "refused": sum(write["outcome"] == "stale" for write in fenced.writes),
            "paused": asdict(fenced.pause) if fenced.pause else None,
            "writes": fenced.writes,
        },
        "unfenced": {"initial": INITIAL, "final": unfenced.final, "expected": EXPECTED},
    }


def problems(outcome: dict[str, Any]) -> list[str]:
    """What is not as it should be; nothing is good."""
    fenced, unfenced = outcome["fenced"], outcome["unfenced"]
    found = []
    if fenced["final"] != EXPECTED:
        found.append(f"the fenced stock is {fenced['final']}, not {EXPECTED}")
    if fenced["refused"] != 1:
        found.append(f"{fenced['refused']} stale writes were refused, not 1")
    if len(fenced["tokens"]) != 3 or fenced["tokens"] != sorted(set(fenced["tokens"])):
        found.append(f"the tokens {fenced['tokens']} are not three rising ones")
    else:
        first, second, third = fenced["tokens"]
        history = {(write["token"], write["outcome"]): write["seen"] for write in fenced["writes"]}
        if set(history) != {(second, "accepted"), (first, "stale"), (third, "accepted")}:
            found.append(f"the history says {fenced['writes']}")
        elif history[first, "stale"] != second:
            found.append(f"the stale write saw {history[first, 'stale']}, not {second}")
    if unfenced["final"] == EXPECTED:
        found.append("the unfenced stock is right: its sleeper overwrote nothing")
    return found
