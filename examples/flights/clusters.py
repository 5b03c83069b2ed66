"""The clusters that --kafka selects: an embedded one in its own process, a real Kafka cluster, or the user's own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from aioproducer import Producer
from aioproducer.errors import BootstrapError, ConfigError, KafkaError
from aioproducer.testing import ApacheKafka
from aioproducer.testing.apache.kafka import ApacheKafkaError, ApacheKafkaMissingError
from flights import DemoError

EMBEDDED = "embedded"
APACHE = "apache"

_START_WAIT = 30.0
_STOP_WAIT = 5.0
"""Seconds to wait for the embedded cluster's process to start or stop."""
_REACH_WAIT = 5.0
"""Seconds to wait for the first response from the user's cluster."""


class Kafka(NamedTuple):
    """A running cluster."""

    description: str
    bootstrap_servers: str
    is_ours: bool
    """True if the demo started the cluster, and therefore also stops it."""


def running(kind: str, brokers: int | None) -> contextlib.AbstractAsyncContextManager[Kafka]:
    """Run or connect to the cluster named by --kafka, for the duration of the block.

    Raises:
        DemoError: the cluster can't be started, or the user's cluster can't be reached.
    """
    if kind == EMBEDDED:
        return _embedded(brokers or 3)
    if kind == APACHE:
        return _apache(brokers or 1)
    return _users(kind)


@asynccontextmanager
async def _embedded(brokers: int) -> AsyncIterator[Kafka]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aioproducer.testing", "--brokers", str(brokers), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in a terminal must reach only the demo, which then stops the cluster
    )
    try:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_WAIT):
                line = (await process.stdout.readline()).decode()
        except TimeoutError:
            raise DemoError(f"the embedded cluster was not ready within {_START_WAIT:g} s") from None
        if not line.startswith("listening on "):
            raise DemoError(f"the embedded cluster exited with status {await process.wait()}")
        servers = line.removeprefix("listening on ").strip()
        yield Kafka(f"an embedded cluster of {brokers} brokers in its own process", servers, True)
    finally:
        await end_process(process)


async def end_process(process: asyncio.subprocess.Process, seconds: float = _STOP_WAIT) -> None:
    """Terminate a process, wait at most `seconds`, and kill it if it is still running."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def _apache(brokers: int) -> AsyncIterator[Kafka]:
    print("starting Apache Kafka; the first start downloads it", file=sys.stderr, flush=True)
    kafka = ApacheKafka(brokers)
    try:
        await kafka.start()
    except (ApacheKafkaMissingError, ApacheKafkaError) as error:
        raise DemoError(f"Apache Kafka did not start: {error}") from error
    try:
        count = "1 broker" if brokers == 1 else f"{brokers} brokers"
        name = f"Apache Kafka {kafka.version}, {count}, started for the demo"
        yield Kafka(name, kafka.bootstrap_servers, True)
    finally:
        await kafka.stop()


@asynccontextmanager
async def _users(address: str) -> AsyncIterator[Kafka]:
    try:
        async with Producer(address, max_block_ms=_REACH_WAIT * 1000, client_id="flights-demo"):
            pass
    except ConfigError as error:
        raise DemoError(f"--kafka must be {EMBEDDED}, {APACHE} or an address: {error}") from error
    except (BootstrapError, KafkaError) as error:
        raise DemoError(f"no Kafka at {address}: {error}") from error
    yield Kafka(f"the cluster at {address}", address, False)
