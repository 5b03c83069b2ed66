"""A Spark driver in a process of its own, which plays one order after the other until somebody kills it.

    python -m tests.support.spark_driver DESCRIPTOR MASTER JARS  # orders on stdin, answers to that descriptor: JSON

Most orders are a stream of a folder's files to a topic; its query is started again when it fails. Others are a batch
write, reading by Spark's own Kafka source, which needs its jars, and what it and this sink say to a wrong write."""

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

from aioproducer.spark import partition_by_key, run_query
from tests.support.spark_crashing import FOLDER, GROUP, CrashingSink, give_order, visits
from tests.support.spark_stage import FORMAT, ROOT, session

STARTS = 6
ORDER_TIMEOUT = 240
"""Seconds that a driver may take for an order."""


class Ended(NamedTuple):
    """What became of an order."""

    code: int
    """0; 1 if the query failed too often; less than 0 if the driver was killed."""
    said: str
    """Why the query failed, each time it did; what Spark wrote if the driver was killed."""
    visits: int = 0
    """How often the order's place was reached, if the driver lives."""
    values: tuple[str, ...] = ()
    """What was read."""


class Driver:
    """Started when there is something to be done and none runs. Ended with its block."""

    def __init__(self, master: str = "local[2]", *, python: str = sys.executable, jars: str = "") -> None:
        """Nothing is started yet.

        Args:
            master: Spark's.
            python: Of another environment, with another Spark.
            jars: For Spark, with commas between them.
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
        """End it, if it runs. The next order is carried out by a new one."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._end()

    def play(self, order: dict[str, Any]) -> Ended:
        """Carry an order out."""
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
    # Tasks that go on after their batch was given up, do so for as long as they like.
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
    """A batch of as many rows as the order says, by the sink that Spark has found itself."""
    df = spark.range(order["rows"]).selectExpr("CAST(id AS string) AS key", "concat('v', id) AS value")
    if order["options"].get("delivery") == "exactly_once":
        df = partition_by_key(df, order["partitions"])
    writer = df.write.format(FORMAT).option("kafka.bootstrap.servers", order["servers"])
    writer.options(**order["options"]).mode("append").save()
    return {}


def read(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    """What Spark's own Kafka source sees of a topic, as a consumer with read_committed."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", order["servers"])
    reader = reader.option("subscribe", order["topic"]).option("kafka.isolation.level", "read_committed")
    rows = reader.load().selectExpr("CAST(value AS string) AS value").collect()
    return {"values": [row.value for row in rows]}


def fail(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    """What each format says to a write of these columns with these options; nothing if it is accepted."""
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
    """A stream from its first new file to its last."""
    give_order(order)
    spark.conf.set("spark.sql.shuffle.partitions", order["shuffle"])
    failures: list[str] = []
    for start in range(STARTS):
        try:
            query(spark, order, order["sink"] if start == 0 else {}).awaitTermination()
            break
        except Exception as error:  # what a supervisor would do with any of them
            failures.append(str(error).replace("\n", " ")[:2000])
    return {"is_done": len(failures) < STARTS, "failures": failures, "visits": visits()}


def supervised(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    """As `stream`, but run_query starts the query again; the failures are what it logs."""
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
    """The stream of an order, started; with options of the sink that a later start has no more."""
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
