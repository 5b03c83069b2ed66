"""Reads the sink's log lines, one for each committed write, from Spark's own Python processes on the driver."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from aioproducer.spark import KafkaSink
from aioproducer.spark.sink import BatchWriter

_COMMITTED = re.compile(
    r"^(?P<what>batch write|batch \d+): (?P<rows>[\d,]+) rows, (?P<megabytes>[\d.]+) MB .* (?P<retries>\d+) retries, "
    r"p99 (?P<p99>[\d.]+) ms$"
)


class Commit(NamedTuple):
    """The content of a log line."""

    is_batch_job: bool
    rows: int
    megabytes: float
    retries: int
    p99_ms: float


def logged_sink(path: Path) -> type[KafkaSink]:
    """Return a subclass of the sink that appends its log lines to a file, to be registered with Spark.

    Spark plans and commits in its own Python processes, where logging is not configured. The class is local to this
    function, so that it is pickled by value for these processes.
    """

    def log() -> None:
        import logging

        logger = logging.getLogger("aioproducer.spark")
        if all(getattr(handler, "baseFilename", None) != str(path) for handler in logger.handlers):
            logger.addHandler(logging.FileHandler(path))
            logger.setLevel(logging.INFO)

    class LoggedBatchWriter(BatchWriter):
        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            log()
            super().commit(messages)

    class LoggedSink(KafkaSink):
        def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
            made = super().writer(schema, overwrite)
            made.__class__ = LoggedBatchWriter
            return made

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            log()  # the process that commits a stream creates the writer again
            return super().streamWriter(schema, overwrite)

    return LoggedSink


def commits(path: Path) -> list[Commit]:
    """Return all writes logged so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Commit(
            found["what"] == "batch write",
            int(found["rows"].replace(",", "")),
            float(found["megabytes"]),
            int(found["retries"]),
            float(found["p99"]),
        )
        for line in lines
        if (found := _COMMITTED.match(line))
    ]
