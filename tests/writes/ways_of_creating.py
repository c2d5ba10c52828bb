"""Ways to create rows."""

from __future__ import annotations

from typing import Any
from uuid import uuid5

from asgiref.sync import async_to_sync
from django.core import serializers
from django.db import connections

from inventory_demo.models import Stock
from tests.shop.models import Parcel, Ticket
from tests.writes import subjects as on
from tests.writes.paths import CREATED, UNFENCED, Path, Scene


def target(s: Scene, *names: str) -> list[str] | None:
    """``unique_fields`` of an upsert: MariaDB takes none."""
    return None if s.alias == "maria" else [*names]


def load(s: Scene, rows: list[Any]) -> None:
    """What ``loaddata`` does with a file."""
    text = serializers.serialize("json", rows)
    for one in serializers.deserialize("json", text, using=s.alias):
        one.save(using=s.alias)


def raw_sql(s: Scene, statement: str) -> None:
    with connections[s.alias].cursor() as cursor:
        cursor.execute(statement, [s.key])


CREATIONS = (
    Path(
        how="`Model(…).save()`",
        subject=on.NEW_STOCK,
        write=lambda s: Stock(sku=s.key).save(using=s.alias),
        live=CREATED,
        none=CREATED,
    ),
    Path(
        how="the same where `fence_inserts` is set, with a preset UUID key",
        subject=on.NEW_PARCEL,
        write=lambda s: Parcel(id=uuid5(on.SPACE, s.key)).save(using=s.alias),
        live=CREATED,
    ),
    Path(
        how="`save(force_insert=True)` with a preset key",
        subject=on.NEW_TICKET,
        write=lambda s: Ticket(code=s.key).save(using=s.alias, force_insert=True),
        live=CREATED,
        none=CREATED,
    ),
    *(
        Path(
            how=f"`{how}`",
            subject=on.NEW_STOCK,
            write=write,
            methods=(f"QuerySet.{method}",),
            live=CREATED,
            none=CREATED,
        )
        for how, method, write in (
            ("create()", "create", lambda s: Stock.objects.using(s.alias).create(sku=s.key)),
            ("acreate()", "acreate", lambda s: async_to_sync(Stock.objects.using(s.alias).acreate)(sku=s.key)),
            ("get_or_create()", "get_or_create", lambda s: Stock.objects.using(s.alias).get_or_create(sku=s.key)),
            (
                "aget_or_create()",
                "aget_or_create",
                lambda s: async_to_sync(Stock.objects.using(s.alias).aget_or_create)(sku=s.key),
            ),
            (
                "update_or_create()",
                "update_or_create",
                lambda s: Stock.objects.using(s.alias).update_or_create(sku=s.key, defaults={"quantity": 7}),
            ),
            (
                "aupdate_or_create()",
                "aupdate_or_create",
                lambda s: async_to_sync(Stock.objects.using(s.alias).aupdate_or_create)(sku=s.key),
            ),
            ("bulk_create()", "bulk_create", lambda s: Stock.objects.using(s.alias).bulk_create([Stock(sku=s.key)])),
            (
                "abulk_create()",
                "abulk_create",
                lambda s: async_to_sync(Stock.objects.using(s.alias).abulk_create)([Stock(sku=s.key)]),
            ),
            (
                "bulk_create(ignore_conflicts=True)",
                "bulk_create",
                lambda s: Stock.objects.using(s.alias).bulk_create([Stock(sku=s.key)], ignore_conflicts=True),
            ),
        )
    ),
    Path(
        how="`bulk_create(update_conflicts=True)`",
        subject=on.NEW_STOCK,
        write=lambda s: Stock.objects.using(s.alias).bulk_create(
            [Stock(sku=s.key)], update_conflicts=True, unique_fields=target(s, "sku"), update_fields=["quantity"]
        ),
        live=CREATED,
    ),
    Path(
        how="`loaddata` of a row that is not there",
        subject=on.NEW_STOCK,
        write=lambda s: load(s, [Stock(sku=s.key, last_token=5)]),
        live=UNFENCED,
        superseded=UNFENCED,
        none=UNFENCED,
    ),
    Path(
        how="SQL of another program: `INSERT`",
        subject=on.NEW_STOCK,
        write=lambda s: raw_sql(s, "INSERT INTO inventory_demo_stock (sku, quantity, last_token) VALUES (%s, 1, 0)"),
        live=UNFENCED,
        superseded=UNFENCED,
        none=UNFENCED,
    ),
)
