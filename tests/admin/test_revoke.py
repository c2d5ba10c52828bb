"""Revoking in the admin: the lease that was shown and no other, by who may, with a reason, and on record."""

from __future__ import annotations

import re
from contextvars import Context
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse

from fencing import LeaseBackendError, StaleWriteError, history, lease
from fencing.admin import links
from fencing.backends import get_backend
from fencing.backends.base import LiveLease
from fencing.conf import backend_config
from fencing.leases import Lease
from fencing.maintenance import MAX_REASON
from fencing.models import FencedResource, FencedWrite, HeldLease, TokenGrant
from fencing.revocation import revoke
from fencing.tokens import place_of
from inventory_demo.models import Stock
from tests.concurrency import threads, wait_until, wait_until_expired

pytestmark = pytest.mark.django_db(transaction=True)

ODD = 'lager:/{Größe} "4"\'?&#%<b> '


def url(resource: str = "stock:1", using: str = "default") -> str:
    return links.revoke_url("admin", using, resource)


def live(resource: str = "stock:1") -> LiveLease | None:
    backend = get_backend()
    return backend.peek(place_of(backend, resource))


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", response.content.decode())))


def post(
    client: Client, held: Lease | int, resource: str = "stock:1", reason: str = "it is stuck", **options: Any
) -> Any:
    token = held if isinstance(held, int) else held.token
    return client.post(url(resource), {"token": token, "reason": reason}, follow=True, **options)


def revocations() -> list[FencedWrite]:
    return list(FencedWrite.objects.filter(action="revoke"))


