"""The classes that Spark calls: on the driver to plan, to commit and to abort, in each task to write.

A writer is pickled for the tasks once per micro-batch, on the driver, and there its transaction begins."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from aioproducer.errors import ConfigError, KafkaError
from aioproducer.spark import exactly_once, worker
from aioproducer.spark.columns import check_columns
from aioproducer.spark.options import SinkError, SinkOptions, read_options
from aioproducer.spark.reports import Plan, TaskReport, Version, add_line, summary
from aioproducer.spark.task import write_at_least_once

logger = logging.getLogger(__name__)

BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
"""Of the properties that tasks of a stream's batch have."""
ONLY_WRITES = 'format("aioproducer") only writes; Spark reads Kafka by its own source, format("kafka")'


class _Writer:
    """What the writers of batches and of streams have in common."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        self._options.check_reports()
        if self._options.exactly_once and self._plan is None:
            self._plan = exactly_once.plan(self._options)
        worker.spare()
        return self.__dict__

    def _version(self) -> Version | None:
        options = self._options
        if options.app_id is None or options.version is None:
            return None
        return Version(options.app_id, options.version)

    def _version_in_task(self, context: TaskContext) -> Version | None:
        return self._version()

    def _write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        worker.acknowledge_at_once()
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        if not self._options.exactly_once:
            report = write_at_least_once(batches, self._options, task)
            worker.spare()
            return report
        assert context is not None
        assert self._plan is not None  # it was pickled
        version = self._version_in_task(context)
        try:
            report = exactly_once.write_exactly_once(
                batches,
                self._options,
                self._plan,
                version,
                task=task,
                attempt=context.attemptNumber(),
                speculation=(context.getLocalProperty("spark.speculation") or "").lower() == "true",
            )
        except KafkaError as error:
            # Told and not raised: Spark would try the task again, in vain, and show what the last attempt said.
            report = TaskReport(task, 0, 0, 0.0, 0, 0.0, {}, self._plan, version, failure=str(error))
        worker.spare()
        return report

    def _commit(
        self, what: str, version: Version | None, messages: Sequence[spark.WriterCommitMessage | None]
    ) -> None:
        reports = [message for message in messages if isinstance(message, TaskReport)]
        if len(reports) < len(messages):
            raise SinkError(
                f"{what}: a task has not written its rows; trigger(continuous=...) does not call Python sinks, use "
                "processingTime or availableNow"
            )
        if self._options.exactly_once and not exactly_once.commit(
            self._options, self._plan, version, reports
        ):
            logger.info("%s was committed before, and is skipped", what)
            return
        logger.info("%s: %s", what, summary(reports))
        if self._options.reports:
            try:
                add_line(self._options.reports, what, reports, time.time())
            except OSError as error:  # what is committed, stays; a batch must not be run again for this
                logger.warning("%s: no line was added to %s: %s", what, self._options.reports, error)
        worker.spare()

    def _abort(self, what: str, messages: Sequence[spark.WriterCommitMessage | None]) -> None:
        reports = [message if isinstance(message, TaskReport) else None for message in messages]
        logger.warning(
            "%s is given up; %s", what, summary([report for report in reports if report is not None])
        )
        if self._options.exactly_once:
            exactly_once.abort(self._options, self._plan, reports)


class BatchWriter(_Writer, spark.DataSourceArrowWriter):
    """`df.write`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write one task's rows, and wait for their acknowledgements."""
        return self._write(iterator)

    def commit(self, messages: list[spark.WriterCommitMessage | None]) -> None:
        """All tasks have written."""
        self._commit("batch write", self._version(), messages)

    def abort(self, messages: list[spark.WriterCommitMessage | None]) -> None:
        """A task has failed for good, or the commit has."""
        self._abort("batch write", messages)


if hasattr(spark, "DataSourceStreamArrowWriter"):
    _ArrowStream = spark.DataSourceStreamArrowWriter
else:

    class _ArrowStream(  # type: ignore[no-redef,misc]  # commit and abort are the sink's
        spark.DataSourceStreamWriter, spark.DataSourceArrowWriter
    ):
        """Spark 4.0 has no such class. What plans a stream there wants the first of these two; the task, which would
        make a Row of each row, gives whatever is the second one Arrow batches."""


class StreamWriter(_Writer, _ArrowStream):
    """`df.writeStream`. It is made anew for each commit: what it knows of the batch, it knows from the tasks."""

    def _version_in_task(self, context: TaskContext) -> Version | None:
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise SinkError("exactly_once: Spark did not tell the task its query and batch; update Spark")
        return Version(query, int(batch))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write one task's rows, and wait for their acknowledgements."""
        return self._write(iterator)

    def commit(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of the micro-batch have written."""
        versions = {message.version for message in messages if isinstance(message, TaskReport)}
        version = next(iter(versions), None)
        if version is not None and version.number != batchId:
            raise SinkError(f"batch {batchId}: the tasks have written batch {version.number}")
        self._commit(f"batch {batchId}", version, messages)

    def abort(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:
        """A task has failed for good, or the commit has."""
        self._abort(f"batch {batchId}", messages)


class KafkaSink(spark.DataSource):
    """`format("aioproducer")`: columns key, value, topic, partition, headers, timestamp; options in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is given."""
        return "aioproducer"

    def schema(self) -> StructType:
        """Nothing is read.

        Raises:
            SinkError: always.
        """
        raise SinkError(ONLY_WRITES)

    def reader(self, schema: StructType) -> spark.DataSourceReader:
        """Nothing is read; always an error, as `schema`."""
        raise SinkError(ONLY_WRITES)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`.

        Raises:
            ConfigError: an option is wrong.
            SinkError: a column is.
        """
        if overwrite:
            raise ConfigError(
                'a topic keeps the records that it has: use mode("append"), not mode("overwrite")',
                setting="mode",
                value="overwrite",
            )
        options = read_options(self.options, is_stream=False)
        check_columns(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> spark.DataSourceStreamWriter:
        """For `df.writeStream`; errors as `writer`. In complete mode each batch brings the whole result again."""
        options = read_options(self.options, is_stream=True)
        check_columns(schema, options)
        return StreamWriter(options)
