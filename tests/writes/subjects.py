"""What the ways to write are tried on: a fenced row of each shape, and what it needs around it."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

from inventory_demo.models import Stock
from tests.shop.models import (
    Archived,
    Badge,
    Bin,
    Card,
    ColdPallet,
    Crate,
    ExpressBin,
    Line,
    Paper,
    Parcel,
    Press,
    Shelf,
    Tag,
    Ticket,
    Warehouse,
)
from tests.writes.paths import Subject

SPACE = UUID(int=0)
NUMBERS = {"live": 1, "superseded": 2, "none": 3}


def named(_key: str, row: Any) -> str:
    """The resource of a row that exists."""
    return str(row.fence_name())


def house(alias: str) -> Any:
    """An unfenced parent."""
    return Warehouse.objects.using(alias).create(name="w")


def stock(alias: str, key: str) -> Stock:
    Stock.objects.using(alias).create(sku=key, quantity=10)
    return Stock.objects.using(alias).get(sku=key)


def in_house(model: Any, **values: Any) -> Any:
    """A function that makes a row with an unfenced parent."""

    def make(alias: str, key: str) -> Any:
        own = {"code": key} if model is Crate else {}
        made = model._base_manager.using(alias).create(warehouse=house(alias), **own, **values)
        return model._base_manager.using(alias).get(pk=made.pk)

    return make


def read(model: Any, **values: Any) -> Any:
    """A function that makes a row and reads it."""

    def make(alias: str, key: str) -> Any:
        own: dict[Any, dict[str, Any]] = {
            Ticket: {"code": key},
            Paper: {"key": key},
            Line: {"order": NUMBERS[key], "number": 1},
        }
        made = model._base_manager.using(alias).create(**own.get(model, {}), **values)
        return model._base_manager.using(alias).get(pk=made.pk)

    return make


def parcel(alias: str, key: str) -> Any:
    from fencing import lease

    with lease(f"shop.parcel:{uuid5(SPACE, key)}"):
        Parcel.objects.using(alias).create(id=uuid5(SPACE, key), weight=1)
    return Parcel.objects.using(alias).get(id=uuid5(SPACE, key))


def tag(alias: str, key: str) -> Any:
    made = Tag.objects.using(alias).create(shelf=Shelf._default_manager.using(alias).create(name=key))
    return Tag.objects.using(alias).get(pk=made.pk)


def hidden(alias: str, _key: str) -> Any:
    made = Archived.everything.using(alias).create(hidden=True)
    return Archived.everything.using(alias).get(pk=made.pk)


def pair_of_cards(alias: str, row: Any) -> Any:
    """A second card of the same house, whose lease is not needed while its place stays."""
    return row.warehouse


STOCK = Subject(make=stock, resource=named)
NEW_STOCK = Subject(make=lambda alias, key: None, resource=lambda key, row: f"stock:{key}")
NEW_PARCEL = Subject(make=lambda alias, key: None, resource=lambda key, row: f"shop.parcel:{uuid5(SPACE, key)}")
NEW_TICKET = Subject(make=lambda alias, key: None, resource=lambda key, row: f"shop.ticket:{key}")
BIN = Subject(make=in_house(Bin, quantity=1), resource=named, more=lambda alias, row: house(alias))
LOOSE_BIN = Subject(make=read(Bin, quantity=1), resource=named, more=lambda alias, row: house(alias))
BIN_WITH_BADGE = Subject(
    make=read(Bin, quantity=1), resource=named, more=lambda alias, row: Badge._default_manager.using(alias).create()
)
NEW_CRATE = Subject(
    make=lambda alias, key: None,
    resource=lambda key, house: f"crate:{house.pk}:1",
    more=lambda alias, row: house(alias),
)
CRATE = Subject(make=in_house(Crate), resource=named)
COLD = Subject(make=in_house(ColdPallet), resource=named)
CARD = Subject(make=in_house(Card), resource=named, more=pair_of_cards)
TAG = Subject(make=tag, resource=named)
EXPRESS = Subject(make=read(ExpressBin, courier="x"), resource=named)
PRESS = Subject(make=read(Press, serial="1"), resource=named)
PARCEL = Subject(make=parcel, resource=named)
LINE = Subject(make=read(Line), resource=named)
PAPER = Subject(make=read(Paper, pages=1), resource=named)
TICKET = Subject(make=read(Ticket), resource=named)
ARCHIVED = Subject(make=hidden, resource=named)
