"""A plain ``ModelAdmin`` on fenced models: whatever way a refusal comes, it is a message and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.sites import all_sites
from django.core.checks import run_checks
from django.db import connection
from django.test import Client

from fencing import StaleReadError, lease
from fencing.admin import FencedModelAdmin, ReadOnlyAdmin
from fencing.admin.plainadmin import check_admins
from fencing.admin.refusals import text_of as text_for
from fencing.models import FencedWrite
from tests.admin.fenced_sites import CrateInline, PlainRackAdmin
from tests.admin.pages import form_of, text_of
from tests.admin.test_fenced_admin import elsewhere, staff, url
from tests.shop.models import Badge, Bin, Crate, Parcel, Rack, Warehouse

NOT_SET_UP = "What this page would write is protected, and it is not set up for that. Ask whoever runs the site."

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin.fenced_sites")]


@pytest.fixture
def rack() -> Rack:
    return Rack.objects.create(code="a", size=10)


def told(client: Client, where: str, sent: dict[str, Any]) -> str:
    """The text of the page that an answer leads to."""
    return text_of(client.post(where, sent, follow=True))


def unchanged(rack: Rack) -> bool:
    row = Rack.objects.get(pk=rack.pk)
    return (row.size, row.last_token, LogEntry.objects.exists()) == (10, 0, False)


def test_a_change(admin_client, rack, caplog):
    """Editors are told what they can do, and whoever runs the site what is to be put right."""
    change = url("rack_change", rack.pk, site="plain")
    text = told(admin_client, change, {**form_of(admin_client.get(change)), "size": 12})
    assert f"Nothing was changed. {NOT_SET_UP}" in text
    assert "FencedModelAdmin" not in text and "lease(" not in text
    (line,) = [one.getMessage() for one in caplog.records if one.name == "fencing" and one.levelname == "WARNING"]
    assert line.startswith(
        f"POST '{change}' was refused in the admin: saving shop.rack {rack.pk} needs the lease of 'rack:a'"
    )
    assert "FencedModelAdmin" in line
    assert unchanged(rack)


def test_what_an_editor_can_put_right_is_not_logged(admin_client, rack, caplog):
    change = url("rack_change", rack.pk)
    form = form_of(admin_client.get(change))
    with lease(rack):
        rack.save()
    assert "has changed since" in text_of(admin_client.post(change, {**form, "size": 12}))
    assert "in the admin" not in caplog.text


def test_a_row_that_was_not_read():
    error = StaleReadError("rack:a", 5, None, "shop.rack 1")
    assert text_for(error, "Nothing was changed.") == (
        "Nothing was changed. shop.rack 1 was to be saved without having been read, so nobody can tell what that would "
        "overwrite."
    )


def test_a_list(admin_client, rack):
    listed = url("rack_changelist", site="plain")
    form = {**form_of(admin_client.get(listed)), "form-0-size": "12", "_save": "Save"}
    assert "Nothing was changed." in told(admin_client, listed, form)
    assert unchanged(rack)


def test_an_action(admin_client, rack):
    listed = url("rack_changelist", site="plain")
    sent = {"action": "delete_selected", "index": "0", "_selected_action": [rack.pk], "post": "yes"}
    assert "Nothing was changed." in told(admin_client, listed, sent)
    assert unchanged(rack)


def test_a_delete(admin_client, rack):
    assert "Nothing was changed." in told(admin_client, url("rack_delete", rack.pk, site="plain"), {"post": "yes"})
    assert unchanged(rack)


def test_a_plain_inline(admin_client, rack):
    slot = rack.slot_set.create(quantity=1)
    change = url("rack_change", rack.pk, site="plain")
    with lease(rack):  # as a middleware of the site may
        form = {**form_of(admin_client.get(change)), "slot_set-0-quantity": "5"}
        assert "Nothing was changed." in told(admin_client, change, form)
    slot.refresh_from_db()
    assert slot.quantity == 1
    assert unchanged(rack)


def test_a_new_row_that_needs_a_lease(admin_client):
    add = url("parcel_add", site="plain")
    assert "Nothing was changed." in told(admin_client, add, {**form_of(admin_client.get(add)), "weight": 3})
    assert not Parcel.objects.exists()


@pytest.mark.parametrize("way", ["action", "view"])
def test_a_cascade_from_an_unfenced_parent(admin_client, way):
    parent = Warehouse.objects.create(name="w")
    Crate.objects.create(warehouse=parent, code="x")
    if way == "action":
        where = url("warehouse_changelist", site="plain")
        sent = {"action": "delete_selected", "index": "0", "_selected_action": [parent.pk], "post": "yes"}
    else:
        where, sent = url("warehouse_delete", parent.pk, site="plain"), {"post": "yes"}
    assert "Nothing was changed." in told(admin_client, where, sent)
    assert Crate.objects.exists()
    assert not LogEntry.objects.exists()


def test_a_view_of_ones_own(admin_client):
    Bin.objects.create()
    response = admin_client.post("/plain/shop/bin/write/")
    assert (response.status_code, response["Location"]) == (302, "/plain/shop/bin/write/")
    response = admin_client.get("/plain/shop/bin/write/", follow=True)
    assert f"This was refused; what was done before it may have stayed. {NOT_SET_UP}" in text_of(response)
    assert response.redirect_chain == [("/plain/", 302)]


@pytest.mark.django_db(transaction=True)
def test_the_guards_own_refusal(admin_client, rack, monkeypatch, caplog):
    def blunt(self: Any, *args: Any, **kwargs: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE shop_rack SET size = 12")

    change = url("rack_change", rack.pk, site="plain")
    form = form_of(admin_client.get(change))
    monkeypatch.setattr(Rack, "save", blunt)
    assert f"Nothing was changed. {NOT_SET_UP}" in told(admin_client, change, form)
    (line,) = [one.getMessage() for one in caplog.records if "in the admin" in one.getMessage()]
    assert 'fencing guard "shop_rack_fence" refused UPDATE' in line and "\n" not in line
    assert unchanged(rack)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["change", "delete", "view"])
def test_atomic_requests_commit_nothing_of_it(admin_client, rack, way):
    bin_ = Bin.objects.create()
    where, sent = {
        "change": (url("rack_change", rack.pk, site="plain"), None),
        "delete": (url("rack_delete", rack.pk, site="plain"), {"post": "yes"}),
        "view": ("/plain/shop/bin/write/", {}),
    }[way]
    sent = form_of(admin_client.get(where)) if sent is None else sent
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert admin_client.post(where, sent).status_code == 302
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert unchanged(rack)
    assert Bin.objects.get().last_token == bin_.last_token


@pytest.mark.django_db(transaction=True)
def test_fenced_inlines_of_a_plain_parent_say_what_atomic_requests_do(admin_client, caplog):
    parent = Warehouse.objects.create(name="w")
    crate = Crate.objects.create(warehouse=parent, code="x", weight=1)
    change = url("warehouse_change", parent.pk, site="plain")
    form = {**form_of(admin_client.get(change)), "crate_set-0-weight": "2"}
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        response = admin_client.post(change, form)
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert f"Nothing was saved. {NOT_SET_UP}" in text_of(response)
    assert "with ATOMIC_REQUESTS: mark the view" in caplog.text
    assert form_of(response)["crate_set-0-weight"] == "2"
    crate.refresh_from_db()
    assert crate.weight == 1


def test_what_is_not_fenced_works_as_ever(admin_client):
    add = url("badge_add", site="plain")
    there = Bin.objects.create()
    assert admin_client.post(add, {"boxes": [there.pk]}).status_code == 302
    badge = Badge.objects.get()
    sent = {"action": "delete_selected", "index": "0", "_selected_action": [badge.pk], "post": "yes"}
    assert admin_client.post(url("badge_changelist", site="plain"), sent).status_code == 302
    assert not Badge.objects.exists()
    assert not FencedWrite.objects.exists()


def test_other_errors_are_none_of_its_business(admin_client, rack, monkeypatch):
    def broken(*_args: Any) -> None:
        raise ValueError("mine")

    change = url("rack_change", rack.pk, site="plain")
    form = form_of(admin_client.get(change))
    monkeypatch.setattr(Rack, "save", broken)
    with pytest.raises(ValueError, match="mine"):
        admin_client.post(change, form)


@pytest.mark.parametrize("right", [None, "view_rack"])
def test_a_refusal_opens_no_door(client, rack, right):
    client.force_login(staff(*filter(None, [right])))
    assert client.post(url("rack_delete", rack.pk, site="plain"), {"post": "yes"}).status_code == 403
    assert elsewhere(Client().post, url("rack_changelist", site="plain")).status_code == 302
    assert unchanged(rack)


@pytest.fixture
def site() -> Iterator[admin.AdminSite]:
    """A site that the checks look at for this test only."""
    made = admin.AdminSite("checked")
    yield made
    all_sites.discard(made)


def found_at(site: admin.AdminSite) -> list[str]:
    return [str(one) for one in check_admins() if f"admin site {site.name!r}" in one.msg]


def test_the_check_names_plain_admins_and_plain_inlines(site):
    site.register(Rack, PlainRackAdmin)
    site.register(Bin, FencedModelAdmin)
    site.register(Parcel, ReadOnlyAdmin)
    site.register(Badge)
    site.register(Warehouse, type("Owner", (admin.ModelAdmin,), {"inlines": [CrateInline]}))
    here = "tests.admin.fenced_sites"
    first, second = found_at(site)
    assert f"shop.Rack: (fencing.W006) shop.Rack is fenced, but {here}.PlainRackAdmin of the" in first
    assert f"shop.Slot is fenced, but {here}.PlainSlotInline in {here}.PlainRackAdmin of shop.Rack of the" in second


def test_the_check_names_djangos_own_admin_by_its_own_name(site):
    """To Django it is ``shop.ModelAdmin``, which nobody finds in the shop."""
    site.register(Rack)
    (one,) = found_at(site)
    assert "shop.Rack is fenced, but django.contrib.admin.options.ModelAdmin of the admin site 'checked'" in one
    assert "shop.ModelAdmin" not in one


def test_the_check_runs_with_the_others(site):
    site.register(Rack)
    assert any(one.id == "fencing.W006" and "'checked'" in one.msg for one in run_checks(tags=["admin"]))
