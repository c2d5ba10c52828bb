"""Every step that can happen next: what a client does, what befalls a server or the database, what the operator does."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.model import (
    ASKS,
    BLOCK,
    HOLDS,
    IDLE,
    INSTALLS,
    NEEDS,
    OPENED,
    SET_BACK,
    WHOLE,
    Client,
    Counter,
    LeaseKey,
    Protections,
    Server,
    State,
    unused,
    with_client,
    with_server,
)
from tests.protocol.scripts import (
    GRANTED,
    HELD,
    LOST,
    Answer,
    acquire,
    advance,
    close,
    forgotten,
    give_up,
    install,
    issue,
    release,
)

# A step's name, which client or server does it, and at which server.
Label = tuple[str, int, int]


def steps(state: State, tests: Protections) -> Iterator[tuple[Label, State]]:
    """The steps that lead on from a state, each with the state after it."""
    primaries = [index for index, server in enumerate(state.servers) if server.primary]
    for label, after in all_steps(state, primaries, tests):
        if state.database != SET_BACK or (after.issued == state.issued and not after.broken):
            yield label, after


def all_steps(state: State, primaries: list[int], tests: Protections) -> Iterator[tuple[Label, State]]:
    """The same, also where the operator has stopped those who want numbers."""
    for who in range(len(state.clients)):
        yield from client_steps(state, who, primaries, tests)
    for at in primaries:
        yield from faults(state, at, tests)
    yield from failovers(state, primaries)
    yield from restores(state, primaries, tests)


def client_steps(state: State, who: int, primaries: list[int], tests: Protections) -> Iterator[tuple[Label, State]]:
    """What one client may do."""
    client = state.clients[who]
    if client.stage == NEEDS:
        yield ("reserve", who, -1), reserve(state, who, tests)
    if client.stage == ASKS:
        yield ("die, and begin anew", who, -1), with_client(state, who, Client(IDLE, client.call))
    for at in primaries:
        if client.call:
            # Sent again, or its answer lost: the server hears it, the client nothing.
            yield ("acquire, unheard", who, at), acquire(state, at, client.call, tests)[0]
        if client.stage == IDLE:
            call = unused(state)
            # It listens before it asks.
            asking = with_client(state, who, Client(ASKS, call))
            yield ("acquire", who, at), heard(*acquire(asking, at, call, tests), at, who, Client(ASKS, call))
            yield ("draw", who, at), heard(*issue(state, at, call, tests), at, who, Client(IDLE, client.call))
        elif client.stage == ASKS:
            yield ("acquire", who, at), heard(*acquire(state, at, client.call, tests), at, who, client)
            gone = with_client(state, who, Client(IDLE, client.call))
            yield ("give up", who, at), give_up(gone, at, client.call, tests)
        elif client.stage == INSTALLS:
            after = install(state, at, client.reign, client.first, client.first + BLOCK - 1, tests)
            yield ("install, unheard", who, at), after
            yield ("install", who, at), with_client(after, who, Client(client.after, client.call))
        elif client.stage == HOLDS:
            yield ("advance", who, at), heard(*advance(state, at, client.call, tests), at, who, client)
            gone = with_client(state, who, Client(IDLE, client.call))
            yield ("release", who, at), release(gone, at, client.call, tests)


def heard(state: State, answer: Answer, at: int, who: int, client: Client) -> State:
    """The client hears the answer of a server to what it asked as ``client``."""
    if answer == GRANTED:
        client = client if client.stage == IDLE else Client(HOLDS, client.call)
    elif answer == LOST:
        client = Client(IDLE, client.call)
    elif answer != HELD:
        counter = state.servers[at].counter
        assert counter is not None
        client = Client(NEEDS, client.call, client.stage, int(answer), counter.next)
    return with_client(state, who, client)


def reserve(state: State, who: int, tests: Protections) -> State:
    """The database reserves a block for the reign that needs it, above what the store has issued."""
    _, call, after, reign, following = state.clients[who]
    first = max(state.reserved + 1, following if tests.reserve_passes_next else 0)
    state = with_client(state, who, Client(INSTALLS, call, after, reign, first))
    return state._replace(reserved=first + BLOCK - 1)


def faults(state: State, at: int, tests: Protections) -> Iterator[tuple[Label, State]]:
    """What befalls a primary: it restarts empty or with all it had, is flushed, evicts its counter; a lease ends."""
    primary, counter, lease, floor, queue = state.servers[at]
    if counter is not None or lease is not None:
        yield ("flush or restart empty", -1, at), with_server(state, at, forgotten(state, None, None))
        yield ("restart with its dump", -1, at), with_server(state, at, began_anew(state, counter, lease, queue))
    if counter is not None:
        old = lease and LeaseKey(lease.holder, lease.reign, True)
        yield ("evict the counter", -1, at), with_server(state, at, forgotten(state, None, old, queue))
    if lease is not None:
        yield ("expire", -1, at), with_server(state, at, Server(primary, counter, None, floor, queue))
        if queue:
            yield ("revoke", -1, at), release(state, at, lease.holder, tests)


def failovers(state: State, primaries: list[int]) -> Iterator[tuple[Label, State]]:
    """Replication, promotion of a replica however far behind, and the end of one of two primaries."""
    for at, server in enumerate(state.servers):
        if server.primary:
            if len(primaries) > 1:
                replica = Server(False, server.counter, server.lease, 0, server.queue)
                yield ("demote", -1, at), with_server(state, at, replica)
            continue
        anew = began_anew(state, server.counter, server.lease, server.queue)
        yield ("promote", -1, at), with_server(state, at, anew)
        source = state.servers[primaries[0]]
        replica = Server(False, source.counter, source.lease, 0, source.queue)
        yield ("replicate", -1, at), with_server(state, at, replica)


def restores(state: State, primaries: list[int], tests: Protections) -> Iterator[tuple[Label, State]]:
    """The database is set back to its beginning; then the operator opens a range, once one server is the primary."""
    if state.database == WHOLE and state.reserved:
        yield ("set the database back", -1, -1), state._replace(reserved=0, database=SET_BACK)
    if state.database == SET_BACK and len(primaries) == 1:
        at = primaries[0]
        after = close(state, at) if tests.opening_closes_the_reign else state
        # By far more than can have been issued since the backup: above whatever anybody still has.
        ceiling = ever_reserved(state) if tests.opening_raises_the_ceiling else state.reserved
        yield ("open a range", -1, at), after._replace(reserved=ceiling, database=OPENED)


def ever_reserved(state: State) -> int:
    """A number that is above every one that was issued, or may still be."""
    counters = [server.counter for server in state.servers if server.counter]
    known = [counter.ceiling for counter in counters] + [counter.next - 1 for counter in counters]
    known += [client.first + BLOCK - 1 for client in state.clients if client.stage == INSTALLS]
    return max(state.reserved, state.issued.bit_length() - 1, *known, 0)


def began_anew(state: State, counter: Counter | None, lease: LeaseKey | None, queue: tuple[int, ...]) -> Server:
    """A primary's life begins: with an id of its own, so that no counter is its own yet."""
    return forgotten(
        state,
        counter and Counter(counter.reign, False, counter.next, counter.ceiling),
        lease and LeaseKey(lease.holder, lease.reign, True),
        queue,
    )
