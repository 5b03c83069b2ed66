"""Sends the flights of 2013 through Spark to Kafka, and proves the result by reading it back.

`make pipeline`, `make pipeline SPARK=cluster`, `make pipeline KAFKA=apache`, `KAFKA=host:port`; see also --help.

A batch job writes three aggregates, and a stream writes the flights exactly once; both use format("aioproducer").
The expected records are computed again in plain Python, and compared with those that another client reads."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from aioproducer import KafkaError
from flights import DemoError, clusters, report
from flights.clusters import Kafka
from flights.data import FLIGHTS
from flights.interrupt import Interrupt, Interrupted
from flights.progress import Progress
from flights.topic import Topic, prepare
from flights_demo import CANNOT, INTERRUPTED, OK, WRONG, positive, unless_asked
from flights_pipeline import session, tables
from flights_pipeline.commits import commits, logged_sink
from flights_pipeline.expected import IDENTITY, Expected, compute
from flights_pipeline.jobs import Job, stream_flights, write_aggregates
from flights_pipeline.proof import Proof, read_back
from flights_pipeline.report import lines, proof_lines, seconds_lines
from flights_pipeline.source import Source, unpack


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="flights_pipeline",
        description="The 336,776 flights that left New York in 2013 go through Spark, are cleaned, joined with "
        "planes and weather and aggregated, and are written to Kafka by a batch job and by a stream; then "
        "confluent-kafka reads them, and each must match what plain Python computes from the same files.",
        epilog="Ctrl-C stops the running job, and prints the report; a second Ctrl-C does not wait. Exit status: "
        "0 all proved, 1 something is missing or wrong, 2 failed, 130 interrupted. No topic is deleted.",
    )
    parser.add_argument(
        "--kafka",
        default=clusters.EMBEDDED,
        metavar="embedded|apache|HOST:PORT",
        help="an embedded cluster in its own process (default), a real Kafka cluster started for this run, "
        "or your own cluster (separate several addresses with commas)",
    )
    parser.add_argument(
        "--spark",
        default=session.LOCAL,
        choices=(session.LOCAL, session.CLUSTER),
        help="local[2] (default), or a cluster of a master and two workers, started for this run",
    )
    parser.add_argument(
        "--brokers",
        type=positive,
        help="number of brokers, if this run starts the Kafka cluster (embedded 3, apache 1)",
    )
    parser.add_argument(
        "--topics", help="prefix of the topic names; default: aioproducer-pipeline-<date>-<time>"
    )
    parser.add_argument("--partitions", type=positive, default=6, help="partitions of each topic (default 6)")
    parser.add_argument(
        "--rows", type=positive, default=FLIGHTS, metavar="N", help="only the first N flights"
    )
    parser.add_argument("--files", type=positive, default=6, help="micro-batches of the stream (default 6)")
    chosen = parser.parse_args(argv)
    chosen.topics = chosen.topics or f"aioproducer-pipeline-{datetime.now():%Y%m%d-%H%M%S}"
    return chosen


class Stopwatch:
    """Measures the time of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = time.monotonic() - began


