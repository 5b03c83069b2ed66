"""Compares ways to await many deliveries: one by one, with aioproducer.gather, and with asyncio.gather.

    python benchmarks/gathering.py [--rounds 100] [--window 10000] [--value-size 100] [--keyed]

One process sends windows of records to the acknowledging broker, and awaits each window in one of the ways, which take
turns. The figures are CPU per record, including sending. For each way, they are the median, and the median difference
from awaiting one by one in the same round, with its 95% interval."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aioproducer
from aioproducer import Delivery, Producer
from broker import AckBroker
from job import FASTEST_LOOP, LINES, cpu_seconds, lines, new_event_loop
from observability import interval

GOAL = 0.15
"""The additional CPU per record that `gather` may cost, relative to the CPU of sending and awaiting one by one."""
WARM_UP = 5
"""The number of rounds before the first one that counts."""


async def one_by_one(deliveries: list[Delivery]) -> int:
    last = -1
    for delivery in deliveries:
        last = (await delivery).partition
    return last


async def by_gather(deliveries: list[Delivery]) -> int:
    return (await aioproducer.gather(deliveries))[-1].partition


async def by_asyncio(deliveries: list[Delivery]) -> int:
    return (await asyncio.gather(*deliveries))[-1].partition


WAYS: dict[str, Callable[[list[Delivery]], Awaitable[int]]] = {
    "one by one": one_by_one,
    "aioproducer.gather": by_gather,
    "asyncio.gather": by_asyncio,
}


async def measure(
    bootstrap: str, rounds: int, window: int, value_size: int, keyed: bool
) -> dict[str, list[float]]:
    """Return the CPU time in microseconds per record of each way, for each round."""
    values = (lines(value_size) * -(-window // LINES))[:window]
    keys = [b"%d" % number if keyed else None for number in range(window)]
    pairs = list(zip(values, keys, strict=True))
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    async with Producer(bootstrap, linger_ms=5, batch_size=65536) as producer:
        for number in range(-WARM_UP, rounds):
            names = list(WAYS)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                began = cpu_seconds()
                await WAYS[name]([await producer.send("t", value, key) for value, key in pairs])
                used = (cpu_seconds() - began) / window * 1e6
                if number >= 0:
                    found[name].append(used)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--window", type=int, default=10_000)
    parser.add_argument("--value-size", type=int, default=100)
    parser.add_argument("--keyed", action="store_true", help="distinct keys, so that batches alternate")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with AckBroker("--topic", "t:12") as broker:
        arguments: tuple[Any, ...] = (options.rounds, options.window, options.value_size, options.keyed)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = runner.run(measure(broker.bootstrap, *arguments))
        counted = sum(sum(topic["records"]) for topic in broker.counts()["topics"].values())
    sent = (options.rounds + WARM_UP) * len(WAYS) * options.window
    if counted != sent:
        print(f"the broker counted {counted:,} records, but {sent:,} were sent", file=sys.stderr)
        return 2
    plain = found["one by one"]
    base = statistics.median(plain)
    print(
        f"{options.rounds} rounds of {options.window:,} records, {options.value_size} B, {FASTEST_LOOP}'s loop"
    )
    more = {}
    for name, used in found.items():
        differences = [with_it - without for with_it, without in zip(used, plain, strict=True)]
        more[name] = statistics.median(differences) / base
        low, high = interval(differences)
        print(
            f"{name:20} {statistics.median(used):.3f} µs; more than one by one: {statistics.median(differences):+.3f} "
            f"[{low:+.3f}, {high:+.3f}] µs, {more[name]:+.2f} times that row"
        )
    print(f"goal {GOAL} for aioproducer.gather; load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    return 0 if more["aioproducer.gather"] <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
