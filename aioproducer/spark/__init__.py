"""A Kafka sink for Spark in pure Python, with exactly-once delivery: `df.write.format("aioproducer")`.

See docs/spark.md."""

from aioproducer.spark.helpers import activate, foreach_batch, partition_by_key, run_query
from aioproducer.spark.options import SinkError
from aioproducer.spark.reports import BatchListener
from aioproducer.spark.sink import KafkaSink

__all__ = [
    "BatchListener",
    "KafkaSink",
    "SinkError",
    "activate",
    "foreach_batch",
    "partition_by_key",
    "run_query",
]