async def pipeline(options: argparse.Namespace, interrupt: Interrupt) -> int:
    """Start Kafka and Spark, run both jobs, read the records back, and report. Returns the exit status."""
    watch = Stopwatch()
    async with AsyncExitStack() as stack:
        stack.enter_context(interrupt.catching())
        scratch = tempfile.TemporaryDirectory(prefix="aioproducer-pipeline-", ignore_cleanup_errors=True)
        directory = Path(stack.enter_context(scratch))
        with watch("starting Kafka"):
            cluster = clusters.running(options.kafka, options.brokers)
            kafka = await interrupt.unless(stack.enter_async_context(cluster))
        with watch("preparing"):
            source, expected = await _prepare(options, directory, interrupt)
            topics = {
                name: await interrupt.unless(
                    prepare(
                        kafka.bootstrap_servers,
                        f"{options.topics}-{name}",
                        options.partitions,
                        interrupt.check,
                    )
                )
                for name in IDENTITY
            }
        with watch("starting Spark"):
            print("starting Spark", file=sys.stderr, flush=True)
            spark = await interrupt.unless(
                stack.enter_async_context(session.running(options.spark, directory))
            )
        log = directory / "commits.log"
        await spark.call(lambda: spark.session.dataSource.register(logged_sink(log)))
        print(
            f"{source.rows:,} flights -> topics {options.topics}-{{{','.join(topics)}}}, "
            f"{options.partitions} partitions each\nby {spark}\non {kafka.description}",
            *filter(None, [topic.note for topic in topics.values()]),
            sep="\n",
            flush=True,
        )
        jobs: dict[str, Job] = {}
        servers = kafka.bootstrap_servers
        with watch("batch"):
            jobs["batch"] = await write_aggregates(spark, source, servers, topics, interrupt)
        if not interrupt.is_asked:
            with watch("stream"):
                jobs["stream"] = await stream_flights(
                    spark,
                    source,
                    servers,
                    topics["flights"],
                    rows=len(expected.flights),
                    checkpoint=directory / "checkpoint",
                    interrupt=interrupt,
                )
        with watch("reading back"):
            proofs, is_complete = await prove(kafka, topics, expected, interrupt)
        report.show(
            "report",
            [
                *lines(source, jobs, commits(log)),
                *seconds_lines(watch.seconds),
                *proof_lines(proofs, is_complete=is_complete),
            ],
        )
        return verdict(kafka, options.topics, proofs, interrupt)


async def _prepare(
    options: argparse.Namespace, directory: Path, interrupt: Interrupt
) -> tuple[Source, Expected]:
    with Progress("unpacking", min(options.rows, FLIGHTS), unit="rows") as progress:
        source = await asyncio.to_thread(
            unpack, directory, options.rows, options.files, unless_asked(progress, interrupt)
        )
    with Progress("computing", source.rows, unit="rows") as progress:
        return source, await asyncio.to_thread(compute, source.rows, unless_asked(progress, interrupt))


async def prove(
    kafka: Kafka, topics: dict[str, Topic], expected: Expected, interrupt: Interrupt
) -> tuple[dict[str, Proof], bool]:
    """Return a proof for each topic, and whether all records were read. After Ctrl-C nothing is read."""
    wanted = expected._asdict()
    proofs = {
        name: Proof(topic, IDENTITY[name], wanted[name], may_repeat=name in tables.GROUPS)
        for name, topic in topics.items()
    }
    if interrupt.is_asked:
        return proofs, False
    with Progress("reading", sum(map(len, expected)), unit="rows") as progress:
        advance = unless_asked(progress, interrupt)
        for name, proof in proofs.items():
            before = sum(other.records for other in proofs.values())
            try:
                await asyncio.to_thread(
                    read_back,
                    kafka.bootstrap_servers,
                    topics[name],
                    proof,
                    partial(_advance, advance, before),
                )
            except Interrupted:
                return proofs, False
            except DemoError as error:
                proof.unread(str(error))
    return proofs, True


def _advance(advance: Callable[[int], None], before: int, done: int) -> None:
    advance(before + done)


def verdict(kafka: Kafka, prefix: str, proofs: dict[str, Proof], interrupt: Interrupt) -> int:
    """Print the findings, and return the exit status."""
    for proof in proofs.values():
        for finding in proof.findings:
            print(f"  {finding}")
    if not kafka.is_ours:
        print(f"the topics {prefix}-* stay in your cluster; delete them when you no longer need them")
    if any(proof.kinds for proof in proofs.values()):
        print("the proof FAILED: the records read back are not the expected ones", file=sys.stderr)
        return WRONG
    return INTERRUPTED if interrupt.is_asked else OK


def main() -> int:
    """Run the pipeline, and return the exit status."""
    options = arguments()
    try:
        return asyncio.run(pipeline(options, Interrupt()))
    except Interrupted:
        print("interrupted before anything was written", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (DemoError, KafkaError) as error:
        print(f"flights_pipeline: {error}", file=sys.stderr)
        return CANNOT


if __name__ == "__main__":
    sys.exit(main())
