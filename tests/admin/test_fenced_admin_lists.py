"""``list_editable``, actions, deletes and inlines of fenced rows: all that a POST writes, or nothing of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from fencing import StaleWriteError, history, lease
from fencing.admin.formreads import INPUT
from fencing.models import FencedWrite, TokenGrant
from tests.admin.pages import form_of, text_of
from tests.admin.test_fenced_admin import elsewhere, staff, url, write
from tests.shop.models import Bin, Crate, Rack, Slot, Warehouse

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin.fenced_sites")]


@pytest.fixture
def racks() -> list[Rack]:
    """Three, shown in this order."""
    return [Rack.objects.create(code=code, size=size) for code, size in (("a", 30), ("b", 20), ("c", 10))]


@pytest.fixture
def listed() -> str:
    return url("rack_changelist")


def sizes() -> dict[str, int]:
    return dict(Rack.objects.values_list("code", "size"))


def granted() -> set[str]:
    history.collect()
    return set(TokenGrant.objects.values_list("resource", flat=True))


def save(form: dict[str, Any], **values: Any) -> dict[str, Any]:
    """What the list's Save button sends."""
    sent = {name: value for name, value in form.items() if name not in ("action", "index", "_selected_action")}
    return {**sent, **values, "_save": "Save"}


def act(action: str, *rows: Any, **values: Any) -> dict[str, Any]:
    """What the list's Go button sends."""
    return {"action": action, "index": "0", "_selected_action": [row.pk for row in rows], **values}


def test_only_the_changed_rows_take_their_leases(admin_client, racks, listed):
    form = form_of(admin_client.get(listed))

    def hold_and_post() -> Any:
        with lease([racks[1], racks[2]]):
            return elsewhere(admin_client.post, listed, save(form, **{"form-0-size": "31"}))

    assert elsewhere(hold_and_post).status_code == 302
    assert sizes() == {"a": 31, "b": 20, "c": 10}
    assert Rack.objects.get(code="b").last_token == 0


def test_several_rows_are_saved_under_their_leases(admin_client, racks, listed):
    form = form_of(admin_client.get(listed))
    changed = {"form-0-size": "31", "form-2-size": "11"}
    assert admin_client.post(listed, save(form, **changed)).status_code == 302
    assert sizes() == {"a": 31, "b": 20, "c": 11}
    assert granted() == {"rack:a", "rack:c"}


def test_a_row_that_somebody_wrote_meanwhile_refuses_all_of_the_list(admin_client, racks, listed):
    form = form_of(admin_client.get(listed))
    token = write(racks[2], size=7)
    response = admin_client.post(listed, save(form, **{"form-0-size": "31", "form-2-size": "12"}))
    text = text_of(response)
    assert "Nothing was saved. rack:c has changed since" in text
    assert text.count("This row has changed since the page was loaded") == 1
    assert "Now: 7" in text
    assert sizes() == {"a": 30, "b": 20, "c": 7}
    assert not LogEntry.objects.exists()
    again = form_of(response)
    assert [again[f"form-{row}-size"] for row in range(3)] == ["31", "20", "12"]
    assert admin_client.post(listed, save(again)).status_code == 302
    assert sizes() == {"a": 31, "b": 20, "c": 12}
    assert Rack.objects.get(code="c").last_token > token


def test_a_row_that_nobody_touched_here_is_no_conflict(admin_client, racks, listed):
    form = form_of(admin_client.get(listed))
    write(racks[2], size=7, open=False)
    assert admin_client.post(listed, save(form, **{"form-0-size": "31"})).status_code == 302
    assert sizes() == {"a": 31, "b": 20, "c": 7}
    assert Rack.objects.get(code="c").open is False


def test_after_a_conflict_the_first_value_is_meant_too(admin_client, racks, listed):
    form = form_of(admin_client.get(listed))
    write(racks[2], size=7)
    again = form_of(admin_client.post(listed, save(form, **{"form-2-size": "12"})))
    assert admin_client.post(listed, save(again, **{"form-2-size": "10"})).status_code == 302
    assert sizes()["c"] == 10


def test_a_box_that_is_unticked_over_a_conflict_is_meant(admin_client, racks, listed):
    form = form_of(admin_client.get(listed))
    write(racks[2], size=7)
    del form["form-2-open"]
    again = form_of(admin_client.post(listed, save(form)))
    assert "form-2-open" not in again
    assert admin_client.post(listed, save(again)).status_code == 302
    assert Rack.objects.get(code="c").open is False


