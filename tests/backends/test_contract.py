"""What every lease store does in the same way (fencing.backends.base)."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
from django.db import connections

from fencing.backends.base import Granted, Held, HolderInfo, Lost, NeedsRange
from fencing.backends.database import DatabaseBackend
from tests.backends.stores import NOBODY, Store

ODD_NAMES = [
    "a b",
    "{",
    "}",
    "{x}",
    "a}:counter{",
    "lager:Größe 4",
    "*",
    "[a]",
    "\\",
    "ö" * 200,
    "x" * 200,
    "1 2 3",
    "'\"\n",
]


def test_grants_rise_over_all_resources(store: Store) -> None:
    tokens = [store.grant(f"h{number}", f"stock:{number}") for number in range(20)]
    assert tokens == list(range(1, 21))


def test_a_lease_that_is_held_is_refused_with_who_and_how_long(store: Store) -> None:
    token = store.grant("first", info=HolderInfo(task_id="4711", task_name="stock.count"))
    answer = store.backend.acquire(store.place(), "second", 30.0, NOBODY)
    assert isinstance(answer, Held)
    assert (answer.holder, answer.token, answer.task_id) == ("first", token, "4711")
    assert 0 < answer.remaining <= 30


def test_a_request_that_is_sent_again_gets_its_own_token(store: Store) -> None:
    first = store.backend.acquire(store.place(), "same", 30.0, NOBODY)
    again = store.backend.acquire(store.place(), "same", 30.0, NOBODY)
    assert first == again
    assert [kind for kind, *_ in store.events()] == ["granted"]


def test_renewing_sets_the_remaining_time(store: Store) -> None:
    store.grant("holder", ttl=30.0)
    assert store.backend.renew(store.place(), "holder", 5.0)
    lease = store.backend.peek(store.place())
    assert lease is not None
    assert 0 < lease.remaining <= 5
    assert not store.backend.renew(store.place(), "other", 500.0)
    lease = store.backend.peek(store.place())
    assert lease is not None
    assert lease.remaining <= 5


def test_renewing_brings_nothing_back(store: Store) -> None:
    store.grant("holder", ttl=0.05)
    store.expire()
    assert not store.backend.renew(store.place(), "holder", 30.0)
    assert store.backend.peek(store.place()) is None


def test_advancing_issues_the_next_number_and_keeps_the_grant(store: Store) -> None:
    token = store.grant("holder")
    reign = store.backend.acquire(store.place(), "holder", 30.0, NOBODY)
    assert isinstance(reign, Granted)
    assert store.backend.advance(store.place(), "holder") == Granted(token=token + 1, reign=reign.reign)
    lease = store.backend.peek(store.place())
    assert lease is not None
    assert lease.token == token


def test_only_the_holder_of_a_live_lease_advances(store: Store) -> None:
    assert store.backend.advance(store.place(), "nobody") == Lost()
    store.grant("holder", ttl=0.05)
    assert store.backend.advance(store.place(), "other") == Lost()
    store.expire()
    assert store.backend.advance(store.place(), "holder") == Lost()
    assert store.grant("next") == 2, "a refused advance takes no number"


def test_releasing_ends_only_the_own_lease(store: Store) -> None:
    token = store.grant("holder")
    assert not store.backend.release(store.place(), "other", token)
    assert store.backend.peek(store.place()) is not None
    assert store.backend.release(store.place(), "holder", token)
    assert store.backend.peek(store.place()) is None
    assert not store.backend.release(store.place(), "holder", token)


def test_a_late_release_does_not_end_the_next_lease(store: Store) -> None:
    token = store.grant("late", ttl=0.05)
    store.expire()
    store.grant("next")
    assert not store.backend.release(store.place(), "late", token)
    lease = store.backend.peek(store.place())
    assert lease is not None
    assert lease.holder == "next"


def test_an_expired_lease_is_free(store: Store) -> None:
    first = store.grant("first", ttl=0.05)
    store.expire()
    assert store.grant("second") > first


def test_revoking_ends_the_lease_of_that_grant_only(store: Store) -> None:
    token = store.grant("holder")
    assert not store.backend.revoke(store.place(), token + 1)
    assert store.backend.peek(store.place()) is not None
    assert store.backend.revoke(store.place(), token)
    assert store.backend.peek(store.place()) is None
    assert not store.backend.revoke(store.place(), token)
    assert store.backend.advance(store.place(), "holder") == Lost()


def test_drawing_takes_the_next_number_for_nobody(store: Store) -> None:
    before = store.grant("holder")
    drawn = store.backend.draw(store.place())
    assert isinstance(drawn, Granted)
    assert drawn.token == before + 1
    assert store.grant("other", "stock:43") == before + 2


def test_numbers_end_with_the_range_and_go_on_with_the_next(store: Store) -> None:
    reign = store.backend.draw(store.place())
    assert isinstance(reign, Granted)
    assert store.backend.install(store.place(), reign.reign, 2000, 2001)
    assert [store.grant("a", "a"), store.grant("b", "b")] == [2000, 2001]
    needed = [
        store.backend.acquire(store.place("c"), "c", 30.0, NOBODY),
        store.backend.advance(store.place("a"), "a"),
        store.backend.draw(store.place()),
    ]
    for answer in needed:
        assert isinstance(answer, NeedsRange)
        assert (answer.reign, answer.next) == (reign.reign, 2002)
    assert store.backend.peek(store.place("c")) is None, "a grant without a number is none"
    assert store.backend.install(store.place(), reign.reign, 2002, 2002)
    assert store.grant("c", "c") == 2002


def test_a_range_at_or_below_what_was_issued_is_refused(store: Store) -> None:
    answer = store.backend.draw(store.place())
    assert isinstance(answer, Granted)
    assert answer.token == 1
    assert not store.backend.install(store.place(), answer.reign, 1, 500)
    assert store.backend.draw(store.place()) == Granted(token=2, reign=answer.reign)


def test_a_range_of_another_reign_is_refused(store: Store) -> None:
    assert not store.backend.install(store.place(), "another", 5000, 6000)
    assert store.grant("holder") == 1


def test_no_number_of_a_closed_reign_is_issued(store: Store) -> None:
    token = store.grant("holder")
    old = store.backend.draw(store.place())
    assert isinstance(old, Granted)
    closed = store.backend.close_reign(store.place())
    assert closed.reign != old.reign
    assert closed.next == old.token + 1, "still a lower bound"
    assert store.backend.acquire(store.place("other"), "other", 30.0, NOBODY) == closed
    assert store.backend.draw(store.place()) == closed
    assert store.backend.install(store.place(), closed.reign, 5000, 6000)
    assert store.grant("other", "other") == 5000
    assert token < old.token


def test_a_range_that_was_reserved_for_a_closed_reign_comes_too_late(store: Store) -> None:
    asked = store.backend.draw(store.place()).reign
    closed = store.backend.close_reign(store.place())
    assert not store.backend.install(store.place(), asked, 2000, 3000)
    assert store.backend.install(store.place(), closed.reign, 5000, 6000)
    assert not store.backend.install(store.place(), asked, 7000, 8000)
    assert store.grant("holder") == 5000


def test_leases_outlive_the_close_of_their_reign_and_never_advance(store: Store) -> None:
    token = store.grant("holder")
    closed = store.backend.close_reign(store.place())
    assert store.backend.advance(store.place(), "holder") == Lost()
    assert store.backend.install(store.place(), closed.reign, 5000, 6000)
    assert store.backend.advance(store.place(), "holder") == Lost()
    assert store.backend.renew(store.place(), "holder", 30.0)
    answer = store.backend.acquire(store.place(), "other", 30.0, NOBODY)
    assert isinstance(answer, Held)
    assert store.backend.release(store.place(), "holder", token)
    assert store.grant("other") == 5000


def test_closing_again_closes_once_more_and_closing_nothing_begins(store: Store) -> None:
    first = store.backend.close_reign(store.place())
    again = store.backend.close_reign(store.place())
    assert first.reign != again.reign
    assert not store.backend.install(store.place(), first.reign, 5000, 6000)
    empty = Store(store.backend)
    assert empty.needs_range() == empty.needs_range()
    fresh = Store(store.backend)
    closed = fresh.backend.close_reign(fresh.place())
    assert (closed.next, closed) == (1, fresh.needs_range())


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_stay_what_they_are(store: Store, name: str) -> None:
    token = store.grant("holder", name)
    lease = store.backend.peek(store.place(name))
    assert lease is not None
    assert (lease.resource, lease.token) == (name, token)
    assert [one.resource for one in store.backend.live(store.space, 0, 10)] == [name]
    assert store.events() == [("granted", token, name, "holder")]
    assert store.backend.release(store.place(name), "holder", token)


def test_what_a_grant_remembers_comes_back(store: Store) -> None:
    info = HolderInfo(task_id='odd "id" {}', task_name="läger.zählen x")
    store.grant("holder", ttl=12.5, info=info)
    lease = store.backend.peek(store.place())
    assert lease is not None
    assert lease.info == info
    [event] = store.backend.read_events(store.space, 0, 10)
    assert (event.info, event.ttl) == (info, 12.5)
    assert abs((event.at - lease.granted_at).total_seconds()) < 5


def test_live_leases_are_listed_up_to_a_limit(store: Store) -> None:
    for number in range(7):
        store.grant(f"h{number}", f"stock:{number}")
    other = Store(store.backend)
    other.open()
    other.grant("elsewhere")
    assert {one.resource for one in store.backend.live(store.space, 0, 100)} == {f"stock:{n}" for n in range(7)}
    assert len(list(store.backend.live(store.space, 0, 3))) == 3


def test_how_far_it_has_counted_is_told_without_counting(store: Store) -> None:
    store.grant("holder")
    token = store.grant("other", "stock:43")
    for _ in range(2):
        found = store.backend.counting(store.space, 0)
        assert found is not None
        assert (found.next, found.ceiling) == (token + 1, 1000)
    closed = store.backend.close_reign(store.place())
    found = store.backend.counting(store.space, 0)
    assert found is not None
    assert (found.reign, found.server, found.next) == (closed.reign, closed.server, token + 1)
    assert found.ceiling < found.next, "no range"
    assert store.backend.counting("unheard-of", 3) is None


def test_those_who_wait_are_counted_where_the_store_keeps_a_queue(store: Store) -> None:
    names = ["stock:42", *ODD_NAMES]
    for name in names:
        store.grant("holder", name)
    queues = not isinstance(store.backend, DatabaseBackend)

    def counted() -> list[int | None]:
        return list(store.backend.waiters(store.space, 0, names))

    assert counted() == [0 if queues else None] * len(names)
    with ExitStack() as stack:
        for holder, name in [("one", "stock:42"), ("two", "stock:42"), ("three", ODD_NAMES[-1])]:
            stack.callback(store.backend.give_up, store.place(name), holder)
            waiter = stack.enter_context(store.backend.waiter(holder, 30.0, NOBODY))
            assert isinstance(waiter.ask(store.place(name)), Held)
        expected = [2, *[0] * (len(names) - 2), 1]
        assert counted() == (expected if queues else [None] * len(names))
    assert counted() == [0 if queues else None] * len(names)
    assert list(store.backend.waiters(store.space, 0, [])) == []


def test_the_outbox_tells_each_grant_and_its_end(store: Store) -> None:
    place = store.place()
    first = store.grant("first")
    store.backend.release(place, "first", first)
    second = store.grant("second", ttl=0.05)
    store.expire()
    store.backend.release(place, "second", second)
    third = store.grant("third")
    store.backend.revoke(place, third)
    assert store.events() == [
        ("granted", first, "stock:42", "first"),
        ("released", first, "stock:42", "first"),
        ("granted", second, "stock:42", "second"),
        ("lost", second, "stock:42", "second"),
        ("granted", third, "stock:42", "third"),
        ("revoked", third, "stock:42", "third"),
    ]


def test_events_stay_until_they_are_forgotten(store: Store) -> None:
    for number in range(5):
        store.grant(f"h{number}", f"stock:{number}")
    read = store.backend.read_events(store.space, 0, 3)
    assert [one.token for one in read] == [1, 2, 3]
    assert store.backend.read_events(store.space, 0, 3) == read
    ids = [one.id for one in read]
    store.backend.forget_events(store.space, 0, ids)
    store.backend.forget_events(store.space, 0, ids)
    store.backend.forget_events(store.space, 0, [])
    assert [token for _, token, *_ in store.events()] == [4, 5]


def test_what_the_cap_drops_is_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store.backend), "events_cap", 10)
    for _ in range(600):
        token = store.grant("holder")
        assert store.backend.release(store.place(), "holder", token)
    kept, dropped = store.events(), store.backend.dropped_events(store.space, 0)
    assert dropped > 0
    assert len(kept) + dropped == 1200
    assert kept[-1][:2] == ("released", 600)


@pytest.mark.parametrize("count", ["advance", "draw"])
def test_cap_is_kept_whichever_numbers_grants_get(store: Store, monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    """Where each grant takes one more number, grants have odd ones only."""
    monkeypatch.setattr(type(store.backend), "events_cap", 10)
    for _ in range(300):
        token = store.grant("holder")
        args = ["holder"] if count == "advance" else []
        assert getattr(store.backend, count)(store.place(), *args) != Lost()
        assert store.backend.release(store.place(), "holder", token)
    kept, dropped = store.events(), store.backend.dropped_events(store.space, 0)
    assert dropped > 0
    assert len(kept) + dropped == 600


def test_nothing_was_dropped_in_the_beginning(store: Store) -> None:
    assert store.backend.dropped_events(store.space, 0) == 0
    assert store.backend.dropped_events("unheard-of", 3) == 0
    assert store.backend.read_events("unheard-of", 3, 10) == []
    assert list(store.backend.live("unheard-of", 3, 10)) == []


def test_forgetting_loses_everything_of_one_namespace_only(store: Store) -> None:
    # The names are no patterns, and none is the beginning of another.
    other = Store(store.backend, space=f"{store.space}0")
    other.open(first=500)
    reigns = [store.needs_reign(), other.needs_reign()]
    for number in range(3):
        store.grant(f"h{number}", f"stock:{number}")
    kept = other.grant("holder")
    store.backend.forget(store.space)
    assert list(store.backend.live(store.space, 0, 10)) == []
    assert store.backend.peek(store.place("stock:1")) is None
    assert store.events() == []
    assert not store.backend.renew(store.place("stock:1"), "h1", 30.0)
    assert store.backend.advance(store.place("stock:1"), "h1") == Lost()
    assert not store.backend.install(store.place(), reigns[0], 2000, 3000), "that reign is over"
    assert store.needs_range().next == 1
    assert [lease.token for lease in store.backend.live(other.space, 0, 10)] == [kept]
    assert [token for _, token, *_ in other.events()] == [kept]
    assert other.needs_reign() == reigns[1]


def test_forgetting_what_was_never_there_is_nothing(store: Store) -> None:
    token = store.grant("holder")
    store.backend.forget("unheard-of")
    assert store.grant("holder") == token


def test_who_waits_in_a_store_that_forgot_is_served(store: Store) -> None:
    store.grant("holder")
    with store.backend.waiter("waiter", 30.0, NOBODY) as waiter:
        held = waiter.ask(store.place())
        assert isinstance(held, Held)
        store.backend.forget(store.space)
        store.open(first=2000, last=3000)
        answer = waiter.ask(store.place())
        assert isinstance(answer, Granted) and answer.token == 2000


def test_threads_never_get_the_same_number_or_the_same_lease(store: Store) -> None:
    issued: list[int] = []
    together = threading.Barrier(4)

    def take(name: str) -> None:
        together.wait(timeout=10)
        try:
            for number in range(50):
                answer = store.backend.acquire(store.place("hot"), f"{name}-{number}", 30.0, NOBODY)
                if isinstance(answer, Granted):
                    issued.append(answer.token)
                    assert store.backend.release(store.place("hot"), f"{name}-{number}", answer.token)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=take, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert issued
    assert issued == sorted(set(issued)), "each was noted while the lease was held: in the order of the grants"
