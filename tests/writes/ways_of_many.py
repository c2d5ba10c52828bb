"""Ways to write many rows, to delete them, and to reach them from other rows."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync
from django.db.models import F
from django.db.models.signals import pre_delete

from inventory_demo.models import Stock
from tests.shop.models import Bin, Card, Crate, Pallet, Shelf, Warehouse
from tests.writes import subjects as on
from tests.writes.paths import CREATED, NOTHING, UNFENCED, Path, Scene
from tests.writes.ways_of_creating import target


def every_name(*names: str) -> tuple[str, ...]:
    """The same method under its managers' names: a manager has what its queryset has."""
    return tuple(f"QuerySet.{name}" for name in names)


def bulk(s: Scene) -> Any:
    return s.mine(), [s.changed(quantity=7)], ["quantity"]


def upsert(s: Scene) -> None:
    Stock.objects.using(s.alias).bulk_create(
        [Stock(sku=s.key, quantity=7)],
        update_conflicts=True,
        unique_fields=target(s, "sku"),
        update_fields=["quantity"],
    )


def delete_with_receivers(s: Scene) -> None:
    def receive(**_named: Any) -> None:
        """Somebody listens, so Django goes by keys."""

    pre_delete.connect(receive, sender=Crate)
    try:
        s.row.warehouse.delete()
    finally:
        pre_delete.disconnect(receive, sender=Crate)


def turned_round(s: Scene) -> None:
    """The place of the one card changes; another that is not held keeps its own."""
    keys = [*Card.objects.using(s.alias).filter(warehouse=s.more).values_list("pk", flat=True)]
    s.more.set_card_order(keys, using=s.alias)


def boxes(s: Scene) -> Any:
    """The boxes of the house that is not theirs."""
    return s.more.bin_set


def own(s: Scene) -> Any:
    """The boxes of their own house."""
    return s.row.warehouse.bin_set


MANY = (
    Path(
        how="`QuerySet.update()`",
        subject=on.STOCK,
        write=lambda s: s.mine().update(quantity=7),
        methods=every_name("update"),
    ),
    Path(
        how='`update(quantity=F("quantity") - 1)`',
        subject=on.STOCK,
        write=lambda s: s.mine().update(quantity=F("quantity") - 1),
    ),
    Path(
        how="`aupdate()`",
        subject=on.STOCK,
        write=lambda s: async_to_sync(s.mine().aupdate)(quantity=7),
        methods=every_name("aupdate"),
    ),
    Path(
        how="`update()` that matches no row",
        subject=on.STOCK,
        write=lambda s: s.mine().filter(quantity=-1).update(quantity=7),
        live=NOTHING,
        superseded=NOTHING,
        none=NOTHING,
    ),
    Path(
        how="`bulk_update()`",
        subject=on.STOCK,
        write=lambda s: bulk(s)[0].bulk_update(*bulk(s)[1:]),
        methods=every_name("bulk_update"),
    ),
    Path(
        how="`abulk_update()`",
        subject=on.STOCK,
        write=lambda s: async_to_sync(bulk(s)[0].abulk_update)(*bulk(s)[1:]),
        methods=every_name("abulk_update"),
    ),
    Path(
        how="`update_or_create()` of a row that is there",
        subject=on.STOCK,
        write=lambda s: Stock.objects.using(s.alias).update_or_create(sku=s.key, defaults={"quantity": 7}),
        superseded="LeaseLostError",
    ),
    Path(
        how="`aupdate_or_create()` of a row that is there",
        subject=on.STOCK,
        write=lambda s: async_to_sync(Stock.objects.using(s.alias).aupdate_or_create)(
            sku=s.key, defaults={"quantity": 7}
        ),
        superseded="LeaseLostError",
    ),
    Path(
        how="`get_or_create()` of a row that is there",
        subject=on.STOCK,
        write=lambda s: Stock.objects.using(s.alias).get_or_create(sku=s.key),
        live=NOTHING,
        superseded=NOTHING,
        none=NOTHING,
    ),
    Path(how="`bulk_create(update_conflicts=True)` over a row", subject=on.STOCK, write=upsert),
    Path(
        how="`bulk_create(ignore_conflicts=True)` over a row",
        subject=on.STOCK,
        write=lambda s: Stock.objects.using(s.alias).bulk_create([Stock(sku=s.key)], ignore_conflicts=True),
        live=NOTHING,
        none=NOTHING,
    ),
)

