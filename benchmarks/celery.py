"""``python -m benchmarks.celery [--quick] [--json]``: what a fenced task costs its worker, and the one who sends it.

The queue is filled before the worker may take from it. CPU is that of the whole prefork worker, its main process and its
child, with all their threads, so what the heartbeat and the collection of grants take counts. Connections to the
database stay open between tasks (``CELERY_DB_REUSE_MAX``), or both sides would pay for a new one each time. What a
task is compared with stands in `benchmarks.tasks`. Exit status 1 when a goal is missed.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.measure import Row, alternate, arguments, ratios, report
from benchmarks.stage import stage

STOCKS = 20
HOT = "hot"


def main() -> int:
    """Measure and print; the exit status says whether every goal is met."""
    given = arguments(__doc__)
    with stage():
        stock_up()
        rows = [
            *published(rounds=10 if given.quick else 40, calls=100),
            *worked(rounds=5 if given.quick else 15, tasks=200 if given.quick else 400),
            *in_turn(rounds=3 if given.quick else 9, tasks=200 if given.quick else 400),
        ]
    report(rows, as_json=given.json)
    return 0 if all(row.met for row in rows) else 1


def stock_up() -> None:
    """The same stocks on both sides."""
    from inventory_demo.models import PlainStock, Stock

    for sku in (HOT, *map(name_of, range(STOCKS))):
        Stock.objects.create(sku=sku)
        PlainStock.objects.create(sku=sku)


def name_of(number: int) -> str:
    """The stock that the task of this number is about."""
    return f"article-{number % STOCKS:02}"


def published(*, rounds: int, calls: int) -> list[Row]:
    """What the one who sends a task pays, and what travels."""
    from benchmarks import tasks
    from inventory_demo.celery import app

    queue = "benchmark-published"
    sent: dict[str, Any] = {
        name: lambda task=task: task.apply_async(("article-00", 1), queue=queue)
        for name, task in (("floor", tasks.empty), ("ours", tasks.fenced))
    }
    with app.connection_for_write() as broker:
        channel: Any = broker.default_channel

        def taken() -> list[int]:
            lengths = [len(message) for message in channel.client.lrange(queue, 0, -1)]
            channel.client.delete(queue)
            return lengths

        sizes = {}
        for name, send in sent.items():
            send()
            (sizes[name],) = taken()
        costs = alternate(sent, rounds=rounds, calls=calls, before=lambda _name: taken())
        taken()
    return [
        Row("message of a fenced task: bytes, by an unfenced one's", sizes["ours"] / sizes["floor"], 1.0),
        Row("sending a fenced task: CPU, by an unfenced one's", ratios(costs["ours"], costs["floor"])[1], 1.05),
    ]


def worked(*, rounds: int, tasks: int) -> list[Row]:
    """CPU of a worker with one process, by task."""
    from benchmarks import tasks as bench
    from benchmarks.drains import Drain

    def filling(task: Any) -> Any:
        def fill(queue: str) -> Any:
            for number in range(tasks):
                task.apply_async((name_of(number), 1), queue=queue)
            return bench.ended.apply_async(queue=queue).ready

        return fill

    variants = {
        "empty": bench.empty,
        "fenced": bench.fenced,
        "redis": bench.redis_lock,
        "by hand": bench.delta_by_hand,
        "delta": bench.fenced_delta,
    }
    with Drain(processes=1) as drain:
        costs = drain.alternate({name: filling(task) for name, task in variants.items()}, rounds=rounds, tasks=tasks)

    def cpu(name: str, floor: str) -> float:
        return ratios(costs[name], costs[floor])[1]

    return [
        Row("empty fenced_task(atomic=False): worker CPU, by an empty task's", cpu("fenced", "empty"), 1.2),
        Row("beside it, redis-py's Lock in an unfenced body: the same", cpu("redis", "empty"), None),
        Row("fenced delta, once and recorded: worker CPU, by the ORM's unfenced", cpu("delta", "by hand"), 1.2),
    ]


def in_turn(*, rounds: int, tasks: int) -> list[Row]:
    """Tasks per second on one stock, by a worker with four processes."""
    from benchmarks import tasks as bench
    from benchmarks.drains import Drain
    from inventory_demo.models import StockDelta

    def filling(task: Any) -> Any:
        def fill(queue: str) -> Any:
            for _ in range(tasks):
                task.apply_async((HOT, 1), queue=queue)
            ledger = StockDelta.objects.filter(sku=HOT)
            due = ledger.count() + tasks
            return lambda: ledger.count() == due

        return fill

    variants = {"for update": bench.delta_for_update, "fenced": bench.fenced_delta}
    with Drain(processes=4) as drain:
        costs = drain.alternate({name: filling(task) for name, task in variants.items()}, rounds=rounds, tasks=tasks)
    slower, _cpu = ratios(costs["fenced"], costs["for update"])
    return [Row("fenced deltas on one stock: throughput, by SELECT … FOR UPDATE", 1 / slower, 0.8, at_least=True)]


if __name__ == "__main__":
    sys.exit(main())
