"""``python -m tests.celery.fire DELTAS SEED``: deltas of 20 stocks while their workers are paused, killed and restarted.

Two prefork workers acknowledge late and take whatever is delivered again; the store of the leases is flushed twice. The
faults strike at random, by the seed, but not after a plan: where a process is just then is a matter of chance. At the end
the database is compared with what every task has answered. Prints what happened as JSON; `tests/celery/test_fire.py`
starts this with servers and judges.

A Redis hands a message over with BRPOP, and forgets it: one that is on its way to a worker that is killed is gone. So at
the end the sender sends again, under the same id, what neither waits in the broker nor has ended. Which of it had come to
a worker is told by the logs: none of that may be lost.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import django

django.setup()

from django.db.models import Sum  # noqa: E402
from django_redis import get_redis_connection  # noqa: E402

from fencing.models import FencedWrite  # noqa: E402
from inventory_demo.celery import app  # noqa: E402
from inventory_demo.models import Stock, StockDelta  # noqa: E402
from inventory_demo.server_support import wait_for  # noqa: E402
from inventory_demo.tasks import apply_delta  # noqa: E402
from inventory_demo.worker import Worker  # noqa: E402

QUEUE = "fire"
STOCKS, IN_STOCK = 20, 1000
# Deltas that are sent before each fault.
SLICE = 10
# Seconds of a pause: longer than the ttl, and some longer than the broker waits for an acknowledgement.
PAUSES = (1.2, 1.2, 1.2, 3.2)
# Seconds without a message after which none is under way.
QUIET = 3.0
# Seconds within which all tasks end once nothing strikes any more.
BOUND = 120


class Fire:
    """One run.

    Args:
        deltas: how many tasks.
        seed: decides what strikes whom, and the deltas.
        stack: ends the workers.
    """

    def __init__(self, deltas: int, seed: int, stack: ExitStack) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.deltas = deltas
        self.sent: dict[str, tuple[str, int, str]] = {}
        self.sent_again: list[str] = []
        self.lost: list[str] = []
        self.struck: Counter[str] = Counter()
        self._stack = stack
        self._started: list[Worker] = []
        self._workers = [self._start() for _ in range(2)]

    def play(self) -> None:
        """Send and strike in turn."""
        faults = self.deltas // SLICE
        flushes = {faults // 3, 2 * faults // 3}
        for number in range(faults):
            self._send_slice()
            # Something of this is under way, so that the fault strikes in the middle.
            applied = StockDelta.objects.count()
            wait_for(lambda applied=applied: StockDelta.objects.count() > applied, seconds=10)  # type: ignore[misc]
            time.sleep(self.random.uniform(0.0, 0.03))
            if number in flushes:
                self._strike("flush", get_redis_connection("leases").flushdb)
            else:
                self._strike_a_worker()

    def finish(self) -> bool:
        """Wait until all have ended, those that are to be sent again as well; say whether they have."""
        wait_for(is_quiet, seconds=BOUND)
        logs = [worker.log(10_000_000) for worker in self._started]
        for task_id in [one for one in self.sent if not app.AsyncResult(one).ready()]:
            (self.lost if any(task_id in log for log in logs) else self.sent_again).append(task_id)
            self._send(task_id)
        return wait_for(
            lambda: not left_in_the_broker() and all(app.AsyncResult(one).ready() for one in self.sent), seconds=BOUND
        )

    def _send_slice(self) -> None:
        for _ in range(SLICE):
            task_id = str(UUID(int=self.random.getrandbits(128)))
            sku, delta = f"fire-{self.random.randrange(STOCKS):02}", self.random.choice([-3, -2, -1, 1, 2, 5])
            self.sent[task_id] = (sku, delta, "fire")
            self._send(task_id)

    def _send(self, task_id: str) -> None:
        apply_delta.apply_async(self.sent[task_id], task_id=task_id, queue=QUEUE)

    def _strike_a_worker(self) -> None:
        number = self.random.randrange(len(self._workers))
        worker = self._workers[number]
        kind = self.random.choices(
            ["pause a child", "pause a worker", "kill a child", "kill a worker"], weights=[10, 3, 5, 2]
        )[0]
        children = children_of(worker.pid)
        match kind:
            case "pause a child" if children:
                child = self.random.choice(children)
                self._strike(kind, lambda: self._pause(os.kill, child))
            case "pause a worker":
                self._strike(kind, lambda: self._pause(os.killpg, worker.pid))
            case "kill a child" if children:
                child = self.random.choice(children)
                self._strike(kind, lambda: os.kill(child, signal.SIGKILL))
            case "kill a worker":
                self._strike(kind, lambda: self._restart(number))

    def _strike(self, kind: str, fault: Callable[[], object]) -> None:
        with suppress(ProcessLookupError):
            fault()
            self.struck[kind] += 1

    def _pause(self, kill: Callable[[int, int], None], pid: int) -> None:
        kill(pid, signal.SIGSTOP)
        try:
            time.sleep(self.random.choice(PAUSES))
        finally:
            kill(pid, signal.SIGCONT)

    def _restart(self, number: int) -> None:
        os.killpg(self._workers[number].pid, signal.SIGKILL)
        self._workers[number] = self._start()

    def _start(self) -> Worker:
        worker = Worker(
            f"{QUEUE}-{len(self._started)}",
            options=[f"--queues={QUEUE}", "--prefetch-multiplier=2"],
            environment={"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]},
        )
        self._started.append(self._stack.enter_context(worker))
        return worker


def children_of(pid: int) -> list[int]:
    """The processes that a worker's main process has started."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def left_in_the_broker() -> int:
    """Messages that wait, or were taken and are not acknowledged."""
    with app.connection_for_read() as connection:
        channel: Any = connection.default_channel
        client = channel.client
        return int(client.llen(QUEUE) + client.hlen("unacked"))


