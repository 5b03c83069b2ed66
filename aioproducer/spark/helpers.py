"""Helper functions for users of the sink: `partition_by_key` and `foreach_batch`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aioproducer import murmur2_partitions

logger = logging.getLogger(__name__)


def partition_by_key(df: DataFrame, partitions: int, *, key: str = "key") -> DataFrame:
    """Add a column `partition`, and put all rows of a partition into one task, as exactly_once requires.

    The partition is the one that Kafka's default partitioner chooses (murmur2 of the key).

    Args:
        df: a DataFrame with a column of strings or bytes to hash.
        partitions: the number of the topic's partitions.
        key: the name of the column to hash. Rows without a key are distributed by their value, so that a repeated task
            computes the same partition for each row.
    """
    if type(partitions) is not int or partitions < 1:
        raise ValueError(
            f"partitions={partitions!r} must be the number of partitions in the topic, at least 1"
        )
    hashed = _arrow_hash(partitions) if hasattr(F, "arrow_udf") else _row_hash(partitions)
    columns = [F.col(key), *([F.col("value")] if "value" in df.columns else []), F.lit("")]
    number = hashed(F.coalesce(*(column.cast("binary") for column in columns)))
    with_partition = df.withColumn("partition", number)
    if hasattr(with_partition, "repartitionById"):  # Spark 4.1: task n has partition n
        return with_partition.repartitionById(partitions, "partition")
    return with_partition.repartition(partitions, "partition")


def _arrow_hash(partitions: int) -> Callable[..., Column]:
    def hashed(keys: pa.Array) -> pa.Array:
        numbers = murmur2_partitions(keys, partitions)
        return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])

    hashed.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    arrow_udf: Callable[..., Callable[..., Column]] = F.arrow_udf  # type: ignore[attr-defined]  # not in its list of names
    return arrow_udf(hashed, "int")


def _row_hash(partitions: int) -> Callable[..., Column]:
    return F.udf(lambda key: murmur2_partitions([bytes(key)], partitions)[0], "int", useArrow=False)


def foreach_batch(
    options: Mapping[str, Any],
    *,
    app_id: str | None = None,
    attempts: int = 3,
    prepare: Callable[[DataFrame, int], DataFrame] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes each batch exactly once.

    The function retries failed batches while the query continues. It also supports the output mode `update`, which
    Spark does not offer to Python sinks.

        options = {"kafka.bootstrap.servers": servers, "topic": "counts", "transactionalId": "counts-1"}
        counts.writeStream.outputMode("update").foreachBatch(foreach_batch(options))...start()

    Args:
        options: the options for the sink, except that `delivery` defaults to exactly_once.
        app_id: the name that identifies the query in the marker; by default, the query's id in its checkpoint.
        attempts: the maximum number of attempts for a batch.
        prepare: f(batch, batch id) -> the DataFrame to write, e.g. with `partition_by_key`.
    """
    if attempts < 1:
        raise ValueError(f"attempts={attempts!r} must be 1 or more")

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch if prepare is None else prepare(batch, batch_id)
        told = {"delivery": "exactly_once", **options}
        if told["delivery"] == "exactly_once":
            told |= {"txnAppId": app_id or _query_id(batch), "txnVersion": str(batch_id)}
        for attempt in range(1, attempts + 1):
            try:
                rows.write.format("aioproducer").options(**told).mode("append").save()
                return
            except Exception as error:
                if attempt == attempts or _is_stopped(error):
                    raise
                logger.warning(
                    "attempt %d of %d of batch %d failed; retrying: %s", attempt, attempts, batch_id, error
                )

    return write


def _is_stopped(error: Exception) -> bool:
    """Return True if `query.stop()` ended the write: it interrupts the thread and cancels the jobs."""
    return any(name in str(error) for name in ("java.lang.InterruptedException", "SPARK_JOB_CANCELLED"))


def _query_id(batch: DataFrame) -> str:
    context = getattr(batch.sparkSession, "sparkContext", None)
    found = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    if not found:
        raise ValueError(
            "foreach_batch can't determine the query's id (Spark Connect?): pass app_id=, a unique name for the query"
        )
    return str(found)
