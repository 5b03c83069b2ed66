"""Members of a group that copy topic "in" to topic "out" in transactions, with each kind of consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from aioproducer import Producer, TransformLoop
from aioproducer.testing import EmbeddedCluster
from tests.support.producing import QUICK

AIOKAFKA, EAGER, COOPERATIVE = "aiokafka", "range", "cooperative-sticky"
KINDS = (AIOKAFKA, EAGER, COOPERATIVE)
"""aiokafka's consumer, and confluent-kafka's with an eager and a cooperative assignor."""
each_kind = pytest.mark.parametrize("kind", KINDS)

GROUP = "g"
HEARTBEAT_MS = 30


def new_consumer(
    kind: str,
    servers: str,
    *,
    reset: str = "earliest",
    group: str = GROUP,
    heartbeat_ms: int = HEARTBEAT_MS,
    **settings: Any,
) -> Any:
    """Create a consumer; aiokafka's is not started yet. `settings` have aiokafka's names."""
    if kind == AIOKAFKA:
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset=reset,
            isolation_level="read_committed",
            heartbeat_interval_ms=heartbeat_ms,
            retry_backoff_ms=20,
            **settings,
        )
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": reset,
            "isolation.level": "read_committed",
            "heartbeat.interval.ms": heartbeat_ms,
            "fetch.wait.max.ms": 20,
            "partition.assignment.strategy": kind,
            "log_level": 3,  # librdkafka warns of the first cooperative assignment
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


@asynccontextmanager
async def consuming(kind: str, servers: str, **settings: Any) -> AsyncIterator[Any]:
    """A started consumer, which leaves its group at the end."""
    consumer = new_consumer(kind, servers, **settings)
    if kind == AIOKAFKA:
        await consumer.start()
    try:
        yield consumer
    finally:
        if kind == AIOKAFKA:
            await consumer.stop()
        else:
            await asyncio.to_thread(consumer.close)


@asynccontextmanager
async def looping(
    kind: str,
    servers: str,
    name: str = "one",
    *,
    max_records: int = 20,
    max_attempts: int = 10,
    reset: str = "earliest",
    **settings: Any,
) -> AsyncIterator[tuple[TransformLoop, Producer]]:
    """A TransformLoop and its producer."""
    async with (
        consuming(kind, servers, reset=reset) as consumer,
        Producer(servers, transactional_id=name, **{**QUICK, **settings}) as producer,
        TransformLoop(
            producer,
            consumer,
            ["in"],
            max_records=max_records,
            poll_timeout=0.1,
            max_attempts=max_attempts,
        ) as loop,
    ):
        yield loop, producer


def value_of(record: Any) -> bytes:
    """The value of a record from either consumer."""
    return record.value() if callable(record.value) else record.value


async def copy(batch: Iterable[Any], producer: Producer, topic: str = "out") -> None:
    """Send each record of a batch to a topic."""
    for record in batch:
        await producer.send(topic, value_of(record))


async def run(loop: TransformLoop, producer: Producer, done: asyncio.Event) -> int:
    """Copy until `done` is set; return the number of records that this member has committed."""
    stopping = asyncio.create_task(done.wait())
    stopping.add_done_callback(lambda _: loop.stop())
    count = 0
    try:
        async for batch in loop:
            async with batch:
                await copy(batch, producer)
            if batch.is_committed:
                count += len(batch)
    finally:
        stopping.cancel()
    return count


async def fill(servers: str, count: int, first: int = 0) -> list[bytes]:
    """Write numbered records to topic "in", round robin over its four partitions."""
    values = [b"%d" % number for number in range(first, first + count)]
    async with Producer(servers) as producer:
        for number, value in enumerate(values):
            await producer.send("in", value, partition=number % 4)
    return values


def output(cluster: EmbeddedCluster) -> list[bytes | None]:
    """The values that read_committed consumers see in topic "out"."""
    return [record.value for record in cluster.records("out", committed=True)]


@asynccontextmanager
async def cluster_with_input(count: int = 40, brokers: int = 1) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(brokers, topics={"in": 4, "out": 4}, versions="4.3") as cluster:
        await fill(cluster.bootstrap_servers, count)
        yield cluster
