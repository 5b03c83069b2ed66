"""The Spark session: in this process's `local[2]`, or on a cluster of several processes."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from flights_pipeline import standalone
from flights_pipeline.java import java_home

T = TypeVar("T")

LOCAL = "local"
CLUSTER = "cluster"

_STOP_WAIT = 10.0
"""Seconds to wait for Java to end."""
_LOOK = 0.1
"""Seconds between attempts to kill a Java process that is starting."""
_LOG = """rootLogger.level = off
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = off
"""
"""The log4j configuration: no messages, since anything important is raised as an exception. The gateway needs its own
line, or it would report that it has changed its level."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": standalone.SHORT_LIVED,
    "spark.executor.extraJavaOptions": standalone.SHORT_LIVED,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


class Spark:
    """A session, and the thread that uses it: Spark's Java side associates the session with that thread."""

    def __init__(self, session: SparkSession, thread: ThreadPoolExecutor) -> None:
        self.session = session
        self._thread = thread

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in the session's thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, function)

    def __str__(self) -> str:
        context = self.session.sparkContext
        assert context._jvm is not None
        java = context._jvm.java.lang.System.getProperty("java.version")
        is_local = str(context.master).startswith("local")
        where = context.master if is_local else f"a cluster of {standalone.WORKERS} workers"
        return f"Spark {self.session.version} on {where}, Java {java}"


@asynccontextmanager
async def running(kind: str, directory: Path) -> AsyncIterator[Spark]:
    """Run a session for the duration of the block. A process can have only one.

    Args:
        kind: local or cluster.
        directory: an existing directory for Spark's files.

    Raises:
        DemoError: no suitable Java was found, or Spark's processes did not start.
    """
    _set_environment(directory)
    if kind == LOCAL:
        async with _session("local[2]", directory) as session:
            yield session
        return
    workplace = directory / "cluster"
    workplace.mkdir()
    async with standalone.cluster(workplace) as master, _session(master, directory) as session:
        yield session


def _set_environment(directory: Path) -> None:
    """Set the environment of Java's processes, which they pass on to Python's."""
    (directory / "log4j2.properties").write_text(_LOG)
    os.environ |= {
        "JAVA_HOME": str(java_home(directory)),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


@asynccontextmanager
async def _session(master: str, directory: Path) -> AsyncIterator[Spark]:
    # The session does not start in the main thread, where PySpark would handle Ctrl-C itself.
    with ThreadPoolExecutor(1, "spark") as thread:
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(thread, _start, master, directory)
        try:
            session = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _give_up(starting)
            raise
        try:
            yield Spark(session, thread)
        finally:
            await asyncio.to_thread(_stop, session)


async def _give_up(starting: asyncio.Future[SparkSession]) -> None:
    """Kill the Java process that is starting, which ends the thread that waits for it."""
    starting.add_done_callback(lambda ended: ended.exception())  # retrieves the error caused by Java's end
    logging.root.addFilter(_is_not_py4js)
    try:
        while not starting.done():
            if SparkContext._gateway is not None:
                SparkContext._gateway.proc.kill()
            await asyncio.wait({starting}, timeout=_LOOK)
    finally:
        logging.root.removeFilter(_is_not_py4js)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """Filter out py4j's messages: it logs to the root logger when Java no longer answers."""
    return Path(record.pathname).parent.name != "py4j"


def _start(master: str, directory: Path) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("flights-pipeline")
    for name, value in (_SETTINGS | {"spark.local.dir": str(directory / "scratch")}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _stop(session: SparkSession) -> None:
    """Stop the session, and Java, which would otherwise end some time after this process."""
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_STOP_WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