def test_an_invalid_list_keeps_its_reads(admin_client, racks, listed):
    form = form_of(admin_client.get(listed))
    write(racks[2], size=7)
    invalid = admin_client.post(listed, save(form, **{"form-2-size": "many"}))
    assert "Enter a whole number" in text_of(invalid)
    assert "Nothing was saved" in text_of(admin_client.post(listed, save(form_of(invalid), **{"form-2-size": "12"})))
    assert sizes()["c"] == 7


def test_rows_stay_at_their_forms_when_their_order_has_changed(admin_client, racks, listed):
    form = form_of(admin_client.get(listed))
    write(racks[2], size=99)  # to the top of the list
    response = admin_client.post(listed, save(form, **{"form-2-size": "12"}))
    shown = [row.code for row in response.context_data["cl"].result_list]
    assert shown == ["a", "b", "c"]
    assert [str(form.instance.code) for form in response.context_data["cl"].formset.forms] == shown


def test_a_held_row_is_named_and_nothing_is_saved(admin_client, racks, listed):
    form = form_of(admin_client.get(listed))

    def hold_and_post() -> Any:
        with lease(racks[2]):
            changed = {"form-0-size": "31", "form-2-size": "12"}
            return elsewhere(admin_client.post, listed, save(form, **changed))

    response = elsewhere(hold_and_post)
    assert "rack:c is held by" in text_of(response)
    assert form_of(response)["form-0-size"] == "31"
    assert sizes() == {"a": 30, "b": 20, "c": 10}
    with lease("rack:a"):
        pass  # given back


@pytest.mark.parametrize("forged", ["", "nonsense", None])
def test_a_list_without_its_signature_is_refused(admin_client, racks, listed, forged):
    form = form_of(admin_client.get(listed))
    write(racks[2], size=7)
    if forged is None:
        del form[f"form-{INPUT}"]
    else:
        form[f"form-{INPUT}"] = forged
    response = admin_client.post(listed, save(form, **{"form-2-size": "12", "form-2-last_token": "999"}))
    assert "does not prove" in text_of(response)
    assert "Now: 7" in text_of(response)
    assert sizes()["c"] == 7


def test_a_row_that_was_not_on_the_page_cannot_be_slipped_in(admin_client, racks, listed):
    form = form_of(admin_client.get(f"{listed}?q="))
    other = Rack.objects.create(code="d", size=1)
    form["form-2-id"] = str(other.pk)
    assert "does not prove" in text_of(admin_client.post(listed, save(form, **{"form-2-size": "12"})))
    assert sizes()["d"] == 1


@pytest.mark.parametrize("place", [0, 2])
def test_a_row_that_is_gone_refuses_the_list(admin_client, racks, listed, place):
    form = form_of(admin_client.get(listed))
    with lease(racks[place]):
        racks[place].delete()
    response = admin_client.post(listed, save(form, **{"form-0-size": "31", "form-1-size": "21", "form-2-size": "12"}))
    assert "This row was deleted meanwhile" in text_of(response)
    again = form_of(response)
    assert [again[f"form-{row}-size"] for row in range(3)] == ["31", "21", "12"]
    shown = [row.code for row in response.context_data["cl"].result_list]
    assert shown == ["" if row == place else code for row, code in enumerate("abc")]
    assert sorted(sizes().values()) == sorted({30, 20, 10} - {racks[place].size})


def test_more_rows_than_leases(admin_client, listed):
    for number in range(6):
        Rack.objects.create(code=str(number), size=number)
    form = form_of(admin_client.get(listed))
    changed = {f"form-{row}-size": str(100 + row) for row in range(6)}
    assert "more than 5 fenced rows" in text_of(admin_client.post(listed, save(form, **changed)))
    assert max(sizes().values()) == 5
    assert not granted()


def test_who_may_only_view_the_list_saves_nothing(client, admin_client, racks, listed):
    form = form_of(admin_client.get(listed))
    client.force_login(staff("view_rack"))
    assert client.post(listed, save(form, **{"form-0-size": "31"})).status_code in (200, 403)
    assert sizes()["a"] == 30
    assert not granted()


