"""What a timeline shows: grants of one resource, newest first, with some writes of each, by a handful of bounded queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connections
from django.db.models import QuerySet
from django.utils import timezone

from fencing.backends.base import LiveLease
from fencing.models import FencedResource, FencedWrite, Reign, TokenGrant

ROWS = 50
# A grant that is asked for by its token is shown with so many newer ones.
NEWER = 10
# Of each grant so many of the writes that were refused, and of the others.
WRITES = 10
# So many of the resource's newest writes tell of grants that nobody has collected.
RECENT = 200
REIGNS = 50

LANDED = "outcome IN ('accepted', 'unfenced')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which part of which timeline.

    Attributes:
        database: where the grants are.
        written: where the resource's rows are written.
        token, before, after: see ``links.timeline_url``.
    """

    namespace: str
    resource: str
    database: str
    written: tuple[str, ...]
    partition: int = 0
    token: int | None = None
    before: int | None = None
    after: int | None = None

    @property
    def is_newest(self) -> bool:
        """Whether the newest grants are wanted."""
        return self.token is None and self.before is None and self.after is None


@dataclass(slots=True, kw_only=True)
class Row:
    """One token of the timeline. Its grant may be unknown yet, and for a write with the fence lifted there is none."""

    token: int
    grant: TokenGrant | None = None
    live: LiveLease | None = None
    writes: list[FencedWrite] = field(default_factory=list)
    has_more: bool = False

    @property
    def begin(self) -> datetime | None:
        """When it was granted, or else when its first write was tried."""
        if self.granted_at is not None:
            return self.granted_at
        return min((write.at for write in self.writes), default=self.grant.ended_at if self.grant else None)

    @property
    def granted_at(self) -> datetime | None:
        """When it was granted, as far as anybody has told."""
        if self.grant is not None and self.grant.granted_at is not None:
            return self.grant.granted_at
        return self.live.granted_at if self.live else None


@dataclass(slots=True, kw_only=True)
class Timeline:
    """A page of a timeline, the newest token first, with what else the databases say of the resource."""

    rows: list[Row]
    reigns: list[Reign]
    stored: list[FencedResource]
    has_newer: bool
    has_older: bool
    now: datetime


def read(wanted: Wanted, live: LiveLease | None) -> Timeline:
    """Read a page of a timeline; ``live`` is the lease that the store has now."""
    grants, has_newer, has_older = _grants(wanted)
    rows = {grant.token: Row(token=grant.token, grant=grant) for grant in grants}
    others = _without_grant(wanted, live, lowest=min(rows) if has_older else 0)
    for token in others - rows.keys():
        rows[token] = Row(token=token)
    shown = sorted(rows.values(), key=lambda row: -row.token)
    has_older = has_older or len(shown) > ROWS
    shown = shown[:ROWS]
    _add_writes(wanted, shown)
    for row in shown:
        row.live = live if live is not None and live.token == row.token else None
    shown = [row for row in shown if row.grant or row.writes or row.live]
    return Timeline(
        rows=shown,
        reigns=_reigns(wanted, shown[0].token) if shown else [],
        stored=_stored(wanted),
        has_newer=has_newer,
        has_older=has_older,
        now=timezone.now(),
    )


def _grants(wanted: Wanted) -> tuple[list[TokenGrant], bool, bool]:
    """The page's grants, and whether there are newer and older ones."""
    of_resource = TokenGrant.objects.using(wanted.database).filter(namespace=wanted.namespace, resource=wanted.resource)
    if wanted.after is not None:
        newer, has_newer = _newer(of_resource, wanted.after, ROWS)
        return newer, has_newer, True
    newest_first = of_resource.order_by("-token")
    if wanted.before is not None:
        older = list(newest_first.filter(token__lt=wanted.before)[: ROWS + 1])
        return older[:ROWS], True, len(older) > ROWS
    if wanted.token is not None:
        newer, has_newer = _newer(of_resource, wanted.token, NEWER)
        older = list(newest_first.filter(token__lte=wanted.token)[: ROWS - len(newer) + 1])
        return (newer + older)[:ROWS], has_newer, len(newer) + len(older) > ROWS
    found = list(newest_first[: ROWS + 1])
    return found[:ROWS], False, len(found) > ROWS


