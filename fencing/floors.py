"""What pruning leaves of the resources that it forgets: a floor for each namespace (I4).

A resource whose row is gone is refused every token at or below the floor. The statement that would create the row
decides that: it reads the floor and locks it, so whoever raises the floor waits for the rows that were created below
it. A floor that does not exist lets nothing in, because it may come into being while a statement is under way; it is
created with the tables, and here for a namespace that came later.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import conf
from fencing.databases import LOCK_TIMEOUTS, code_of, unless_there
from fencing.tables import sql_name, table

# Seconds to wait for transactions that have created resources' rows, and between two looks.
PATIENCE = 10.0
PAUSE = 0.05


class Seen(NamedTuple):
    """What a namespace's database knows of a resource: the token of its row, and the floor; None where there is none."""

    token: int | None
    floor: int | None

    @property
    def highest(self) -> int | None:
        """The token that refuses others: the row's, or the floor if pruning has left one."""
        return self.token if self.token is not None else self.floor or None


def look(connection: BaseDatabaseWrapper, namespace: str, name: str) -> Seen:
    """What is there now, by a fresh look."""
    # Under REPEATABLE READ a plain look inside MariaDB's transaction would be at what was there when it began.
    share = " LOCK IN SHARE MODE" if connection.vendor == "mysql" and connection.in_atomic_block else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT (SELECT last_token FROM {sql_name('FencedResource')} WHERE namespace = %s AND name = %s{share}), "
            f"(SELECT token FROM {sql_name('ResourceFloor')} WHERE namespace = %s{share})",
            [namespace, name, namespace],
        )
        token, floor = cursor.fetchone()
    return Seen(None if token is None else int(token), None if floor is None else int(floor))


def let_in(connection: BaseDatabaseWrapper, namespace: str, name: str, token: int) -> bool:
    """After a refusal: whether it was for want of a floor, which is there now; then the statement is to be sent again."""
    seen = look(connection, namespace, name)
    if seen.floor is None:
        create_floor(connection, namespace)
        return True
    return seen.token is None and seen.floor < token


def create_floor(connection: BaseDatabaseWrapper, namespace: str) -> None:
    """Let the namespace have a floor, at 0 if it had none."""
    with connection.cursor() as cursor:
        # MariaDB's INSERT would wait for whoever has locked the row that is there.
        cursor.execute(f"SELECT 1 FROM {sql_name('ResourceFloor')} WHERE namespace = %s", [namespace])
        if cursor.fetchone():
            return
        cursor.execute(
            f"INSERT INTO {sql_name('ResourceFloor')} (namespace, token) VALUES (%s, 0) "
            f"{unless_there(connection, 'namespace')}",
            [namespace],
        )


def create_floors(*, using: str, apps: Any, **_kwargs: Any) -> None:
    """After ``migrate`` and ``flush``: floors for the namespaces of ``FENCING``."""
    with suppress(LookupError, ImproperlyConfigured):
        apps.get_model("fencing", "ResourceFloor")
        if router.allow_migrate_model(using, table("ResourceFloor")):
            for alias in conf.backend_aliases():
                create_floor(connections[using], conf.backend_config(alias).namespace)


def raise_floor(using: str, namespace: str, token: int, *, patience: float = PATIENCE) -> None:
    """Refuse the namespace's tokens up to ``token`` to unknown resources from now on, in a transaction of its own.

    Waits for transactions that have created rows of resources, without standing in the way of others meanwhile.

    Args:
        using: alias of the database.
        patience: for how many seconds.

    Raises:
        OperationalError: such a transaction did not end in time.
    """
    floors = table("ResourceFloor")._base_manager.using(using).filter(namespace=namespace)
    deadline = time.monotonic() + patience
    features = connections[using].features
    create_floor(connections[using], namespace)
    while True:
        try:
            with transaction.atomic(using=using, durable=True):
                # Not on SQLite, which lets nobody wait for his turn to write who has read before.
                if features.has_select_for_update:
                    # Never in the queue: whoever comes after a waiter would wait, too.
                    list(floors.select_for_update(nowait=features.has_select_for_update_nowait))
                floors.filter(token__lt=token).update(token=token)
            return
        except OperationalError as error:
            if code_of(error) not in LOCK_TIMEOUTS or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE)
