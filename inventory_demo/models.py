"""The stock of a small shop: a fenced row per article, and an append-only ledger of what changed it."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from fencing.models import FencedModel


class Stock(FencedModel):
    """How many pieces of one article there are."""

    fence_resource = "stock:{sku}"

    sku = models.CharField(_("article"), max_length=40, unique=True)
    quantity = models.IntegerField(_("quantity"), default=0)

    class Meta(FencedModel.Meta):
        verbose_name = _("stock")
        verbose_name_plural = _("stocks")

    def __str__(self) -> str:
        return f"{self.sku}: {self.quantity}"


class StockDelta(models.Model):
    """One accepted change of a stock. The sum of an article's deltas is what its quantity has moved by."""

    sku = models.CharField(_("article"), max_length=40, db_index=True)
    delta = models.IntegerField(_("change"))
    reason = models.CharField(_("reason"), max_length=200)
    operation = models.CharField(_("operation"), max_length=200, unique=True)
    applied_at = models.DateTimeField(_("applied"), auto_now_add=True)

    class Meta:
        verbose_name = _("stock delta")
        verbose_name_plural = _("stock deltas")

    def __str__(self) -> str:
        return f"{self.sku} {self.delta:+d}"


class PlainStock(models.Model):
    """The same stock without a fence: what the demonstration's sleeper ruins."""

    sku = models.CharField(_("article"), max_length=40, unique=True)
    quantity = models.IntegerField(_("quantity"), default=0)

    class Meta:
        verbose_name = _("plain stock")
        verbose_name_plural = _("plain stocks")

    def __str__(self) -> str:
        return f"{self.sku}: {self.quantity}"