def with_rights(client: Client, *rights: str) -> User:
    user = User.objects.create_user("operator", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client.force_login(user)
    return user


def test_the_page_tells_whose_lease_and_what_will_happen_and_does_nothing(admin_client):
    with lease("stock:1") as held:
        page = text_of(admin_client.get(url()))
        assert held.holder in page and f"Token {held.token} " in page and "Time left" in page
        assert "The holder is not stopped" in page and "its next fenced write is refused" in page
        found = live()
        assert found is not None and found.token == held.token
    assert revocations() == []


def test_a_holder_in_another_thread_is_refused_by_the_database(client):
    operator = with_rights(client, "view_heldlease", "revoke_heldlease")
    stock = Stock.objects.create(sku="stuck", quantity=10)
    taken: list[Lease] = []
    revoked: list[bool] = []

    def hold() -> str:
        mine = Stock.objects.get(pk=stock.pk)
        with lease("stock:stuck", ttl=300) as held:
            taken.append(held)
            wait_until(lambda: revoked, "it is revoked")
            mine.quantity = 0
            try:
                mine.save()
            except StaleWriteError as error:
                return f"refused: {error.token} < {error.seen}"
        return "accepted"

    with threads() as start:
        holder = start(hold)
        wait_until(lambda: taken, "the lease is taken")
        [held] = taken
        response = post(client, held, "stock:stuck", reason="its worker hangs")
        revoked.append(True)
        number = FencedResource.objects.get(name="stock:stuck").last_token
        assert holder.result(timeout=20) == f"refused: {held.token} < {number}"
    assert Stock.objects.get(pk=stock.pk).quantity == 10
    assert response.redirect_chain == [(links.live_url("admin"), 302)]
    assert f"The lease of stock:stuck, token {held.token}, was revoked" in text_of(response)
    assert live("stock:stuck") is None

    [noted] = revocations()
    assert (noted.resource, noted.grant_token, noted.token) == ("stock:stuck", held.token, number)
    assert noted.note == f"its worker hangs (operator (user {operator.pk}))"
    assert FencedWrite.objects.get(resource="stock:stuck", outcome="stale").grant_token == held.token
    grant = TokenGrant.objects.get(token=held.token)
    assert grant.ended == "revoked"

    entry = LogEntry.objects.get()
    assert (entry.user, entry.action_flag, entry.object_id) == (operator, CHANGE, str(grant.pk))
    assert entry.content_type == ContentType.objects.get_for_model(HeldLease, for_concrete_model=False)
    assert "its worker hangs" in entry.change_message and f"token {held.token}, was revoked" in entry.change_message
    assert entry.get_admin_url() == reverse("admin:fencing_heldlease_change", args=[grant.pk])


def test_the_next_holder_gets_it_and_may_write(admin_client):
    stock = Stock.objects.create(sku="next", quantity=10)
    with lease("stock:next") as held:
        post(admin_client, held, "stock:next")

        def work() -> int:
            with lease("stock:next") as newer:
                fresh = Stock.objects.get(pk=stock.pk)
                fresh.quantity = 9
                fresh.save()
                return newer.token

        assert Context().run(work) > held.token
    assert Stock.objects.get(pk=stock.pk).quantity == 9


def test_a_lease_that_changed_hands_meanwhile_stays_and_is_shown(admin_client):
    with lease("stock:1") as first:
        pass
    with lease("stock:1") as newer:
        response = post(admin_client, first)
        page = text_of(response)
        assert response.status_code == 200
        assert f"Nothing was revoked: token {first.token} no longer has the lease, which {newer.holder} has" in page
        assert f'name="token" value="{newer.token}"' in response.content.decode(), "what is shown is what is compared"
        assert 'value="it is stuck"' in response.content.decode(), "nothing typed is lost"
        found = live()
        assert found is not None and found.holder == newer.holder
        assert newer.is_held()
        newer.ensure_held()
    assert revocations() == [] and not LogEntry.objects.exists()
    assert not FencedResource.objects.filter(last_token__gt=newer.token, holder="revoked").exists()


def test_revoked_twice_refuses_no_one_else(admin_client):
    with lease("stock:1") as held:
        post(admin_client, held)
        again = post(admin_client, held)
        assert f"The lease of stock:1, token {held.token}, had ended already (revoked). Every token" in text_of(again)
    with lease("stock:1") as newer:
        assert "Nothing was revoked" in text_of(post(admin_client, held))
        newer.ensure_held()
    found = live()
    assert found is None


def test_how_a_lease_had_ended_is_told_as_far_as_the_history_knows(admin_client):
    with lease("stock:1") as released:
        pass
    assert f"token {released.token}, had ended already (released). Every" in text_of(post(admin_client, released))
    with lease("stock:2", ttl=0.05, renew=False) as asleep:
        wait_until_expired("stock:2")
        # Nobody has told of it: it ran out, or the store has forgotten it.
        assert f"token {asleep.token}, had ended already. Every" in text_of(post(admin_client, asleep, "stock:2"))


@pytest.mark.parametrize(
    "rights", [[], ["view_heldlease"], ["revoke_heldlease"], ["view_heldlease", "view_tokengrant"]]
)
def test_who_may_not_revoke_cannot_even_by_a_forged_post(client, rights):
    with lease("stock:1") as held:
        assert "/login/" in client.post(url(), {"token": held.token, "reason": "x"}).headers["Location"]
        with_rights(client, *rights)
        assert client.get(url()).status_code == 403
        assert post(client, held).status_code == 403
        found = live()
        assert found is not None and found.token == held.token
    assert revocations() == []


def test_a_post_from_elsewhere_is_refused(admin_user):
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    with lease("stock:1") as held:
        assert post(client, held).status_code == 403
        assert live() is not None


@pytest.mark.parametrize("method", ["get", "head", "put", "delete"])
def test_nothing_but_a_post_revokes(admin_client, method):
    with lease("stock:1") as held:
        getattr(admin_client, method)(f"{url()}&token={held.token}&reason=x")
        assert live() is not None
    assert revocations() == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"reason": ""}, "This field is required."),
        ({"reason": "  "}, "This field is required."),
        ({"reason": "x" * (MAX_REASON + 1)}, f"at most {MAX_REASON} characters"),
        ({"reason": "a\0b"}, "Null characters are not allowed."),
        ({"token": ""}, "This field is required."),
        ({"token": "seven"}, "Enter a whole number."),
        ({"token": "0"}, "greater than or equal to 1"),
        ({"token": str(2**53)}, "less than or equal to"),
    ],
)
def test_bad_input_gets_a_clear_answer_and_revokes_nothing(admin_client, given, told):
    with lease("stock:1") as held:
        response = admin_client.post(url(), {"token": held.token, "reason": "it is stuck"} | given)
        assert response.status_code == 200
        assert told in text_of(response)
        assert live() is not None
    assert revocations() == []


