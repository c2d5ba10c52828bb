"""Grants whose holder was killed end as expired, once the store has them no more; what is renewed never does."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from fencing import LeaseBackendError, history, lease
from fencing.acquiring import acquire
from fencing.backends import get_backend
from fencing.expiry import end_expired
from fencing.leases import Lease
from fencing.models import FencedWrite, TokenGrant
from fencing.pruning import databases, prune
from fencing.testing import leases_in_memory
from fencing.tokens import place_of
from tests.concurrency import wait_until

DAY = 86_400.0
MARIA = pytest.mark.django_db(databases=["default", "maria"], transaction=True)
pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)


@pytest.fixture(autouse=True)
def _nothing_waits() -> None:
    history.collect()
    TokenGrant.objects.all().delete()


def killed(ttl: float = 0.05, resource: str = "stock:42") -> Lease:
    """The lease of a holder whom nobody hears of any more, after its ttl."""
    held = acquire(resource, ttl=ttl, give_up=0, using="default", allow_in_transaction=False)
    backend = get_backend()
    wait_until(lambda: backend.peek(place_of(backend, resource)) is None, "the lease ends by itself")
    return held


def told() -> list[dict[str, Any]]:
    """What `fencing history` says."""
    out = StringIO()
    call_command("fencing", "history", "--json", stdout=out, stderr=out)
    (line,) = out.getvalue().splitlines()
    found: list[dict[str, Any]] = json.loads(line)["grants"]
    return found


def long_ago(held: Lease) -> None:
    """As if the grant were an hour old."""
    history.collect()
    TokenGrant.objects.filter(token=held.token).update(granted_at=timezone.now() - timedelta(hours=1))


def test_grant_of_a_killed_holder_ends_a_ttl_after_it() -> None:
    held = killed()
    (grant,) = told()
    assert (grant["token"], grant["ended"], grant["held_seconds"]) == (held.token, "expired", 0.05)
    assert TokenGrant.objects.get().ended == "expired"


def test_lease_that_is_renewed_is_open_however_old() -> None:
    with lease("stock:42", ttl=30) as held:
        long_ago(held)
        assert [one["ended"] for one in told()] == ["open"]


def test_last_sign_of_life_is_the_last_write() -> None:
    held = killed()
    long_ago(held)
    write = FencedWrite.objects.create(
        namespace=held.namespace, token=held.token, grant_token=held.token, resource="stock:42", action="update",
        outcome="accepted", at=timezone.now() - timedelta(seconds=60),
    )  # fmt: skip
    told()
    assert TokenGrant.objects.get().ended_at == write.at + timedelta(seconds=0.05)


def test_release_that_nobody_has_collected_is_a_release() -> None:
    with lease("stock:42") as held:
        long_ago(held)
        grants = list(TokenGrant.objects.all())
    end_expired(get_backend(), grants, databases())
    assert TokenGrant.objects.get().ended == "released"


@pytest.mark.parametrize("alias", ["default", "lite", pytest.param("maria", marks=MARIA)])
def test_prune_ends_all_of_them_and_the_next_one_forgets(alias: str, settings: Any) -> None:
    """They stayed for ever, because nobody had told their end."""
    entry = {**settings.FENCING["BACKENDS"]["default"], "DATABASE": alias, "NAMESPACE": "killed"}
    settings.FENCING = {"BACKENDS": {"default": entry}, "RETENTION": DAY}
    grants = TokenGrant.objects.using(alias)
    old = timezone.now() - timedelta(seconds=3 * DAY)
    for token in range(10**12, 10**12 + 5):
        grants.create(
            namespace="killed", token=token, resource=f"r:{token % 10}", holder="h", granted_at=old, ttl=DAY * 2.5
        )
    with lease("stock:42") as held:
        history.collect()
        grants.filter(token=held.token).update(granted_at=old)
        assert {one.what: one.rows for one in prune()} == {"writes": 0, "grants": 0}
        assert list(grants.filter(ended="").values_list("token", flat=True)) == [held.token]
    assert set(grants.filter(resource__startswith="r").values_list("ended", "ended_at")) == {
        ("expired", old + timedelta(seconds=2.5 * DAY))
    }


def test_grants_stay_open_while_the_store_does_not_answer(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.FENCING = {**settings.FENCING, "RETENTION": DAY}
    killed()
    history.collect()
    monkeypatch.setattr(
        get_backend(), "peek", lambda *args: (_ for _ in ()).throw(LeaseBackendError("default", "gone"))
    )
    assert {one.what for one in prune()} == {"writes", "grants"}
    assert "stay open" in caplog.text
    err = StringIO()
    call_command("fencing", "history", stdout=StringIO(), stderr=err)
    assert "Who still holds a lease is not known here" in err.getvalue()
    assert TokenGrant.objects.get().ended == ""


def test_memory_of_this_process_does_not_tell_that_a_lease_of_another_has_ended() -> None:
    """There the holder lives on, and renews."""
    with leases_in_memory():
        grant = TokenGrant.objects.create(
            namespace="default", token=7, resource="stock:42", holder="in another process", ttl=1,
            granted_at=timezone.now() - timedelta(hours=1),
        )  # fmt: skip
        assert end_expired(get_backend(), [grant], databases()) == 0
    assert TokenGrant.objects.get().ended == ""


def test_lease_of_a_ttl_that_no_clock_comes_to_stops_nobody() -> None:
    held = acquire("stock:42", ttl=10**12, give_up=0, using="default", allow_in_transaction=False)
    gone = killed(resource="stock:43")
    history.collect()
    assert end_expired(get_backend(), TokenGrant.objects.all(), databases()) == 1
    assert dict(TokenGrant.objects.values_list("token", "ended")) == {held.token: "", gone.token: "expired"}
    held.release()
