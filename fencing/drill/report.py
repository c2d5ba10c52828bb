"""What a drill tells: counts, one verdict, and each violation as a timeline that can be played again by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fencing.drill.checker import Findings
from fencing.drill.histories import Violation
from fencing.drill.journal import Event

# Violations that are printed with their timelines; --json has all of them.
SHOWN = 3
BAR = 30
WAYS = {
    "save": "save()",
    "expression": "save() of F()",
    "update": "QuerySet.update()",
    "once": "lease.atomic()",
    "raw": "raw SQL",
}


def as_object(findings: Findings, begun: float) -> dict[str, Any]:
    """What ``--json`` prints. Times are seconds since the processes began to work."""
    return {
        "attempted": findings.attempted,
        "refused": findings.refused,
        "wrongly_accepted": findings.count("wrongly accepted"),
        "wrongly_refused": findings.count("wrongly refused"),
        "out_of_order": findings.count("out of order"),
        "lost_updates": findings.count("lost update"),
        "duplicates": findings.count("duplicate"),
        "longest_wait": round(findings.longest_wait, 3),
        "operations": findings.operations,
        "violations": [
            {"kind": one.kind, "text": one.text, "timeline": list(timeline(one, begun))} for one in findings.violations
        ],
    }


def rows(findings: Findings, seconds: float, forgets: int) -> list[list[Any]]:
    """The table: what, how many, and how many there may be."""
    counted = (
        ("wrongly accepted", "wrongly accepted"), ("wrongly refused", "rightful writes refused"),
        ("out of order", "tokens out of order"), ("lost update", "lost updates"), ("duplicate", "duplicates"),
        ("two holders", "two holders at a time"), ("odd", "refused, but not by the fence"),
        ("not on record", "told, but not on record"),
    )  # fmt: skip
    return [
        ["stale writes attempted", findings.attempted, "at least 1"],
        ["refused by the database", findings.refused, "all of them"],
        *([name, findings.count(kind), "0"] for kind, name in counted),
        ["longest wait for a lease", f"{findings.longest_wait:.2f} s", ""],
        ["times the store forgot", forgets, ""],
        ["writes that took effect", findings.accepted, ""],
        ["failed for other reasons", findings.failed, ""],
        ["writes per second", round(findings.accepted / seconds), ""],
    ]


def verdict(findings: Findings, *, fenced: bool) -> tuple[bool, str]:
    """Whether the drill was passed, and the line that says so."""
    if findings.violations:
        kinds = {one.kind: findings.count(one.kind) for one in findings.violations}
        counts = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        return False, f"FAILED{'' if fenced else ' without the fence, as it must'}: {counts}."
    if not findings.refused:
        return False, "INCONCLUSIVE: no stale write was attempted and refused. Give it more --seconds or --pause-rate."
    line = f"PASSED: {findings.refused} stale writes were attempted, the database refused every one of them."
    if missing := [name for kind, name in WAYS.items() if kind not in findings.ways]:
        line += f" None of them was by {' or '.join(missing)}; give it more --seconds to try that, too."
    return True, line


def stories(findings: Findings, begun: float, seed: int) -> Iterator[str]:
    """The first violations, line by line."""
    for one in findings.violations[:SHOWN]:
        yield f"{one.kind.capitalize()}: {one.text} (seed {seed})"
        for event in timeline(one, begun):
            told = " ".join(f"{name}={value}" for name, value in event.items() if name not in ("at", "worker", "what"))
            yield f"  {event['at']:8.3f} s  worker {event['worker']:<6} {event['what']:<10} {told}"
        yield ""
    if len(findings.violations) > SHOWN:
        yield f"{len(findings.violations) - SHOWN} more; --json shows all of them.\n"


def timeline(violation: Violation, begun: float) -> Iterator[dict[str, Any]]:
    """The steps of those that show a violation, in the order of time: who did what, with which numbers."""
    events = [(event, one) for one in violation.attempts for event in one.events]
    for event, one in sorted(events, key=lambda each: each[0]["at"]):
        yield {"at": round(event["at"] - begun, 4), "worker": one.worker, "what": event["what"], **_more(event)}


def progress(seconds: float, whole: float, counts: dict[str, int]) -> str:
    """A bar, and how many writes there were."""
    done = min(1.0, seconds / whole)
    filled = round(done * BAR)
    accepted, refused = counts.get("accepted", 0), counts.get("refused", 0)
    return (
        f"[{'#' * filled}{'.' * (BAR - filled)}] {seconds:4.0f}/{whole:.0f} s  {accepted} accepted, {refused} refused"
    )


def _more(event: Event) -> dict[str, Any]:
    known = ("at", "worker", "what", "until")
    return {name: value for name, value in event.items() if name not in known and value != ""}
