"""What befalls a story from outside: how its leases end, and who else changes its row.

The worker does not tell of that, because it does not know, or sleeps. The lease store and the history do.
"""

from __future__ import annotations

from time import time
from typing import Any

from fencing import history
from fencing.models import FencedWrite, TokenGrant
from inventory_demo.actors import Grant, grants
from inventory_demo.lease_store import Live, namespace
from inventory_demo.story import Story


def note_ends(story: Story, before: Live | None, live: Live | None) -> None:
    """Note how the leases ended of which nobody has told that.

    Args:
        story: whose leases.
        before: the lease of the story's resource as it was looked at last.
        live: the same as it is now.
    """
    untold = [grant for grant in grants(story) if not grant.how and not (live and live.token == grant.token)]
    if untold:
        # The store tells of an end that somebody brought about, and of nothing else.
        history.collect()
    for grant in untold:
        _note_end(story, grant, before if before and before.token == grant.token else None)


def _note_end(story: Story, grant: Grant, before: Live | None) -> None:
    row = _rows(token=grant.token).first()
    told = {"task": grant.task, "token": grant.token}
    if row is not None and row.ended == TokenGrant.Ended.REVOKED and row.ended_at is not None:
        story.note("revoked", **told, at=row.ended_at.timestamp(), why=f"revoked, {_reason(story, grant.token)}")
    elif row is not None and row.ended == TokenGrant.Ended.RELEASED:
        pass  # by its holder, whose report is on its way
    elif before is not None and before.ends <= time():
        story.note("expired", **told, at=before.ends, why="it ran out")
    else:
        # Before its time, and nobody is on record who ended it.
        story.note("gone", **told, at=grant.end or time(), why="the store has it no more")


def _reason(story: Story, token: int) -> str:
    """Why it was revoked, and by whom."""
    revoked = FencedWrite._default_manager.filter(resource=story.resource, action="revoke", grant_token=token)
    return revoked.order_by("id").values_list("note", flat=True).first() or "and the history does not say why"


def note_writes(story: Story) -> None:
    """Note the writes of the story's row that none of its own tasks has made."""
    if not story.began:
        return
    known = [report["write"] for report in [*story.reports] if report["event"] == "changed"]
    landed = FencedWrite._default_manager.filter(resource=story.resource, outcome__in=("accepted", "unfenced"))
    others = [
        *landed.exclude(action="revoke").exclude(pk__in=known).exclude(grant_token__in=story.tokens).order_by("id")
    ]
    if not others:
        return
    # A write may be there before the report of its grant is, and the grant is in the store before the write.
    history.collect()
    own = {*_rows(task_id__in=story.tasks).values_list("token", flat=True)}
    for write in others:
        if write.grant_token not in own:
            row = story.row
            row = row if row[1:] == [write.token] else []
            what = f"sets the stock to {row[0]}" if row else f"writes the row ({write.action})"
            story.note(
                "changed", write=write.pk, token=write.token, what=what, row=row or None, at=write.at.timestamp()
            )


def _rows(**wanted: Any) -> Any:
    return TokenGrant._default_manager.filter(namespace=namespace(), **wanted)
