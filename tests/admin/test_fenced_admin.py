"""``FencedModelAdmin``: a form is saved under leases, as the row that it was loaded from, or it comes back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextvars import Context
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import signing
from django.db import connection, transaction
from django.forms import modelform_factory
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from fencing import LeaseHeldError, history, lease, unfenced
from fencing.admin.formreads import INPUT, Read, signed, unsigned
from fencing.backends import get_backend
from fencing.backends.base import HolderInfo
from fencing.conf import backend_config
from fencing.models import FencedWrite, TokenGrant
from fencing.revocation import revoke
from fencing.scope import held_leases, holder_info
from fencing.tokens import place_of
from tests.admin.fenced_sites import RackAdmin, ShopElsewhere
from tests.admin.pages import form_of, text_of
from tests.concurrency import threads
from tests.shop.models import Bin, BinProxy, ExpressBin, Parcel, Press, Rack, Ticket, Warehouse

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin.fenced_sites")]


def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function as somebody else, who holds none of our leases."""
    return Context().run(function, *args)


def write(row: Any, **values: Any) -> int:
    """A worker's write under a lease; the token that the row carries then."""

    def work() -> int:
        fresh = type(row).objects.get(pk=row.pk)
        with lease(fresh):
            for name, value in values.items():
                setattr(fresh, name, value)
            fresh.save()
        return int(fresh.last_token)

    return int(elsewhere(work))


def url(name: str, *args: Any, site: str = "fenced") -> str:
    return reverse(f"{site}:shop_{name}", args=args)


@pytest.fixture
def rack() -> Rack:
    return Rack.objects.create(code="a", size=10)


@pytest.fixture
def change(admin_client: Client, rack: Rack) -> str:
    return url("rack_change", rack.pk)


