"""A Spark cluster of several processes on this machine: a master and workers, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyspark

from flights import DemoError
from flights.clusters import end_process

WORKERS = 2
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Java: what ends after a minute gains nothing by long optimization."""
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_START_WAIT = 60.0
_STOP_WAIT = 10.0
"""Seconds for a process."""
_LOG = """rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
"""
"""For log4j: what they say is how one knows that they are ready."""


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[str]:
    """A master and its workers for as long as the block lasts: its address for `SparkSession.builder.master`.

    Args:
        directory: exists; they work there.

    Raises:
        DemoError: a process did not start.
    """
    (directory / "log4j2.properties").write_text(_LOG)
    async with contextlib.AsyncExitStack() as stack:
        master = (_MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        found = await stack.enter_async_context(
            _running(directory, *master, ready=r"Starting Spark master at (spark://\S+)")
        )
        worker = (_WORKER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", "1")
        for _ in range(WORKERS):
            await stack.enter_async_context(
                _running(
                    directory,
                    *(*worker, "--memory", "1g", "--work-dir", str(directory), found),
                    ready=r"(Successfully registered) with master",
                )
            )
        yield found


@asynccontextmanager
async def _running(directory: Path, *command: str, ready: str) -> AsyncIterator[str]:
    """A process of Spark's for as long as the block lasts; gives what stands in parentheses in `ready`."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            **os.environ,
            "SPARK_CONF_DIR": str(directory),
            "SPARK_LOCAL_IP": "127.0.0.1",  # its web pages, too, are for this machine only
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        },
        start_new_session=True,  # Ctrl-C in a terminal is for the pipeline, which ends the cluster when it likes
    )
    assert process.stdout is not None
    reading: asyncio.Task[None] | None = None
    try:
        found = await _found(process.stdout, ready, command[0])
        reading = asyncio.create_task(_read_on(process.stdout), name=f"what {command[0]} says")
        yield found
    finally:
        await end_process(process, _STOP_WAIT)
        if reading is not None:
            await reading


async def _found(said: asyncio.StreamReader, ready: str, name: str) -> str:
    lines: list[str] = []
    try:
        async with asyncio.timeout(_START_WAIT):
            async for line in said:
                lines.append(line.decode().rstrip())
                if match := re.search(ready, lines[-1]):
                    return match[1]
    except TimeoutError:
        raise DemoError(f"Spark's {name} was not ready in {_START_WAIT:g} s: {lines[-1:]}") from None
    raise DemoError("\n".join([f"Spark's {name} did not start:", *lines[-5:]]))


async def _read_on(said: asyncio.StreamReader) -> None:
    async for _ in said:
        pass
