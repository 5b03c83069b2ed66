"""What users call beside the sink: rows of one partition in one task, and a stream's batches that are run again."""

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
    """The rows with a column `partition`, as Kafka's default partitioner gives it (murmur2 of the key), and all rows of
    a partition in one task. exactly_once needs that.

    Args:
        df: with a column of strings or bytes to be hashed.
        partitions: how many the topic has.
        key: the column's name. Rows without a key are spread by their value: a task that is run again has to find each
            row where it was.
    """
    if type(partitions) is not int or partitions < 1:
        raise ValueError(f"partitions={partitions!r} must be the number of the topic's partitions, 1 or more")
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
    """A function for `writeStream.foreachBatch` that writes each batch exactly once, and runs a failed one again while
    the query goes on. It also serves the output mode `update`, which Spark has for no Python sink.

        options = {"kafka.bootstrap.servers": servers, "topic": "counts", "transactionalId": "counts-1"}
        counts.writeStream.outputMode("update").foreachBatch(foreach_batch(options))...start()

    Args:
        options: of the sink; delivery is exactly_once if nothing is said.
        app_id: what the query is called in the marker; by default the query's own id, that of its checkpoint.
        attempts: how often a batch is tried at most.
        prepare: f(batch, batch id) -> the DataFrame to be written, e.g. with `partition_by_key`.
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
                    "batch %d failed, it is run again (%d of %d): %s", batch_id, attempt, attempts, error
                )

    return write


def _is_stopped(error: Exception) -> bool:
    """What `query.stop()` makes of a write: its thread is interrupted, its jobs are cancelled."""
    return any(name in str(error) for name in ("java.lang.InterruptedException", "SPARK_JOB_CANCELLED"))


def _query_id(batch: DataFrame) -> str:
    context = getattr(batch.sparkSession, "sparkContext", None)
    found = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    if not found:
        raise ValueError(
            "foreach_batch can't learn the query's id here (Spark Connect?): give it app_id=, a name of its own"
        )
    return str(found)
