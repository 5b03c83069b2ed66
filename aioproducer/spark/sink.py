"""The classes that Spark calls: on the driver to plan, commit and abort, and in each task to write.

The driver pickles a writer for the tasks once per micro-batch, and `__getstate__` begins the transaction."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from aioproducer.errors import ConfigError, KafkaError, counted
from aioproducer.spark import exactly_once, tuning, worker
from aioproducer.spark.columns import check_columns
from aioproducer.spark.options import (
    MissingTopicError,
    PlanningError,
    SinkError,
    SinkOptions,
    in_options,
    read_options,
)
from aioproducer.spark.reports import Plan, TaskReport, Version, add_line, line_of, summary, totals
from aioproducer.spark.task import write_at_least_once

logger = logging.getLogger(__name__)

BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
"""The local properties that Spark sets for the tasks of a stream's batch."""
JOB_GROUP = "spark.jobGroup.id"
"""The local property that contains a stream's run id."""
ONLY_WRITES = 'format("aioproducer") only writes; read from Kafka with Spark\'s own source, format("kafka")'


CONTINUOUS = "trigger(continuous=...) does not call Python sinks; use processingTime or availableNow"


def check_trigger(checkpoint: str) -> None:
    """Check that a stream does not have a continuous trigger, judging by its checkpoint.

    A micro-batch is planned after its offsets have been written; a continuous query is planned before that. The sink
    sees no other difference. A checkpoint that is not a local directory is not checked; a continuous query then fails
    at its commit.

    Raises:
        SinkError: the stream has a continuous trigger.
    """
    path = re.sub("^file:/+", "/", checkpoint)
    if not path or ":" in path:
        return
    folder = Path(path)
    offsets = folder / "offsets"
    if not (folder / "metadata").is_file() or not offsets.is_dir():
        return
    if not any(entry.name.isdigit() for entry in offsets.iterdir()):
        raise SinkError(CONTINUOUS)


class _Writer:
    """Base class of the batch and stream writers."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        try:
            self._prepare()
        except KafkaError as error:
            raise PlanningError(str(error)) from error
        worker.spare()
        return self.__dict__

    def _prepare(self) -> None:
        """Plan the write when first called on the driver. Raise an error if the write is not possible."""
        self._options.check_reports()
        if self._options.exactly_once and self._plan is None:
            self._plan = exactly_once.plan(self._options)

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
        report = self._report(batches, context)
        arrow = report.arrow._replace(
            is_first=context is not None
            and tuning.is_first_of(context.getLocalProperty(JOB_GROUP), context.stageId()),
            over_tcp=worker.could_use_a_unix_socket(),
        )
        worker.spare()
        return replace(report, arrow=arrow)

    def _report(self, batches: Iterable[pa.RecordBatch], context: TaskContext | None) -> TaskReport:
        task = context.partitionId() if context else 0
        if not self._options.exactly_once:
            try:
                return write_at_least_once(batches, self._options, task)
            except MissingTopicError as error:
                return TaskReport.of_failure(task, str(error))
            except KafkaError as error:
                raise SinkError(in_options(str(error))) from error
        assert context is not None
        assert self._plan is not None  # set when the writer was pickled
        version = self._version_in_task(context)
        failure_of = partial(TaskReport.of_failure, task, plan=self._plan, version=version)
        try:
            return exactly_once.write_exactly_once(
                batches,
                self._options,
                self._plan,
                version,
                task=task,
                attempt=context.attemptNumber(),
                speculation=(context.getLocalProperty("spark.speculation") or "").lower() == "true",
            )
        # An error is reported, not raised: Spark would retry the task without success, and show the last attempt's
        # error instead.
        except exactly_once.OtherWriterError as error:
            return failure_of(in_options(error.answer), rivals=error.rivals)
        except KafkaError as error:
            return failure_of(in_options(str(error)))

    def _commit(
        self, what: str, version: Version | None, messages: Sequence[spark.WriterCommitMessage | None]
    ) -> None:
        worker.show_messages()
        reports = [message for message in messages if isinstance(message, TaskReport)]
        if len(reports) < len(messages):
            raise SinkError(
                f"{what}: {len(messages) - len(reports)} of {counted(len(messages), 'task')} did not write the rows; "
                f"{CONTINUOUS}"
            )
        if not self._options.exactly_once:
            for report in reports:
                if report.failure:
                    raise SinkError(report.failure)
        elif not exactly_once.commit(self._options, self._plan, version, reports):
            logger.info("%s was already committed and is skipped", what)
            return
        now = time.time()
        plan = next((report.plan for report in reports if report.plan is not None), None)
        found = totals(reports, 0.0 if plan is None else now - plan.begun_at)
        logger.info("%s: %s", what, line_of(found))
        if advice := tuning.advice(report.arrow for report in reports):
            logger.warning("%s", advice)
        if self._options.reports:
            try:
                add_line(self._options.reports, what, found, now)
            except OSError as error:  # the rows are committed: the batch must not be repeated
                logger.warning("%s: no line was added to %s: %s", what, self._options.reports, error)
        worker.spare()

    def _abort(self, what: str, messages: Sequence[spark.WriterCommitMessage | None]) -> None:
        worker.show_messages()
        reports = [message if isinstance(message, TaskReport) else None for message in messages]
        logger.warning(
            "%s failed; finished tasks: %s",
            what,
            summary([report for report in reports if report is not None]),
        )
        if self._options.exactly_once:
            exactly_once.abort(self._options, self._plan, reports)


class BatchWriter(_Writer, spark.DataSourceArrowWriter):
    """Writer for `df.write`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write one task's rows, and wait for their acknowledgements."""
        return self._write(iterator)

    def commit(self, messages: list[spark.WriterCommitMessage | None]) -> None:
        """Commit the write after all tasks have written their rows."""
        self._commit("batch write", self._version(), messages)

    def abort(self, messages: list[spark.WriterCommitMessage | None]) -> None:
        """Abort the write after a task has failed for good, or the commit has failed."""
        self._abort("batch write", messages)


