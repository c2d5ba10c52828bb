"""Visit every state that can be reached within a number of steps, breadth first, and check each."""

from __future__ import annotations

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


def explore(depth: int, tests: Protections = ALL) -> Found:
    """Visit the states; stop at the first violation."""
    start = canonical(START)
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
    the store has no range; refused by the row, it reserves above what the row holds and installs that at once.
    """
    state = State((Server(True, counter),), (Client(),))
    for _ in range(PATIENCE // 3):
        state, answer = acquire(state, 0, 1, tests)
        server = state.servers[0]
        assert server.counter is not None
        if answer == GRANTED and server.counter.next - 1 > seen:
            return True
        first = max(reserved, seen if answer == GRANTED else 0) + 1
        reserved = first + BLOCK - 1
        state = State((server._replace(lease=None),), state.clients)
        state = install(state, 0, server.counter.reign, first, reserved, tests)
    return False


def canonical(state: State) -> State:
    """The one of all states that differ only in the order of clients and servers and in the names of ids."""
    servers = sorted(state.servers, key=shape_of_server)
    clients = sorted(state.clients, key=shape_of_client)
    names = {0: 0}

    def name(one: int) -> int:
        return names.setdefault(one, len(names))

    renamed_clients = tuple(
        Client(stage, name(call), after, name(reign), first) for stage, call, after, reign, first in clients
    )
    renamed_servers = tuple(
        Server(
            primary,
            counter and Counter(name(counter[0]), counter[1], counter[2], counter[3]),
            lease and LeaseKey(name(lease[0]), name(lease[1]), lease[2]),
            floor,
        )
        for primary, counter, lease, floor in servers
    )
    return State(renamed_servers, renamed_clients, state.reserved, state.issued, state.broken)


def shape_of_server(server: Server) -> tuple[object, ...]:
    """A server without ids."""
    primary, counter, lease, floor = server
    return (primary, floor, counter[1:] if counter else (), lease[2:] if lease else ())


def shape_of_client(client: Client) -> tuple[int, ...]:
    """A client without ids."""
    stage, call, after, reign, first = client
    return (stage, after, first, call > 0, reign > 0)


def way_to(last: State, parents: dict[State, State | None], tests: Protections) -> Iterator[tuple[Label, State]]:
    """The steps to a state, with clients and servers in their places all the way."""
    path = [last]
    while (before := parents[path[-1]]) is not None:
        path.append(before)
    state = START
    for target in reversed(path[:-1]):
        label, state = next((label, after) for label, after in steps(state, tests) if canonical(after) == target)
        yield label, state
