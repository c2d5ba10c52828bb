"""History: grants collected from the store exactly once, refusals that survive, and the RECORD setting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from fencing import LeaseBackendError, StaleWriteError, history, lease
from fencing.acquiring import acquire
from fencing.backends import get_backend
from fencing.history import collect
from fencing.models import FencedWrite, TokenGrant
from fencing.scope import holding
from fencing.tokens import place_of
from inventory_demo.models import Stock
from tests.concurrency import BOUND, threads, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _empty_outbox() -> None:
    collect()
    TokenGrant.objects.all().delete()


def waiting_events() -> int:
    backend = get_backend()
    return len(backend.read_events(place_of(backend, "x").space, 0, 1000))


def test_grant_and_its_end() -> None:
    with lease("stock:42", ttl=7) as held:
        assert collect() == 1
        grant = TokenGrant.objects.get()
        assert (grant.token, grant.resource, grant.holder, grant.ttl, grant.ended) == (
            held.token, "stock:42", held.holder, 7.0, "",
        )  # fmt: skip
        assert grant.granted_at is not None and abs((grant.granted_at - held.granted_at).total_seconds()) < 60
    assert collect() == 1 and collect() == 0
    grant.refresh_from_db()
    assert grant.ended == "released" and grant.ended_at is not None and grant.ended_at >= grant.granted_at


def test_grants_cost_no_database_work(django_assert_num_queries: Any) -> None:
    with lease("stock:42"):
        pass
    with django_assert_num_queries(0), lease("stock:42"):
        pass


def test_collecting_again_after_a_crash_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are committed, and the collector dies before it removes the events."""
    with lease("stock:42"):
        pass
    backend = get_backend()
    with monkeypatch.context() as patch:
        patch.setattr(
            backend, "forget_events", lambda *args: (_ for _ in ()).throw(LeaseBackendError("default", "gone"))
        )
        with pytest.raises(LeaseBackendError):
            collect()
    before = list(TokenGrant.objects.values())
    assert len(before) == 1 and waiting_events() == 2
    assert collect() == 2 and waiting_events() == 0
    assert list(TokenGrant.objects.values()) == before


def test_collecting_fails_before_the_rows_are_there_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with lease("stock:42"):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(history, "_merge", lambda *args: (_ for _ in ()).throw(OperationalError("down")))
        with pytest.raises(OperationalError):
            collect()
    assert waiting_events() == 2
    collect()
    assert TokenGrant.objects.get().ended == "released"


def test_end_that_is_collected_before_its_grant() -> None:
    with lease("stock:42"):
        pass
    backend = get_backend()
    events = list(backend.read_events(place_of(backend, "x").space, 0, 10))
    history._merge(connection, backend.config.namespace, events[1:])
    history._merge(connection, backend.config.namespace, events[:1])
    grant = TokenGrant.objects.get()
    assert grant.ended == "released" and grant.granted_at is not None and grant.ttl == 30.0


def test_several_collectors_at_a_time() -> None:
    for number in range(60):
        with lease(f"stock:{number % 7}"):
            pass
    with threads() as start:
        for one in [start(lambda: collect(batch=10)) for _ in range(4)]:
            one.result(BOUND)
    assert TokenGrant.objects.count() == 60
    assert set(TokenGrant.objects.values_list("ended", flat=True)) == {"released"}
    assert waiting_events() == 0


def test_grant_of_a_holder_that_was_killed() -> None:
    """A SIGKILLed holder's grant is in the history too, and ends as expired when somebody newer comes."""
    script = (
        "import django, sys, time; django.setup()\n"
        "from fencing import lease\n"
        "with lease('stock:killed', ttl=1) as held:\n"
        "    print(held.token, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings",
        "FENCING_TEST_DATABASE": str(connection.settings_dict["NAME"]),
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin and child.stdout
    token = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait(BOUND)
    child.stdin.close(), child.stdout.close()
    collect()
    assert TokenGrant.objects.get(token=token).ended == ""
    with lease("stock:killed", wait=10) as newer:
        assert newer.token > token
    collect()
    assert TokenGrant.objects.get(token=token).ended == "expired"


def test_lost_lease_ends_as_lost() -> None:
    held = acquire("stock:42", ttl=0.05, give_up=0, using="default", allow_in_transaction=False)
    with lease("stock:42", wait=5):
        held.release()
    collect()
    assert list(TokenGrant.objects.order_by("token").values_list("ended", flat=True)) == ["lost", "released"]


def test_revoked_lease_ends_as_revoked() -> None:
    with lease("stock:42", renew=False) as held:
        held._backend.revoke(held._place, held.token)
    collect()
    assert TokenGrant.objects.get().ended == "revoked"


def test_release_that_was_sent_twice_is_a_release() -> None:
    with lease("stock:42") as held:
        pass
    held._backend.release(held._place, held.holder, held.token)
    collect()
    assert TokenGrant.objects.get().ended == "released"


def test_live_process_collects_in_the_background() -> None:
    """Outside of a test environment nobody has to ask."""
    script = (
        "import django, sys; django.setup()\n"
        "from fencing import lease\n"
        "with lease('stock:background'): pass\n"
        "sys.stdin.read()\n"
    )
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings",
        "FENCING_TEST_DATABASE": str(connection.settings_dict["NAME"]),
    }  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE) as child:
        wait_until(TokenGrant.objects.filter(ended="released").exists, "the background collects")
        child.communicate(timeout=BOUND)
    assert child.returncode == 0


@pytest.mark.parametrize(("record", "kept"), [("all", ["accepted", "stale"]), ("refused", ["stale"]), ("none", [])])
def test_record_setting(settings: Any, record: str, kept: list[str]) -> None:
    settings.FENCING = {**settings.FENCING, "RECORD": record}
    Stock.objects.create(sku="42")
    late = Stock.objects.get()
    sleeper = acquire("stock:42", ttl=30, give_up=0, using="default", allow_in_transaction=False)
    sleeper._backend.revoke(sleeper._place, sleeper.token)
    with lease("stock:42"):
        Stock.objects.get().save()
    with pytest.raises(StaleWriteError):
        late.save(lease=sleeper)
    assert list(FencedWrite.objects.order_by("id").values_list("outcome", flat=True)) == kept


def test_refusal_that_cannot_be_recorded_is_still_a_refusal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """L8: the history's own connection fails; the typed error is what the caller gets."""
    Stock.objects.create(sku="42")
    late = Stock.objects.get()
    sleeper = acquire("stock:42", ttl=30, give_up=0, using="default", allow_in_transaction=False)
    sleeper._backend.revoke(sleeper._place, sleeper.token)
    with lease("stock:42"):
        Stock.objects.get().save()
    monkeypatch.setattr(history, "record", lambda *args: (_ for _ in ()).throw(OperationalError("full")))
    with pytest.raises(StaleWriteError), transaction.atomic(), holding(sleeper):
        late.save()
    assert "could not be recorded" in caplog.text


def test_two_grants_never_share_a_token_in_the_history() -> None:
    with lease("stock:42") as held:
        collect()
    with pytest.raises(IntegrityError):
        TokenGrant.objects.create(namespace=held.namespace, token=held.token, resource="x", holder="y")
