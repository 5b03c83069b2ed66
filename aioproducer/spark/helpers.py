"""Helper functions for users of the sink: `partition_by_key`, `foreach_batch`, `run_query` and `activate`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from aioproducer import murmur2_partitions
from aioproducer.errors import counted
from aioproducer.spark.exactly_once import AGAIN, SPECULATION
from aioproducer.spark.losses import ExecutorLosses
from aioproducer.spark.options import HiddenOptions, SinkError, read_options
from aioproducer.spark.sink import JOB_GROUP, QUERY_ID
from aioproducer.spark.tuning import limited_batches

logger = logging.getLogger(__name__)

OF_LOST_TASKS = (AGAIN, "ExecutorLostFailure", "FetchFailed", "Python worker exited unexpectedly")
"""Substrings of errors that end a batch although another attempt could succeed."""


def partition_by_key(
    df: DataFrame,
    partitions: int | Mapping[str, int] | None = None,
    *,
    key: str = "key",
    options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Add a `partition` column, and put all rows of a partition into one task, as exactly_once requires.

    The partition is the one that Kafka's default partitioner chooses (murmur2 of the key).

    Args:
        df: a DataFrame with a column of strings or bytes to hash.
        partitions: the number of the topic's partitions; for rows with a `topic` column, {topic: number of partitions}.
        key: the name of the column to hash. Rows without a key are distributed by their value, so that a repeated task
            computes the same partition for each row.
        options: the options of the write. Without `partitions`, they are used to ask the cluster once for the number
            of partitions.

    Raises:
        KafkaError: the cluster does not have a topic that the options name, or does not answer.
        ConfigError: an option is wrong.
    """
    try:
        counts = _checked(_asked(options) if partitions is None and options is not None else partitions)
    finally:
        del options  # a traceback that shows locals must not show passwords
    most = counts if isinstance(counts, int) else max(counts.values())
    hashed = (_arrow_hash if hasattr(F, "arrow_udf") else _row_hash)(counts)
    columns = [F.col(key), *([F.col("value")] if "value" in df.columns else []), F.lit("")]
    topic = [F.col("topic")] if isinstance(counts, Mapping) else []
    number = hashed(F.coalesce(*(column.cast("binary") for column in columns)), *topic)
    with_partition = df.withColumn("partition", number)
    # Partition n of every topic goes to the same task.
    if hasattr(with_partition, "repartitionById"):  # Spark 4.1: task n gets partition n
        return with_partition.repartitionById(most, "partition")
    return with_partition.repartition(most, "partition")


def _checked(partitions: int | Mapping[str, int] | None) -> int | Mapping[str, int]:
    counts = list(partitions.values()) if isinstance(partitions, Mapping) else [partitions]
    if partitions is None or not counts or any(type(count) is not int or count < 1 for count in counts):
        raise ValueError(
            f"partitions={partitions!r} must be the number of partitions in the topic, at least 1, or a mapping of "
            "topics to numbers, for rows with a 'topic' column; or pass options= to get the numbers from the cluster"
        )
    return partitions


def _asked(options: Mapping[str, Any]) -> int | dict[str, int]:
    """Return the number of partitions of the topic in the options, or of each topic in `topics`."""
    try:
        texts = HiddenOptions(zip(map(str, options), map(str, options.values()), strict=True))
    finally:
        del options  # as in partition_by_key()
    read = read_options(texts, is_stream=False)
    topics = read.topics or ((read.topic,) if read.topic else ())
    with read.producer() as producer:
        found = {topic: read.partitions_of(producer, topic) for topic in topics}
    return found if read.topic is None else found[read.topic]


def _arrow_hash(counts: int | Mapping[str, int]) -> Callable[..., Column]:
    def numbers(keys: pa.Array, count: int) -> pa.Array:
        hashed = murmur2_partitions(keys, count)
        return pa.Array.from_buffers(pa.int32(), len(hashed), [None, pa.py_buffer(hashed)])

    def hashed(*columns: pa.Array) -> pa.Array:
        if isinstance(counts, int):
            return numbers(columns[0], counts)
        keys, topics = columns
        found = pa.nulls(len(keys), pa.int32())
        for topic, count in counts.items():
            found = pc.if_else(pc.equal(topics, topic), numbers(keys, count), found)
        return found

    hashed.__annotations__ = {"columns": pa.Array, "return": pa.Array}
    arrow_udf: Callable[..., Callable[..., Column]] = F.arrow_udf  # type: ignore[attr-defined]  # not in its list of names
    return arrow_udf(hashed, "int")


def _row_hash(counts: int | Mapping[str, int]) -> Callable[..., Column]:
    def hashed(key: bytes, topic: str | None = None) -> int | None:
        count = counts if isinstance(counts, int) else counts.get(topic or "")
        return None if count is None else murmur2_partitions([bytes(key)], count)[0]

    return F.udf(hashed, "int", useArrow=False)


