"""The commit messages that Spark sends from the tasks to the driver, their totals, and a listener for the totals."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.listener import StreamingQueryListener

from aioproducer import TopicPartition, TransactionHandle
from aioproducer.errors import counted
from aioproducer.spark.tuning import ArrowBatches

logger = logging.getLogger(__name__)


class Version(NamedTuple):
    """The identity of a write: (query id, batch id) of a stream, or (txnAppId, txnVersion) of a batch write."""

    owner: str
    number: int


class Plan(NamedTuple):
    """The transaction of one micro-batch. The driver begins and ends it, and the tasks write to it."""

    handle: TransactionHandle
    partitions: tuple[tuple[str, int], ...]
    """The topics, each with the number of its partitions."""
    marker: Version | None
    """The last committed write, or None if the marker does not exist."""
    begun_at: float
    """The time just before the transaction began, in seconds since 1970, by the driver's clock."""
    seconds: float
    """The transaction timeout in seconds."""
    writes: int = 0
    """The number of writes under the transactional id up to the marker. The newest marker has the highest number."""


class Written(NamedTuple):
    """The rows that a task wrote to one partition."""

    rows: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """The report of one task. Spark sends the report of each task's successful attempt to the driver."""

    task: int
    rows: int
    size: int
    """The size of the record batches in bytes."""
    seconds: float
    retries: int
    p99: float
    """The 99th percentile of the time to acknowledgement, in seconds. With at_least_once, it covers all records
    that the worker process's producer has sent so far."""
    written: dict[TopicPartition, Written] = field(default_factory=dict)
    # exactly_once
    plan: Plan | None = None
    version: Version | None = None
    is_skipped: bool = False
    """True if the write was already committed, so the task did not read its rows."""
    failure: str = ""
    """The reason why rows were not written, or an empty string. A second attempt at the task would not help."""
    rivals: frozenset[TopicPartition] = frozenset()
    """The partitions in which the task found another writer's rows."""
    arrow: ArrowBatches = field(default_factory=ArrowBatches)
    """The Arrow batches in which the rows arrived."""

    @classmethod
    def of_failure(cls, task: int, failure: str, **facts: Any) -> TaskReport:
        """Return the report, with the reason, for a task whose rows must not be committed."""
        return cls(task, 0, 0, 0.0, 0, 0.0, failure=failure, **facts)


class Totals(NamedTuple):
    """The totals for all tasks of a write."""

    rows: int
    bytes: int
    """The size of the record batches."""
    topics: list[str]
    partitions: int
    tasks: int
    seconds: float
    """The time of the slowest task."""
    retries: int
    p99_ms: float
    """The largest `p99` of all tasks, in milliseconds."""
    transaction: float
    """Seconds from the beginning of the transaction to its commit; 0 with at_least_once."""


def totals(reports: Sequence[TaskReport], transaction: float = 0.0) -> Totals:
    """Return the totals of a write's tasks, and the duration of its transaction."""
    places = {place for report in reports for place in report.written}
    return Totals(
        sum(report.rows for report in reports),
        sum(report.size for report in reports),
        sorted({place.topic for place in places}),
        len(places),
        len(reports),
        max((report.seconds for report in reports), default=0.0),
        sum(report.retries for report in reports),
        max((report.p99 for report in reports), default=0.0) * 1000,
        transaction,
    )


def summary(reports: Sequence[TaskReport], transaction: float = 0.0) -> str:
    """Return the totals as one line for the log."""
    return line_of(totals(reports, transaction))


def line_of(found: Totals) -> str:
    """Return the totals as text."""
    in_transaction = f"transaction {found.transaction:.2f} s, " if found.transaction else ""
    return (
        f"{found.rows:,} row{'' if found.rows == 1 else 's'}, {found.bytes / 1e6:.1f} MB to "
        f"{counted(found.partitions, 'partition')} of {', '.join(found.topics) or 'no topic'} by "
        f"{counted(found.tasks, 'task')}; slowest {found.seconds:.2f} s, {in_transaction}"
        f"{counted(found.retries, 'retry', 'retries')}, p99 {found.p99_ms:.1f} ms"
    )


def add_line(path: str, what: str, found: Totals, now: float) -> None:
    """Append a line of JSON to a file, with the totals of a write and the time in seconds since 1970.

    Raises:
        OSError: the file can't be written.
    """
    line = json.dumps({"time": round(now, 3), "write": what, **found._asdict()})
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


class BatchListener(StreamingQueryListener):
    """Passes on the figures of each micro-batch: rows, bytes, transaction time and more.

    Spark has no interface through which a Python sink could add the figures to StreamingQueryProgress. The listener
    therefore reads them from the file that the sink's `reports` option names.

        spark.streams.addListener(BatchListener("flights.jsonl"))
    """

    def __init__(self, reports: str, on_batch: Callable[[Any, Totals], None] | None = None) -> None:
        """Create a listener for the queries that write to a file.

        Args:
            reports: the value of the `reports` option. Each query needs its own file.
            on_batch: f(progress, figures), called after each batch; by default, a line is logged at INFO.
        """
        self._reports = reports
        self._on_batch = on_batch or _log
        self._position = os.path.getsize(reports) if os.path.exists(reports) else 0

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Pass on the figures of the batch, if the sink has reported it."""
        if not os.path.exists(self._reports):
            return
        with open(self._reports, encoding="utf-8") as file:
            file.seek(self._position)
            lines = [json.loads(line) for line in iter(file.readline, "")]
            self._position = file.tell()
        name = f"batch {event.progress.batchId}"
        for line in lines:
            if line["write"] == name:
                self._on_batch(event.progress, Totals(**{field: line[field] for field in Totals._fields}))

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""


def _log(progress: Any, found: Totals) -> None:
    logger.info("%s, batch %d: %s", progress.name or progress.id, progress.batchId, line_of(found))
