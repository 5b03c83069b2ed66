"""One producer in a cluster of 1,000 brokers and 200,000 partitions: CPU, memory, time and the loop's lag in each step.

    python benchmarks/large_cluster.py [--brokers 1000] [--topics 5000] [--partitions 40]

The cluster is a double (metadata_double.py) in another process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aioproducer import Producer
from job import cpu_seconds, new_event_loop, quantile, resident_bytes

TICK = 0.001  # seconds between two measurements of the lag
IN_FLIGHT = 20_000  # records that are sent before their deliveries are awaited
VALUE = b"v" * 100


class Double:
    """A running metadata_double.py, which is stopped when the `with` block ends."""

    def __init__(self, *options: str) -> None:
        program = Path(__file__).with_name("metadata_double.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.bootstrap = f"127.0.0.1:{int(self._stdout.readline())}"

    def __enter__(self) -> Double:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stdin.close()
        self._stdout.close()
        self._process.wait()

    def obey(self, command: str) -> dict[str, int]:
        """Send a command. Return the counts of what the double has received so far."""
        self._stdin.write(f"{command}\n")
        self._stdin.flush()
        counts: dict[str, int] = json.loads(self._stdout.readline())
        return counts


async def lag(late: list[float]) -> None:
    """Append the delay of each turn of the loop to `late`, in seconds, until cancelled."""
    while True:
        due = time.perf_counter() + TICK  # uvloop's clock counts in milliseconds
        await asyncio.sleep(TICK)
        late.append(max(time.perf_counter() - due, 0.0))


async def measured(name: str, step: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """Run one step, and return its figures."""
    late: list[float] = []
    watching = asyncio.create_task(lag(late))
    cpu, wall = cpu_seconds(), time.perf_counter()
    await step()
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    late.sort()
    return {
        "step": name,
        "seconds": wall,
        "cpu_seconds": cpu,
        "lag_p99_ms": quantile(late, 0.99) * 1e3 if late else wall * 1e3,
        "lag_max_ms": late[-1] * 1e3 if late else wall * 1e3,
        "memory_mb": resident_bytes() / 1e6,
    }


async def run(double: Double, topics: int, partitions: int, idle_seconds: float = 3) -> list[dict[str, Any]]:
    names = [f"topic-{number}" for number in range(topics)]
    producer = Producer(
        bootstrap_servers=double.bootstrap,
        enable_metrics_push=False,
        metadata_max_age_ms=3_600_000,
        connections_max_idle_ms=3_600_000,
    )

    async def metadata() -> None:
        await asyncio.gather(*[producer.partitions_for(name) for name in names])

    async def write() -> None:
        waiting = []
        for partition in range(partitions):
            for name in names:
                waiting.append(await producer.send(name, VALUE, partition=partition))
                if len(waiting) == IN_FLIGHT:
                    for delivery in waiting:
                        await delivery
                    waiting.clear()
        for delivery in waiting:
            await delivery

    async def refresh() -> None:
        before = producer._metadata.version
        producer._metadata.request_update()
        while producer._metadata.version == before:  # noqa: ASYNC110  # the steps set no event
            await asyncio.sleep(TICK)

    async def idle() -> None:
        await asyncio.sleep(idle_seconds)

    steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("start", producer.start),
        ("metadata of all topics", metadata),
        ("a record to each partition", write),
        ("idle", idle),
        ("another record to each", write),
        ("refresh", refresh),
        ("half of all leaders move: a record to each", write),
        ("half of all leaders move: a refresh", refresh),
        ("idle again", idle),
    ]
    results = []
    try:
        for name, step in steps:
            if name.startswith("half"):
                double.obey("move")
            gc.collect()
            results.append(await measured(name, step))
            figures = {key: round(value, 3) for key, value in results[-1].items() if key != "step"}
            print(f"{name}: {figures} {double.obey('counts')}", file=sys.stderr, flush=True)
    finally:
        await producer.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--brokers", type=int, default=1000)
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--partitions", type=int, default=40, help="number of partitions in each topic")
    options = parser.parse_args()
    size = [f"--{name}={value}" for name, value in vars(options).items()]
    with Double(*size) as double, asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(run(double, options.topics, options.partitions))))


if __name__ == "__main__":
    main()
