"""The Spark settings that make the rows of a query cheaper to process.

Spark passes rows to a Python process in Arrow batches of up to 10,000 rows. Each copy of a batch is faster if the batch
fits into a processor's cache. `foreach_batch` limits the size itself. Other writes can't change their session, so they
log the settings once per query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql import SparkSession

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNIX_SOCKET = "spark.python.unix.domain.socket.enabled"

SUITABLE = 2 << 20
"""The size of an Arrow batch, in bytes, that fits into a processor's cache."""
TOO_LARGE = 2 * SUITABLE
"""Arrow batches above this size, in bytes, are worth a warning."""
MUCH = 64 << 20
"""If a write is larger than this, in bytes, a TCP connection is worth a warning."""
MOST_QUERIES = 100
"""The maximum number of queries that a worker process remembers."""

_first_stages: dict[str | None, int] = {}
"""The stage of each query's first write in this process."""


class ArrowBatches(NamedTuple):
    """The Arrow batches that one task received."""

    bytes: int = 0
    largest: int = 0
    """The size of the largest batch in bytes."""
    is_first: bool = False
    """True if the task is part of the first write for this query in its worker process."""
    over_tcp: bool = False
    """True if the batches arrived over TCP although this release of Spark supports Unix sockets."""


def is_first_of(query: str | None, stage: int) -> bool:
    """Return whether this stage is the first to write for a query in this process.

    All tasks of a stage get the same answer. If `query` is None, it stands for all writes without a name."""
    if query not in _first_stages and len(_first_stages) >= MOST_QUERIES:
        del _first_stages[next(iter(_first_stages))]
    return _first_stages.setdefault(query, stage) == stage


def advice(tasks: Iterable[ArrowBatches]) -> str:
    """Return a sentence with the settings that would make the rows cheaper to process, or an empty string.

    The string is empty for all but the first write of a query."""
    found = [task for task in tasks if task.bytes]
    if not all(task.is_first for task in found):
        return ""
    size, largest = sum(task.bytes for task in found), max((task.largest for task in found), default=0)
    settings = []
    if largest > TOO_LARGE:
        settings.append(
            f"{BYTES}={SUITABLE} (its largest Arrow batch was {largest / 1e6:.0f} MB, which does not fit into a "
            "processor's cache)"
        )
    if size > MUCH and any(task.over_tcp for task in found):
        settings.append(f"{UNIX_SOCKET}=true, set when the session is created")
    return (
        f"the rows of this query would be cheaper to process with {' and '.join(settings)}"
        if settings
        else ""
    )


@contextmanager
def limited_batches(spark: SparkSession) -> Iterator[None]:
    """Limit the session's Arrow batches to a size that fits into the cache, unless the session already has a limit."""
    if spark.conf.get(BYTES, None) is not None:
        yield
        return
    spark.conf.set(BYTES, str(SUITABLE))
    try:
        yield
    finally:
        spark.conf.unset(BYTES)
