"""A Python sink that does nothing, to measure what any Python sink costs in Spark itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark

from aioproducer.spark import worker


class Nothing(spark.WriterCommitMessage):
    """A task's commit message."""


class _Writer:
    """Discards a task's Arrow batches. It makes PySpark's processes cheaper in the same way as our sink, which runs in
    the same processes."""

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
    """The writer for `df.write`."""


class NullStreamWriter(_Writer, spark.DataSourceStreamWriter, spark.DataSourceArrowWriter):  # type: ignore[misc]
    """The writer for `df.writeStream`."""


class NullSink(spark.DataSource):
    """The sink for `format("nothing")`."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def writer(self, schema: object, overwrite: bool) -> NullWriter:
        return NullWriter()

    def streamWriter(self, schema: object, overwrite: bool) -> NullStreamWriter:
        return NullStreamWriter()