def foreach_batch(
    options: Mapping[str, Any],
    *,
    app_id: str | None = None,
    attempts: int = 3,
    prepare: Callable[[DataFrame, int], DataFrame] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes each batch exactly once.

    The function retries failed batches while the query continues. It also supports the `update` output mode, which
    Spark does not offer to Python sinks. While it writes, Arrow batches are limited to 2 MiB, unless the session sets
    spark.sql.execution.arrow.maxBytesPerBatch.

        options = {"kafka.bootstrap.servers": servers, "topic": "counts", "transactionalId": "counts-1"}
        counts.writeStream.outputMode("update").foreachBatch(foreach_batch(options))...start()

    Args:
        options: the options for the sink, except that `delivery` defaults to exactly_once.
        app_id: the name that identifies the query in the marker; by default, the query's id in its checkpoint.
        attempts: the maximum number of attempts for a batch.
        prepare: f(batch, batch id) -> the DataFrame to write, e.g. with `partition_by_key`.
    """
    hidden = HiddenOptions(options)
    del options  # as in partition_by_key()
    _check_attempts(attempts)

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch if prepare is None else prepare(batch, batch_id)
        given = HiddenOptions({"delivery": "exactly_once", **hidden})
        if given["delivery"] == "exactly_once":
            _check_speculation(batch.sparkSession)
            given |= {"txnAppId": app_id or _query_id(batch), "txnVersion": str(batch_id)}
        for attempt in range(1, attempts + 1):
            watch = ExecutorLosses(batch.sparkSession, _property(batch, JOB_GROUP))
            try:
                with limited_batches(batch.sparkSession):
                    rows.write.format("aioproducer").options(**given).mode("append").save()
                return
            except Exception as error:
                if _is_stopped(error):
                    raise
                losses = watch.losses()
                if attempt < attempts:
                    logger.warning(
                        "attempt %d of %d for batch %d failed; retrying: %s%s",
                        attempt,
                        attempts,
                        batch_id,
                        error,
                        _listed(losses),
                    )
                elif losses:
                    raise SinkError(
                        f"batch {batch_id} was not written in {counted(attempts, 'attempt')}: {error}{_listed(losses)}"
                    ) from error
                else:
                    raise

    return write


def run_query(start: Callable[[], StreamingQuery], *, attempts: int = 3) -> StreamingQuery:
    """Start a query and wait until it ends; if a lost task ended it, restart it.

    Spark ends a query whose batch fails. The failed batch is not committed, so a restarted query writes it again, in a
    new transaction. If a restart wouldn't help, the query's own error is raised.

        query = run_query(lambda: writer.option("checkpointLocation", folder).start())

    Args:
        start: starts the query, always with the same checkpoint.
        attempts: the maximum number of attempts for a batch.

    Returns:
        The query, after it was ended by `query.stop()` or trigger(availableNow=True).

    Raises:
        SinkError: a batch failed `attempts` times. The error names the executors and tasks that Spark has lost.
        StreamingQueryException: the query failed for another reason.
    """
    _check_attempts(attempts)
    failures = 0
    while True:
        query = start()
        watch = ExecutorLosses(SparkSession.active(), str(query.runId))
        try:
            query.awaitTermination()
            return query
        except StreamingQueryException as error:
            if not any(text in str(error) for text in OF_LOST_TASKS):
                raise
            failures = (
                1 if query.lastProgress else failures + 1
            )  # if there was progress, a different batch has failed
            losses = _listed(watch.losses())
            if failures >= attempts:
                raise SinkError(
                    f"a batch was not written in {counted(attempts, 'attempt')}: {error}{losses}"
                ) from error
            logger.warning(
                "attempt %d of %d failed; the query is being restarted: %s%s",
                failures,
                attempts,
                error,
                losses,
            )


def activate(spark: SparkSession) -> None:
    """Make a session the active session of this thread, so that Spark finds the sink.

    Spark looks for Python data sources in the thread's active session, which a new Python thread does not have. Without
    this call, a write in such a thread fails with DATA_SOURCE_NOT_FOUND."""
    spark.createDataFrame([], "value string")  # its side effect is the only public way to do this


def _check_attempts(attempts: int) -> None:
    if attempts < 1:
        raise ValueError(f"attempts={attempts!r} must be 1 or more")


def _check_speculation(spark: SparkSession) -> None:
    """Raise an error now instead of letting every attempt at the write fail in its tasks.

    Raises:
        SinkError: spark.speculation is on.
    """
    if (spark.conf.get("spark.speculation", "false") or "").lower() == "true":
        raise SinkError(f"exactly_once: {SPECULATION}")


def _listed(losses: list[str]) -> str:
    return f"\nSpark reports: {'; '.join(losses)}" if losses else ""


def _is_stopped(error: Exception) -> bool:
    """Return True if `query.stop()` ended the write: it interrupts the thread and cancels the jobs."""
    return any(name in str(error) for name in ("java.lang.InterruptedException", "SPARK_JOB_CANCELLED"))


def _property(batch: DataFrame, name: str) -> str | None:
    """Return a local property of Spark's thread for the batch; None with Spark Connect, or if it is not set."""
    context = getattr(batch.sparkSession, "sparkContext", None)
    return context.getLocalProperty(name) if context is not None else None


def _query_id(batch: DataFrame) -> str:
    found = _property(batch, QUERY_ID)
    if not found:
        raise ValueError(
            "foreach_batch can't determine the query's id (Spark Connect?); pass app_id=, a unique name for the query"
        )
    return str(found)