def is_quiet() -> bool:
    """Whether the broker stays empty: for a moment it is so, too, while a worker takes a message or puts one back."""
    return not wait_for(lambda: left_in_the_broker() > 0, seconds=QUIET)


def unanswered(sent: Iterable[str]) -> dict[str, str]:
    """The end of what is known of each task that has no success."""
    results = map(app.AsyncResult, sent)
    return {one.id: f"{one.state} {one.traceback or ''}"[-1500:] for one in results if one.state != "SUCCESS"}


def outcomes(sent: Iterable[str]) -> Counter[str]:
    """How the tasks ended."""
    return Counter(ending(task_id) for task_id in sent)


def ending(task_id: str) -> str:
    """A task's state, and the name of its error."""
    result = app.AsyncResult(task_id)
    return f"{result.state} {type(result.result).__name__}" if result.failed() else str(result.state)


def found(fire: Fire) -> dict[str, Any]:
    """What the database has, and what the tasks have answered."""
    ledger = dict(StockDelta.objects.values_list("sku").annotate(Sum("delta")).order_by())
    kept = Counter(StockDelta.objects.values_list("operation", flat=True))
    wanted = {f"{apply_delta.name}:{task_id}": task_id for task_id in fire.sent}
    successful = {key for key, task_id in wanted.items() if app.AsyncResult(task_id).successful()}
    return {
        "deltas": len(fire.sent),
        "outcomes": outcomes(fire.sent),
        "unanswered": unanswered(fire.sent),
        "left in the broker": left_in_the_broker(),
        "sent again": len(fire.sent_again),
        "lost by a worker": fire.lost,
        "faults": fire.struck,
        "attempts": Counter(FencedWrite.objects.values_list("outcome", flat=True)),
        "wrong quantities": [
            stock.sku for stock in Stock.objects.all() if stock.quantity != IN_STOCK + (ledger.get(stock.sku) or 0)
        ],
        "repeated operations": [key for key, times in kept.items() if times > 1],
        "successes without effect": sorted(successful - kept.keys()),
        "effects without success": sorted(kept.keys() - successful),
    }


def main(deltas: int, seed: int) -> None:
    """Play, wait for the end of all tasks, and print."""
    Stock.objects.bulk_create(Stock(sku=f"fire-{number:02}", quantity=IN_STOCK) for number in range(STOCKS))
    began = time.monotonic()
    with ExitStack() as stack:
        fire = Fire(deltas, seed, stack)
        fire.play()
        ended = fire.finish()
        result = {**found(fire), "all ended": ended, "seconds": round(time.monotonic() - began)}
    print(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
