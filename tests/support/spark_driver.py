"""A Spark driver in a separate process, which carries out one order after another until it is killed.

    python -m tests.support.spark_driver DESCRIPTOR MASTER JARS  # orders on stdin, answers to that descriptor: JSON

Most orders are streams of a folder's files to a topic; the query is started again when it fails. Others are batch
writes, reads with Spark's own Kafka source (which needs its jars), and invalid writes to compare the errors."""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from pyspark.sql.functions import expr

from aioproducer.spark import foreach_batch, partition_by_key, run_query
from tests.support.spark_crashing import FOLDER, GROUP, CrashingSink, give_order, visits
from tests.support.spark_stage import FORMAT, ROOT, session

STARTS = 6
ORDER_TIMEOUT = 240
"""The time limit for an order, in seconds."""


class Ended(NamedTuple):
    """The result of an order."""

    code: int
    """0 for success; 1 if the query failed too often; negative if the driver was killed."""
    said: str
    """The errors of the query, or Spark's output if the driver was killed."""
    visits: int = 0
    """The number of visits to the order's place, if the driver is alive."""
    values: tuple[str, ...] = ()
    """The values that were read."""


class Driver:
    """A driver process, started by the first order and killed at the end of the block."""

    def __init__(self, master: str = "local[2]", *, python: str = sys.executable, jars: str = "") -> None:
        """Prepare the driver without starting it.

        Args:
            master: Spark's master URL.
            python: The Python of another environment, with another Spark.
            jars: Jars for Spark, separated by commas.
        """
        self._command = [python, "-m", "tests.support.spark_driver"]
        self._settings = [master, jars]
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[str] | None = None
        self._answers: IO[str] | None = None

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._folder.cleanup()

    def kill(self) -> None:
        """Kill the process, if it runs. The next order starts another one."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._end()

    def play(self, order: dict[str, Any]) -> Ended:
        """Carry out an order."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert self._answers is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            assert selector.select(ORDER_TIMEOUT), f"the driver is silent: {self._log()}"
        if answer := self._answers.readline():
            told = json.loads(answer)
            code = 0 if told["is_done"] else 1
            return Ended(code, "\n".join(told["failures"]), told["visits"], tuple(told["values"]))
        return Ended(self._end(), self._log())

    def _start(self) -> subprocess.Popen[str]:
        ours, answers = os.pipe()
        self._answers = os.fdopen(ours)
        with open(Path(self._folder.name) / "log", "wb") as log:
            self._process = subprocess.Popen(
                [*self._command, str(answers), *self._settings],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), FOLDER: self._folder.name},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
                pass_fds=[answers],
            )
        os.close(answers)
        return self._process

    def _end(self) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._answers is not None
        code = self._process.wait()
        self._process.stdin.close()
        self._answers.close()
        self._process = None
        return code

    def _log(self) -> str:
        return (Path(self._folder.name) / "log").read_text(errors="replace")[-4000:]


def main(answers: int, master: str, jars: str) -> None:
    os.environ[GROUP] = str(os.getpgid(0))
    # Tasks may continue for a long time after Spark has abandoned their batch.
    settings = {"spark__python__task__killTimeout": "120s", **({"spark__jars": jars} if jars else {})}
    spark = session(master, **settings)
    spark.dataSource.register(CrashingSink)
    for line in sys.stdin:
        order = json.loads(line)
        told = {"is_done": True, "failures": [], "visits": 0, "values": []}
        jobs = {"stream": stream, "supervised": supervised, "write": write_rows, "read": read, "fail": fail}
        told |= jobs[order["job"]](spark, order)
        os.write(answers, json.dumps(told).encode() + b"\n")


def write_rows(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Write the number of rows in the order, each with `more` additional bytes, to the sink that Spark finds by
    name."""
    value = f"concat('v', id, repeat('x', {order.get('more', 0)})) AS value"
    df = spark.range(0, order["rows"], 1, order.get("tasks")).selectExpr("CAST(id AS string) AS key", value)
    if order["options"].get("delivery") == "exactly_once":
        df = partition_by_key(df, order["partitions"])
    if order.get("by_foreach_batch"):
        foreach_batch({"kafka.bootstrap.servers": order["servers"], **order["options"]})(df, 0)
        return {}
    writer = df.write.format(FORMAT).option("kafka.bootstrap.servers", order["servers"])
    writer.options(**order["options"]).mode("append").save()
    return {}


def read(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Read a topic with Spark's own Kafka source as a read_committed consumer."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", order["servers"])
    reader = reader.option("subscribe", order["topic"]).option("kafka.isolation.level", "read_committed")
    rows = reader.load().selectExpr("CAST(value AS string) AS value").collect()
    return {"values": [row.value for row in rows]}


def fail(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Return the error of each format for a write with these columns and options; "" if the write is accepted."""
    texts = []
    for format_ in order["formats"]:
        writer = spark.range(1).selectExpr(*order["columns"]).write.format(format_)
        try:
            writer.options(**order["options"]).mode("append").save()
            texts.append("")
        except Exception as error:  # Spark's errors have many classes
            texts.append(str(error))
    return {"values": texts}


def stream(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Run a stream from its first new file to its last."""
    give_order(order)
    spark.conf.set("spark.sql.shuffle.partitions", order["shuffle"])
    failures: list[str] = []
    for start in range(STARTS):
        try:
            query(spark, order, order["sink"] if start == 0 else {}).awaitTermination()
            break
        except Exception as error:  # a supervisor would restart after any of them
            failures.append(str(error).replace("\n", " ")[:2000])
    return {"is_done": len(failures) < STARTS, "failures": failures, "visits": visits()}


def supervised(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    """The same as `stream`, but run_query restarts the query; the failures are those that it logs."""
    give_order(order)
    spark.conf.set("spark.sql.shuffle.partitions", order["shuffle"])
    failures: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: failures.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("aioproducer.spark.helpers")
    logger.addHandler(handler)
    options = [order["sink"]]
    try:
        run_query(lambda: query(spark, order, options.pop() if options else {}), attempts=STARTS)
    finally:
        logger.removeHandler(handler)
    return {"failures": failures, "visits": visits()}


def query(spark: Any, order: dict[str, Any], options: dict[str, str]) -> Any:
    """Start the stream of an order; `options` are options of the sink for this start only."""
    df = (
        spark.readStream.schema("key string, value string")
        .option("maxFilesPerTrigger", 1)
        .json(order["folder"])
    )
    told = {
        "kafka.bootstrap.servers": order["servers"],
        "topic": order["topic"],
        "delivery": order["delivery"],
        "checkpointLocation": order["checkpoint"],
    }
    partitions: int | dict[str, int] = order["partitions"]
    if len(order["topics"]) > 1:
        del told["topic"]
        partitions = dict.fromkeys(order["topics"], order["partitions"])
        names = ", ".join(f"'{name}'" for name in order["topics"])
        # Each task of a batch has rows of all topics, since the partition depends on the hash of the key.
        which = f"element_at(array({names}), CAST(key AS int) % {len(order['topics'])} + 1)"
        df = df.withColumn("topic", expr(which))
    if order["delivery"] == "exactly_once":
        df = partition_by_key(df, partitions)
        told["transactionalId"] = f"tx-{order['topic']}"
        if isinstance(partitions, dict):
            told["topics"] = ",".join(partitions)
    writer = df.writeStream.format(CrashingSink.name()).options(**told, **options)
    return writer.trigger(availableNow=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
