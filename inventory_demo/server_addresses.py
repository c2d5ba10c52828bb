"""Where the example project's PostgreSQL and Valkey are; `DATABASE_URL` and `REDIS_URL` win.

Only computed, nothing is started or touched, so that settings may ask.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from inventory_demo import postgres_server

CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """The addresses of one checkout's servers for one user of the machine.

    Attributes:
        checkout: The project folder.
        runtime: Folder for sockets and lock files: short and without spaces, whatever the checkout's path is.
        database_url: A foreign database that wins over the own PostgreSQL, or "".
        redis_url: A foreign Redis that wins over the own Valkey, or "". Its database number is ignored.
    """

    checkout: Path
    runtime: Path
    database_url: str = ""
    redis_url: str = ""

    @property
    def data(self) -> Path:
        """The git-ignored project folder for the servers' data."""
        return self.checkout / ".servers" / str(os.geteuid())

    @property
    def postgres_sockets(self) -> Path:
        """The folder of the own PostgreSQL's socket; Django and libpq take it as the host."""
        return self.runtime / "pg"

    @property
    def valkey_socket(self) -> Path:
        """The socket of the own Valkey."""
        return self.runtime / "valkey.sock"

    @cached_property
    def database(self) -> dict[str, Any]:
        """The entry for Django's `DATABASES`."""
        if self.database_url:
            import dj_database_url

            return dict(dj_database_url.parse(self.database_url))
        return {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": str(self.postgres_sockets),
            "PORT": str(postgres_server.PORT),
            "USER": postgres_server.USER,
            "NAME": postgres_server.DATABASE,
        }

    def redis(self, database: int) -> str:
        """Return the URL of a database of the store, as redis-py and django-redis read it."""
        return self._store_url(database, socket_scheme="unix", socket_parameter="db")

    def celery(self, database: int) -> str:
        """Return the URL of a database of the store, as Celery's broker and result backend read it."""
        return self._store_url(database, socket_scheme="redis+socket", socket_parameter="virtual_host")

    def _store_url(self, database: int, *, socket_scheme: str, socket_parameter: str) -> str:
        parts = urlsplit(self.redis_url or f"unix://{self.valkey_socket}")
        if parts.scheme != "unix":
            return urlunsplit(parts._replace(path=f"/{database}"))
        query = [(name, value) for name, value in parse_qsl(parts.query) if name != "db"]
        return f"{socket_scheme}://{parts.netloc}{parts.path}?{urlencode([*query, (socket_parameter, database)])}"


def addresses(checkout: Path = CHECKOUT) -> Addresses:
    """Compute the addresses without starting or touching anything.

    The run-time folder depends on the checkout and the user only, never on the environment, so that every command
    of a checkout finds the same servers; two checkouts, or two users, never share.
    """
    digest = hashlib.sha256(os.fsencode(checkout)).hexdigest()[:12]
    return Addresses(
        checkout=checkout,
        runtime=Path(f"/tmp/fencing-{os.geteuid()}-{digest}"),  # noqa: S108  (owner-checked before use)
        database_url=os.environ.get("DATABASE_URL", ""),
        redis_url=os.environ.get("REDIS_URL", ""),
    )
