"""Ways to write one row: ``save`` in all its forms, and rows of unusual shapes."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync
from django.db.models import F, Value
from django.db.models.signals import post_save
from django.forms import modelform_factory

from inventory_demo.models import Stock
from tests.shop.models import Archived, Bin, BinProxy, Machine
from tests.writes import subjects as on
from tests.writes.paths import NOTHING, UNFENCED, Path, Scene


def save_with(row: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(row, name, value)
    row.save()


def saves_again(s: Scene) -> None:
    def again(instance: Any, **_named: Any) -> None:
        if instance.quantity == 7:
            instance.quantity = 8
            instance.save()

    post_save.connect(again, sender=Stock)
    try:
        s.changed(quantity=7).save()
    finally:
        post_save.disconnect(again, sender=Stock)


def through_form(s: Scene) -> None:
    form = modelform_factory(Stock, fields=["quantity"])({"quantity": 7}, instance=s.row)
    assert form.is_valid(), form.errors
    form.save()


SAVES = (
    Path(
        how="`save()`",
        subject=on.STOCK,
        write=lambda s: s.changed(quantity=7).save(),
        methods=("Model.save", "Model.save_base"),
    ),
    Path(how="`save()` with equal values", subject=on.STOCK, write=lambda s: s.row.save()),
    Path(
        how='`save(update_fields=["quantity"])`',
        subject=on.STOCK,
        write=lambda s: s.changed(quantity=7).save(update_fields=["quantity"]),
    ),
    Path(
        how="`save(update_fields=[])`",
        subject=on.STOCK,
        write=lambda s: s.changed(quantity=7).save(update_fields=[]),
        live=NOTHING,
        superseded=NOTHING,
        none=NOTHING,
    ),
    Path(
        how="`save(force_update=True)`",
        subject=on.STOCK,
        write=lambda s: s.changed(quantity=7).save(force_update=True),
    ),
    Path(
        how="`save(force_insert=True)` of a row that is there",
        subject=on.STOCK,
        write=lambda s: s.changed(quantity=7).save(force_insert=True),
        live="IntegrityError",
        none="IntegrityError",
    ),
    Path(how="`save(lease=…)`", subject=on.STOCK, write=lambda s: s.changed(quantity=7).save(lease=s.lease)),
    Path(
        how="`asave()`",
        subject=on.STOCK,
        write=lambda s: async_to_sync(s.changed(quantity=7).asave)(),
        methods=("Model.asave",),
    ),
    Path(how="`save_base(raw=True)`", subject=on.STOCK, write=lambda s: s.changed(quantity=7).save_base(raw=True)),
    Path(
        how='`F("quantity") - 1`',
        subject=on.STOCK,
        write=lambda s: s.changed(quantity=F("quantity") - 1).save(update_fields=["quantity"]),
    ),
    Path(
        how="`Value(…)` and other expressions",
        subject=on.STOCK,
        write=lambda s: s.changed(quantity=Value(7)).save(update_fields=["quantity"]),
    ),
    Path(
        how='fields deferred by `only("quantity")`, read now',
        subject=on.STOCK,
        write=lambda s: save_with(s.mine().only("quantity").get(), quantity=7),
        superseded="LeaseLostError",
    ),
    Path(
        how="an instance that `raw()` read in part",
        subject=on.STOCK,
        write=lambda s: (
            Stock.objects.using(s.alias)
            .raw("SELECT id, quantity FROM inventory_demo_stock WHERE sku = %s", [s.key])[0]
            .save(update_fields=["quantity"])
        ),
        live="StaleReadError",
        superseded="StaleReadError",
    ),
    Path(
        how="`Model(pk=…, …).save()`, of a row that was not read",
        subject=on.STOCK,
        write=lambda s: Stock(pk=s.row.pk, sku=s.key, quantity=7).save(using=s.alias),
        live="StaleReadError",
        superseded="StaleReadError",
    ),
    Path(
        how='`Model(pk=…, quantity=F(…)).save(update_fields=["quantity"])`',
        subject=on.STOCK,
        write=lambda s: Stock(pk=s.row.pk, sku=s.key, quantity=F("quantity") + 1).save(
            using=s.alias, update_fields=["quantity"]
        ),
    ),
    Path(how="`ModelForm.save()`", subject=on.STOCK, write=through_form),
    Path(how="a `post_save` receiver that saves again", subject=on.STOCK, write=saves_again),
)

SHAPES = (
    Path(how="a UUID key", subject=on.PARCEL, write=lambda s: s.changed(weight=7).save()),
    Path(how="a composite key", subject=on.LINE, write=lambda s: s.changed(quantity=7).save()),
    Path(
        how="a key that the database makes (`db_default`)",
        subject=on.TICKET,
        write=lambda s: s.changed(note="n").save(),
    ),
    Path(how="generated fields, and `select_on_save`", subject=on.PAPER, write=lambda s: s.changed(pages=7).save()),
    Path(
        how="multi-table inheritance: a field of the parent, by the child",
        subject=on.EXPRESS,
        write=lambda s: s.changed(label="l").save(),
    ),
    Path(
        how="multi-table inheritance: a field of the child alone",
        subject=on.EXPRESS,
        write=lambda s: s.changed(courier="y").save(update_fields=["courier"]),
    ),
    Path(
        how="multi-table inheritance: the parent of a child's row, read now",
        subject=on.EXPRESS,
        write=lambda s: save_with(Bin.objects.using(s.alias).get(pk=s.row.pk), label="l"),
        superseded="LeaseLostError",
    ),
    Path(
        how="a fenced child of an unfenced parent, by the child",
        subject=on.PRESS,
        write=lambda s: s.changed(place="there").save(),
    ),
    Path(
        how="the unfenced parent of a fenced child, by itself",
        subject=on.PRESS,
        write=lambda s: Machine._default_manager.using(s.alias).filter(pk=s.row.pk).update(place="there"),
        live=UNFENCED,
        superseded=UNFENCED,
        none=UNFENCED,
    ),
    Path(
        how="a proxy",
        subject=on.LOOSE_BIN,
        write=lambda s: BinProxy.objects.using(s.alias).filter(pk=s.row.pk).update(label="l"),
    ),
    Path(
        how="a row that the default and base managers hide",
        subject=on.ARCHIVED,
        write=lambda s: s.changed(note="n").save(),
    ),
    Path(
        how="the same, through another manager",
        subject=on.ARCHIVED,
        write=lambda s: Archived.everything.using(s.alias).filter(pk=s.row.pk).update(note="n"),
    ),
)
