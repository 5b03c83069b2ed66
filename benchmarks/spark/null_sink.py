"""A Python sink that does nothing, to measure Spark's own cost of any Python sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark

from aioproducer.spark import worker


class Nothing(spark.WriterCommitMessage):
    """The commit message of a task."""


class _Writer:
    """Discards a task's Arrow batches. PySpark's processes are made cheaper in the same way as for our sink, which
    shares them."""

    def __getstate__(self) -> dict[str, Any]:
        worker.spare()
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Nothing:
        worker.acknowledge_at_once()
        for _ in iterator:
            pass
        worker.spare()
        return Nothing()

    def commit(self, messages: Sequence[Any], batchId: int = 0) -> None:
        worker.spare()

    def abort(self, messages: Sequence[Any], batchId: int = 0) -> None:
        """Do nothing: there is nothing to undo."""


class NullWriter(_Writer, spark.DataSourceArrowWriter):  # type: ignore[misc]  # any sequence of messages
    """`df.write`."""


class NullStreamWriter(_Writer, spark.DataSourceStreamWriter, spark.DataSourceArrowWriter):  # type: ignore[misc]
    """`df.writeStream`."""


class NullSink(spark.DataSource):
    """`format("nothing")`."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def writer(self, schema: object, overwrite: bool) -> NullWriter:
        return NullWriter()

    def streamWriter(self, schema: object, overwrite: bool) -> NullStreamWriter:
        return NullStreamWriter()
