"""django-redis' Sentinel client while the Sentinel itself lets a lagging replica take over."""

from __future__ import annotations

import secrets

import pytest

from fencing import LeaseBackendError, LeaseHeldError, lease
from fencing.backends.base import Lost
from fencing.models import Reign
from tests.concurrency import wait_until
from tests.faults.sentinel import Sentinel
from tests.faults.servers import Servers, caught_up, cut_off, port_of, role
from tests.faults.shop import Shop

# Seconds: what comes to nothing on a busy machine is tried again after twice the Sentinel's own bound.
TO_FAIL_OVER = 60.0


@pytest.mark.slow
def test_failover_by_sentinel_to_a_replica_cut_off_before_the_last_grants(servers: Servers, shop: Shop) -> None:
    """The primary freezes; when it wakes up it still serves a client that knows it."""
    primary, replica = servers.pair()
    with Sentinel(primary, f"shop-{secrets.token_hex(4)}") as sentinel:
        location, cache = sentinel.cache()
        shop.at(location, cache=cache)
        shop.sell()
        sleeper = shop.sleeper("stock:back")
        wait_until(lambda: caught_up(replica, primary), "the replica has the lease")
        cut_off(primary)
        shop.grants(4)
        shop.sell()

        primary.freeze()
        wait_until(lambda: role(replica) == "master", "the replica takes over", seconds=TO_FAIL_OVER)
        wait_until(lambda: sentinel.state().get("port") == port_of(replica), "clients are told", seconds=TO_FAIL_OVER)
        with pytest.raises(LeaseBackendError, match="Timeout"), lease("stock:43"):
            raise AssertionError("the connection is still the frozen primary's")
        with pytest.raises(LeaseHeldError), lease("stock:back"):
            raise AssertionError("the lease came back with the replica")
        above = shop.sell()
        assert Reign.objects.filter(namespace=shop.namespace).count() >= 2
        assert shop.advance(sleeper) == Lost()

        primary.thaw()
        shop.at(primary.url())
        # It goes on until the Sentinel demotes it, which takes ten seconds: its range lies below, and is its own.
        assert shop.grants(1, rising=False)[0] < above
        shop.at(location, cache=cache)
        shop.sell()


@pytest.mark.slow
def test_holder_renews_its_lease_at_the_server_that_took_over(servers: Servers, shop: Shop) -> None:
    """A failover that lost nothing costs the holder nothing: its connection breaks, and the next one goes there."""
    primary, replica = servers.pair()
    with Sentinel(primary, f"shop-{secrets.token_hex(4)}") as sentinel:
        location, cache = sentinel.cache()
        shop.at(location, cache=cache)
        with lease(shop.resource, ttl=20) as held:
            shop.note(held.token)
            wait_until(lambda: caught_up(replica, primary), "the replica has the lease")
            primary.kill()
            wait_until(
                lambda: sentinel.state().get("port") == port_of(replica), "clients are told", seconds=TO_FAIL_OVER
            )
            held.renew()
            assert held.is_held()
            shop.stock.save()
        shop.sleeper(shop.resource, ttl=0.5)
        # It waits in the queue of the new primary, on a connection of its own.
        shop.sell()
