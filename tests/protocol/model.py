"""The protocol of tokens as a state machine: servers that forget, clients that are slow, and one database.

A step is one message processed, or one thing that befalls a server. A client's step may come at any time after the
one before, so every request and answer may be late; a request that is sent again is processed without the client's
hearing of it. Each client reaches every server that believes to be primary, so an isolated one goes on serving.

Whoever finds the lease held waits in the server's queue, and the release hands it over in the same script. A waiter may
die: then its place stays, and nobody listens. The database may be set back once, to what it was in the beginning, with
clients in the middle of asking; nobody is given a number until the operator has opened a range (that is the operator's
duty in I1).

What the model leaves out, because nothing depends on it: a server's id appears only as `Counter.own`, whether the
counter was written by this server in its present life; there is one resource (a `draw` stands for all others); what a
waiter is told on its channel is an answer that it gets when it asks again.
"""

from __future__ import annotations

from typing import NamedTuple

# What a client is about to do: begin a call, send its acquire, reserve a range, install it; or it holds the lease.
IDLE, ASKS, NEEDS, INSTALLS, HOLDS = range(5)
# What the database is: as it ever was, set back, or set back and then opened by the operator.
WHOLE, SET_BACK, OPENED = range(3)
BLOCK = 2


class Protections(NamedTuple):
    """What scripts, clients and the operator do; the explorer must find a violation without any of them."""

    install_tests_reign: bool = True
    reign_holds_time: bool = True
    advance_tests_reign: bool = True
    advance_tests_server: bool = True
    server_is_tested: bool = True
    install_tests_next: bool = True
    hand_over_tests_server: bool = True
    dead_waiters_are_skipped: bool = True
    reserve_passes_next: bool = True
    row_raises_the_range: bool = True
    opening_raises_the_ceiling: bool = True
    opening_closes_the_reign: bool = True


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
    """A lease server. ``floor``: what its next number has to be above, by I1; the scripts cannot see that.

    ``queue`` holds the calls that wait, first come first.
    """

    primary: bool
    counter: Counter | None = None
    lease: LeaseKey | None = None
    floor: int = 0
    queue: tuple[int, ...] = ()


class Client(NamedTuple):
    """A client: what it does now, its call's own id, what follows once a range is installed, and the range's first number.

    While it needs a range, ``first`` is what the range has to begin with at least.
    """

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
    database: int = WHOLE


START = State((Server(True), Server(False)), (Client(), Client()))
# Four steps later, on the straight way: a range of two numbers was installed, and the first was issued.
BEGUN = State((Server(True, Counter(1, True, 2, 2), floor=1), Server(False)), START.clients, reserved=2, issued=1 << 1)


def start_without(protection: str) -> State:
    """Where to look for the violation: what an operator does against comes late."""
    return BEGUN if protection.startswith("opening_") else START


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
        used += server.queue
    return max(used) + 1


def listens(state: State, call: int) -> bool:
    """Whether the client of a call that waits is still there to hear."""
    for client in state.clients:
        if client.call == call:
            return client.stage == ASKS or (client.after == ASKS and client.stage in (NEEDS, INSTALLS))
    return False


def with_server(state: State, at: int, server: Server) -> State:
    """The state with another server ``at``."""
    return State(
        (*state.servers[:at], server, *state.servers[at + 1 :]),
        state.clients,
        state.reserved,
        state.issued,
        state.broken,
        state.database,
    )


def with_client(state: State, who: int, client: Client) -> State:
    """The state with another client ``who``."""
    return State(
        state.servers,
        (*state.clients[:who], client, *state.clients[who + 1 :]),
        state.reserved,
        state.issued,
        state.broken,
        state.database,
    )
