"""In the documents' project, where each request is a transaction: held and refused are 409, by Django and by DRF."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
django.setup()

from django.db import connections  # noqa: E402
from django.test import Client  # noqa: E402
from shop.models import Stock  # type: ignore[import-not-found]  # noqa: E402

from fencing import LeaseInsideTransactionError, lease, revocation  # noqa: E402
from fencing.signals import lease_granted  # noqa: E402


def post(path: str, **data: Any) -> Any:
    """The answer to a request, which has a context of its own."""

    def ask() -> Any:
        try:
            return Client().post(path, data)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result(timeout=30)


def revoke_at_once(**_named: Any) -> None:
    """Let the database refuse whoever was just granted the lease."""
    lease_granted.disconnect(revoke_at_once)
    revocation.revoke("stock:web", reason="test")


Stock.objects.create(sku="web", quantity=10)
for path, data, left in (("/sell/web", {}, 9), ("/api/stock/web", {"delta": -2}, 7)):
    answer = post(path, **data)
    assert (answer.status_code, answer.json()) == (200, {"quantity": left})
    with lease("stock:web", ttl=30):
        answer = post(path, **data)
    assert (answer.status_code, answer.json()["resource"]) == (409, "stock:web")
    assert 0 < int(answer["Retry-After"]) <= 30
    lease_granted.connect(revoke_at_once)
    answer = post(path, **data)
    assert (answer.status_code, answer.json()["resource"]) == (409, "stock:web")
    assert Stock.objects.get(sku="web").quantity == left

del import_module("shop.views").sell._non_atomic_requests
try:
    post("/sell/web")
except LeaseInsideTransactionError:
    pass
else:
    raise AssertionError("the recipe's non_atomic_requests is not needed")
