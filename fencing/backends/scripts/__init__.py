"""The Redis backend's scripts: each the parts that it needs, joined, and sent by its hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """The text of a script, and the name under which the server keeps it."""

    source: bytes
    sha: bytes


def _script(*names: str) -> Script:
    source = b"\n".join((files(__name__) / f"{name}.lua").read_bytes() for name in names)
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


ACQUIRE = _script("outbox", "reign", "lease", "grant", "acquire", "queue", "acquire_queued")
RENEW = _script("lease", "renew")
ADVANCE = _script("outbox", "reign", "lease", "advance")
RELEASE = _script("outbox", "lease", "release", "reign", "grant", "queue", "release_queued")
REVOKE = _script("outbox", "reign", "lease", "grant", "queue", "revoke")
GIVE_UP = _script("outbox", "reign", "lease", "grant", "queue", "give_up")
DRAW = _script("outbox", "reign", "draw")
INSTALL = _script("outbox", "reign", "install")
CLOSE = _script("outbox", "reign", "close")
