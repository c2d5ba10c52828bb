"""``manage.py fencing history``: who had a resource when, what was written, and by whom it was overtaken."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from fencing import history
from fencing.backends import get_backend
from fencing.exceptions import FencingError
from fencing.expiry import end_expired
from fencing.historyreads import Asked, Found, Told, look_up
from fencing.management.output import as_json, write_table
from fencing.models import FencedWrite
from fencing.pruning import databases
from fencing.tokens import check_token

ABOUT = "who had a resource when, what was written, and by whom it was overtaken"
UNITS = {"m": "minutes", "h": "hours", "d": "days"}
DEFAULT_SINCE = "24h"
MOST = 10_000
# Times in tables.
SHORT = (" ", "milliseconds")


def add_arguments(parser: CommandParser) -> None:
    """The options of the sub-command."""
    parser.add_argument("named", nargs="?", metavar="RESOURCE", help="grants of this resource")
    parser.add_argument("--resource", metavar="NAME", help="the same")
    parser.add_argument("--token", type=_token, help="the grant with this token")
    parser.add_argument("--task-id", metavar="ID", help="grants to the task with this id")
    parser.add_argument(
        "--outcome", choices=["refused", *FencedWrite.Outcome.values],
        help="grants under which a write ended so; refused: in any way",
    )  # fmt: skip
    parser.add_argument(
        "--since", type=_since, metavar="24h|7d|TIME",
        help="from then on: minutes (m), hours (h) or days (d) ago, or a date or time in ISO 8601 "
        f"(default: {DEFAULT_SINCE}; at any time, if a resource, a token or a task is given)",
    )  # fmt: skip
    parser.add_argument("--limit", type=_limit, default=50, help="at most so many grants (default: %(default)s)")


def run(
    out: OutputWrapper,
    err: OutputWrapper,
    *,
    using: str,
    named: str | None,
    resource: str | None,
    token: int | None,
    task_id: str | None,
    outcome: str | None,
    since: datetime | None,
    limit: int,
    json: bool,
    **_options: Any,
) -> None:
    """Collect what the store still has, end what ended by itself, and print the newest grants that are asked for.

    Raises:
        CommandError: two resources are asked for.
    """
    if None not in (named, resource) and named != resource:
        raise CommandError(f"Two resources are asked for: {named!r} and --resource {resource!r}; give one of them.")
    resource = named if resource is None else resource
    backend = get_backend(using)
    if since is None and (resource, token, task_id) == (None, None, None):
        since = _since(DEFAULT_SINCE)
    try:
        history.collect(using)
    except (FencingError, DatabaseError) as error:
        err.write(f"The newest grants are missing here: {error}")
    asked = Asked(resource=resource, token=token, task_id=task_id, outcome=outcome, since=since, limit=limit)
    found = look_up(backend.config, asked)
    try:
        if end_expired(backend, [one.grant for one in found.grants], databases()):
            found = look_up(backend.config, asked)
    except (FencingError, DatabaseError) as error:
        err.write(f"Who still holds a lease is not known here: {error}")
    if json:
        told = {"using": using, "namespace": backend.config.namespace, "since": _moment(since)}
        grants = [_as_object(one) for one in found.grants]
        without = {"writes_without_grant": list(found.without_grant)}
        out.write(as_json({**told, "grants": grants, "truncated": found.truncated, **without}))
        return
    _write(out, found, asked)


def _write(out: OutputWrapper, found: Found, asked: Asked) -> None:
    if found.grants:
        titles = ["TOKEN", "RESOURCE", "HOLDER", "TASK", "GRANTED", "HELD FOR", "ENDED", "WRITES", "OVERTAKEN BY"]
        write_table(out, titles, [_row(one) for one in found.grants])
    else:
        when = "" if asked.since is None else f" since {_moment(asked.since, *SHORT)}"
        out.write(f"No such grant{when}.")
    refused = [write for one in found.grants for write in one.refused]
    if refused:
        titles = ["REFUSED", "TOKEN", "OF GRANT", "SEEN", "OBJECT", "ACTION", "OPERATION", "TIME"]
        out.write("")
        write_table(out, titles, [_refused_row(write) for write in refused])
    for one in found.grants:
        if one.revoked:
            out.write(f"Token {one.grant.token} was revoked: {one.revoked}")
    if found.without_grant:
        numbers = ", ".join(map(str, found.without_grant))
        out.write(f"Such writes are on record under tokens whose grants are not: {numbers}.")
    if found.truncated:
        out.write(f"There are more than {asked.limit}; --limit shows more, --since fewer.")


def _row(one: Told) -> list[Any]:
    grant, other = one.grant, one.overtaken_by
    return [
        grant.token,
        grant.resource,
        grant.holder,
        _task(grant),
        _moment(grant.granted_at, *SHORT) or "",
        "" if (held := _held(grant)) is None else f"{held:.3f} s",
        grant.ended or "open",
        ", ".join(f"{count} {FencedWrite.Outcome(kind).label}" for kind, count in sorted(one.outcomes.items())),
        "" if other is None else f"{other.token} {_task(other) or other.holder}",
    ]


def _refused_row(write: Any) -> list[Any]:
    return [
        str(write.get_outcome_display()),
        write.token,
        write.grant_token,
        "" if write.seen is None else write.seen,
        f"{write.model} {write.object_pk}".strip(),
        write.action,
        write.operation,
        _moment(write.at, *SHORT),
    ]


def _as_object(one: Told) -> dict[str, Any]:
    grant, other = one.grant, one.overtaken_by
    names = ("token", "resource", "holder", "task_id", "task_name")
    written = ("token", "outcome", "seen", "model", "object_pk", "action", "operation", "note")
    return {
        **{name: getattr(grant, name) for name in names},
        "ttl": grant.ttl,
        "granted_at": _moment(grant.granted_at),
        "ended_at": _moment(grant.ended_at),
        "held_seconds": _held(grant),
        "ended": grant.ended or "open",
        "outcomes": dict(sorted(one.outcomes.items())),
        "refused": [
            {**{name: getattr(write, name) for name in written}, "at": _moment(write.at)} for write in one.refused
        ],
        "revoked": one.revoked or None,
        "overtaken_by": None
        if other is None
        else {**{name: getattr(other, name) for name in names}, "granted_at": _moment(other.granted_at)},
    }


def _task(grant: Any) -> str:
    return f"{grant.task_name} {grant.task_id}".strip()


def _held(grant: Any) -> float | None:
    """Seconds from the grant to its end, where both have been told."""
    if grant.granted_at is None or grant.ended_at is None:
        return None
    return float((grant.ended_at - grant.granted_at).total_seconds())


def _moment(value: datetime | None, *form: str) -> str | None:
    """In the project's time zone and with its offset, also where the project's own times have none."""
    if value is None:
        return None
    aware = value if timezone.is_aware(value) else timezone.make_aware(value)
    return timezone.localtime(aware).isoformat(*form)


def _since(text: str) -> datetime:
    """A length of time before now, or a point in time; as aware as the project's times are."""
    try:
        if given := re.fullmatch(r"([0-9]+)([mhd])", text):
            return timezone.now() - timedelta(**{UNITS[given[2]]: int(given[1])})
        moment = parse_datetime(text)
        if moment is None and (day := parse_date(text)):
            moment = datetime(day.year, day.month, day.day)  # noqa: DTZ001  made aware below
        if moment is None:
            raise ValueError
        if timezone.is_naive(moment):
            moment = timezone.make_aware(moment)
        return moment if timezone.is_aware(timezone.now()) else timezone.make_naive(moment)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} is no time; give minutes, hours or days ago as 30m, 24h or 7d, or a time such as 2026-11-30T08:15."
        ) from None


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MOST:
        raise ArgumentTypeError(f"{text!r} is no number of grants; give an integer from 1 to {MOST}.")
    return int(text)


def _token(text: str) -> int:
    try:
        return check_token(int(text))
    except (ValueError, FencingError):
        raise ArgumentTypeError(f"{text!r} is no token; give a number as the admin and the log show it.") from None
