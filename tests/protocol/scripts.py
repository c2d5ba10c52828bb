"""The scripts of the lease store, as functions from a state to the next one and the answer."""

from __future__ import annotations

from tests.protocol.model import Counter, LeaseKey, Protections, Server, State, highest, listens, unused, with_server

GRANTED, HELD, LOST = "granted", "held", "lost"
# The answer of a script: one of the words above, or the reign that needs a range.
Answer = str | int
# Who hands over offers no reign.
NO_OFFER = 0


def issue(state: State, at: int, offer: int, tests: Protections) -> tuple[State, Answer]:
    """`issue` of reign.lua: count on, in a new reign where this server did not write the counter."""
    server = state.servers[at]
    counter = server.counter
    if counter is None or (tests.server_is_tested and not counter.own):
        if offer == NO_OFFER and (counter is None or tests.hand_over_tests_server):
            return state, LOST
        if offer != NO_OFFER:
            reign = unused(state) if tests.reign_holds_time else offer
            counter = Counter(reign, True, counter.next if counter else 1, 0)
            state = with_server(state, at, server._replace(counter=counter))
    assert counter is not None
    return count(state, at, counter)


def count(state: State, at: int, counter: Counter) -> tuple[State, Answer]:
    """`count` of reign.lua; and what I1 says of the number that it issues."""
    number = counter.next
    if number > counter.ceiling:
        return state, counter.reign
    _, _, lease, floor, queue = state.servers[at]
    broken = ""
    if state.issued >> number & 1:
        broken = f"number {number} is issued twice"
    elif number <= floor:
        broken = f"number {number} is issued where {floor} had been issued before"
    counted = Counter(counter.reign, counter.own, number + 1, counter.ceiling)
    state = with_server(state, at, Server(True, counted, lease, max(floor, number), queue))
    issued = state.issued | 1 << number
    return State(state.servers, state.clients, state.reserved, issued, broken, state.database), GRANTED


def acquire(state: State, at: int, call: int, tests: Protections) -> tuple[State, Answer]:
    """acquire.lua and acquire_queued.lua of a client that waits. The call's id is its holder and its offer of a reign, too."""
    lease = state.servers[at].lease
    if lease is not None:
        return (state, GRANTED) if lease.holder == call else (join(state, at, call), HELD)
    state, answer = issue(state, at, call, tests)
    if answer != GRANTED:
        return state, answer
    state, first = first_waiter(state, at, call, tests)
    if first in (0, call):
        return grant(state, at, call), GRANTED
    # The last holder died: nobody overtakes those who wait.
    return join(grant(state, at, first), at, call), HELD


def join(state: State, at: int, call: int) -> State:
    """`join` of queue.lua."""
    server = state.servers[at]
    return state if call in server.queue else with_server(state, at, server._replace(queue=(*server.queue, call)))


def first_waiter(state: State, at: int, asking: int, tests: Protections) -> tuple[State, int]:
    """`first_waiter` of queue.lua: the dead ones before it are dropped; 0 if nobody waits."""
    server = state.servers[at]
    queue = server.queue
    while tests.dead_waiters_are_skipped and queue and queue[0] != asking and not listens(state, queue[0]):
        queue = queue[1:]
    if queue != server.queue:
        state = with_server(state, at, server._replace(queue=queue))
    return state, queue[0] if queue else 0


def grant(state: State, at: int, call: int) -> State:
    """`grant` of queue.lua, of the number that was just counted; the call has no place in the queue any more."""
    primary, counter, _, floor, queue = state.servers[at]
    assert counter is not None
    queue = queue[1:] if queue[:1] == (call,) else queue
    return with_server(state, at, Server(primary, counter, LeaseKey(call, counter.reign, False), floor, queue))


def hand_over(state: State, at: int, tests: Protections) -> State:
    """`hand_over` of queue.lua: give the lease, which has just become free, to the first waiter that lives."""
    state, first = first_waiter(state, at, NO_OFFER, tests)
    if not first:
        return state
    state, answer = issue(state, at, NO_OFFER, tests)
    if answer != GRANTED:
        return state
    if not listens(state, first) and not state.broken:
        state = state._replace(broken="the lease is handed to a waiter that is dead")
    return grant(state, at, first)


def advance(state: State, at: int, call: int, tests: Protections) -> tuple[State, Answer]:
    """advance.lua; and what I1 says of a grant that came back."""
    _, counter, lease, _, _ = state.servers[at]
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


def release(state: State, at: int, call: int, tests: Protections) -> State:
    """release.lua, and revoke.lua for the call that holds."""
    primary, counter, lease, floor, queue = state.servers[at]
    if lease is not None and lease.holder == call:
        return hand_over(with_server(state, at, Server(primary, counter, None, floor, queue)), at, tests)
    return state


def give_up(state: State, at: int, call: int, tests: Protections) -> State:
    """give_up.lua."""
    server = state.servers[at]
    left = server._replace(queue=tuple(one for one in server.queue if one != call))
    return release(with_server(state, at, left), at, call, tests)


def install(state: State, at: int, reign: int, first: int, last: int, tests: Protections) -> State:
    """install.lua."""
    primary, counter, lease, floor, queue = state.servers[at]
    if counter is None or (tests.server_is_tested and not counter.own):
        return state
    if tests.install_tests_reign and counter.reign != reign:
        return state
    if tests.install_tests_next and first < counter.next:
        return state
    return with_server(
        state, at, Server(primary, Counter(counter.reign, counter.own, first, last), lease, floor, queue)
    )


def close(state: State, at: int) -> State:
    """close.lua."""
    server = state.servers[at]
    counter = Counter(unused(state), True, server.counter.next if server.counter else 1, 0)
    return with_server(state, at, server._replace(counter=counter))


def forgotten(state: State, counter: Counter | None, lease: LeaseKey | None, queue: tuple[int, ...] = ()) -> Server:
    """A primary that may have forgotten what it issued: from now on it has to go on above everything (I1)."""
    return Server(True, counter, lease, highest(state), queue)