DELETES = (
    Path(how="`delete()`", subject=on.STOCK, write=lambda s: s.row.delete(), methods=("Model.delete",)),
    Path(how="`delete(lease=…)`", subject=on.STOCK, write=lambda s: s.row.delete(lease=s.lease)),
    Path(
        how="`adelete()`",
        subject=on.STOCK,
        write=lambda s: async_to_sync(s.row.adelete)(),
        methods=("Model.adelete",),
    ),
    Path(how="`QuerySet.delete()`", subject=on.STOCK, write=lambda s: s.mine().delete(), methods=every_name("delete")),
    Path(
        how="`QuerySet.adelete()`",
        subject=on.STOCK,
        write=lambda s: async_to_sync(s.mine().adelete)(),
        methods=every_name("adelete"),
    ),
    Path(how="a composite key", subject=on.LINE, write=lambda s: s.row.delete()),
    Path(how="multi-table inheritance: `delete()` of the child", subject=on.EXPRESS, write=lambda s: s.row.delete()),
    Path(how="`delete(keep_parents=True)`", subject=on.EXPRESS, write=lambda s: s.row.delete(keep_parents=True)),
    Path(
        how="multi-table inheritance: the parent's queryset",
        subject=on.COLD,
        write=lambda s: Pallet.objects.using(s.alias).filter(pk=s.row.pk).delete(),
    ),
    Path(how="`on_delete=CASCADE` from an unfenced row", subject=on.CRATE, write=lambda s: s.row.warehouse.delete()),
    Path(
        how="the same, by a queryset of unfenced rows",
        subject=on.CRATE,
        write=lambda s: Warehouse.objects.using(s.alias).filter(pk=s.row.warehouse_id).delete(),
    ),
    Path(how="the same, with receivers of `pre_delete`", subject=on.CRATE, write=delete_with_receivers),
    Path(how="the same, of rows with multi-table children", subject=on.COLD, write=lambda s: s.row.warehouse.delete()),
    Path(
        how="`on_delete=DB_CASCADE` from an unfenced row",
        subject=on.TAG,
        write=lambda s: s.row.shelf.delete(),
        since=(6, 1),
    ),
    Path(
        how="the same, by a queryset of unfenced rows",
        subject=on.TAG,
        write=lambda s: Shelf._default_manager.using(s.alias).filter(pk=s.row.shelf_id).delete(),
        since=(6, 1),
    ),
    Path(how="`on_delete=SET_NULL` from an unfenced row", subject=on.BIN, write=lambda s: s.row.warehouse.delete()),
    Path(
        how="an unfenced row that nothing fenced points to",
        subject=on.BIN,
        write=lambda s: s.more.delete(),
        live=UNFENCED,
        superseded=UNFENCED,
        none=UNFENCED,
    ),
)


def manager(method: str, write: Any, **answers: Any) -> tuple[Path, Path]:
    """A method of a related manager, and its twin for coroutines."""
    subject = answers.pop("subject", on.BIN)
    how = answers.pop("how", f"`{method}()`")
    return (
        Path(
            how=how, subject=subject, write=lambda s: write(s, method), methods=(f"RelatedManager.{method}",), **answers
        ),
        Path(
            how=f"`a{method}()`",
            subject=subject,
            write=lambda s: write(s, f"a{method}"),
            methods=(f"RelatedManager.a{method}",),
            **answers,
        ),
    )


def call(related: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a related manager, a coroutine or not."""
    function = getattr(related, method)
    return (
        async_to_sync(function)(*args, **kwargs)
        if method.startswith("a") and method != "add"
        else function(*args, **kwargs)
    )


MADE = {"live": CREATED, "none": CREATED, "subject": on.NEW_CRATE}
JOINING: dict[str, Any] = {"live": UNFENCED, "superseded": UNFENCED, "none": UNFENCED}
STILL: dict[str, Any] = {"live": NOTHING, "superseded": NOTHING, "none": NOTHING}

RELATED = (
    *manager("add", lambda s, method: call(boxes(s), method, s.row)),
    Path(how="`add(bulk=False)`", subject=on.BIN, write=lambda s: boxes(s).add(s.row, bulk=False)),
    *manager("set", lambda s, method: call(boxes(s), method, [s.row])),
    *manager("remove", lambda s, method: call(own(s), method, s.row)),
    *manager("clear", lambda s, method: call(own(s), method)),
    *manager("create", lambda s, method: call(s.more.crate_set, method, code="1"), **MADE),
    *manager("get_or_create", lambda s, method: call(s.more.crate_set, method, code="1"), **MADE),
    *manager("update_or_create", lambda s, method: call(s.more.crate_set, method, code="1"), **MADE),
    Path(how="`parent.bin_set.update()`", subject=on.BIN, write=lambda s: own(s).update(quantity=7)),
    Path(how="`parent.bin_set.all().delete()`", subject=on.BIN, write=lambda s: own(s).all().delete()),
    Path(
        how="`set_card_order()`, of `order_with_respect_to`",
        subject=on.CARD,
        write=turned_round,
        methods=("Model.set_card_order",),
    ),
    *(
        Path(
            how=f"many to many: `{method}()`; the rows that join are no fenced ones",
            subject=on.BIN_WITH_BADGE,
            write=write,
            methods=(f"ManyRelatedManager.{method}", f"ManyRelatedManager.a{method}"),
            **(JOINING if changes else STILL),
        )
        for method, changes, write in (
            ("add", True, lambda s: (s.more.boxes.add(s.row), async_to_sync(s.more.boxes.aadd)(s.row))),
            ("set", True, lambda s: (s.more.boxes.set([s.row]), async_to_sync(s.more.boxes.aset)([s.row]))),
            ("remove", False, lambda s: (s.more.boxes.remove(s.row), async_to_sync(s.more.boxes.aremove)(s.row))),
            ("clear", False, lambda s: (s.more.boxes.clear(), async_to_sync(s.more.boxes.aclear)())),
        )
    ),
    Path(
        how="many to many: `delete()` of the fenced row, with the rows that join",
        subject=on.BIN_WITH_BADGE,
        write=lambda s: (Bin.objects.using(s.alias).get(pk=s.row.pk)).delete(),
    ),
)
