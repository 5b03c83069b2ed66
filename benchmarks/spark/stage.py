"""The Spark driver that measures: a separate process in Spark's environment. It reads requests from stdin, as lines of
JSON, and answers each with a line on stdout. Frames stay cached and the JVM stays warm between requests.

    python -m benchmarks.spark.stage '{"jars": ["..."], "memory": "6g", "conf": {}}'"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from aioproducer.spark import foreach_batch, partition_by_key
from benchmarks.spark import peers
from benchmarks.spark.null_sink import NullSink
from benchmarks.spark.peers import Settings
from benchmarks.spark.plan import (
    BATCH,
    BY_KEY,
    CACHED,
    CONNECTOR,
    EXACTLY_ONCE,
    FOREACH_AIOKAFKA,
    FOREACH_BATCH,
    FOREACH_CONFLUENT,
    LIMITED,
    MAP_CONFLUENT,
    MAP_CONFLUENT_BATCH,
    MAP_COUNT,
    NOOP,
    NULL,
    OURS,
    PLACED,
    STREAM_TASKS,
    TASKS,
    TUNED,
    WARM_ROWS,
    Cell,
)
from benchmarks.spark.processes import Spent, descendants, spent

LINES = 256
PARTITIONS = 12
LINGER_MS, BATCH_SIZE = 5, 262_144
POLL = 0.02  # seconds between two checks of a stream's progress
STREAM_TIME_OUT = 300  # seconds

Answer = dict[str, Any]


def lines(size: int) -> list[str]:
    """Return the tails of JSON texts, `size` bytes each. With eight digits in front, no two values are equal."""
    chance = random.Random(7)
    made = []
    for _ in range(LINES):
        text = f',"user":{chance.randrange(10**6):06d},"price":{chance.random() * 1000:.4f}'
        while len(text) < size:
            text += f',"k{chance.randrange(100)}":"{chance.getrandbits(40):x}"'
        made.append(text[: size - 1] + "}")
    return made


HEAD = '{"id":'


def with_columns(numbers: DataFrame, number: str, value_size: int) -> DataFrame:
    """Generate key, value and partition, as cheaply as distinct rows can be generated. No two tasks share a
    partition."""
    tails = F.array(*[F.lit(line) for line in lines(value_size - len(HEAD) - 8)])
    n = F.col(number)
    tail = F.get(tails, F.pmod(n, F.lit(LINES)).cast("int"))
    each = PARTITIONS // TASKS
    return numbers.select(
        n.cast("string").alias("key"),
        F.concat(F.lit(HEAD), (n + F.lit(10_000_000)).cast("string"), tail).alias("value"),
        (F.spark_partition_id() * F.lit(each) + F.pmod(n, F.lit(each))).cast("int").alias("partition"),
    )


class Frames:
    """The DataFrames that are written; one is cached at a time."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cached: tuple[int, int] | None = None
        self._frame: DataFrame | None = None

    def frame(self, cell: Cell) -> DataFrame:
        """Return a frame that is generated as it is read, or one that is cached and filled."""
        if cell.frame != CACHED:
            return with_columns(self._spark.range(0, cell.rows, 1, TASKS), "id", cell.value_size)
        if self._cached != (cell.rows, cell.value_size):
            self.forget()
            # The range begins at 1: with an equal plan, Spark would also answer the generated frame from the cache.
            rows = with_columns(self._spark.range(1, cell.rows + 1, 1, TASKS), "id", cell.value_size)
            self._frame = rows.persist(StorageLevel.MEMORY_ONLY)
            self._frame.write.format("noop").mode("overwrite").save()
            self._check_whole()
            self._cached = (cell.rows, cell.value_size)
        assert self._frame is not None
        return self._frame

    def forget(self) -> None:
        """Free the memory."""
        if self._frame is not None:
            self._frame.unpersist(blocking=True)
        self._cached = self._frame = None

    def _check_whole(self) -> None:
        found = self._spark.sparkContext._jsc.sc().getRDDStorageInfo()
        parts = [info.numCachedPartitions() for info in found]
        if parts != [TASKS]:
            raise RuntimeError(
                f"{parts} of {TASKS} partitions are cached: the driver needs more memory (--memory)"
            )


