"""The commit messages that Spark sends from the tasks to the driver, and their totals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from aioproducer import TopicPartition, TransactionHandle
from aioproducer.errors import counted


class Version(NamedTuple):
    """The identity of a write: (query id, batch id) of a stream, or (txnAppId, txnVersion) of a batch write."""

    owner: str
    number: int


class Plan(NamedTuple):
    """The transaction of one micro-batch. The driver begins and ends it, and the tasks write to it."""

    handle: TransactionHandle
    partitions: int
    """The number of the topic's partitions."""
    marker: Version | None
    """The last committed write, or None if the marker does not exist."""
    begun_at: float
    """The time just before the transaction began, in seconds since 1970, by the driver's clock."""
    seconds: float
    """The transaction timeout in seconds."""


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


def totals(reports: Sequence[TaskReport]) -> Totals:
    """Return the totals for a write's tasks."""
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
    )


def summary(reports: Sequence[TaskReport]) -> str:
    """Return the totals in one line for the log."""
    found = totals(reports)
    return (
        f"{found.rows:,} row{'' if found.rows == 1 else 's'}, {found.bytes / 1e6:.1f} MB to "
        f"{counted(found.partitions, 'partition')} of {', '.join(found.topics) or 'no topic'} by "
        f"{counted(found.tasks, 'task')}; slowest {found.seconds:.2f} s, "
        f"{counted(found.retries, 'retry', 'retries')}, p99 {found.p99_ms:.1f} ms"
    )


def add_line(path: str, what: str, reports: Sequence[TaskReport], now: float) -> None:
    """Append a line of JSON to a file, with the totals of a write and the time in seconds since 1970.

    Raises:
        OSError: the file can't be written.
    """
    line = json.dumps({"time": round(now, 3), "write": what, **totals(reports)._asdict()})
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
