"""What an operator does at night, in a browser: revoke a lease by keyboard, and save a form that is out of date."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, expect

from fencing import StaleWriteError, lease
from fencing.models import FencedWrite
from inventory_demo.factories import StockFactory
from inventory_demo.models import Stock
from tests.browser.conftest import SCHEMES, WIDTHS, is_as_wide_as_its_window, picture, press_tab_to, violations
from tests.concurrency import threads

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

OpenPage = Callable[..., Page]


def test_a_lease_is_revoked_by_keyboard_only(open_page: OpenPage, admin_user: User):
    StockFactory.create(sku="bolts", quantity=10)
    with lease("stock:bolts") as held:
        stock = Stock.objects.get(sku="bolts")
        page = open_page(reverse("admin:fencing_heldlease_changelist"), user=admin_user)
        press_tab_to(page, "Revoke… stock:bolts")
        page.keyboard.press("Enter")
        page.wait_for_url("**/revoke/**")
        picture(page, "revoke-light-1280")
        assert violations(page, within="#content") == []
        press_tab_to(page, "", field="reason")
        page.keyboard.type("hangs since 3:14")
        page.keyboard.press("Enter")
        page.wait_for_url(reverse("admin:fencing_heldlease_changelist") + "**")
        expect(page.locator(".messagelist")).to_contain_text("stock:bolts")
        with pytest.raises(StaleWriteError):
            stock.save()
    revoked = FencedWrite.objects.get(action="revoke")
    assert (revoked.grant_token, revoked.note) == (held.token, f"hangs since 3:14 (admin (user {admin_user.pk}))")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_form_that_is_out_of_date_comes_back_with_what_was_typed(
    open_page: OpenPage, admin_user: User, scheme: str, width: int
):
    stock = StockFactory.create(sku="bolts", quantity=10)
    url = reverse("admin:inventory_demo_stock_change", args=[stock.pk])
    page = open_page(url, user=admin_user, color_scheme=scheme, viewport={"width": width, "height": 800})
    page.get_by_label("Quantity").fill("9")
    with threads() as start:
        start(write_seven).result()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".errornote")).to_be_visible()
    expect(page.get_by_label("Quantity")).to_have_value("9")
    expect(page.locator("#content")).to_contain_text("7")
    picture(page, f"out-of-date-{scheme}-{width}")
    assert violations(page, within="#content") == []
    assert is_as_wide_as_its_window(page)
    stock.refresh_from_db()
    assert stock.quantity == 7
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url(reverse("admin:inventory_demo_stock_changelist"))
    stock.refresh_from_db()
    assert stock.quantity == 9


def write_seven() -> None:
    with lease("stock:bolts"):
        stock = Stock.objects.get(sku="bolts")
        stock.quantity = 7
        stock.save()
