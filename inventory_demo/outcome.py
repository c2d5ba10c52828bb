"""What the demo page says about a story: its verdict, its numbers, its rows, and the statement that decided."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from fencing.admin.links import timeline_url
from inventory_demo.actors import State, actor, is_active
from inventory_demo.lease_store import Live, namespace
from inventory_demo.stage import Stage
from inventory_demo.statement import Statement, statement
from inventory_demo.story import DELTAS, INITIAL, Event, Story


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A sentence, and of what kind it is: "", "good", "bad" or "trouble"; `more` is for whoever looks closer."""

    text: str
    kind: str = ""
    more: str = ""

    @property
    def sign(self) -> str:
        """What tells the kind without its colour."""
        return {"good": "✓", "bad": "✕", "trouble": "⚠"}.get(self.kind, "→")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The big numbers of one side, as texts; "" where there is none."""

    stock: str = ""
    token: str = ""
    refused: str = ""
    lease: str = ""
    outcome: Said | None = None
    timeline: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisive:
    """A statement, and what the database made of it."""

    statement: Statement
    answer: Said


def verdict(stage: Stage) -> Said:
    """The line above all: what is going on, or what came of it."""
    if stage.trouble:
        first, _newline, more = stage.trouble.partition("\n")
        return Said(
            text=_("Something went wrong: %(error)s Reset starts anew.") % {"error": first}, kind="trouble", more=more
        )
    if stage.doing == "ends":
        return Said(text=_("Stopping the worker …"))
    story = stage.story
    if story is None:
        return Said(text=_("Nothing has happened yet. Press “Run the story”."))
    if stage.doing == "starts":
        return Said(text=_("Starting a Celery worker with two processes …"))
    if is_active(story) or stage.doing:
        return Said(text=_now(story))
    own, other = outcome(story), stage.stories.get(not stage.fenced)
    beside = outcome(other) if other is not None and not is_active(other) else None
    if own is None or beside is None or own.kind == beside.kind:
        return own or Said(text=_now(story))
    names = {True: _("With the fence"), False: _("Without")}
    told = {stage.fenced: own, not stage.fenced: beside}
    return Said(text=" ".join(f"{names[fenced]}: {told[fenced].text}" for fenced in (True, False)))


def outcome(story: Story) -> Said | None:
    """Whether the stock is right; None while somebody is at work."""
    row = story.row
    if not row or is_active(story):
        return None
    if _is_changed_elsewhere(story, row):
        return Said(text=_("%(quantity)s in stock, which somebody else has changed as well.") % {"quantity": row[0]})
    found = [actor(story, letter) for letter in DELTAS]
    done = [one.letter for one in found if one.state is State.DONE or (one.state is State.KILLED and one.wrote)]
    sum_of = " ".join([str(INITIAL), *(f"- {-DELTAS[letter]}" for letter in done)])
    right, quantity = INITIAL + sum(DELTAS[letter] for letter in done), row[0]
    if quantity != right:
        text = _("Lost update: %(sum)s is %(right)s, and the stock says %(quantity)s.")
        return Said(text=text % {"sum": sum_of, "right": right, "quantity": quantity}, kind="bad")
    text = _("Right: %(sum)s = %(quantity)s.") if done else _("Nobody wrote: %(quantity)s in stock.")
    said = text % {"sum": sum_of, "quantity": quantity}
    refused = _refused(story)
    also = ngettext("%(count)s stale write refused.", "%(count)s stale writes refused.", refused) % {"count": refused}
    return Said(text=f"{said} {also}" if refused else said, kind="good" if done else "")


def _is_changed_elsewhere(story: Story, row: list[int]) -> bool:
    """Whether the fenced row has, or had at a write, a last token that no write of this story gave it."""
    if not story.fenced:
        return False
    wrote = [report for report in [*story.reports] if report["event"] == "wrote"]
    found = {row[1], *(story.asked(report)["before"][1] for report in wrote)}
    return not found <= {0, *(report["after"][1] for report in wrote)}


def numbers(story: Story | None, live: Live | None, now: float) -> Numbers:
    """The numbers that the database and the lease store have now."""
    row = story.row if story is not None else []
    if story is None or not row:
        return Numbers()
    lease = _("token %(token)s, %(seconds)s s left")
    return Numbers(
        stock=str(row[0]),
        token=str(row[1]) if story.fenced else "",
        refused=str(_refused(story)) if story.fenced else "",
        lease=lease % {"token": live.token, "seconds": f"{max(live.ends - now, 0):.1f}"} if live else "",
        outcome=outcome(story),
        timeline=timeline_url("admin", namespace(), story.resource),
    )


def decisive(story: Story | None) -> Decisive | None:
    """The last refused write, else the last accepted one."""
    answered = [one for one in [*story.reports] if one["event"] in ("wrote", "refused")] if story else []
    report = max(answered, key=lambda one: (one["event"] == "refused", one["at"]), default=None)
    if report is None or story is None:
        return None
    if report["event"] == "refused":
        answer = _("0 rows: the row has seen %(seen)s, and %(seen)s < %(token)s is false. Refused.")
        said = Said(text=answer % {"seen": report["seen"], "token": report["token"]}, kind="bad")
    elif story.fenced:
        before = story.asked(report)["before"][1]
        answer = _("1 row: %(seen)s < %(token)s. Accepted.")
        said = Said(text=answer % {"seen": before, "token": report["token"]}, kind="good")
    elif story.loses(report):
        said = Said(text=_("1 row: nothing asks for a token, so the sleeper's write is taken."), kind="bad")
    else:
        said = Said(text=_("1 row: nothing asks for a token."))
    return Decisive(statement=statement(report["sql"]), answer=said)


def rows(story: Story | None) -> list[dict[str, str]]:
    """The events of a story for the log and for the table, in the order of time, every number a text."""
    return [_cells(event) for event in sorted(story.events, key=lambda event: event.at)] if story else []


def _cells(event: Event) -> dict[str, str]:
    letter, _space, pid = event.process.partition(" ")
    return {
        "time": f"{event.at:.2f} s", "letter": letter, "pid": pid, "what": event.what, "token": str(event.token or ""),
        "before": _row(event.before), "after": _row(event.after), "verdict": event.verdict,
        "kind": "" if not event.verdict else "good" if event.verdict == "accepted" else "bad",
    }  # fmt: skip


def _row(row: list[int] | None) -> str:
    """A row's quantity, and its last token if it has one."""
    if row is None:
        return ""
    return (
        str(row[0])
        if len(row) == 1
        else _("%(quantity)s (last token %(token)s)") % {"quantity": row[0], "token": row[1]}
    )


def _now(story: Story) -> str:
    """The newest event as a sentence."""
    if not story.events:
        return _("A task was sent.")
    event = story.events[-1]
    verdict = f": {event.verdict}" if event.verdict else ""
    token = _(" (token %(token)s)") % {"token": event.token} if event.token else ""
    return f"{event.process[:1]} {event.what}{token}{verdict}.".strip()


def _refused(story: Story) -> int:
    return sum(report["event"] == "refused" for report in [*story.reports])
