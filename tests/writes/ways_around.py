"""Ways to write that depend on what is around: transactions, databases, files, and other programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core import management
from django.core.handlers.base import BaseHandler
from django.db import connections, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings

from fencing import unfenced
from inventory_demo.models import Stock
from tests.writes import subjects as on
from tests.writes.paths import NOTHING, UNFENCED, WRITTEN, Path, Scene
from tests.writes.ways_of_creating import load, raw_sql


def in_request(s: Scene) -> None:
    """A view of a project with ATOMIC_REQUESTS."""

    def view(_request: HttpRequest) -> HttpResponse:
        s.changed(quantity=7).save()
        return HttpResponse()

    view._non_atomic_requests = {}  # type: ignore[attr-defined]
    connection = connections[s.alias]
    before = connection.settings_dict["ATOMIC_REQUESTS"]
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        BaseHandler().make_view_atomic(view)(RequestFactory().get("/"))
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = before


def in_savepoint(s: Scene) -> None:
    with transaction.atomic(using=s.alias), transaction.atomic(using=s.alias):
        s.changed(quantity=7).save()


@contextmanager
def isolated(s: Scene, level: str) -> Iterator[None]:
    """A transaction of a stricter level; SQLite's are serializable anyway."""
    connection = connections[s.alias]
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    with transaction.atomic(using=s.alias):
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        yield


def strictly(level: str) -> Any:
    def write(s: Scene) -> None:
        with isolated(s, level):
            s.changed(quantity=7).save()

    return write


class ToAlias:
    """A router that sends everything to one database."""

    alias = "default"

    def db_for_read(self, model: Any, **_hints: Any) -> str:
        return self.alias

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **_hints: Any) -> bool:
        return True


def routed(s: Scene) -> None:
    router = type("Router", (ToAlias,), {"alias": s.alias})()
    with override_settings(DATABASE_ROUTERS=[router]):
        row = Stock.objects.get(pk=s.row.pk)
        row.quantity = 7
        row.save()


def lifted(s: Scene) -> None:
    with unfenced("the table of ways to write", database=s.alias):
        s.changed(quantity=7).save()


AROUND = (
    Path(how="in `transaction.atomic()`, in a savepoint", subject=on.STOCK, write=in_savepoint),
    Path(how="in a view with `ATOMIC_REQUESTS`", subject=on.STOCK, write=in_request),
    Path(how="under REPEATABLE READ", subject=on.STOCK, write=strictly("REPEATABLE READ")),
    Path(how="under SERIALIZABLE", subject=on.STOCK, write=strictly("SERIALIZABLE")),
    Path(
        how="`save(using=…)`, a second database",
        subject=on.STOCK,
        write=lambda s: s.changed(quantity=7).save(using=s.alias),
    ),
    Path(
        how="a router that sends the model to another database; the row is read now",
        subject=on.STOCK,
        write=routed,
        superseded="LeaseLostError",
    ),
    Path(
        how="anything inside `unfenced(…)`; it is on record as such",
        subject=on.STOCK,
        write=lifted,
        superseded=WRITTEN,
        none=WRITTEN,
    ),
    Path(
        how="`loaddata` of a row that is there",
        subject=on.STOCK,
        write=lambda s: load(s, [s.changed(quantity=7)]),
        live="StaleReadError",
        superseded="StaleReadError",
    ),
    Path(
        how="`dumpdata`",
        subject=on.STOCK,
        write=lambda s: management.call_command("dumpdata", "inventory_demo", database=s.alias, output="/dev/null"),
        live=NOTHING,
        superseded=NOTHING,
        none=NOTHING,
    ),
    *(
        Path(
            how=f"SQL of another program: {how}",
            subject=on.STOCK,
            write=lambda s, statement=statement: raw_sql(s, statement),  # type: ignore[misc]
            live="IntegrityError",
            superseded="IntegrityError",
            none="IntegrityError",
        )
        for how, statement in (
            ("`UPDATE`", "UPDATE inventory_demo_stock SET quantity = 1 WHERE sku = %s"),
            ("`UPDATE` to a lower `last_token`", "UPDATE inventory_demo_stock SET last_token = -1 WHERE sku = %s"),
            ("`DELETE`", "DELETE FROM inventory_demo_stock WHERE sku = %s"),
        )
    ),
    Path(
        how="SQL of another program that raises `last_token`",
        subject=on.STOCK,
        write=lambda s: raw_sql(
            s, "UPDATE inventory_demo_stock SET quantity = 1, last_token = last_token + 1 WHERE sku = %s"
        ),
        live=UNFENCED,
        superseded=UNFENCED,
        none=UNFENCED,
    ),
    Path(
        how="a plain `QuerySet`, past the model's managers",
        subject=on.STOCK,
        write=lambda s: QuerySet(Stock, using=s.alias).filter(sku=s.key).update(quantity=7),
        live="IntegrityError",
        superseded="IntegrityError",
        none="IntegrityError",
    ),
)