def test_a_save_takes_the_lease_and_raises_the_token(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    assert admin_client.post(change, {**form, "size": 12}).status_code == 302
    rack.refresh_from_db()
    written = FencedWrite.objects.get(outcome="accepted")
    assert (rack.size, rack.last_token, written.resource) == (12, written.token, "rack:a")
    assert not held_leases()
    with lease(rack):
        pass  # given back


@pytest.mark.django_db(transaction=True)
def test_the_lease_is_taken_before_the_transaction_and_released_after_the_commit(
    admin_client, rack, change, monkeypatch
):
    seen: list[Any] = []

    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        def committed() -> None:
            with pytest.raises(LeaseHeldError):
                elsewhere(lambda: lease("rack:a").__enter__())
            seen.append("held after the commit")

        transaction.on_commit(committed)
        seen.append(connection.in_atomic_block)
        save(self, *args, **kwargs)

    save = Rack.save
    monkeypatch.setattr(Rack, "save", watched)
    form = form_of(admin_client.get(change))
    assert admin_client.post(change, {**form, "size": 12}).status_code == 302
    assert seen == [True, "held after the commit"]


def test_a_form_that_was_loaded_before_a_write_is_refused_and_comes_back(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    token = write(rack, size=7, open=False)
    response = admin_client.post(change, {**form, "size": 10, "title": "typed", "warehouses": []})
    rack.refresh_from_db()
    assert (rack.size, rack.title, rack.last_token) == (7, "", token)
    text = text_of(response)
    assert "Nothing was saved. rack:a has changed since this page was loaded" in text
    assert "Now: 7" in text
    assert "Now: no" in text
    assert "Now: (empty)" in text
    again = form_of(response)
    assert (again["size"], again["title"], again["open"]) == ("10", "typed", "on")
    assert not LogEntry.objects.exists()
    # The refusal came from the statement.
    assert FencedWrite.objects.filter(outcome="stale-read", resource="rack:a").exists()


def test_the_form_that_came_back_overwrites_knowingly(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    token = write(rack, size=7)
    again = form_of(admin_client.post(change, form))
    assert admin_client.post(change, again).status_code == 302
    rack.refresh_from_db()
    assert rack.size == 10
    assert rack.last_token > token


def test_the_form_that_came_back_is_refused_again_after_a_further_write(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    write(rack, size=7)
    again = form_of(admin_client.post(change, form))
    write(rack, size=6)
    assert "Now: 6" in text_of(admin_client.post(change, again))
    rack.refresh_from_db()
    assert rack.size == 6


def test_an_invalid_form_keeps_the_read_that_its_values_come_from(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    write(rack, size=7)
    invalid = admin_client.post(change, {**form, "size": "many"})
    assert "Enter a whole number" in text_of(invalid)
    assert "Now:" not in text_of(invalid)
    assert "Nothing was saved" in text_of(admin_client.post(change, {**form_of(invalid), "size": 11}))
    rack.refresh_from_db()
    assert rack.size == 7


def test_a_held_lease_is_told_with_its_holder_and_nothing_typed_is_lost(admin_client, rack, change):
    form = form_of(admin_client.get(change))

    def hold_and_post() -> Any:
        with lease(rack) as held:
            return held.holder, elsewhere(admin_client.post, change, {**form, "size": 12})

    holder, response = elsewhere(hold_and_post)
    text = text_of(response)
    assert f"rack:a is held by {holder}" in text
    assert "unless it is renewed" in text
    assert "Now:" not in text
    again = form_of(response)
    assert again["size"] == "12"
    rack.refresh_from_db()
    assert (rack.size, rack.last_token) == (10, 0)
    assert admin_client.post(change, again).status_code == 302
    rack.refresh_from_db()
    assert rack.size == 12


def test_a_held_lease_does_not_renew_the_read(admin_client, rack, change):
    form = form_of(admin_client.get(change))

    def hold_and_post() -> Any:
        with lease(rack):
            return elsewhere(admin_client.post, change, {**form, "size": 12})

    again = form_of(elsewhere(hold_and_post))
    write(rack, size=7)
    assert "Now: 7" in text_of(admin_client.post(change, again))


def test_a_task_that_holds_the_lease_is_named(admin_client, rack, change):
    form = form_of(admin_client.get(change))

    def hold_and_post() -> Any:
        holder_info.set(HolderInfo(task_id="task-77", task_name="shop.apply"))
        with lease(rack):
            return elsewhere(admin_client.post, change, form)

    assert "is held by shop.apply task-77 (" in text_of(elsewhere(hold_and_post))


@pytest.mark.django_db(transaction=True)
def test_another_user_of_the_admin_is_named(admin_client, rack, change, monkeypatch):
    form = form_of(admin_client.get(change))
    other = Client()
    other.force_login(User.objects.create_superuser("berta"))
    answers: list[Any] = []

    def meanwhile(self: Any, *args: Any, **kwargs: Any) -> None:
        with threads() as start:
            answers.append(start(other.post, change, form).result())
        save(self, *args, **kwargs)

    save = Rack.save
    monkeypatch.setattr(Rack, "save", meanwhile)
    assert admin_client.post(change, form).status_code == 302
    assert "rack:a is held by admin shop.rack user admin (" in text_of(answers[0])


def test_the_history_tells_which_user_it_was(admin_client, change):
    admin_client.post(change, form_of(admin_client.get(change)))
    history.collect()
    grant = TokenGrant.objects.get(resource="rack:a")
    assert (grant.task_name, grant.task_id, grant.ended) == ("admin shop.rack", "user admin", "released")


@pytest.mark.django_db(transaction=True)
def test_a_lease_that_is_lost_between_is_judged_by_the_database(admin_client, rack, change, monkeypatch):
    form = form_of(admin_client.get(change))
    tokens: list[int] = []

    def overtaken(self: Any, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(Rack, "save", save)
        with threads() as start:
            start(lambda: revoke("rack:a", "test", databases=["default"])).result()
            tokens.append(start(write, rack).result())
        save(self, *args, **kwargs)

    save = Rack.save
    monkeypatch.setattr(Rack, "save", overtaken)
    response = admin_client.post(change, {**form, "size": 12})
    assert "Nothing was saved. A newer holder of rack:a came first" in text_of(response)
    assert form_of(response)["size"] == "12"
    rack.refresh_from_db()
    assert (rack.size, rack.last_token) == (10, tokens[0])


def test_a_lease_that_expired_with_nobody_after_it_still_saves(admin_client, rack, change, monkeypatch):
    form = form_of(admin_client.get(change))

    def late(self: Any, *args: Any, **kwargs: Any) -> None:
        backend = get_backend()
        place = place_of(backend, "rack:a")
        live = backend.peek(place)
        assert live is not None
        backend.revoke(place, live.token)  # as if its time had come
        save(self, *args, **kwargs)

    save = Rack.save
    monkeypatch.setattr(Rack, "save", late)
    assert admin_client.post(change, {**form, "size": 12}).status_code == 302
    rack.refresh_from_db()
    assert rack.size == 12


FORGERIES: list[Callable[[Rack], dict[str, Any]]] = [
    lambda rack: {INPUT: ""},
    lambda rack: {INPUT: "nonsense"},
    lambda rack: {INPUT: str(rack.last_token)},
    lambda rack: {INPUT: signing.dumps({str(rack.pk): [rack.last_token, False]})},
    lambda rack: {INPUT: signed(Bin, {str(rack.pk): Read(rack.last_token)})},
    lambda rack: {INPUT: signed(Rack, {str(rack.pk + 1): Read(rack.last_token)})},
    lambda rack: {INPUT: signed(Rack, {str(rack.pk): Read(rack.last_token)})[:-1] + "!"},
]


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_forged_read_is_refused(admin_client, rack, change, forge):
    form = form_of(admin_client.get(change))
    token = write(rack, size=7)
    rack.refresh_from_db()
    response = admin_client.post(change, {**form, **forge(rack), "size": 12})
    text = text_of(response)
    assert "Nothing was saved. The form does not prove which state of the row it was loaded from" in text
    assert "Now: 7" in text
    assert form_of(response)["size"] == "12"
    rack.refresh_from_db()
    assert (rack.size, rack.last_token) == (7, token)


def test_a_read_that_was_altered_is_refused(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    token = write(rack, size=7)
    _old, colon, signature = form[INPUT].partition(":")
    newer = signing.b64_encode(json.dumps({str(rack.pk): [token, False]}).encode()).decode()
    response = admin_client.post(change, {**form, INPUT: newer + colon + signature, "size": 12})
    assert "does not prove" in text_of(response)
    rack.refresh_from_db()
    assert rack.size == 7


def test_a_key_that_was_typed_is_not_the_key_of_what_was_read(admin_client):
    Ticket.objects.create(code="a", note="note")
    where = url("ticket_change", "a")
    form = form_of(admin_client.get(where))
    came_back = form_of(admin_client.post(where, {**form, "code": "b", "note": "x" * 21}))
    assert list(unsigned(Ticket, came_back[INPUT])) == ["a"]
    assert admin_client.post(where, {**came_back, "code": "a", "note": "short"}).status_code == 302
    assert list(Ticket.objects.values_list("code", "note")) == [("a", "short")]


def test_a_missing_read_is_refused_also_where_nobody_wrote(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    del form[INPUT]
    assert "does not prove" in text_of(admin_client.post(change, {**form, "size": 12}))
    rack.refresh_from_db()
    assert rack.size == 10


@pytest.mark.parametrize("forged", ["999", "-1", "x"])
def test_last_token_cannot_be_sent(admin_client, rack, change, forged):
    token = write(rack, size=7)
    form = form_of(admin_client.get(change))
    assert "last_token" not in form
    assert admin_client.post(change, {**form, "last_token": forged}).status_code == 302
    rack.refresh_from_db()
    assert token < rack.last_token
    assert rack.last_token == FencedWrite.objects.filter(outcome="accepted").latest("pk").token


def test_a_row_that_was_deleted_meanwhile_gives_a_form_that_makes_a_new_one(admin_client, rack, change):
    rack.slot_set.create(quantity=3)
    form = form_of(admin_client.get(change))
    with lease(rack), lease(rack.slot_set.get()):
        rack.delete()
    response = admin_client.post(change, {**form, "size": 12, "slot_set-0-quantity": 4, "racknote_set-0-text": "kept"})
    text = text_of(response)
    assert "was deleted meanwhile" in text
    assert not Rack.objects.exists()
    again = form_of(response)
    assert (again["code"], again["size"]) == ("a", "12")
    assert url("rack_add") in response.content.decode()
    assert admin_client.post(url("rack_add"), again).status_code == 302
    made = Rack.objects.get()
    assert (made.size, made.slot_set.get().quantity, made.racknote_set.get().text) == (12, 4, "kept")


def test_a_row_that_is_deleted_while_it_is_saved_is_not_inserted_again(admin_client, rack, change, monkeypatch):
    form = form_of(admin_client.get(change))

    def late(self: Any, *args: Any, **kwargs: Any) -> None:
        if Rack.objects.filter(pk=self.pk).exists():
            Rack.objects.get(pk=self.pk).delete()
        save(self, *args, **kwargs)

    save = Rack.save
    monkeypatch.setattr(Rack, "save", late)
    # The delete above is undone with the save that it belongs to.
    assert "was deleted meanwhile" in text_of(admin_client.post(change, {**form, "size": 12}))
    rack.refresh_from_db()
    assert rack.size == 10


def test_without_the_right_to_add_a_deleted_row_is_djangos_business(client, rack, change):
    client.force_login(staff("change_rack", "view_rack"))
    form = form_of(client.get(change))
    with lease(rack):
        rack.delete()
    assert client.post(change, form).status_code == 302
    assert not Rack.objects.exists()


def staff(*rights: str) -> User:
    user = User.objects.create_user("staff", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    return user


@pytest.mark.parametrize("rights", [(), ("view_rack",), ("add_rack", "delete_rack")])
def test_who_may_not_change_a_row_takes_no_lease_and_changes_nothing(client, admin_client, rack, change, rights):
    form = form_of(admin_client.get(change))
    client.force_login(staff(*rights))
    assert client.post(change, {**form, "size": 12}).status_code == 403
    rack.refresh_from_db()
    assert rack.size == 10
    history.collect()
    assert not TokenGrant.objects.exists()


def test_who_may_only_view_gets_no_read(client, rack, change):
    client.force_login(staff("view_rack"))
    response = client.get(change)
    assert response.status_code == 200
    assert INPUT not in response.content.decode()


@pytest.mark.parametrize("button", ["_save", "_continue", "_addanother"])
def test_every_button_is_fenced(admin_client, rack, change, button):
    form = form_of(admin_client.get(change))
    assert admin_client.post(change, {**form, "size": 11, button: "1"}).status_code == 302
    write(rack, size=7)
    assert "has changed since" in text_of(admin_client.post(change, {**form, "size": 12, button: "1"}))


def test_continue_gives_a_fresh_form(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    response = admin_client.post(change, {**form, "size": 11, "_continue": "1"}, follow=True)
    assert admin_client.post(change, {**form_of(response), "size": 12}).status_code == 302
    rack.refresh_from_db()
    assert rack.size == 12


def test_save_as_new_needs_no_lease_and_leaves_the_row_alone(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    token = write(rack, size=7)
    with lease(rack):
        response = elsewhere(admin_client.post, change, {**form, "code": "b", "_saveasnew": "1"})
    assert response.status_code == 302
    rack.refresh_from_db()
    assert (rack.size, rack.last_token) == (7, token)
    assert Rack.objects.get(code="b").size == 10


def test_a_popup_is_fenced_too(admin_client, rack, change):
    form = form_of(admin_client.get(f"{change}?_popup=1"))
    assert form["_popup"] == "1"
    write(rack, size=7)
    response = admin_client.post(f"{change}?_popup=1", form)
    assert "has changed since" in text_of(response)
    assert admin_client.post(f"{change}?_popup=1", form_of(response)).status_code == 200
    rack.refresh_from_db()
    assert rack.size == 10


def test_relations_are_saved_with_the_row_or_not_at_all(admin_client, rack, change):
    here = Warehouse.objects.create(name="here")
    there = Warehouse.objects.create(name="there")
    form = form_of(admin_client.get(change))
    write(rack, size=7)
    with lease(rack):
        rack.warehouses.set([there])
    response = admin_client.post(change, {**form, "warehouses": [here.pk]})
    assert "Now: there" in text_of(response)
    assert list(rack.warehouses.all()) == [there]
    assert admin_client.post(change, form_of(response)).status_code == 302
    assert list(rack.warehouses.all()) == [here]


def test_a_new_row_needs_no_lease(admin_client):
    form = form_of(admin_client.get(url("rack_add")))
    assert INPUT not in form
    assert admin_client.post(url("rack_add"), {**form, "code": "new"}).status_code == 302
    assert Rack.objects.get().last_token == 0


def test_a_new_row_of_a_model_that_fences_inserts_takes_its_lease(admin_client):
    assert (
        admin_client.post(url("parcel_add"), {**form_of(admin_client.get(url("parcel_add"))), "weight": 3}).status_code
        == 302
    )
    parcel = Parcel.objects.get()
    assert parcel.last_token > 0
    with lease(parcel):
        pass  # given back


def test_a_change_of_the_name_is_told(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    text = text_of(admin_client.post(change, {**form, "code": "b"}))
    assert "What protects this row cannot change: it is rack:a, and would be rack:b." in text
    rack.refresh_from_db()
    assert rack.code == "a"


def test_a_store_that_is_down_costs_a_message(admin_client, rack, change, settings, caplog):
    form = form_of(admin_client.get(change))
    settings.CACHES = {**settings.CACHES, "down": {**settings.CACHES["leases"], "LOCATION": "unix:///nowhere/x.sock"}}
    backend = {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "down", "NAMESPACE": "down"}
    settings.FENCING = {"BACKENDS": {"default": backend}}
    response = admin_client.post(change, {**form, "size": 12})
    assert "The lease store does not answer. Try again in a moment" in text_of(response)
    assert "/nowhere" not in text_of(response) and "/nowhere" in caplog.text
    assert form_of(response)["size"] == "12"


@pytest.mark.django_db(transaction=True)
def test_atomic_requests_do_not_matter(admin_client, rack, change, settings):
    form = form_of(admin_client.get(change))
    assert connection.settings_dict["ATOMIC_REQUESTS"] is False
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert admin_client.post(change, {**form, "size": 12}).status_code == 302
        gone = url("rack_delete", rack.pk)
        assert admin_client.post(gone, {"post": "yes"}).status_code == 302
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert not Rack.objects.exists()


ODD = ["a/b", "{x}", "ä'\"<b>", "x" * 190, "a b?c=d&e"]


@pytest.mark.parametrize("code", ODD)
def test_odd_names(admin_client, code):
    rack = Rack.objects.create(code=code, size=10)
    change = url("rack_change", rack.pk)
    form = form_of(admin_client.get(change))
    write(rack, size=7)
    response = admin_client.post(change, form)
    assert f"rack:{code} has changed" in text_of(response)
    assert admin_client.post(change, form_of(response)).status_code == 302


def test_the_button_leads_to_the_tokens_of_the_rows_resource(admin_client, client, settings):
    rack = Rack.objects.create(code="a/b")
    change = reverse("admin:shop_rack_change", args=[rack.pk])
    namespace = backend_config("default").namespace
    href = reverse("admin:fencing_timeline", query={"namespace": namespace, "resource": "rack:a/b"})
    assert (
        f'<a href="{escape(href)}" class="historylink">Token history</a>' in admin_client.get(change).content.decode()
    )
    assert admin_client.get(href).status_code == 200
    client.force_login(staff("change_rack", "view_rack", "view_fencedwrite"))
    assert "Token history" not in text_of(client.get(change))


def test_a_site_without_the_timeline_has_no_button(admin_client, change):
    assert "Token history" not in text_of(admin_client.get(change))


def test_nothing_is_inline(admin_client, rack, change):
    form = form_of(admin_client.get(change))
    write(rack, size=7)
    for response in (admin_client.get(change), admin_client.post(change, form)):
        content = response.content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)", content)
        assert not re.search(r"<style|\sstyle=", content.replace('style="display:none"', ""))


@pytest.mark.parametrize("code", ["x" * 190, "tab\there"])
def test_a_new_row_that_cannot_be_named_is_an_error_of_the_form(admin_client, code, monkeypatch):
    monkeypatch.setattr("fencing.naming.MAX_RESOURCE_LENGTH", 100)
    form = form_of(admin_client.get(url("rack_add")))
    assert "resource's name" in text_of(admin_client.post(url("rack_add"), {**form, "code": code}))
    assert not Rack.objects.exists()


@pytest.mark.parametrize("where", ["change", "delete"])
def test_a_row_without_a_name_is_told(admin_client, where):
    rack = Rack.objects.create(code="a")
    with unfenced("test"):
        Rack.objects.update(code="")
    page = url(f"rack_{where}", rack.pk)
    form = form_of(admin_client.get(page)) if where == "change" else {"post": "yes"}
    response = admin_client.post(page, {**form, "code": "a"} if where == "change" else form, follow=True)
    assert "code is empty" in text_of(response)
    assert Rack.objects.get().code == ""


def test_what_a_row_holds_now_is_shown_as_its_inputs_show_it(admin_client, rack, change, settings):
    settings.USE_THOUSAND_SEPARATOR = True
    settings.TIME_ZONE = "Asia/Kathmandu"
    form = form_of(admin_client.get(change, headers={"Accept-Language": "de"}))
    write(rack, size=1234567, kind="deep", checked_at=datetime(2026, 5, 1, 12, tzinfo=UTC), title="<b>" * 20)
    response = admin_client.post(change, {**form, "title": "typed"})
    text = text_of(response)
    assert "Now: 1234567" in text
    assert "Now: deep slots" in text
    assert "Now: 2026-05-01 17:45:00" in text
    assert "Now: &lt;b&gt;&lt;b&gt;" in response.content.decode()


MARIA = pytest.mark.django_db(databases=["default", "maria"], transaction=True)
LITE = pytest.mark.django_db(databases=["default", "lite"], transaction=True)


@pytest.mark.parametrize("alias", [pytest.param("lite", marks=LITE), pytest.param("maria", marks=MARIA)])
def test_rows_on_another_database(admin_client, settings, monkeypatch, alias):
    monkeypatch.setattr(ShopElsewhere, "alias", alias)
    settings.DATABASE_ROUTERS = ["tests.admin.fenced_sites.ShopElsewhere"]
    rack = Rack.objects.create(code="a", size=10)
    assert rack._state.db == alias
    change = url("rack_change", rack.pk)
    form = form_of(admin_client.get(change))
    write(rack, size=7)
    response = admin_client.post(change, {**form, "size": "12"})
    assert "Now: 7" in text_of(response)
    assert admin_client.post(change, form_of(response)).status_code == 302
    rack.refresh_from_db()
    assert rack.size == 12
    listed = url("rack_changelist")
    sent = {"action": "delete_selected", "index": "0", "_selected_action": [rack.pk], "post": "yes"}
    assert admin_client.post(listed, sent).status_code == 302
    assert not Rack.objects.exists()


@pytest.mark.parametrize(("model", "field"), [(ExpressBin, "courier"), (Press, "place"), (BinProxy, "label")])
def test_rows_of_several_tables_and_of_proxies(admin_client, model, field):
    row = model.objects.create()
    change = url(f"{model._meta.model_name}_change", row.pk)
    form = form_of(admin_client.get(change))
    assert (
        admin_client.post(change, {**form, "serial": "s", "label": "l", "courier": "c", field: "first"}).status_code
        == 302
    )
    response = admin_client.post(change, {**form, "serial": "s", "label": "l", "courier": "c", field: "second"})
    assert "has changed since" in text_of(response)
    assert "Now: first" in text_of(response)
    row.refresh_from_db()
    assert getattr(row, field) == "first"


def test_a_save_model_of_ones_own(admin_client, rack, change, monkeypatch):
    def own(self: Any, request: Any, obj: Any, form: Any, change: bool) -> None:
        obj.title = f"saved by {request.user}"
        obj.save()

    monkeypatch.setattr(RackAdmin, "save_model", own)
    form = form_of(admin_client.get(change))
    assert admin_client.post(change, form).status_code == 302
    assert Rack.objects.get().title == "saved by admin"
    assert "has changed since" in text_of(admin_client.post(change, form))


def test_a_get_form_of_ones_own_without_super_is_refused(admin_client, rack, change, monkeypatch):
    monkeypatch.setattr(RackAdmin, "get_form", lambda *_args, **_kwargs: modelform_factory(Rack, exclude=()))
    form = form_of(admin_client.get(change))
    response = admin_client.post(change, {**form, "size": 12}, follow=True)
    assert "does not prove" in text_of(response)
    assert Rack.objects.get().size == 10
