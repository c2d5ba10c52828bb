"""The parts of the demo page: each is rendered, and sent again, by itself, and only when it has changed.

So what has the focus, what is just being clicked and what a screen reader reads stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import time
from typing import Any

from django.template.loader import render_to_string

from inventory_demo.lanes import AXIS, HEIGHT, LEFT, RIGHT, WIDTH, picture
from inventory_demo.outcome import decisive, numbers, rows, verdict
from inventory_demo.stage import Stage

# The two halves of the page: with a fence, and without.
SIDES = {"fenced": True, "plain": False}
# As texts: a template would put a locale's signs between digits.
VIEW = {"width": str(WIDTH), "height": str(HEIGHT), "left": str(LEFT), "right": str(RIGHT), "axis": str(AXIS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part as it is now: its HTML, and a digest of it that the browser sends back with the next poll."""

    name: str
    html: str
    digest: str


def parts(stage: Stage) -> list[Part]:
    """All parts as they are now."""
    stage.look()
    now, cues = time(), stage.cues()
    by_hand = [(step, cue) for step, cue in cues.items() if step not in ("run", "fencing", "reset")]
    found = [
        _part("verdict", "verdict", {"said": verdict(stage)}),
        _part("controls", "controls", {"cues": cues, "by_hand": by_hand, "fenced": stage.fenced}),
    ]
    for name, fenced in SIDES.items():
        story = stage.stories.get(fenced)
        live = stage.live if stage.fenced is fenced else None
        told = rows(story)
        shown: dict[str, Mapping[str, Any]] = {
            "numbers": {"numbers": numbers(story, live, now)},
            "lanes": {"picture": picture(story, now), **VIEW},
            "sql": {"decisive": decisive(story)},
            "log": {"rows": told[::-1]},
            "table": {"rows": told, "decisive": decisive(story)},
        }
        found += [
            _part(f"{part}-{name}", part, {"side": name, "told": story is not None, **context})
            for part, context in shown.items()
        ]
    return found


def changed(stage: Stage, seen: Mapping[str, str]) -> Iterator[Part]:
    """The parts that differ from what a browser has, by the digests that it sends."""
    return (part for part in parts(stage) if seen.get(part.name) != part.digest)


def _part(name: str, template: str, context: Mapping[str, Any]) -> Part:
    html = render_to_string(f"inventory_demo/parts/{template}.html", dict(context))
    return Part(name=name, html=html, digest=hashlib.sha256(html.encode()).hexdigest()[:16])
