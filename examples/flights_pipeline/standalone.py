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
"""Java options for short runs: thorough optimization does not pay off within a minute."""
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_START_WAIT = 60.0
_STOP_WAIT = 10.0
"""Seconds to wait for a process to start or stop."""
_LOG = """rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
"""
"""The log4j configuration: the processes' messages show when they are ready."""


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[str]:
    """Run a master and its workers for the duration of the block; yields the address for `SparkSession.builder.master`.

    Args:
        directory: an existing directory for the processes' files.

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
    """Run a Spark process for the duration of the block; yields the first group of the regular expression `ready`."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            **os.environ,
            "SPARK_CONF_DIR": str(directory),
            "SPARK_LOCAL_IP": "127.0.0.1",  # its web pages, too, are only for this machine
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        },
        start_new_session=True,  # Ctrl-C in a terminal must reach only the pipeline, which then stops the cluster
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
        raise DemoError(f"Spark's {name} was not ready within {_START_WAIT:g} s: {lines[-1:]}") from None
    raise DemoError("\n".join([f"Spark's {name} did not start:", *lines[-5:]]))


async def _read_on(said: asyncio.StreamReader) -> None:
    async for _ in said:
        pass
