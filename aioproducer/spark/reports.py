"""What a task tells the driver when all its records are acknowledged: Spark's commit messages."""

from __future__ import annotations

import json
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
    failure: str = ""
    """Why its rows are not all written: the whole write can't be committed, and no second attempt would help."""


class Totals(NamedTuple):
    """Of all tasks of a write."""

    rows: int
    bytes: int
    """Of the record batches."""
    topics: list[str]
    partitions: int
    tasks: int
    seconds: float
    """Of the slowest task."""
    retries: int
    p99_ms: float
    """To the acknowledgement."""


def totals(reports: Sequence[TaskReport]) -> Totals:
    """What the tasks of a write tell together."""
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
    """One line for the log."""
    found = totals(reports)
    return (
        f"{found.rows:,} rows, {found.bytes / 1e6:.1f} MB to {found.partitions} partitions of "
        f"{', '.join(found.topics) or 'no topic'} by {found.tasks} tasks; slowest {found.seconds:.2f} s, "
        f"{found.retries} retries, p99 {found.p99_ms:.1f} ms"
    )


def add_line(path: str, what: str, reports: Sequence[TaskReport], now: float) -> None:
    """A line of JSON at the end of a file: what was written, and when, in seconds since 1970.

    Raises:
        OSError: it can't be written.
    """
    line = json.dumps({"time": round(now, 3), "write": what, **totals(reports)._asdict()})
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