def check_plan(frame: DataFrame, cell: Cell) -> None:
    """Check that a generated frame is not answered from the cache, and that a cached one is not generated again."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    if ("InMemoryTableScan" in plan) != (cell.frame == CACHED):
        raise RuntimeError(f"the frame should be {cell.frame}, but its plan is\n{plan}")


class Sinks:
    """The sinks of one measurement."""

    def __init__(self, cell: Cell, bootstrap: str, topic: str) -> None:
        self._cell = cell
        self._topic = topic
        self._settings = Settings(bootstrap, topic, cell.compression, LINGER_MS, BATCH_SIZE)
        told = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "kafka.compression.type": cell.compression,
        }
        if not cell.by_default:
            told |= {"kafka.linger.ms": str(LINGER_MS), "kafka.batch.size": str(BATCH_SIZE)}
        self._options = told

    def options(self) -> tuple[str, list[str], dict[str, str]]:
        """Return format, columns and options of one of Spark's sinks."""
        once = {"delivery": "exactly_once", "transactionalId": self._topic}
        return {
            OURS: ("aioproducer", ["key", "value"], self._options),
            LIMITED: ("aioproducer", ["key", "value"], self._options),
            TUNED: ("aioproducer", ["key", "value"], self._options),
            PLACED: ("aioproducer", ["key", "value", "partition"], self._options),
            EXACTLY_ONCE: ("aioproducer", ["key", "value", "partition"], self._options | once),
            BY_KEY: ("aioproducer", ["key", "value"], self._options | once),
            FOREACH_BATCH: ("aioproducer", ["key", "value", "partition"], self._options | once),
            CONNECTOR: ("kafka", ["key", "value"], self._options),
            NULL: ("nothing", ["key", "value"], {}),
            NOOP: ("noop", ["key", "value"], {}),
        }[self._cell.sink]

    def writer(self, frame: DataFrame) -> Callable[[], None]:
        """Return the function that is timed."""
        pairs, settings = frame.select("key", "value"), self._settings
        mapped = {
            MAP_CONFLUENT: peers.map_confluent(settings),
            MAP_CONFLUENT_BATCH: peers.map_confluent_batch(settings),
            MAP_COUNT: peers.map_count,
        }
        each = {
            FOREACH_CONFLUENT: peers.foreach_confluent,
            FOREACH_AIOKAFKA: peers.foreach_aiokafka,
        }
        sink = self._cell.sink
        if sink in mapped:
            return lambda: self._map(pairs, mapped[sink])
        if sink in each:
            return lambda: pairs.foreachPartition(each[sink](settings))
        format_, columns, options = self.options()
        rows = frame.select(*columns)
        if sink == BY_KEY:
            rows = partition_by_key(rows, PARTITIONS)
        mode = "overwrite" if sink == NOOP else "append"
        return rows.write.format(format_).options(**options).mode(mode).save

    def _map(self, pairs: DataFrame, function: Callable[..., Any]) -> None:
        counted = sum(row.n for row in pairs.mapInArrow(function, "n long").collect())
        if counted not in (self._cell.rows, WARM_ROWS):
            raise RuntimeError(f"the tasks have seen {counted:,} of {self._cell.rows:,} rows")

    def start(self, frame: DataFrame, checkpoint: str) -> Any:
        """Start the stream, and return its query."""
        format_, columns, options = self.options()
        writer = frame.select(*columns).writeStream.option("checkpointLocation", checkpoint)
        writer = writer.trigger(processingTime=self._cell.trigger)
        if self._cell.sink == FOREACH_BATCH:
            return writer.foreachBatch(foreach_batch(options)).start()
        return writer.format(format_).options(**options).start()


