"""Visit every state that can be reached within a number of steps, breadth first, and check each."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from tests.protocol.model import BLOCK, START, Client, Counter, LeaseKey, Protections, Server, State, highest
from tests.protocol.scripts import GRANTED, acquire, install
from tests.protocol.steps import Label, steps

ALL = Protections()

# Within so many messages a client that nobody disturbs has a number above everything that a row may hold.
PATIENCE = 10


@dataclass
class Found:
    """What an exploration found: how many states and steps it saw, and the way to the first violation, if any."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    broken: str = ""
    way: list[tuple[Label, State]] = field(default_factory=list)


def explore(depth: int, tests: Protections = ALL, start: State = START) -> Found:
    """Visit the states; stop at the first violation."""
    # Millions of tuples and not one circle: looking for some takes a third of the time.
    gc.disable()
    try:
        return visit(depth, tests, canonical(start))
    finally:
        gc.enable()


def visit(depth: int, tests: Protections, start: State) -> Found:
    """The same, from a state in its canonical form."""
    parents: dict[State, State | None] = {start: None}
    frontier, found = [start], Found()
    for found.depth in range(1, depth + 1):
        reached: list[State] = []
        for state in frontier:
            for _, after in steps(state, tests):
                found.steps += 1
                # Most states are their own canonical form, and then one look is enough.
                if after in parents or (after := canonical(after)) in parents:
                    continue
                parents[after] = state
                reached.append(after)
                found.states = len(parents)
                if broken := after.broken or stuck(after, tests):
                    found.broken, found.way = broken, list(way_to(after, parents, tests))
                    return found
        frontier = reached
    return found


def stuck(state: State, tests: Protections) -> str:
    """What is wrong if nothing more befalls the servers and a client gets no number above all rows; else nothing."""
    for server in state.servers:
        if server.primary and not serves(server.counter, state.reserved, highest(state), tests):
            return f"a client gets no number above {highest(state)} within {PATIENCE} messages"
    return ""


@cache
def serves(counter: Counter | None, reserved: int, seen: int, tests: Protections) -> bool:
    """Whether one call at a server gets a lease whose number is above ``seen``, which a row may hold.

    The time of any other lease is over. The client does what `fencing.tokens` does: it reserves and installs where
    the store has no range; refused by the row, it reserves above what the row holds and installs that at once. The
    database may have been set back, and nobody have opened a range.
    """
    state = State((Server(True, counter),), (Client(),))
    for _ in range(PATIENCE // 3):
        state, answer = acquire(state, 0, 1, tests)
        server = state.servers[0]
        assert server.counter is not None
        if answer == GRANTED and server.counter.next - 1 > seen:
            return True
        state = State((server._replace(lease=None),), state.clients)
        if answer == GRANTED and not tests.row_raises_the_range:
            continue
        issued = server.counter.next - 1 if tests.reserve_passes_next else 0
        first = max(reserved, issued, seen if answer == GRANTED else 0) + 1
        reserved = first + BLOCK - 1
        state = install(state, 0, server.counter.reign, first, reserved, tests)
    return False


def canonical(state: State) -> State:
    """The one of all states that differ only in the order of clients and servers and in the names of ids."""
    servers = sorted(state.servers, key=shape_of_server)
    clients = sorted(state.clients, key=shape_of_client)
    names = {0: 0}
    for _, call, _, reign, _ in clients:
        names.setdefault(call, len(names))
        names.setdefault(reign, len(names))
    for _, counter, lease, _, queue in servers:
        if counter:
            names.setdefault(counter[0], len(names))
        if lease:
            names.setdefault(lease[0], len(names))
            names.setdefault(lease[1], len(names))
        for call in queue:
            names.setdefault(call, len(names))
    renamed_clients = [
        Client(stage, names[call], after, names[reign], first) for stage, call, after, reign, first in clients
    ]
    renamed_servers = [
        Server(
            primary,
            counter and Counter(names[counter[0]], counter[1], counter[2], counter[3]),
            lease and LeaseKey(names[lease[0]], names[lease[1]], lease[2]),
            floor,
            queue and tuple([names[call] for call in queue]),
        )
        for primary, counter, lease, floor, queue in servers
    ]
    return State(
        tuple(renamed_servers), tuple(renamed_clients), state.reserved, state.issued, state.broken, state.database
    )


def shape_of_server(server: Server) -> tuple[object, ...]:
    """A server without ids."""
    primary, counter, lease, floor, queue = server
    return (primary, floor, counter[1:] if counter else (), lease[2:] if lease else (), len(queue))


def shape_of_client(client: Client) -> tuple[int, ...]:
    """A client without ids."""
    stage, call, after, reign, first = client
    return (stage, after, first, call > 0, reign > 0)


def way_to(last: State, parents: dict[State, State | None], tests: Protections) -> Iterator[tuple[Label, State]]:
    """The steps to a state, with clients and servers in their places as long as that can be seen."""
    path = [last]
    while (before := parents[path[-1]]) is not None:
        path.append(before)
    state = path[-1]
    for target in reversed(path[:-1]):
        before = parents[target]
        assert before is not None
        # Of clients in the same shape canonical() cannot tell which is which: then they may change places here.
        starts = (state, before)
        label, state = next(
            (label, after) for start in starts for label, after in steps(start, tests) if canonical(after) == target
        )
        yield label, state
