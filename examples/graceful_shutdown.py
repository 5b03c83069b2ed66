"""Graceful shutdown on SIGTERM: no accepted job is lost.

    python examples/graceful_shutdown.py --bootstrap-servers localhost:9092 --journal accepted.txt
    kill -TERM <its pid>, or Ctrl-C

On the signal, the worker stops accepting jobs, waits at most `--grace` seconds for the jobs in the producer, and
reports the results. Jobs that Kafka did not acknowledge in that time are written to a file, with a note that says
whether they may nevertheless be in the log. The next run can then send them again, or check first."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from aioproducer import CloseReport, Delivery, DeliveryError, KafkaError, Outcome, Producer

try:
    import uvloop  # faster, if installed
except ImportError:
    new_event_loop = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop


class Worker:
    """Accepts jobs, and keeps each one until Kafka has acknowledged it."""

    def __init__(self, producer: Producer, topic: str, journal: TextIO | None) -> None:
        self._producer = producer
        self._topic = topic
        self._journal = journal
        self._on_their_way: dict[Delivery, bytes] = {}
        self.accepted = 0

    async def accept(self, job: bytes) -> None:
        """Accept a job, for which the worker is responsible from then on. Wait while the buffer is full."""
        delivery = await self._producer.send(self._topic, job)
        self._on_their_way[delivery] = job
        delivery.add_done_callback(self._ended)
        self.accepted += 1
        if self._journal is not None:
            self._journal.write(f"{job.decode()}\n")
            self._journal.flush()

    def _ended(self, delivery: Delivery) -> None:
        if delivery.exception() is None:
            del self._on_their_way[delivery]

    def undelivered(self) -> Iterator[tuple[bytes, bool]]:
        """Yield each job that Kafka did not acknowledge, and whether it may be in the log. Call it after close()."""
        for delivery, job in self._on_their_way.items():
            error = delivery.exception()
            if error is not None:
                yield job, isinstance(error, DeliveryError) and error.outcome is Outcome.UNKNOWN


async def work(worker: Worker, rate: float, stop: asyncio.Event) -> None:
    """Accept `rate` jobs a second until `stop` is set."""
    pause = max(0.01, 1 / rate)
    while not stop.is_set():
        for _ in range(max(1, round(rate * pause))):
            await worker.accept(b"job %d" % (worker.accepted + 1))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)


async def run(
    options: argparse.Namespace, journal: TextIO | None
) -> tuple[Worker, CloseReport, BaseException | None]:
    """Work until a signal or an error, then shut down gracefully."""
    stop = asyncio.Event()
    async with Producer(
        options.bootstrap_servers, client_id="worker", max_block_ms=options.patience * 1000
    ) as producer:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, stop.set)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
        worker = Worker(producer, options.topic, journal)
        working = asyncio.create_task(work(worker, options.rate, stop))
        stopping = asyncio.create_task(stop.wait())
        print("working; stop with SIGTERM or Ctrl-C", flush=True)
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        # A job that gets room in the buffer within 0.2 s is still accepted; one that waits longer is not.
        await asyncio.wait({working}, timeout=0.2)
        working.cancel()
        await asyncio.wait({working})
        print(f"ending; {producer.metrics().records_buffered} jobs are on their way", flush=True)
        report = await producer.close(timeout=options.grace)
    return worker, report, None if working.cancelled() else working.exception()


def spill(worker: Worker, path: Path) -> int:
    """Write the undelivered jobs to a file, one per line. Returns their number."""
    jobs = [
        {"job": job.decode(), "may be in the log": may_be_in_the_log}
        for job, may_be_in_the_log in worker.undelivered()
    ]
    if jobs:
        with path.open("a") as file:
            file.writelines(f"{json.dumps(job)}\n" for job in jobs)
    return len(jobs)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Accepts jobs until SIGTERM; no accepted job is lost.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--bootstrap-servers", default="localhost:9092", metavar="HOST:PORT,...", help="Kafka"
    )
    parser.add_argument("--topic", default="jobs", help="topic of the jobs")
    parser.add_argument("--rate", type=float, default=1000, help="jobs per second")
    parser.add_argument("--grace", type=float, default=10, metavar="SECONDS", help="time to deliver the rest")
    parser.add_argument(
        "--patience", type=float, default=10, metavar="SECONDS", help="longest wait for Kafka, or for room"
    )
    parser.add_argument("--journal", type=Path, metavar="FILE", help="file with a line for each accepted job")
    parser.add_argument(
        "--spill",
        type=Path,
        default=Path("undelivered.jsonl"),
        metavar="FILE",
        help="file for undelivered jobs",
    )
    return parser.parse_args()


def main() -> int:
    """Run the example. Exit status: 0 all delivered, 1 some are in the spill file, 2 failed, 130 interrupted."""
    options = arguments()
    try:
        with options.journal.open("w") if options.journal else contextlib.nullcontext() as journal:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                worker, report, failure = runner.run(run(options, journal))
    except (KafkaError, OSError) as error:
        print(f"the worker can't go on: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    spilt = spill(worker, options.spill)
    print(f"accepted {worker.accepted}, delivered {report.delivered}, written to {options.spill}: {spilt}")
    if failure is not None:
        print(f"the worker can't go on: {failure}", file=sys.stderr)
        return 2
    return 1 if spilt else 0


if __name__ == "__main__":
    sys.exit(main())
