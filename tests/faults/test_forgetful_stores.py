"""I1 on a server that restarts, is flushed, evicts, or gets an old dump: the next token is above all before it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest
from django.core.cache import caches

from fencing import LeaseHeldError, StaleWriteError, lease
from fencing.backends.base import Lost
from fencing.models import Reign, TokenRange
from inventory_demo.models import Stock
from tests.faults.servers import Servers, asked
from tests.faults.shop import Shop, Sleeper
from tests.services import PrivateValkey

# What a server does that nobody configured.
DEFAULT_RULES = "3600 1 300 100 60 10000"


def reigns(shop: Shop) -> int:
    return Reign.objects.filter(namespace=shop.namespace).count()


def counter_of(sleeper: Sleeper) -> str:
    return f"fencing:{{{sleeper.place.space}:0}}:counter"


def assert_goes_on(shop: Shop, sleeper: Sleeper, *, reigns_before: int) -> None:
    """After a fault: a new reign, above everything; the sleeper is superseded; and everybody gets on."""
    shop.grants(3)
    assert reigns(shop) == reigns_before + 1
    assert shop.advance(sleeper) == Lost(), "its lease is of another reign"
    shop.sell()
    shop.sell()


def test_restart_without_persistence(servers: Servers, shop: Shop) -> None:
    server = servers.start()
    shop.at(server.url())
    shop.sell()
    sleeper = shop.sleeper()
    server.stop()
    server.start()
    assert_goes_on(shop, sleeper, reigns_before=1)


def test_sigkill_under_the_default_rules_for_dumps(servers: Servers, shop: Shop) -> None:
    """What was written since the last dump is gone, and an older counter comes back."""
    server = servers.start(save=DEFAULT_RULES)
    shop.at(server.url())
    shop.grants(4)
    with asked(server) as client:
        client.save()
    shop.sell()
    sleeper = shop.sleeper()
    server.kill()
    server.start()
    with asked(server) as client:
        client.select(1)
        assert client.hget(counter_of(sleeper), "next") == b"5", "the old counter is back"
    assert_goes_on(shop, sleeper, reigns_before=1)


def test_restore_of_an_old_dump(servers: Servers, shop: Shop) -> None:
    server = servers.start(save=DEFAULT_RULES)
    shop.at(server.url())
    sleeper = shop.sleeper("stock:restored", ttl=30)
    with asked(server) as client:
        client.save()
    dump = server.folder / "dump.rdb"
    shutil.copy(dump, server.folder / "old.rdb")
    shop.grants(15)
    shop.sell()
    server.stop()
    shutil.copy(server.folder / "old.rdb", dump)
    server.start()
    with pytest.raises(LeaseHeldError), lease("stock:restored"):
        raise AssertionError("the lease in the dump blocks others until its ttl")
    assert_goes_on(shop, sleeper, reigns_before=1)


def flush(server: PrivateValkey, _sleeper: Sleeper | None = None) -> None:
    with asked(server) as client:
        client.flushall()


def flush_database(server: PrivateValkey, _sleeper: Sleeper) -> None:
    with asked(server) as client:
        client.select(1)
        client.flushdb()


def clear_the_cache(_server: PrivateValkey, _sleeper: Sleeper) -> None:
    caches["store"].clear()


def delete_the_counter(server: PrivateValkey, sleeper: Sleeper) -> None:
    with asked(server) as client:
        client.select(1)
        assert client.delete(counter_of(sleeper)) == 1


@pytest.mark.parametrize("forget", [flush, flush_database, clear_the_cache, delete_the_counter])
def test_store_that_was_emptied(servers: Servers, shop: Shop, forget: Callable[[PrivateValkey, Sleeper], None]) -> None:
    """C08"""
    server = servers.start()
    shop.at(server.url())
    shop.grants(12)
    shop.sell()
    sleeper = shop.sleeper()
    forget(server, sleeper)
    assert_goes_on(shop, sleeper, reigns_before=1)


def test_holder_whose_lease_was_flushed_away_is_refused_by_the_database(servers: Servers, shop: Shop) -> None:
    """C08, C26: two holders at once, and the newer one wins, whoever writes first or last."""
    server = servers.start()
    shop.at(server.url())
    with lease(shop.resource, ttl=30) as held:
        shop.note(held.token)
        late = Stock.objects.get(pk=shop.stock.pk)
        flush(server)
        # In another context, because there a nested lease() would be the same grant.
        Context().run(shop.sell)
        late.quantity = 0
        with pytest.raises(StaleWriteError):
            late.save()
    shop.sell()


def test_eviction_of_leases_and_of_the_counter(servers: Servers, shop: Shop) -> None:
    """C08: with allkeys-lru anything goes when memory is short."""
    server = servers.start(**{"maxmemory-policy": "allkeys-lru"})
    shop.at(server.url())
    shop.sell()
    sleeper = shop.sleeper()
    lease_key = counter_of(sleeper).removesuffix("counter") + f"lease:{sleeper.place.resource}"
    with asked(server) as client:
        client.select(1)
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 200_000)
        for number in range(20_000):
            client.set(f"page:{number}", b"x" * 1000)
            if number % 100 == 0 and not client.exists(counter_of(sleeper), lease_key):
                break
        assert client.exists(counter_of(sleeper), lease_key) == 0, "both were evicted"
    newer = shop.sleeper(sleeper.place.resource)
    assert newer.token > sleeper.token
    assert_goes_on(shop, sleeper, reigns_before=1)


def test_database_restored_to_before_the_newest_range(servers: Servers, shop: Shop) -> None:
    """The row's own token raises the range: the first write is refused under a live lease, the next one passes."""
    server = servers.start()
    shop.at(server.url())
    shop.grants(25)
    shop.sell()
    before = Stock.objects.get(pk=shop.stock.pk).last_token
    # As a backup has it, taken before anything was reserved; and the store has lost its memory too (S11).
    TokenRange.objects.filter(namespace=shop.namespace).update(ceiling=0)
    flush(server)
    shop.issued.clear()  # numbers come again until the row has shown its own: that is the operator's duty in I1
    assert shop.sell(rising=False) > before
    assert shop.refused() >= 1
    shop.grants(3, rising=False)
    assert shop.sell(tries=1) > before


def test_two_namespaces_side_by_side(servers: Servers, shop: Shop, settings: Any) -> None:
    """They share a server and a database, and neither leases nor numbers."""
    server = servers.start()
    other = Shop(settings)
    for round_ in range(3):
        for one in (shop, other):
            one.at(server.url())
            one.sleeper(f"stock:both:{round_}")
            one.sell()
        flush(server)
    assert reigns(shop) == 3
    assert reigns(other) == 3
