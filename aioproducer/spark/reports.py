"""What a task tells the driver when all its records are acknowledged: Spark's commit messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from aioproducer import TopicPartition, TransactionHandle


class Version(NamedTuple):
    """Which write of whom: (a query's id, its batch id), or a batch write's (txnAppId, txnVersion)."""

    owner: str
    number: int


class Plan(NamedTuple):
    """The transaction of one micro-batch, begun on the driver; the tasks write to it, the driver ends it."""

    handle: TransactionHandle
    partitions: int
    """How many the topic has."""
    marker: Version | None
    """The last write that was committed."""
    begun_at: float
    """Seconds since 1970, by the driver's clock."""
    seconds: float
    """How long the brokers let it live."""


class Written(NamedTuple):
    """What a task wrote to one partition."""

    rows: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """Of one task; Spark brings that of each task's winning attempt to the driver."""

    task: int
    rows: int
    size: int
    """Bytes of the record batches."""
    seconds: float
    retries: int
    p99: float
    """Seconds to the acknowledgement; with at_least_once of all that this worker process has sent so far."""
    written: dict[TopicPartition, Written] = field(default_factory=dict)
    # exactly_once
    plan: Plan | None = None
    version: Version | None = None
    is_skipped: bool = False
    """It was committed before; the task has read nothing."""


def summary(reports: Sequence[TaskReport]) -> str:
    """One line for the log."""
    rows = sum(report.rows for report in reports)
    size = sum(report.size for report in reports)
    places = {place for report in reports for place in report.written}
    topics = sorted({place.topic for place in places})
    return (
        f"{rows:,} rows, {size / 1e6:.1f} MB to {len(places)} partitions of {', '.join(topics) or 'no topic'} by "
        f"{len(reports)} tasks; slowest {max((report.seconds for report in reports), default=0):.2f} s, "
        f"{sum(report.retries for report in reports)} retries, "
        f"p99 {max((report.p99 for report in reports), default=0) * 1000:.1f} ms"
    )
