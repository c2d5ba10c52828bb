"""What the history tells of grants: what was written under each, and who overtook it. Every question has its index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from fencing.conf import BackendConfig
from fencing.pruning import databases
from fencing.tables import table

# Word for word the condition of the partial index.
NOT_PLAIN = ~Q(outcome__in=("accepted", "unfenced"))
REFUSED = NOT_PLAIN & ~Q(outcome="duplicate")
# What a newer grant caused: it wrote or began first, or had the lease. A stale read or a missing row is no overtaking.
OVERTAKEN = frozenset({"stale", "lost"})
# How a grant ends in order, or has not ended as far as anybody told: whoever comes next overtakes nobody.
IN_ORDER = frozenset({"", "released"})
# Writes that are looked at to find the grants of some outcome, and refused ones that are told of.
MOST_LOOKED_AT = 100_000
MOST_REFUSED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is looked for; what is left out restricts nothing.

    Attributes:
        resource: the whole name of the resource.
        token: the grant's token.
        task_id: the whole id of the task that held the lease.
        outcome: grants under which a write ended so; "refused" stands for all refusals.
        since: grants from then on; with an outcome, writes from then on.
        limit: at most so many grants.
    """

    resource: str | None = None
    token: int | None = None
    task_id: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One grant with what became of it.

    Attributes:
        grant: its row.
        overtaken_by: the row of the next grant of its resource where ``was_overtaken``, or None.
        outcomes: how many of its writes had each outcome.
        refused: its newest writes that were refused.
        revoked: why it was revoked and by whom, or "".
    """

    grant: Any
    overtaken_by: Any
    outcomes: dict[str, int]
    refused: tuple[Any, ...]
    revoked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An answer.

    Attributes:
        grants: newest first.
        truncated: there are more.
        without_grant: with an outcome: the grants' tokens of such writes whose grant is not in the history.
    """

    grants: tuple[Told, ...]
    truncated: bool
    without_grant: tuple[int, ...]


def look_up(config: BackendConfig, asked: Asked) -> Found:
    """The grants that are asked for, from the database that owns the numbers, with the writes of all databases."""
    grants = table("TokenGrant")._base_manager.using(config.database).filter(namespace=config.namespace)
    matching, truncated = _searched(grants, asked), False
    tokens: list[int] = []
    if asked.outcome is not None:
        # Among the few of one task all are looked at, else what was written leads to the grants.
        among = [*matching.values_list("token", flat=True)] if asked.task_id is not None else None
        tokens, truncated = _tokens_with(config.namespace, asked, among)
        matching = matching.filter(token__in=tokens)
    elif asked.since is not None:
        matching = matching.filter(granted_at__gte=asked.since)
    rows = list(_newest_first(matching, asked)[: asked.limit + 1])
    truncated, rows = truncated or len(rows) > asked.limit, rows[: asked.limit]
    known = {row.token for row in rows}
    without = tuple(token for token in tokens if token not in known) if len(rows) < asked.limit else ()
    return Found(grants=tuple(_told(config.namespace, grants, rows)), truncated=truncated, without_grant=without)


def was_overtaken(ended: str, outcomes: Iterable[str]) -> bool:
    """Whether the grant after this one came while its holder still believed to hold the lease.

    Args:
        ended: how it ended.
        outcomes: what became of its writes.
    """
    return ended not in IN_ORDER or not OVERTAKEN.isdisjoint(outcomes)


def _searched(grants: QuerySet[Any], asked: Asked) -> QuerySet[Any]:
    searched = {"resource": asked.resource, "token": asked.token, "task_id": asked.task_id}
    return grants.filter(**{name: value for name, value in searched.items() if value is not None})


def _newest_first(grants: QuerySet[Any], asked: Asked) -> QuerySet[Any]:
    """In the order of an index that the search leaves over: of one resource the tokens', else the times'."""
    return grants.order_by(*(("-token",) if asked.resource is not None else ("-granted_at", "-pk")))


