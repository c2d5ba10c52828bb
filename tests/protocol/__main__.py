"""``python -m tests.protocol --depth 10``: visit every state, and find the violation without each protection."""

from __future__ import annotations

import argparse
import sys
import time

from tests.protocol.explore import Found, explore
from tests.protocol.model import BEGUN, START, Client, Protections, Server, State, start_without

# From there the same depth would take too long, and is no deeper than this.
BEGUN_STEPS = 3

DOES = ("is idle", "asks", "needs a range", "installs", "holds")
DATABASE = ("", ", set back", ", set back and opened")


def main() -> int:
    """Explore as designed and without each protection; the exit status says whether all was as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=10, help="how many steps (default: 10)")
    parser.add_argument("--without", choices=Protections._fields, help="only without this protection")
    given = parser.parse_args()
    without = [given.without] if given.without else Protections._fields
    wrong = False
    if not given.without:
        wrong = bool(report("as designed", given.depth, Protections()).broken)
        wrong |= bool(report("as designed, begun", given.depth - BEGUN_STEPS, Protections(), BEGUN).broken)
    for name in without:
        tests, start = Protections()._replace(**{name: False}), start_without(name)
        wrong |= not report(f"without {name}", given.depth, tests, start).broken
    return int(wrong)


def report(what: str, depth: int, tests: Protections, start: State = START) -> Found:
    """Explore once, and print what was found."""
    began = time.monotonic()
    found = explore(depth, tests, start)
    seconds = time.monotonic() - began
    verdict = found.broken or "no violation"
    print(f"{what}: {found.states} states, {found.steps} steps, depth {found.depth}, {seconds:.1f} s: {verdict}")
    for number, ((name, who, at), state) in enumerate(found.way, 1):
        actor = f"client {who}" if who >= 0 else "server"
        place = f" at server {at}" if at >= 0 else ""
        print(f"  {number:2}. {actor}: {name}{place}")
        print("      " + "; ".join(map(server_text, state.servers)))
        database = f"{state.reserved} reserved{DATABASE[state.database]}"
        print("      " + "; ".join(map(client_text, state.clients)) + f"; {database}")
    return found


def server_text(server: Server) -> str:
    """A server in words."""
    counter = "no counter"
    if server.counter:
        reign, own, following, ceiling = server.counter
        counter = f"reign {reign}{'' if own else ' of another life'}, next {following} of {ceiling}"
    lease = f", lease of call {server.lease.holder}" if server.lease else ""
    waiting = f", {', '.join(map(str, server.queue))} waiting" if server.queue else ""
    return f"{'primary' if server.primary else 'replica'}: {counter}{lease}{waiting}"


def client_text(client: Client) -> str:
    """A client in words."""
    reign = f" for reign {client.reign}" if client.reign else ""
    numbers = f" from {client.first}" if client.first else ""
    return f"call {client.call} {DOES[client.stage]}{numbers}{reign}"


if __name__ == "__main__":
    sys.exit(main())
