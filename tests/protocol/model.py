"""The protocol of tokens as a state machine: servers that forget, clients that are slow, and one database.

A step is one message processed, or one thing that befalls a server. A client's step may come at any time after the
one before, so every request and answer may be late; a request that is sent again is processed without the client's
hearing of it. Each client reaches every server that believes to be primary, so an isolated one goes on serving.

What the model leaves out, because nothing depends on it: a server's id appears only as `Counter.own`, whether the
counter was written by this server in its present life; there is one resource (a `draw` stands for all others); a lease
that is handed over at its release is a release and an acquire with nothing in between.
"""

from __future__ import annotations

from typing import NamedTuple

# What a client is about to do: begin a call, send its acquire, reserve a range, install it; or it holds the lease.
IDLE, ASKS, NEEDS, INSTALLS, HOLDS = range(5)
BLOCK = 2


class Protections(NamedTuple):
    """What the scripts test; the explorer must find a violation without any of them."""

    install_tests_reign: bool = True
    reign_holds_time: bool = True
    advance_tests_reign: bool = True
    advance_tests_server: bool = True
    server_is_tested: bool = True
    install_tests_next: bool = True


class Counter(NamedTuple):
    """The counter hash."""

    reign: int
    own: bool
    next: int
    ceiling: int


class LeaseKey(NamedTuple):
    """The key of the lease. ``old``: granted before this server last forgot; the scripts cannot see that."""

    holder: int
    reign: int
    old: bool


class Server(NamedTuple):
    """A lease server. ``floor``: what its next number has to be above, by I1; the scripts cannot see that."""

    primary: bool
    counter: Counter | None = None
    lease: LeaseKey | None = None
    floor: int = 0


class Client(NamedTuple):
    """A client: what it does now, its call's own id, what follows once a range is installed, and the range."""

    stage: int = IDLE
    call: int = 0
    after: int = IDLE
    reign: int = 0
    first: int = 0


class State(NamedTuple):
    """Everything. ``issued`` is the set of all numbers ever issued, as bits; ``broken`` says what I1 forbids."""

    servers: tuple[Server, ...]
    clients: tuple[Client, ...]
    reserved: int = 0
    issued: int = 0
    broken: str = ""


START = State((Server(True), Server(False)), (Client(), Client()))


def highest(state: State) -> int:
    """The highest number ever issued; 0 if none was."""
    return state.issued.bit_length() - 1 if state.issued else 0


def unused(state: State) -> int:
    """An id that nobody has."""
    used = [client.call for client in state.clients] + [client.reign for client in state.clients]
    used += [server.counter.reign for server in state.servers if server.counter]
    for server in state.servers:
        if server.lease:
            used += [server.lease.holder, server.lease.reign]
    return max(used) + 1


def with_server(state: State, at: int, server: Server) -> State:
    """The state with another server ``at``."""
    return State(
        tuple(server if index == at else one for index, one in enumerate(state.servers)),
        state.clients,
        state.reserved,
        state.issued,
        state.broken,
    )


def with_client(state: State, who: int, client: Client) -> State:
    """The state with another client ``who``."""
    return State(
        state.servers,
        tuple(client if index == who else one for index, one in enumerate(state.clients)),
        state.reserved,
        state.issued,
        state.broken,
    )