class Stage:
    """Answers requests."""

    def __init__(self, settings: Answer) -> None:
        self.spark = _session(settings)
        self.frames = Frames(self.spark)

    def answer(self, request: Answer) -> Answer:
        """Run one measurement."""
        cell = Cell(**request["cell"])
        sinks = Sinks(cell, request["bootstrap"], request["topic"])
        for name, value in cell.spark_settings.items():
            self.spark.conf.set(name, value)
        try:
            return self.write(cell, sinks) if cell.section == BATCH else self.stream(cell, sinks)
        finally:
            for name in cell.spark_settings:
                self.spark.conf.unset(name)

    def write(self, cell: Cell, sinks: Sinks) -> Answer:
        """Write a frame."""
        frame = self.frames.frame(cell)
        check_plan(frame, cell)
        writer = sinks.writer(frame)
        self.warm_up(cell, sinks)
        before, began = descendants(os.getpid()), time.perf_counter()
        writer()
        wall, used = time.perf_counter() - began, spent(before, descendants(os.getpid()))
        return {
            "rows": cell.rows,
            "seconds": wall,
            "rows_per_s": cell.rows / wall,
            **per_row(used, cell.rows),
        }

    def warm_up(self, cell: Cell, sinks: Sinks) -> None:
        """Start every Python worker that the write needs, so that it has finished its imports."""
        few = with_columns(self.spark.range(0, WARM_ROWS, 1, TASKS), "id", cell.value_size)
        sinks.writer(few)()

    def stream(self, cell: Cell, sinks: Sinks) -> Answer:
        """Write micro-batches from the rate source; after the last measured one they are empty, so nothing is cut
        off."""
        self.frames.forget()
        total = cell.warm_up + cell.batches
        numbers = (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", cell.rows)
            .option("numPartitions", STREAM_TASKS)
            .load()
            .where(F.col("value") < cell.rows * total)
        )
        frame = with_columns(numbers, "value", cell.value_size)
        checkpoint = tempfile.mkdtemp(prefix="bench-spark-")
        try:
            query = sinks.start(frame, checkpoint)
            try:
                _wait_for(query, cell.warm_up - 1)
                before = descendants(os.getpid())
                _wait_for(query, total - 1)
                used = spent(before, descendants(os.getpid()))
                progress = [p for p in query.recentProgress if cell.warm_up <= p["batchId"] < total]
            finally:
                query.stop()
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)
        return _of_stream(cell, [p["durationMs"] for p in progress], used)


def _of_stream(cell: Cell, durations: list[dict[str, int]], used: Spent) -> Answer:
    if len(durations) != cell.batches:
        raise RuntimeError(f"Spark reported {len(durations)} of {cell.batches} batches")
    took = sorted(found["triggerExecution"] for found in durations)
    middle = took[len(took) // 2]
    return {
        "rows": cell.rows * cell.batches,
        "batch_ms": middle,
        "rows_per_s": cell.rows / middle * 1000,
        "batches": durations,
        **per_row(used, cell.rows * cell.batches),
        "cpu_ms_per_batch": used.total / cell.batches * 1000,
    }


def per_row(used: Spent, rows: int) -> Answer:
    """Return the CPU time per row in microseconds."""
    return {
        "cpu_us": used.total / rows * 1e6,
        "java_us": used.java / rows * 1e6,
        "python_us": used.python / rows * 1e6,
    }


def _wait_for(query: Any, batch: int) -> None:
    end = time.monotonic() + STREAM_TIME_OUT
    while (query.lastProgress or {"batchId": -1})["batchId"] < batch:
        if not query.isActive:
            raise query.exception() or RuntimeError("the stream has ended")
        if time.monotonic() > end:
            raise RuntimeError(f"batch {batch} did not end within {STREAM_TIME_OUT} s")
        time.sleep(POLL)


def _session(settings: Answer) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    told = {
        "spark.jars": ",".join(settings["jars"]),
        "spark.driver.memory": settings["memory"],
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(TASKS),
        "spark.log.level": "ERROR",
        # Only first attempts are measured.
        "spark.task.maxFailures": "1",
    }
    builder = SparkSession.builder.master("local[2]").appName("bench-spark")
    for name, value in (told | settings["conf"]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(NullSink)
    return spark


@contextlib.contextmanager
def own_output() -> Iterator[Callable[[Answer], None]]:
    """Reserve stdout for answers: the output of the JVM and of everything else goes to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def say(answer: Answer) -> None:
            out.write(json.dumps(answer) + "\n")
            out.flush()

        yield say


def main() -> None:
    with own_output() as say:
        stage = Stage(json.loads(sys.argv[1]))
        say({"spark": stage.spark.version, "java": stage.spark._jvm.System.getProperty("java.version")})
        for line in sys.stdin:
            try:
                answer = stage.answer(json.loads(line))
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            say(answer)
        stage.spark.stop()


if __name__ == "__main__":
    main()
