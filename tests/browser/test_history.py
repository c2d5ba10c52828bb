"""The history as a browser shows it: in both schemes, wide and narrow, and by keyboard."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page

from fencing import StaleWriteError, history, lease
from fencing.admin.links import timeline_url
from fencing.models import FencedResource, FencedWrite, TokenGrant
from inventory_demo.factories import StockFactory
from inventory_demo.models import Stock
from tests.browser.conftest import SCHEMES, WIDTHS, is_as_wide_as_its_window, picture, press_tab_to, violations
from tests.concurrency import threads, wait_until_expired

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

OpenPage = Callable[..., Page]


def write_under_a_lease() -> None:
    with lease("stock:bolts"):
        stock = Stock.objects.get(sku="bolts")
        stock.quantity -= 5
        stock.save()


@pytest.fixture
def overtaken(transactional_db: None) -> TokenGrant:
    """The grant of a holder that slept through its lease: another one wrote, and its own write was refused."""
    StockFactory.create(sku="bolts", quantity=10)
    write_under_a_lease()
    with threads() as start, lease("stock:bolts", ttl=0.05, renew=False) as held:
        stock = Stock.objects.get(sku="bolts")
        wait_until_expired("stock:bolts")
        start(write_under_a_lease).result()
        with pytest.raises(StaleWriteError):
            stock.save()
    history.collect()
    return TokenGrant.objects.get(token=held.token)


def pages_of(grant: TokenGrant) -> dict[str, str]:
    refused = FencedWrite.objects.get(outcome="stale")
    return {
        "grants": reverse("admin:fencing_tokengrant_changelist"),
        "grant": reverse("admin:fencing_tokengrant_change", args=[grant.pk]),
        "writes": reverse("admin:fencing_fencedwrite_changelist"),
        "write": reverse("admin:fencing_fencedwrite_change", args=[refused.pk]),
        "resources": reverse("admin:fencing_fencedresource_changelist", query={"q": grant.resource}),
        "resource": reverse("admin:fencing_fencedresource_change", args=[FencedResource.objects.get().pk]),
        "timeline": timeline_url("admin", grant.namespace, grant.resource),
        "live": reverse("admin:fencing_heldlease_changelist"),
    }


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_readable(open_page: OpenPage, admin_user: User, overtaken: TokenGrant, scheme: str, width: int):
    found = {}
    page = open_page(
        reverse("admin:index"), user=admin_user, color_scheme=scheme, viewport={"width": width, "height": 800}
    )
    with lease("stock:nuts"):
        for name, url in pages_of(overtaken).items():
            page.goto(url)
            picture(page, f"{name}-{scheme}-{width}")
            found[name] = [*violations(page, within="#content"), *["too wide"] * (not is_as_wide_as_its_window(page))]
    assert {key: wrong for key, wrong in found.items() if wrong} == {}


def test_keys_lead_from_the_list_to_who_overtook(open_page: OpenPage, admin_user: User, overtaken: TokenGrant):
    newer = TokenGrant.objects.get(token__gt=overtaken.token)
    page = open_page(reverse("admin:fencing_tokengrant_changelist"), user=admin_user)
    press_tab_to(page, str(overtaken.token))
    page.keyboard.press("Enter")
    page.wait_for_url(reverse("admin:fencing_tokengrant_change", args=[overtaken.pk]))
    press_tab_to(page, str(newer.token))
    page.keyboard.press("Enter")
    page.wait_for_url(reverse("admin:fencing_tokengrant_change", args=[newer.pk]))