if hasattr(spark, "DataSourceStreamArrowWriter"):
    _ArrowStream = spark.DataSourceStreamArrowWriter
else:

    class _ArrowStream(  # type: ignore[no-redef,misc]  # commit and abort are the sink's
        spark.DataSourceStreamWriter, spark.DataSourceArrowWriter
    ):
        """A replacement for the class that Spark 4.0 lacks.

        Spark 4.0 plans a stream only if its writer is an instance of the first base class. A task passes Arrow batches
        to instances of the second base class; for other writers, it converts each row to a Row."""


class StreamWriter(_Writer, _ArrowStream):
    """Writer for `df.writeStream`. Spark commits with a new instance, which gets the plan from the tasks' reports."""

    def _prepare(self) -> None:
        check_trigger(self._options.checkpoint)
        super()._prepare()

    def _version_in_task(self, context: TaskContext) -> Version | None:
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise SinkError(
                f"exactly_once: Spark did not set {QUERY_ID} and {BATCH_ID} for the task; update Spark"
            )
        return Version(query, int(batch))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write one task's rows, and wait for their acknowledgements."""
        return self._write(iterator)

    def commit(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch after all tasks have written their rows."""
        versions = {message.version for message in messages if isinstance(message, TaskReport)}
        version = next(iter(versions), None)
        if version is not None and version.number != batchId:
            raise SinkError(f"batch {batchId}: the tasks have written batch {version.number}")
        self._commit(f"batch {batchId}", version, messages)

    def abort(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:
        """Abort the micro-batch after a task has failed for good, or the commit has failed."""
        self._abort(f"batch {batchId}", messages)


class KafkaSink(spark.DataSource):
    """The data source `format("aioproducer")`; docs/spark.md lists its columns and options."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format(...)`."""
        return "aioproducer"

    def schema(self) -> StructType:
        """Raise an error: the data source can't be read.

        Raises:
            SinkError: always.
        """
        raise SinkError(ONLY_WRITES)

    def reader(self, schema: StructType) -> spark.DataSourceReader:
        """Raise SinkError: the data source can't be read."""
        raise SinkError(ONLY_WRITES)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer for `df.write`.

        Raises:
            ConfigError: an option is wrong.
            SinkError: a column is missing or unknown, or has the wrong type.
        """
        if overwrite:
            raise ConfigError(
                'the records in a topic can\'t be overwritten; use mode("append"), not mode("overwrite")',
                setting="mode",
                value="overwrite",
            )
        options = read_options(self.options, is_stream=False)
        check_columns(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> spark.DataSourceStreamWriter:
        """Return the writer for `df.writeStream`. It raises the same errors as `writer`, except that `overwrite` is
        allowed.

        In complete mode (`overwrite`), each batch contains the whole result, and its rows are appended."""
        options = read_options(self.options, is_stream=True)
        check_columns(schema, options)
        return StreamWriter(options)
