"""Compares the CPU per record with and without everything in aioproducer.observe except tracing.

    python benchmarks/observability.py [--pairs 30] [--records 10000000] [--value-size 100]

Switched on: a hook with a method for every event, Prometheus' collector, which is scraped every 5 s, OpenTelemetry's
metrics, which are read every 5 s, logs at INFO, metrics() and health() every 5 s,
and enable_metrics_push.
The processes of each pair run in turns; the result is the median of the ratios, with its 95% interval."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from aioproducer import Producer
from broker import AckBroker
from clients import Face
from job import Job
from measure import pipelined
from runner import MeasurementError, result_of

GOAL = 1.02
PERIOD = 5.0
"""Seconds between scrapes; Prometheus' default is 15 or more, OpenTelemetry's 60."""


class CountingHook:
    """A hook that counts every event."""

    def __init__(self) -> None:
        self.heard: defaultdict[type, int] = defaultdict(int)

    def _count(self, event: object) -> None:
        self.heard[type(event)] += 1

    on_start = on_close = on_connect = on_disconnect = on_request = on_throttle = _count
    on_batch = on_retry = on_rejected = on_data_loss = on_transaction = _count


def switch_on(log: Path) -> Callable[[], None]:
    """Switch on logs, Prometheus and OpenTelemetry's metrics; return the function that a scrape calls."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.trace import NoOpTracerProvider
    from prometheus_client import generate_latest

    from aioproducer.otel import AioproducerInstrumentor
    from aioproducer.prometheus import ProducerCollector

    logging.basicConfig(level=logging.INFO, filename=log)
    reader = InMemoryMetricReader()
    AioproducerInstrumentor().instrument(
        tracer_provider=NoOpTracerProvider(), meter_provider=MeterProvider([reader])
    )
    ProducerCollector()

    def scrape() -> None:
        generate_latest()
        reader.get_metrics_data()

    return scrape


async def measure(job: Job, *, is_observed: bool) -> dict[str, Any]:
    """Measure in this process."""
    hook = CountingHook()
    scrape = switch_on(Path(os.devnull)) if is_observed else None
    if scrape is not None:
        scrape()  # the first scrape looks for entry points
    async with Producer(
        job.bootstrap,
        linger_ms=job.linger_ms or 0,
        batch_size=job.batch_size or 16_384,
        hooks=[hook] if is_observed else [],
        enable_metrics_push=is_observed,
    ) as producer:
        watching = asyncio.create_task(_watch(producer, scrape)) if scrape is not None else None
        result = await pipelined(
            job, Face(producer.send, producer.send_and_wait, producer.partitions_for, producer.close)
        )
        if watching is not None:
            watching.cancel()
    return {**result, "heard": {event.__name__: count for event, count in hook.heard.items()}}


async def _watch(producer: Producer[Any, Any], scrape: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(PERIOD)
        scrape()
        producer.metrics()
        producer.health()


def measured(job: Job, *, is_observed: bool) -> dict[str, Any]:
    """Measure in a separate process, with a separate broker."""
    with AckBroker("--topic", f"{job.topic}:{job.partitions}") as broker:
        arguments = ["--child", job.as_argument(), "--bootstrap", broker.bootstrap]
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments, *(["--observed"] if is_observed else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            result = result_of(process)
        finally:
            process.kill()
        counted = sum(sum(topic["records"]) for topic in broker.counts()["topics"].values())
    if counted != result["sent"]:
        raise MeasurementError(f"the broker counted {counted:,} records, but {result['sent']:,} were sent")
    return result


def ratios(job: Job, pairs: int) -> list[float]:
    """Return the CPU time with observability relative to that without, for each pair. The two take turns to
    run first."""
    found = []
    for pair in range(pairs):
        used = {}
        for is_observed in (False, True) if pair % 2 else (True, False):
            used[is_observed] = float(measured(job, is_observed=is_observed)["cpu_us"])
        found.append(used[True] / used[False])
        print(f"{pair + 1}: {used[False]:.3f} and {used[True]:.3f} µs, {found[-1]:.3f}", flush=True)
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95% interval of the median, by the ranks of the binomial distribution."""
    ordered = sorted(values)
    beyond = max(round(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5), 1)
    return ordered[beyond - 1], ordered[-beyond]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(",")[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--value-size", type=int, default=100)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    parser.add_argument("--observed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        job = Job(**{**json.loads(options.child), "bootstrap": options.bootstrap})
        print(json.dumps(uvloop.run(measure(job, is_observed=options.observed))))
        return 0
    job = Job(
        "pipelined", "aioproducer", options.value_size, records=options.records, warm_up=options.records // 10
    )
    load = os.getloadavg()[0]
    found = ratios(job, options.pairs)
    low, high = interval(found)
    median = statistics.median(found)
    print(
        f"median {median:.3f} [{low:.3f}, {high:.3f}] of {options.pairs} pairs, {options.value_size} B; goal {GOAL}; "
        f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    return 0 if median <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