@pytest.mark.parametrize("address", ["", "?using=default", "?resource=x", "?using=nobody&resource=x", "?using=default&resource=a%00b", "?using=default&resource=" + "x" * 201])  # fmt: skip
def test_an_address_of_nothing_is_not_found(admin_client, address):
    for ask in (admin_client.get, admin_client.post):
        assert ask(url().split("?")[0] + address).status_code == 404


def test_a_lease_that_nobody_holds_leads_back(admin_client):
    response = admin_client.get(url("stock:nobody"), follow=True)
    assert "Nobody holds the lease of stock:nobody any more." in text_of(response)


@pytest.mark.parametrize("resource", [ODD, "ö" * 200, " x "])
def test_odd_names_go_through_the_form(admin_client, resource):
    with lease(resource) as held:
        page = admin_client.get(url(resource)).content.decode()
        assert "<b>" not in page
        response = post(admin_client, held, resource)
        assert "was revoked" in text_of(response)
    assert [one.resource for one in revocations()] == [resource]


def test_the_longest_reason_is_kept_whole_with_who_it_was(client):
    operator = with_rights(client, "view_heldlease", "revoke_heldlease")
    User.objects.filter(pk=operator.pk).update(username="u" * 150)
    with lease("stock:1") as held:
        post(client, held, reason="r" * MAX_REASON)
    [noted] = revocations()
    assert noted.note == f"{'r' * MAX_REASON} ({'u' * 60} (user {operator.pk}))"


def test_a_request_in_a_transaction_is_no_hindrance(admin_client, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    seen: list[bool] = []

    def spy(*args: Any, **options: Any) -> Any:
        seen.append(connection.in_atomic_block)
        return revoke(*args, **options)

    monkeypatch.setattr("fencing.admin.revoking.revoke", spy)
    with lease("stock:1") as held:
        assert "was revoked" in text_of(post(admin_client, held))
    assert seen == [False]
    assert LogEntry.objects.count() == 1


def test_a_store_that_fails_is_told_and_the_holder_is_refused_already(admin_client, monkeypatch):
    backend = get_backend()

    def fail(*_args: Any) -> None:
        raise LeaseBackendError("default", "the store does not answer.")

    with lease("stock:1") as held:
        monkeypatch.setattr(backend, "revoke", fail)
        response = post(admin_client, held)
        assert response.status_code == 200
        assert "is not known to be revoked" in text_of(response) and "does not answer" in text_of(response)
        monkeypatch.undo()
        assert live() is not None
        assert FencedResource.objects.get(name="stock:1").last_token > held.token
        assert not LogEntry.objects.exists()
        assert "was revoked" in text_of(post(admin_client, held))


def test_a_store_that_is_down_is_told(admin_client, settings):
    settings.CACHES = {
        **settings.CACHES,
        "down": {**settings.CACHES["leases"], "LOCATION": "unix:///nowhere/valkey.sock"},
    }
    down = {
        "BACKEND": "fencing.backends.redis.RedisBackend",
        "CACHE": "down",
        "NAMESPACE": backend_config("default").namespace,
    }
    settings.FENCING = {"BACKENDS": {"default": down}}
    response = post(admin_client, 7)
    assert response.status_code == 200
    assert "is not known to be revoked" in text_of(response)
    assert revocations() == [] and not LogEntry.objects.exists()


def test_a_log_that_fails_undoes_nothing_and_is_told(admin_client, monkeypatch):
    def fail(*_args: Any, **_options: Any) -> None:
        raise OperationalError("the disk is full")

    with lease("stock:1") as held:
        monkeypatch.setattr("fencing.admin.live.HeldLeaseAdmin.log_change", fail)
        page = text_of(post(admin_client, held))
        assert "was revoked" in page and "Django's log does not have it: the disk is full" in page
        assert live() is None
    assert len(revocations()) == 1


def test_the_log_leads_to_the_grant(admin_client):
    with lease("stock:1") as held:
        post(admin_client, held)
    history.collect()
    grant = TokenGrant.objects.get(token=held.token)
    index = admin_client.get(reverse("admin:index")).content.decode()
    assert reverse("admin:fencing_heldlease_change", args=[grant.pk]) in index
    assert admin_client.get(reverse("admin:fencing_heldlease_change", args=[grant.pk]), follow=True).status_code == 200
    page = admin_client.get(reverse("admin:fencing_heldlease_history", args=[grant.pk]))
    assert "it is stuck" in page.content.decode()