def test_the_list_asks_no_more_for_being_fenced(admin_client, racks, listed):
    def count() -> int:
        with CaptureQueriesContext(connection) as found:
            assert admin_client.get(listed).status_code == 200
        return len(found)

    count()
    few = count()
    for number in range(40):
        Rack.objects.create(code=str(number))
    assert count() == few <= 8


def test_an_action_runs_under_the_leases_of_the_selected_rows(admin_client, racks, listed):
    assert admin_client.post(listed, act("double", *racks[:2])).status_code == 302
    assert sizes() == {"a": 60, "b": 40, "c": 10}
    assert granted() == {"rack:a", "rack:b"}


def test_an_action_that_is_refused_midway_does_not_claim_that_nothing_was_done(
    admin_client, racks, listed, monkeypatch
):
    def overtaken(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.code == "b":
            raise StaleWriteError("rack:b", 3, 4)
        original(self, *args, **kwargs)

    original = Rack.save
    monkeypatch.setattr(Rack, "save", overtaken)
    text = text_of(admin_client.post(listed, act("double", *racks), follow=True))
    assert "This was refused; what was done before it may have stayed. A newer holder of rack:b came first" in text


def test_an_action_on_rows_that_are_not_fenced_is_not_limited(admin_client):
    made = [Warehouse.objects.create(name=str(number)) for number in range(120)]
    sent = {
        "action": "delete_selected",
        "index": "0",
        "_selected_action": [made[0].pk],
        "select_across": "1",
        "post": "y",
    }
    assert admin_client.post(url("warehouse_changelist"), sent).status_code == 302
    assert not Warehouse.objects.exists()


def test_an_action_on_a_held_row_does_not_begin(admin_client, racks, listed):
    def hold_and_post() -> Any:
        with lease(racks[1]):
            return elsewhere(lambda: admin_client.post(listed, act("double", *racks), follow=True))

    assert "rack:b is held by" in text_of(elsewhere(hold_and_post))
    assert sizes() == {"a": 30, "b": 20, "c": 10}


@pytest.mark.parametrize("action", ["double", "delete_selected"])
def test_an_action_on_more_rows_than_leases_does_not_begin(admin_client, listed, action):
    racks = [Rack.objects.create(code=str(number), size=number) for number in range(6)]
    sent = act(action, racks[0], select_across="1", post="yes")
    assert "more than 5 fenced rows" in text_of(admin_client.post(listed, sent, follow=True))
    assert sizes() == {str(number): number for number in range(6)}
    assert not granted()


def test_across_all_pages_those_rows_are_meant_that_were_leased(admin_client, racks, listed):
    assert admin_client.post(listed, act("double", racks[0], select_across="1")).status_code == 302
    assert sizes() == {"a": 60, "b": 40, "c": 20}


def test_an_action_without_leases(admin_client, racks, listed):
    text = text_of(admin_client.post(listed, act("count", *racks), follow=True))
    assert "3 racks, 0 leases" in text
    assert admin_client.post(listed, act("tell", *racks)).content == b"rack:a, rack:b, rack:c"


def test_selected_rows_are_deleted_with_what_goes_with_them(admin_client, racks, listed):
    slot = racks[0].slot_set.create()
    confirm = admin_client.post(listed, act("delete_selected", *racks[:2]))
    assert "Are you sure" in text_of(confirm)
    assert not granted()
    write(racks[0], size=7)  # between the two pages: a delete compares tokens only
    assert admin_client.post(listed, {**form_of(confirm), "post": "yes"}).status_code == 302
    assert sizes() == {"c": 10}
    deleted = FencedWrite.objects.filter(action="delete", outcome="accepted").values_list("resource", flat=True)
    assert set(deleted) == {"rack:a", "rack:b", f"shop.slot:{slot.pk}"}


@pytest.mark.parametrize("held", ["rack", "slot"])
@pytest.mark.parametrize("way", ["action", "view"])
def test_nothing_is_deleted_while_a_row_of_it_is_held(admin_client, racks, listed, held, way):
    slot = racks[0].slot_set.create()

    def hold_and_post() -> Any:
        with lease(racks[0] if held == "rack" else slot) as mine:
            sent = act("delete_selected", *racks, post="yes") if way == "action" else {"post": "yes"}
            where = listed if way == "action" else url("rack_delete", racks[0].pk)
            return mine.resource, elsewhere(lambda: admin_client.post(where, sent, follow=True))

    resource, response = elsewhere(hold_and_post)
    assert f"Nothing was changed. {resource} is held by" in text_of(response)
    assert len(sizes()) == 3
    assert not LogEntry.objects.exists()


def test_a_row_is_deleted_with_what_goes_with_it(admin_client, racks):
    racks[0].slot_set.create()
    assert admin_client.post(url("rack_delete", racks[0].pk), {"post": "yes"}).status_code == 302
    assert set(sizes()) == {"b", "c"}
    assert not Slot.objects.exists()


def test_an_unfenced_parent_is_deleted_under_the_leases_of_its_rows(admin_client):
    parent = Warehouse.objects.create(name="w")
    Crate.objects.create(warehouse=parent, code="x")
    kept = Bin.objects.create(label="kept", warehouse=parent)
    assert admin_client.post(url("warehouse_delete", parent.pk), {"post": "yes"}).status_code == 302
    assert not Crate.objects.exists()
    kept.refresh_from_db()
    assert kept.warehouse is None
    assert kept.last_token > 0


@pytest.mark.parametrize("right", ["view_rack", "change_rack"])
def test_who_may_not_delete_takes_no_lease(client, racks, right):
    client.force_login(staff(right))
    assert client.post(url("rack_delete", racks[0].pk), {"post": "yes"}).status_code == 403
    assert len(sizes()) == 3
    assert not granted()


@pytest.fixture
def slots(racks: list[Rack]) -> list[Slot]:
    return [racks[0].slot_set.create(quantity=quantity) for quantity in (1, 2)]


@pytest.fixture
def change(racks: list[Rack]) -> str:
    return url("rack_change", racks[0].pk)


def test_inline_rows_are_saved_under_leases_of_their_own(admin_client, racks, slots, change):
    form = form_of(admin_client.get(change))
    sent = {**form, "slot_set-1-quantity": "5", "slot_set-2-quantity": "9", "racknote_set-0-text": "new"}
    assert admin_client.post(change, sent).status_code == 302
    assert list(Slot.objects.order_by("pk").values_list("quantity", flat=True)) == [1, 5, 9]
    assert granted() == {"rack:a", f"shop.slot:{slots[1].pk}"}
    assert racks[0].racknote_set.get().text == "new"


def test_an_inline_row_that_somebody_wrote_refuses_the_whole_page(admin_client, racks, slots, change):
    form = form_of(admin_client.get(change))
    write(slots[1], quantity=7)
    sent = {**form, "size": "31", "slot_set-0-quantity": "4", "slot_set-1-quantity": "5", "racknote_set-0-text": "new"}
    response = admin_client.post(change, sent)
    text = text_of(response)
    assert f"shop.slot:{slots[1].pk} has changed since" in text
    assert "This row has changed since the page was loaded" in text
    assert "Now: 7" in text
    assert list(Slot.objects.order_by("pk").values_list("quantity", flat=True)) == [1, 7]
    assert sizes()["a"] == 30
    assert not racks[0].racknote_set.exists()
    again = form_of(response)
    assert (again["slot_set-0-quantity"], again["slot_set-1-quantity"]) == ("4", "5")
    assert admin_client.post(change, again).status_code == 302
    assert list(Slot.objects.order_by("pk").values_list("quantity", flat=True)) == [4, 5]
    assert (sizes()["a"], racks[0].racknote_set.get().text) == (31, "new")


def test_an_inline_row_that_nobody_touched_here_is_no_conflict(admin_client, slots, change):
    form = form_of(admin_client.get(change))
    write(slots[1], quantity=7)
    assert admin_client.post(change, {**form, "size": "31"}).status_code == 302
    assert list(Slot.objects.order_by("pk").values_list("quantity", flat=True)) == [1, 7]


def test_a_held_inline_row_is_named(admin_client, slots, change):
    form = form_of(admin_client.get(change))

    def hold_and_post() -> Any:
        with lease(slots[1]):
            return elsewhere(admin_client.post, change, {**form, "slot_set-1-quantity": "5"})

    response = elsewhere(hold_and_post)
    assert f"shop.slot:{slots[1].pk} is held by" in text_of(response)
    assert form_of(response)["slot_set-1-quantity"] == "5"
    assert Slot.objects.get(pk=slots[1].pk).quantity == 2


def test_an_inline_row_is_deleted_under_its_lease(admin_client, slots, change):
    form = form_of(admin_client.get(change))
    assert admin_client.post(change, {**form, "slot_set-1-DELETE": "on"}).status_code == 302
    assert list(Slot.objects.all()) == [slots[0]]


@pytest.mark.parametrize("forged", ["", "nonsense"])
def test_inline_rows_without_their_signature_are_refused(admin_client, slots, change, forged):
    form = {**form_of(admin_client.get(change)), f"slot_set-{INPUT}": forged, "slot_set-1-quantity": "5"}
    assert "does not prove" in text_of(admin_client.post(change, form))
    assert Slot.objects.get(pk=slots[1].pk).quantity == 2


@pytest.mark.parametrize("site", ["fenced", "plain"])
def test_fenced_rows_of_an_unfenced_parent(admin_client: Client, site: str) -> None:
    parent = Warehouse.objects.create(name="w")
    crate = Crate.objects.create(warehouse=parent, code="x", weight=1)
    change = url("warehouse_change", parent.pk, site=site)
    form = form_of(admin_client.get(change))
    assert admin_client.post(change, {**form, "crate_set-0-weight": "2"}).status_code == 302
    write(crate, weight=7)
    response = admin_client.post(change, {**form, "name": "new", "crate_set-0-weight": "3"})
    assert f"crate:{parent.pk}:x has changed since" in text_of(response)
    assert "Now: 7" in text_of(response)
    parent.refresh_from_db()
    crate.refresh_from_db()
    assert (parent.name, crate.weight) == ("w", 7)
    assert admin_client.post(change, form_of(response)).status_code == 302
    parent.refresh_from_db()
    crate.refresh_from_db()
    assert (parent.name, crate.weight) == ("new", 3)


def test_a_row_and_an_inline_row_that_both_moved_are_both_shown(admin_client, racks, slots, change):
    form = form_of(admin_client.get(change))
    write(racks[0], size=7)
    write(slots[0], quantity=8)
    response = admin_client.post(change, {**form, "size": "31", "slot_set-0-quantity": "4"})
    text = text_of(response)
    assert "rack:a has changed since" in text
    assert "Now: 7" in text
    assert "This row has changed since the page was loaded" in text
    assert "Now: 8" in text


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_row_that_nobody_touched_is_known_by_what_was_shown(admin_client, racks, listed, settings, language):
    settings.USE_THOUSAND_SEPARATOR = True
    settings.LANGUAGE_CODE = language
    settings.TIME_ZONE = "Asia/Kathmandu"
    for row in racks:
        write(row, size=row.size * 10**6, checked_at=datetime(2026, 5, 1, 12, 0, 3, 4567, tzinfo=UTC))
    form = form_of(admin_client.get(listed))
    before = dict(Rack.objects.values_list("code", "last_token"))
    assert admin_client.post(listed, save(form, **{"form-0-size": "31"})).status_code == 302
    assert sizes()["a"] == 31
    after = dict(Rack.objects.values_list("code", "last_token"))
    assert {code for code in after if after[code] != before[code]} == {"a"}


def test_an_inline_row_that_is_gone_refuses_the_page(admin_client, racks, slots, change):
    form = form_of(admin_client.get(change))
    with lease(slots[1]):
        slots[1].delete()
    response = admin_client.post(change, {**form, "size": "31", "slot_set-0-quantity": "4", "slot_set-1-quantity": "5"})
    assert "This row was deleted meanwhile" in text_of(response)
    again = form_of(response)
    assert (again["slot_set-0-quantity"], again["slot_set-1-quantity"]) == ("4", "5")
    assert (sizes()["a"], Slot.objects.get().quantity) == (30, 1)
    assert admin_client.post(change, {**again, "slot_set-1-DELETE": "on"}).status_code == 302
    assert (sizes()["a"], Slot.objects.get().quantity) == (31, 4)


def test_an_inline_row_that_goes_while_it_is_saved_refuses_the_page(admin_client, racks, slots, change, monkeypatch):
    def late(self: Any, *args: Any, **kwargs: Any) -> None:
        Slot.objects.filter(pk=self.pk).delete()
        original(self, *args, **kwargs)

    form = form_of(admin_client.get(change))
    original = Slot.save
    monkeypatch.setattr(Slot, "save", late)
    response = admin_client.post(change, {**form, "size": "31", "slot_set-1-quantity": "5"})
    assert f"shop.slot {slots[1].pk} was deleted meanwhile" in text_of(response)
    assert (sizes()["a"], Slot.objects.count()) == (30, 2)