def _tokens_with(namespace: str, asked: Asked, among: Collection[int] | None) -> tuple[list[int], bool]:
    """The grants of the newest writes with the outcome, and whether there may be more."""
    newest: dict[int, datetime] = {}
    cut = False
    for writes in _writes(namespace):
        found: set[int] = set()
        looked_at = 0
        for token, at in _written(writes, asked, among)[:MOST_LOOKED_AT].iterator():
            looked_at += 1
            if len(found) == asked.limit and token not in found:
                cut = True
                break
            found.add(token)
            newest[token] = max(at, newest.get(token, at))
        cut = cut or looked_at == MOST_LOOKED_AT
    tokens = sorted(newest, key=lambda token: newest[token], reverse=True)
    return tokens[: asked.limit], cut or len(tokens) > asked.limit


def _written(writes: QuerySet[Any], asked: Asked, among: Collection[int] | None) -> QuerySet[Any, tuple[int, datetime]]:
    chosen = writes.filter(ended_as(asked.outcome or ""))
    if among is not None:
        chosen = chosen.filter(grant_token__in=among)
    if asked.resource is not None:
        chosen = chosen.filter(resource=asked.resource)
    if asked.token is not None:
        chosen = chosen.filter(grant_token=asked.token)
    if asked.since is not None:
        chosen = chosen.filter(at__gte=asked.since)
    order = ("-at", "-pk") if asked.resource is None else ("-pk",)
    return chosen.order_by(*order).values_list("grant_token", "at")


def ended_as(outcome: str) -> Q:
    """The condition of writes with this outcome, or of all refused ones."""
    if outcome == "refused":
        return REFUSED
    return Q(outcome=outcome) if outcome in ("accepted", "unfenced") else NOT_PLAIN & Q(outcome=outcome)


def _writes(namespace: str) -> Iterator[QuerySet[Any]]:
    """The namespace's writes in each database that has some."""
    for alias in databases():
        yield table("FencedWrite")._base_manager.using(alias).filter(namespace=namespace)


def _told(namespace: str, grants: QuerySet[Any], rows: Sequence[Any]) -> Iterator[Told]:
    """The grants with what belongs to them, by a few statements for all of them."""
    tokens = [row.token for row in rows]
    following = grants.filter(resource=OuterRef("resource"), token__gt=OuterRef("token")).order_by("token")
    next_of = dict(
        grants.filter(token__in=tokens)
        .annotate(next=Subquery(following.values("token")[:1]))
        .values_list("token", "next")
    )
    overtakers = {row.token: row for row in grants.filter(token__in=[one for one in next_of.values() if one])}
    outcomes: dict[int, dict[str, int]] = defaultdict(dict)
    refused: dict[int, list[Any]] = defaultdict(list)
    revoked: dict[int, str] = {}
    for writes in _writes(namespace):
        theirs = writes.filter(grant_token__in=tokens)
        counts = theirs.order_by().values_list("grant_token", "outcome").annotate(Count("pk"))
        for token, outcome, count in counts:
            outcomes[token][outcome] = outcomes[token].get(outcome, 0) + count
        for write in theirs.filter(REFUSED).order_by("-at", "-pk")[:MOST_REFUSED]:
            refused[write.grant_token].append(write)
        lifted = [token for token, counted in outcomes.items() if "unfenced" in counted]
        if lifted:
            revoked |= dict(theirs.filter(grant_token__in=lifted, action="revoke").values_list("grant_token", "note"))
    for row in rows:
        overtaker = overtakers.get(next_of.get(row.token) or 0)
        yield Told(
            grant=row, overtaken_by=overtaker if was_overtaken(row.ended, outcomes[row.token]) else None,
            outcomes=outcomes[row.token], refused=tuple(refused[row.token]), revoked=revoked.get(row.token, ""),
        )  # fmt: skip
