"""A soft time limit that strikes at any line of ours, or of Django's transactions, while a task runs (C07)."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from fencing import Lease, acquiring, entering, leases, leasing, refusals, scope, taskrun, timeleft, transactions
from fencing.backends.redis import RedisBackend
from fencing.celery import fencedtask, run
from fencing.heartbeat import beats
from fencing.scope import NOBODY, held_leases, holder_info
from fencing.taskrun import open_body
from tests.celery import tasks
from tests.celery.helpers import Article, revoke

pytestmark = pytest.mark.slow

OURS = (acquiring, entering, fencedtask, leases, leasing, refusals, run, scope, taskrun, timeleft, transactions)
STRUCK = {module.__file__ for module in (*OURS, transaction)}

Place = tuple[str, int]


class Strike:
    """Raises the limit when a line is about to run for the first time; without a line, tells which ones do run."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = place
        self.places: dict[Place, None] = {}

    def __enter__(self) -> Strike:
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _enter_frame(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._at if frame.f_code.co_filename in STRUCK else None

    def _at(self, frame: FrameType, event: str, arg: object) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line":
            self.places[place] = None
            if place == self.place:
                sys.settrace(None)
                raise SoftTimeLimitExceeded
        return self._at


def places_of(sku: str) -> list[Place]:
    """The lines that a run of the task passes, but for what happens in the first one only."""
    tasks.retrying.apply((sku, 0))
    with Strike() as seen:
        tasks.retrying.apply((sku, 0))
    return [*seen.places]


def test_c07_wherever_the_limit_strikes_nothing_is_left_and_the_task_takes_effect_once(article: Article) -> None:
    quantity = 10
    places = places_of(article.sku)
    assert len(places) > 100
    for place in places:
        task_id = uuid4().hex
        with Strike(place):
            struck = tasks.retrying.apply((article.sku, 1), task_id=task_id)
        assert isinstance(struck.result, SoftTimeLimitExceeded), place
        assert (held_leases(), holder_info.get(), open_body.get()) == ((), NOBODY, None), place
        assert [one for one in beats._entries if isinstance(one, Lease) and one.is_mine()] == [], place
        left = article.live()
        assert left is None or left.remaining <= tasks.TTL, place
        revoke(article.sku)
        quantity += 1
        again = tasks.retrying.apply((article.sku, 1), task_id=task_id)
        assert again.result == quantity, place
        assert not connections["default"].in_atomic_block, place


def test_limit_in_the_release_does_not_make_others_wait_for_the_end_of_the_lease(
    article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = RedisBackend.release
    struck: list[int] = []

    def interrupted(self: RedisBackend, *args: Any) -> bool:
        if not struck:
            struck.append(1)
            raise SoftTimeLimitExceeded
        return release(self, *args)

    monkeypatch.setattr(RedisBackend, "release", interrupted)
    assert isinstance(tasks.retrying.apply((article.sku,)).result, SoftTimeLimitExceeded)
    assert article.is_free()


def test_limit_after_the_store_has_answered_gives_the_lease_back(
    article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.retrying.apply((article.sku, 0))  # so that the store has numbers to give
    acquire = RedisBackend.acquire

    def interrupted(self: RedisBackend, *args: Any) -> Any:
        acquire(self, *args)
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(RedisBackend, "acquire", interrupted)
    assert isinstance(tasks.retrying.apply((article.sku,)).result, SoftTimeLimitExceeded)
    assert article.is_free()
    assert article.quantity == 10


def test_limit_in_the_commit_is_the_outcome_and_leaves_no_transaction(
    article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: BaseDatabaseWrapper) -> None:
        raise SoftTimeLimitExceeded

    with monkeypatch.context() as patch:
        patch.setattr(BaseDatabaseWrapper, "commit", interrupted)
        assert isinstance(tasks.retrying.apply((article.sku,)).result, SoftTimeLimitExceeded)
    assert article.quantity == 10
    assert tasks.retrying.apply((article.sku,)).get() == 9
