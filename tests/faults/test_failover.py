"""I1 when another server takes over: a replica that lags, an old primary that does not know, one that comes back."""

from __future__ import annotations

import pytest

from fencing import LeaseBackendError, LeaseHeldError, lease
from fencing.backends.base import Lost
from fencing.models import Reign
from tests.concurrency import wait_until
from tests.faults.proxy import Proxy
from tests.faults.servers import Servers, caught_up, cut_off, follow, promote, replication
from tests.faults.shop import Shop


def test_replica_that_was_cut_off_before_the_last_grants_takes_over(servers: Servers, shop: Shop) -> None:
    """S2: the lease that comes back blocks others until its ttl; its holder never gets a further number."""
    primary, replica = servers.pair()
    shop.at(primary.url())
    shop.sell()
    sleeper = shop.sleeper("stock:back", ttl=5.0)
    wait_until(lambda: caught_up(replica, primary), "the replica has the lease")
    cut_off(primary)
    shop.grants(5)
    shop.sell()
    primary.kill()
    promote(replica)
    shop.at(replica.url())
    with pytest.raises(LeaseHeldError), lease("stock:back"):
        raise AssertionError("the lease came back")
    assert shop.advance(sleeper) == Lost(), "before the new reign"
    shop.grants(3)
    assert shop.advance(sleeper) == Lost(), "and in it"
    shop.sell()
    with lease("stock:back", wait=10) as held:
        shop.note(held.token)
        assert shop.advance(sleeper) == Lost(), "and when somebody newer holds it"


def test_isolated_old_primary_goes_on_serving_one_client(servers: Servers, shop: Shop) -> None:
    """Two servers grant the same resource at once: never the same number, and every sale is either kept or refused."""
    old, new = servers.pair()
    shop.at(old.url())
    shop.sell()
    wait_until(lambda: caught_up(new, old), "the replica has the counter")
    cut_off(old)
    shop.grants(2)
    promote(new)
    newest = {old: max(shop.issued), new: max(shop.issued)}
    for _ in range(4):
        for server in (old, new):
            shop.at(server.url())
            # Enough for a range to run out at each of them.
            for token in [*shop.grants(7, rising=False), shop.sell(rising=False)]:
                assert token > newest[server], "each of them counts upwards"
                newest[server] = token


def test_client_of_the_old_primary_is_refused_while_it_holds_its_lease(servers: Servers, shop: Shop) -> None:
    """L3: a lower number under a lease that is held raises the store's numbers, and the next grant passes."""
    old, new = servers.pair()
    shop.at(old.url())
    shop.grants(1)
    wait_until(lambda: caught_up(new, old), "the replica has the counter")
    cut_off(old)
    promote(new)
    shop.at(new.url())
    above = shop.sell()
    shop.at(old.url())
    assert shop.grants(1, rising=False)[0] < above, "its range goes on"
    assert shop.sell(rising=False) > above
    assert shop.refused() == 1
    assert shop.sell(tries=1) > above


def test_old_primary_restarted_alone_serves_one_client_and_is_demoted(servers: Servers, shop: Shop) -> None:
    old, new = servers.pair()
    shop.at(old.url())
    shop.sell()
    wait_until(lambda: caught_up(new, old), "the replica has the counter")
    cut_off(old)
    shop.grants(3)
    old.kill()
    promote(new)
    shop.at(new.url())
    shop.grants(3)
    shop.sell()

    old.start()
    shop.at(old.url())
    above = shop.sell()
    sleeper = shop.sleeper()

    follow(old, new)
    with pytest.raises(LeaseBackendError, match="ReadOnly"), lease(shop.resource):
        raise AssertionError("a replica gives no lease")
    shop.at(new.url())
    assert shop.grants(1, rising=False)[0] < above, "it knows nothing of the numbers of the other"
    assert shop.sell(rising=False) > above
    assert shop.advance(sleeper) == Lost()
    assert shop.sell(tries=1) > above


def test_first_replica_of_a_primary_begins_a_reign_and_ends_no_lease(servers: Servers, shop: Shop) -> None:
    """master_replid changes then, which is taken for a server that forgot: safe, and the lease itself goes on."""
    primary, replica = servers.start(), servers.start()
    shop.at(primary.url())
    before = replication(primary)["master_replid"]
    with lease(shop.resource) as held:
        shop.note(held.token)
        follow(replica, primary)
        if replication(primary)["master_replid"] != before:
            shop.grants(1)
            assert Reign.objects.filter(namespace=shop.namespace).count() == 2
        held.renew()
        assert held.is_held()
        shop.stock.save()
    shop.stock.refresh_from_db()
    assert shop.stock.last_token == held.token
    shop.sell()


def test_address_that_leads_to_the_new_primary_is_followed(servers: Servers, shop: Shop) -> None:
    """As a name or a load balancer does: the old primary lives on as a replica, and keeps its connections."""
    old, new = servers.pair()
    with Proxy(old) as proxy:
        shop.at(proxy.url())
        shop.sell()
        proxy.lead_to(new)
        promote(new)
        follow(old, new)
        shop.sell()
