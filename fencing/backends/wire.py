"""How leases and events are written in a Redis, and read back."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime

from django.conf import settings

from fencing.backends.base import GrantEvent, HolderInfo

_compact = json.JSONEncoder(separators=(",", ":")).encode


def request(*parts: bytes) -> bytes:
    """A command as it is sent; redis-py's own packing, which takes values of any type, costs twice as much."""
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def text(value: bytes | str | int) -> str:
    """A reply as text, whether the client decodes replies or not."""
    return value.decode() if isinstance(value, bytes) else str(value)


def milliseconds(ttl: float) -> int:
    """``ttl`` seconds in the store's unit, rounded up: a lease must not end before its holder thinks so."""
    return max(1, math.ceil(ttl * 1000))


def moment(unix_milliseconds: str) -> datetime:
    """The time of a grant, or of a line of the stream, as Django's own ``timezone.now()`` would tell it."""
    return datetime.fromtimestamp(int(unix_milliseconds) / 1000, UTC if settings.USE_TZ else None)


def packed(info: HolderInfo) -> str:
    """``info`` as the last part of a lease, where it may hold anything; empty when there is nothing to say."""
    if not (info.task_id or info.task_name):
        return ""
    return _compact([info.task_id, info.task_name])


def unpacked(info: str) -> HolderInfo:
    """What ``packed`` wrote."""
    if not info:
        return HolderInfo()
    task_id, task_name = json.loads(info)
    return HolderInfo(task_id=task_id, task_name=task_name)


def event(line: str, found: dict[str, str]) -> GrantEvent:
    """A line of the stream; its id begins with the server's time."""
    return GrantEvent(
        id=line,
        kind=found["kind"],  # type: ignore[arg-type]
        token=int(found["token"]),
        resource=found["resource"],
        holder=found["holder"],
        at=moment(line.partition("-")[0]),
        ttl=int(found.get("ttl", 0)) / 1000,
        info=unpacked(found.get("info", "")),
    )


def escaped(prefix: str) -> str:
    """``prefix`` for a pattern of SCAN, so that it stands for itself."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", prefix)
