"""The scripts of the lease store, as functions from a state to the next one and the answer."""

from __future__ import annotations

from tests.protocol.model import Counter, LeaseKey, Protections, Server, State, highest, unused, with_server

GRANTED, HELD, LOST = "granted", "held", "lost"
# The answer of a script: one of the words above, or the reign that needs a range.
Answer = str | int


def issue(state: State, at: int, offer: int, tests: Protections) -> tuple[State, Answer]:
    """`issue` of reign.lua: count on, in a new reign where this server did not write the counter."""
    server = state.servers[at]
    counter = server.counter
    if counter is None or (tests.server_is_tested and not counter.own):
        reign = unused(state) if tests.reign_holds_time else offer
        counter = Counter(reign, True, counter.next if counter else 1, 0)
        state = with_server(state, at, Server(True, counter, server.lease, server.floor))
    return count(state, at, counter)


def count(state: State, at: int, counter: Counter) -> tuple[State, Answer]:
    """`count` of reign.lua; and what I1 says of the number that it issues."""
    number = counter.next
    if number > counter.ceiling:
        return state, counter.reign
    server = state.servers[at]
    broken = ""
    if state.issued >> number & 1:
        broken = f"number {number} is issued twice"
    elif number <= server.floor:
        broken = f"number {number} is issued where {server.floor} had been issued before"
    counted = Counter(counter.reign, counter.own, number + 1, counter.ceiling)
    state = with_server(state, at, Server(True, counted, server.lease, max(server.floor, number)))
    return State(state.servers, state.clients, state.reserved, state.issued | 1 << number, broken), GRANTED


def acquire(state: State, at: int, call: int, tests: Protections) -> tuple[State, Answer]:
    """acquire.lua. The call's id is its holder and its offer of a reign, too."""
    lease = state.servers[at].lease
    if lease is not None:
        return state, GRANTED if lease.holder == call else HELD
    state, answer = issue(state, at, call, tests)
    if answer == GRANTED:
        primary, counter, _, floor = state.servers[at]
        assert counter is not None
        state = with_server(state, at, Server(primary, counter, LeaseKey(call, counter.reign, False), floor))
    return state, answer


def advance(state: State, at: int, call: int, tests: Protections) -> tuple[State, Answer]:
    """advance.lua; and what I1 says of a grant that came back."""
    server = state.servers[at]
    lease, counter = server.lease, server.counter
    if lease is None or lease.holder != call:
        return state, LOST
    if tests.advance_tests_server and not (counter and counter.own):
        return state, LOST
    if tests.advance_tests_reign and not (counter and counter.reign == lease.reign):
        return state, LOST
    state, answer = count(state, at, counter) if counter else issue(state, at, call, tests)
    if answer == GRANTED and lease.old and not state.broken:
        state = state._replace(broken="a grant from before the server forgot is given a further number")
    return state, answer


def release(state: State, at: int, call: int) -> State:
    """release.lua."""
    primary, counter, lease, floor = state.servers[at]
    if lease is not None and lease.holder == call:
        return with_server(state, at, Server(primary, counter, None, floor))
    return state


def install(state: State, at: int, reign: int, first: int, last: int, tests: Protections) -> State:
    """install.lua."""
    primary, counter, lease, floor = state.servers[at]
    if counter is None or (tests.server_is_tested and not counter.own):
        return state
    if tests.install_tests_reign and counter.reign != reign:
        return state
    if tests.install_tests_next and first < counter.next:
        return state
    return with_server(state, at, Server(primary, Counter(counter.reign, counter.own, first, last), lease, floor))


def forgotten(state: State, counter: Counter | None, lease: LeaseKey | None) -> Server:
    """A primary that may have forgotten what it issued: from now on it has to go on above everything (I1)."""
    return Server(True, counter, lease, highest(state))