def _newer(of_resource: QuerySet[TokenGrant], token: int, most: int) -> tuple[list[TokenGrant], bool]:
    """The grants that come next after ``token``, newest first, and whether there are more."""
    found = list(of_resource.filter(token__gt=token).order_by("token")[: most + 1])
    return found[:most][::-1], len(found) > most


def _without_grant(wanted: Wanted, live: LiveLease | None, *, lowest: int) -> set[int]:
    """Tokens above ``lowest`` that belong here though no grant may be on record: the one asked for, and the newest."""
    if wanted.token is not None:
        return {wanted.token}
    if not wanted.is_newest:
        return set()
    found = {live.token} if live else set()
    for alias in wanted.written:
        # By the index of resource and id; another namespace's writes are hardly ever among them.
        newest = FencedWrite.objects.using(alias).filter(resource=wanted.resource).order_by("-id")[:RECENT]
        found |= {token for namespace, token in newest.values_list("namespace", "grant_token")
                  if namespace == wanted.namespace}  # fmt: skip
    return {token for token in found if token > lowest}


def _add_writes(wanted: Wanted, rows: Sequence[Row]) -> None:
    """Give each row its writes, the oldest first."""
    found: dict[int, dict[bool, list[FencedWrite]]] = defaultdict(lambda: {True: [], False: []})
    for alias in wanted.written:
        for write in _writes(wanted, alias, [row.token for row in rows]):
            found[write.grant_token][write.outcome in ("accepted", "unfenced")].append(write)
    for row in rows:
        row.has_more = any(len(some) > WRITES for some in found[row.token].values())
        some_of_each = [write for some in found[row.token].values() for write in some[:WRITES]]
        row.writes = sorted(some_of_each, key=lambda write: (write.at, write.pk))


def _writes(wanted: Wanted, alias: str, tokens: Sequence[int]) -> Iterable[FencedWrite]:
    """Of each grant one write more than is shown, of both kinds: by two indexes, so a million writes cost no more.

    Django has no way to say this that all databases take: SQLite wants a LIMIT in a subquery of its own.
    """
    if not tokens:
        return []
    quote = connections[alias].ops.quote_name
    columns = ", ".join(quote(str(one.column)) for one in FencedWrite._meta.concrete_fields)
    parts = [
        f"SELECT * FROM (SELECT {columns} FROM {quote(FencedWrite._meta.db_table)} WHERE namespace = %s "
        f"AND grant_token = %s AND {condition} LIMIT {WRITES + 1}) part"
        for condition in (LANDED, f"NOT ({LANDED})")
        for _token in tokens
    ]
    values = [value for token in tokens for value in (wanted.namespace, token)]
    found = FencedWrite.objects.raw(" UNION ALL ".join(parts), values * 2, using=alias)
    # A token is of one resource, but for what other hands have written.
    return [write for write in found if write.resource == wanted.resource]


def _reigns(wanted: Wanted, highest: int) -> list[Reign]:
    """The newest reigns of the resource's partition that count below ``highest``, newest first."""
    of_partition = Reign.objects.using(wanted.database).filter(
        namespace=wanted.namespace, partition=wanted.partition, first_token__lte=highest
    )
    return list(of_partition.order_by("-first_token", "-id")[:REIGNS])


def _stored(wanted: Wanted) -> list[FencedResource]:
    """The resource's row in each database that has one."""
    found = (
        FencedResource.objects.using(alias).filter(namespace=wanted.namespace, name=wanted.resource).first()
        for alias in wanted.written
    )
    return [row for row in found if row is not None]
