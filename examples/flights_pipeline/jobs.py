"""The two jobs that write to Kafka: the aggregates as one batch, the flights as a stream, each file exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from aioproducer.spark import partition_by_key
from flights import DemoError
from flights.interrupt import Interrupt
from flights.progress import Progress
from flights.topic import Topic
from flights_pipeline import tables
from flights_pipeline.session import Spark
from flights_pipeline.source import Source

FORMAT = "aioproducer"
_REFRESH = 0.2
"""Seconds between queries of Spark's status."""
_STOPPING = 20.0
"""Seconds to wait for Spark to stop a job after Ctrl-C."""


class Batch(NamedTuple):
    """A committed micro-batch."""

    number: int
    rows: int
    """The number of rows that Spark reports as read, without those that it can filter out while reading a file."""
    seconds: float


@dataclass(slots=True)
class Job:
    """The result of a job."""

    is_done: bool = False
    """True if the job succeeded, and was not interrupted."""
    batches: list[Batch] = field(default_factory=list)
    """The micro-batches of a stream."""


async def write_aggregates(
    spark: Spark, source: Source, servers: str, topics: dict[str, Topic], interrupt: Interrupt
) -> Job:
    """Run the batch job, which writes to three topics (named by the `topic` column) with at_least_once.

    Ctrl-C ends it early.

    Raises:
        DemoError: the job failed.
    """
    names = {name: topics[name].name for name in tables.GROUPS}

    def write() -> None:
        records = tables.aggregated(tables.tables(spark.session, source), names)
        records.write.format(FORMAT).option("kafka.bootstrap.servers", servers).mode("append").save()

    job = Job()
    with Progress("batch", 1, unit="tasks", has_rate=False) as progress:
        working = spark.call(write)
        tracker = spark.session.sparkContext.statusTracker()

        def look() -> None:
            jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup()]
            stages = {stage for job in jobs if job is not None for stage in job.stageIds}
            infos = [info for stage in stages if (info := tracker.getStageInfo(stage)) is not None]
            # Spark starts only a few stages at first, and skips stages whose results already exist.
            begun = [info for info in infos if info.numActiveTasks or info.numCompletedTasks]
            tasks = sum(info.numTasks for info in begun)
            progress.show(sum(info.numCompletedTasks for info in begun), total=tasks or None)

        job.is_done = await _ended(working, look, spark.session.sparkContext.cancelAllJobs, interrupt)
    return job


async def stream_flights(
    spark: Spark,
    source: Source,
    servers: str,
    topic: Topic,
    *,
    rows: int,
    checkpoint: Path,
    interrupt: Interrupt,
) -> Job:
    """Run the streaming job, which writes one micro-batch for each file with exactly_once. Ctrl-C ends it early.

    Args:
        spark: the session.
        source: the files of the flights.
        servers: the addresses of the Kafka cluster.
        topic: the topic of the flights.
        rows: the number of rows that will be written.
        checkpoint: the directory of Spark's checkpoint.
        interrupt: the Ctrl-C handler.

    Raises:
        DemoError: the job failed.
    """

    def start() -> StreamingQuery:
        records = tables.enriched(tables.as_stream(spark.session, source))
        return (
            partition_by_key(records, len(topic.starts))
            .writeStream.format(FORMAT)
            .option("kafka.bootstrap.servers", servers)
            .option("topic", topic.name)
            .option("delivery", "exactly_once")
            .option("transactionalId", topic.name)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    job = Job()
    with Progress("streaming", rows, unit="rows") as progress:
        query = await spark.call(start)

        def look() -> None:
            batches = [batch for batch in query.recentProgress if batch.numInputRows]
            if len(batches) > len(job.batches):
                job.batches = [
                    Batch(batch.batchId, batch.numInputRows, batch.batchDuration / 1000) for batch in batches
                ]
                last = job.batches[-1]
                told = f"batch {last.number}: {last.rows:,} rows in {last.seconds:.1f} s"
                progress.show(sum(batch.rows for batch in job.batches), told)

        working = asyncio.create_task(asyncio.to_thread(query.awaitTermination))
        job.is_done = await _ended(working, look, query.stop, interrupt)
        await asyncio.to_thread(look)
    return job


async def _ended(
    working: asyncio.Future[Any], look: Callable[[], None], stop: Callable[[], None], interrupt: Interrupt
) -> bool:
    """Wait for a job, and call `look` at intervals. Returns True unless Ctrl-C ended the job."""
    while not working.done() and not interrupt.is_asked:
        await asyncio.wait({working}, timeout=_REFRESH)
        await asyncio.to_thread(look)
    if working.done():
        try:
            await working
        except (PySparkException, Py4JError) as error:
            raise DemoError(f"Spark: {_cause(error)}") from error
        return True
    # Errors of a stopped job are retrieved, and ignored.
    working.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await interrupt.allow(_stopped(working, stop), grace=_STOPPING)
    return False


async def _stopped(working: asyncio.Future[Any], stop: Callable[[], None]) -> None:
    """Stop a job repeatedly until it has ended, since Spark does not cancel stages that it has not started yet."""
    while not working.done():
        await asyncio.to_thread(stop)
        await asyncio.wait({working}, timeout=_REFRESH)


def _cause(error: Exception) -> str:
    """Return the last error of a Python process, which contains Kafka's reason, without Spark's stack frames."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if line.startswith("aioproducer.")]
    return named[-1] if named else lines[0]
