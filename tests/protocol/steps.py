"""Every step that can happen next: what a client does, and what befalls a server."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.model import (
    ASKS,
    BLOCK,
    HOLDS,
    IDLE,
    INSTALLS,
    NEEDS,
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
from tests.protocol.scripts import GRANTED, HELD, LOST, Answer, acquire, advance, forgotten, install, issue, release

# A step's name, which client or server does it, and at which server.
Label = tuple[str, int, int]


def steps(state: State, tests: Protections) -> Iterator[tuple[Label, State]]:
    """The steps that lead on from a state, each with the state after it."""
    primaries = [index for index, server in enumerate(state.servers) if server.primary]
    for who in range(len(state.clients)):
        yield from client_steps(state, who, primaries, tests)
    for at in primaries:
        yield from faults(state, at)
    yield from failovers(state, primaries)


def client_steps(state: State, who: int, primaries: list[int], tests: Protections) -> Iterator[tuple[Label, State]]:
    """What one client may do."""
    client = state.clients[who]
    if client.stage == NEEDS:
        yield ("reserve", who, -1), reserve(state, who)
    for at in primaries:
        if client.call:
            # Sent again, or its answer lost: the server hears it, the client nothing.
            yield ("acquire, unheard", who, at), acquire(state, at, client.call, tests)[0]
        if client.stage == IDLE:
            call = unused(state)
            yield ("acquire", who, at), heard(*acquire(state, at, call, tests), who, Client(ASKS, call))
            yield ("draw", who, at), heard(*issue(state, at, call, tests), who, Client(IDLE, client.call))
        elif client.stage == ASKS:
            yield ("acquire", who, at), heard(*acquire(state, at, client.call, tests), who, client)
        elif client.stage == INSTALLS:
            after = install(state, at, client.reign, client.first, client.first + BLOCK - 1, tests)
            yield ("install, unheard", who, at), after
            yield ("install", who, at), with_client(after, who, Client(client.after, client.call))
        elif client.stage == HOLDS:
            yield ("advance", who, at), heard(*advance(state, at, client.call, tests), who, client)
            yield ("release", who, at), with_client(release(state, at, client.call), who, Client(IDLE, client.call))


def heard(state: State, answer: Answer, who: int, client: Client) -> State:
    """The client hears the answer to what it asked as ``client``."""
    if answer == GRANTED:
        client = client if client.stage == IDLE else Client(HOLDS, client.call)
    elif answer == LOST:
        client = Client(IDLE, client.call)
    elif answer != HELD:
        client = Client(NEEDS, client.call, client.stage, int(answer))
    return with_client(state, who, client)


def reserve(state: State, who: int) -> State:
    """The database reserves a block for the reign that needs it."""
    _, call, after, reign, _ = state.clients[who]
    state = with_client(state, who, Client(INSTALLS, call, after, reign, state.reserved + 1))
    return State(state.servers, state.clients, state.reserved + BLOCK, state.issued, state.broken)


def faults(state: State, at: int) -> Iterator[tuple[Label, State]]:
    """What befalls a primary: it restarts empty or with all it had, is flushed, evicts its counter; a lease ends."""
    primary, counter, lease, floor = state.servers[at]
    if counter is not None or lease is not None:
        yield ("flush or restart empty", -1, at), with_server(state, at, forgotten(state, None, None))
        yield ("restart with its dump", -1, at), with_server(state, at, began_anew(state, counter, lease))
    if counter is not None:
        old = lease and LeaseKey(lease.holder, lease.reign, True)
        yield ("evict the counter", -1, at), with_server(state, at, forgotten(state, None, old))
    if lease is not None:
        yield ("expire or revoke", -1, at), with_server(state, at, Server(primary, counter, None, floor))


def failovers(state: State, primaries: list[int]) -> Iterator[tuple[Label, State]]:
    """Replication, promotion of a replica however far behind, and the end of one of two primaries."""
    for at, server in enumerate(state.servers):
        if server.primary:
            if len(primaries) > 1:
                yield ("demote", -1, at), with_server(state, at, Server(False, server.counter, server.lease, 0))
            continue
        yield ("promote", -1, at), with_server(state, at, began_anew(state, server.counter, server.lease))
        source = state.servers[primaries[0]]
        yield ("replicate", -1, at), with_server(state, at, Server(False, source.counter, source.lease, 0))


def began_anew(state: State, counter: Counter | None, lease: LeaseKey | None) -> Server:
    """A primary's life begins: with an id of its own, so that no counter is its own yet."""
    return forgotten(
        state,
        counter and Counter(counter.reign, False, counter.next, counter.ceiling),
        lease and LeaseKey(lease.holder, lease.reign, True),
    )
