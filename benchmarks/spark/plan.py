"""The measurements: one Cell for each figure of a table. Read by the bench, and by the stage in Spark's environment."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

OURS = "aioproducer"
TUNED = "aioproducer, Arrow batches of 2 MB"
LIMITED = "aioproducer, maxBytesPerBatch=2097152"
PLACED = "aioproducer, with a partition column"
EXACTLY_ONCE = "aioproducer, exactly_once"
BY_KEY = "aioproducer, exactly_once, partition_by_key"
FOREACH_BATCH = "aioproducer, exactly_once, foreach_batch"
CONNECTOR = "Spark's JVM connector"
MAP_CONFLUENT = "mapInArrow + confluent-kafka"
MAP_CONFLUENT_BATCH = "mapInArrow + confluent-kafka's produce_batch"
FOREACH_CONFLUENT = "foreachPartition + confluent-kafka"
FOREACH_AIOKAFKA = "foreachPartition + aiokafka"
MAP_COUNT = "mapInArrow, counts only"
NULL = "a Python sink that does nothing"
NOOP = "noop"
DEFAULTS = ", its defaults"

GENERATED, CACHED = "generated", "cached"
BATCH, STREAM, SMALL = "batch", "stream", "small"
"""Sections: writes of a DataFrame, streams with large micro-batches, and streams with small ones."""

TASKS = 4
"""The tasks of a frame, and therefore of a write: two for each of two cores."""
STREAM_TASKS = 2
"""The tasks of a micro-batch: Spark's default for two cores."""
WARM_ROWS = 4_000
"""Rows that the same sink writes just before a frame: Spark ends Python workers that have been idle for a minute."""
TRANSACTIONAL = {EXACTLY_ONCE, BY_KEY, FOREACH_BATCH}
ARROW = "spark.sql.execution.arrow."
ARROW_BATCH = 2 << 20
"""Bytes that Spark passes to TUNED at a time; other sinks get 10,000 rows."""
SILENT = {MAP_COUNT, NULL, NOOP}
"""The sinks that write nothing to Kafka."""

VALUE_SIZES = (100, 1000)
COMPRESSIONS = ("none", "zstd")

FEW = {FOREACH_CONFLUENT: 3, FOREACH_AIOKAFKA: 2, BY_KEY: 2}
"""The maximum number of repeats of slow sinks."""


@dataclass(frozen=True)
class Cell:
    """One measurement. Sizes are in bytes. For a stream, `rows` is the size of a micro-batch."""

    section: str
    sink: str
    rows: int
    value_size: int = 100
    frame: str = GENERATED
    compression: str = "none"
    repeats: int = 1
    by_default: bool = False
    """Use the sink's own linger and batch size instead of the 5 ms and 256 KiB that all others use."""
    # for streams
    trigger: str = "1 second"
    warm_up: int = 0
    """Micro-batches that are not counted."""
    batches: int = 0
    """Micro-batches that are counted."""

    @property
    def row(self) -> str:
        """The row in the tables."""
        return self.sink + DEFAULTS if self.by_default else self.sink

    @property
    def column(self) -> str:
        """The column in the tables."""
        size = f"{self.value_size // 1000} KB" if self.value_size >= 1000 else f"{self.value_size} B"
        source = f"{self.frame}, " if self.section == BATCH else f"{self.rows:,} rows a batch, "
        return f"{source}{size}, {self.compression}"

    @property
    def name(self) -> str:
        """The name in progress lines and errors."""
        return f"{self.section}: {self.row}: {self.column}"

    @property
    def spark_settings(self) -> dict[str, str]:
        """Spark settings for this measurement only."""
        if self.sink == LIMITED:
            return {ARROW + "maxBytesPerBatch": str(ARROW_BATCH)}
        if self.sink != TUNED:
            return {}
        rows = min(10_000, ARROW_BATCH // self.value_size)
        # With the largest limit Spark does not check the size after each row.
        return {ARROW + "maxRecordsPerBatch": str(rows), ARROW + "maxBytesPerBatch": str(2**31 - 1)}

    @property
    def sent(self) -> int:
        """The number of rows that a measurement writes to its topic, including the warm-up."""
        if self.sink in SILENT:
            return 0
        return self.rows * (self.warm_up + self.batches) if self.section != BATCH else WARM_ROWS + self.rows


BATCH_SINKS = (
    OURS,
    LIMITED,
    TUNED,
    PLACED,
    EXACTLY_ONCE,
    CONNECTOR,
    MAP_CONFLUENT,
    MAP_CONFLUENT_BATCH,
    FOREACH_CONFLUENT,
    FOREACH_AIOKAFKA,
    MAP_COUNT,
    NULL,
    NOOP,
)
STREAM_SINKS = (OURS, PLACED, EXACTLY_ONCE, FOREACH_BATCH, CONNECTOR, NULL, NOOP)
ALL_SINKS = list(dict.fromkeys([*BATCH_SINKS, BY_KEY, *STREAM_SINKS]))


def batch(rows: int, quick: bool) -> list[Cell]:
    """Return the writes of whole frames, one value size after the other: only one frame is cached at a time."""
    found = []
    for size, compression in itertools.product(VALUE_SIZES, COMPRESSIONS):
        for frame in (GENERATED, CACHED):
            headline = (size, compression) == (100, "none")
            if quick and not headline:
                continue
            for sink in BATCH_SINKS:
                if not headline and sink in (FOREACH_AIOKAFKA, MAP_CONFLUENT_BATCH):
                    continue
                if compression != "none" and sink in SILENT:
                    continue  # there is nothing to compress
                repeats = 2 if quick else 5
                found.append(
                    Cell(BATCH, sink, rows, size, frame, compression, min(repeats, FEW.get(sink, repeats)))
                )
            if headline and not quick:
                found += [
                    Cell(BATCH, sink, rows, size, frame, compression, 5, by_default=True)
                    for sink in (OURS, CONNECTOR)
                ]
                if frame == CACHED:
                    found.append(Cell(BATCH, BY_KEY, rows, size, frame, compression, FEW[BY_KEY]))
    return found


def streams(rows: int, quick: bool) -> list[Cell]:
    """Return the cells with micro-batches of a million rows, and of a thousand."""
    large = [
        Cell(
            STREAM,
            sink,
            rows,
            repeats=3,
            trigger="1 second",
            warm_up=2,
            batches=3 if quick else 6,
        )
        for sink in STREAM_SINKS
    ]
    small = [
        Cell(
            SMALL,
            sink,
            1000,
            repeats=3,
            trigger="500 milliseconds",
            warm_up=5,
            batches=8 if quick else 20,
        )
        for sink in STREAM_SINKS
    ]
    return large + small


ROWS, STREAM_ROWS = 3_000_000, 1_000_000


def cells(
    quick: bool, rows: int | None, sections: list[str], sinks: list[str], repeats: int | None = None
) -> list[Cell]:
    """Return the cells of a run, in the order of its tables. `rows` is the number of rows in a frame; a stream's
    batch has a third of them. `repeats` is the maximum for a cell."""
    frame_rows = rows or (600_000 if quick else ROWS)
    found = batch(frame_rows, quick) + streams(frame_rows // 3, quick)
    return [
        replace(cell, repeats=min(cell.repeats, repeats or cell.repeats))
        for cell in found
        if cell.section in sections and cell.sink in sinks
    ]
