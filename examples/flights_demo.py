"""Sends the flights of 2013 through the producer, and proves by reading them back that all arrived.

`make demo`, `make demo KAFKA=apache`, `make demo KAFKA=host:port`; or run the script yourself, see --help.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime

from aioproducer import KafkaError, Producer
from flights import DemoError, clusters, report
from flights.clusters import Kafka
from flights.data import FLIGHTS, Flight, load
from flights.interrupt import Interrupt, Interrupted
from flights.progress import Progress
from flights.proof import Proof, read_back
from flights.sending import Measurement, Sent, State, send_flights
from flights.topic import Topic, prepare

try:
    import uvloop  # faster, if installed
except ImportError:
    new_event_loop = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop

OK, WRONG, CANNOT, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses: all proved; a delivery or the proof failed; the demo could not start; Ctrl-C."""


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="flights_demo.py",
        description="Sends the 336,776 flights that left New York in 2013 to Kafka, one record each, and "
        "proves by reading them back with confluent-kafka that all of them arrived as they were sent.",
        epilog="Ctrl-C stops sending, waits up to 10 s for records in flight, and prints the report; "
        "a second Ctrl-C does not wait. Exit status: 0 all proved, 1 something is missing or wrong, "
        "2 could not start, 130 interrupted. The demo never deletes a topic.",
    )
    parser.add_argument(
        "--kafka",
        default=clusters.EMBEDDED,
        metavar="embedded|apache|HOST:PORT",
        help="an embedded cluster in its own process (default), a real Kafka cluster started for the demo, "
        "or your own cluster (separate several addresses with commas)",
    )
    parser.add_argument(
        "--brokers",
        type=positive,
        help="number of brokers, if the demo starts the cluster (embedded 3, apache 1)",
    )
    parser.add_argument(
        "--topic", help="name of the topic; default: a new one, aioproducer-flights-<date>-<time>"
    )
    parser.add_argument(
        "--partitions", type=positive, default=12, help="partitions of the topic (default 12)"
    )
    parser.add_argument(
        "--limit", type=positive, default=FLIGHTS, metavar="N", help="only the first N flights"
    )
    parser.add_argument(
        "--compression",
        default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        help="compression_type of the producer (default none)",
    )
    chosen = parser.parse_args(argv)
    chosen.topic = chosen.topic or f"aioproducer-flights-{datetime.now():%Y%m%d-%H%M%S}"
    return chosen


def positive(text: str) -> int:
    """Parse a count on the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


async def demo(options: argparse.Namespace, interrupt: Interrupt) -> int:
    """Start Kafka or connect to it, send the flights, read them back, and report. Returns the exit status."""
    async with AsyncExitStack() as stack:
        stack.enter_context(interrupt.catching())
        cluster = clusters.running(options.kafka, options.brokers)
        kafka = await interrupt.unless(stack.enter_async_context(cluster))
        flights = await _load(options.limit, interrupt)
        topic = await interrupt.unless(
            prepare(kafka.bootstrap_servers, options.topic, options.partitions, interrupt.check)
        )
        producer = Producer(
            kafka.bootstrap_servers, client_id="flights-demo", compression_type=options.compression
        )
        await interrupt.unless(stack.enter_async_context(producer))
        await interrupt.unless(producer.partition_info(topic.name))
        print(
            f"{len(flights):,} flights -> topic {topic.name}, {len(topic.starts)} partitions\n"
            f"on {kafka.description}",
            *filter(None, [topic.note]),
            sep="\n",
            flush=True,
        )
        sent, measured = await send_flights(producer, topic.name, flights, interrupt)
        return await _prove_and_report(kafka, topic, sent, measured, interrupt)


async def _load(limit: int, interrupt: Interrupt) -> list[Flight]:
    with Progress("preparing", min(limit, FLIGHTS)) as progress:
        return await asyncio.to_thread(load, limit, unless_asked(progress, interrupt))


async def _prove_and_report(
    kafka: Kafka, topic: Topic, sent: Sent, measured: Measurement, interrupt: Interrupt
) -> int:
    proof, is_complete = await _prove(kafka, topic, sent, interrupt)
    loop = asyncio.get_running_loop()
    runtime = f"{type(loop).__module__.partition('.')[0]}, Python {platform.python_version()}"
    table = report.lines(sent, measured, runtime)
    report.show("report", table + report.proof_lines(proof, is_complete=is_complete))
    for finding in proof.findings if proof else ():
        print(f"  {finding}")
    if not kafka.is_ours:
        print(f"topic {topic.name} stays in your cluster; delete it when you no longer need it")
    if proof is not None and proof.kinds:
        print("the proof FAILED: the records read back are not those that were sent", file=sys.stderr)
        return WRONG
    if interrupt.is_asked:
        return INTERRUPTED
    if sent.count(State.DELIVERED) < len(sent.flights):
        print("not all flights were delivered", file=sys.stderr)
        return WRONG
    return OK


async def _prove(kafka: Kafka, topic: Topic, sent: Sent, interrupt: Interrupt) -> tuple[Proof | None, bool]:
    """Return the proof, and whether all records were read. After Ctrl-C the proof is skipped."""
    if interrupt.is_asked:
        return None, False
    proof = Proof(sent, len(topic.starts))
    with Progress("reading", len(sent.flights)) as progress:
        try:
            await asyncio.to_thread(
                read_back, kafka.bootstrap_servers, topic, proof, unless_asked(progress, interrupt)
            )
        except Interrupted:
            return proof, False
        except DemoError as error:
            proof.unread(str(error))
    return proof, True


def unless_asked(progress: Progress, interrupt: Interrupt) -> Callable[[int], None]:
    """Return a progress callback for a thread. It shows the number of records, or raises Interrupted after Ctrl-C."""

    def advance(done: int) -> None:
        interrupt.check()
        progress.show(done)

    return advance


def main() -> int:
    """Run the demo, and return the exit status."""
    options = arguments()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(demo(options, Interrupt()))
    except Interrupted:
        print("interrupted before anything was sent", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (DemoError, KafkaError) as error:
        print(f"flights_demo: {error}", file=sys.stderr)
        return CANNOT


if __name__ == "__main__":
    sys.exit(main())
