"""Clients written by others take the embedded cluster for a Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from aioproducer.protocol.api import ApiKey
from aioproducer.testing import EmbeddedCluster

T = TypeVar("T")

WAIT = 30.0  # seconds; more than any of this takes on a slow machine


async def in_thread(work: Callable[[], T]) -> T:
    """librdkafka's calls block, and the brokers need the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


def librdkafka_produces(servers: str, values: list[bytes], **settings: object) -> list[int]:
    """Produce to topic t, return the error codes of what failed."""
    failed: list[int] = []

    def on_delivery(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error.code())

    producer = confluent_kafka.Producer({"bootstrap.servers": servers, **settings})
    for value in values:
        producer.produce("t", value, key=value, on_delivery=on_delivery)
    assert producer.flush(WAIT) == 0
    return failed


def librdkafka_consumes(servers: str, partitions: int, count: int) -> list[confluent_kafka.Message]:
    """Read topic t by assignment, from the beginning."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "readers",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,  # the watermarks are asked for behind it
        }
    )
    try:
        consumer.assign(
            [
                confluent_kafka.TopicPartition("t", partition, confluent_kafka.OFFSET_BEGINNING)
                for partition in range(partitions)
            ]
        )
        found: list[confluent_kafka.Message] = []
        give_up = time.monotonic() + WAIT
        while len(found) < count and time.monotonic() < give_up:
            for message in consumer.consume(count - len(found), 0.2):
                assert message.error() is None, message.error()
                found.append(message)
        for partition in range(partitions):
            where = confluent_kafka.TopicPartition("t", partition)
            low, high = consumer.get_watermark_offsets(where, timeout=WAIT)
            assert high - low == sum(message.partition() == partition for message in found)
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("versions", "codec"),
    [("2.1", "zstd"), ("2.8", "lz4"), ("4.1", "none"), ("4.1", "gzip"), ("4.1", "snappy"), ("4.3", "zstd")],
)
async def test_librdkafka_produces_and_consumes(versions, codec):
    values = [b"value %d" % number for number in range(500)]
    async with EmbeddedCluster(3, topics={"t": 4}, versions=versions) as cluster:
        servers = cluster.bootstrap_servers
        settings = {"enable.idempotence": True, "compression.type": codec, "linger.ms": 5}
        assert await in_thread(lambda: librdkafka_produces(servers, values, **settings)) == []

        assert sorted(record.value for record in cluster.records("t")) == sorted(values)
        assert {batch.header.codec.name.lower() for batch in cluster.batches("t", 0)} == {codec}
        assert all(batch.header.producer_id >= 0 for batch in cluster.batches("t", 0))
        found = await in_thread(lambda: librdkafka_consumes(servers, 4, len(values)))
        assert sorted(message.value() for message in found) == sorted(values)


async def test_librdkafka_loses_and_doubles_nothing_when_answers_get_lost():
    values = [b"value %d" % number for number in range(300)]
    async with EmbeddedCluster(3, topics={"t": 2}) as cluster:
        cluster.faults.add(ApiKey.PRODUCE, drop_after_append=True, topic="t", partition=0)
        cluster.faults.add(ApiKey.PRODUCE, error=6, topic="t", partition=1)
        settings = {"enable.idempotence": True, "batch.num.messages": 20, "retry.backoff.ms": 10}
        servers = cluster.bootstrap_servers
        assert await in_thread(lambda: librdkafka_produces(servers, values, **settings)) == []

        for partition in (0, 1):
            read = [record.value for record in cluster.records("t", partition)]
            assert read == [value for value in values if value in set(read)]
        assert len(cluster.records("t")) == len(values)


async def test_librdkafka_reports_what_the_broker_refuses():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.faults.add(ApiKey.PRODUCE, error=10, count=1)
        servers = cluster.bootstrap_servers
        failed = await in_thread(lambda: librdkafka_produces(servers, [b"x"]))
        assert failed == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.parametrize(
    ("versions", "codec"),
    [("2.1", "zstd"), ("2.8", "lz4"), ("4.1", None), ("4.1", "gzip"), ("4.1", "snappy"), ("4.3", "zstd")],
)
async def test_aiokafka_produces_and_consumes(versions, codec):
    values = [b"value %d" % number for number in range(300)]
    async with EmbeddedCluster(3, topics={"t": 4}, versions=versions) as cluster:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True, compression_type=codec
        )
        await producer.start()
        try:
            sent = [await producer.send("t", value, key=value) for value in values]
            metadata = await asyncio.gather(*sent)
        finally:
            await producer.stop()

        assert {(one.partition, one.offset) for one in metadata} == {
            (partition, record.offset) for partition in range(4) for record in cluster.records("t", partition)
        }
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers, group_id=None, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition("t", partition) for partition in range(4)])
            found = [(await asyncio.wait_for(anext(consumer), WAIT)).value for _ in values]
        finally:
            await consumer.stop()
        assert sorted(found) == sorted(values)


async def test_aiokafka_creates_a_topic_on_demand_and_follows_its_leader():
    async with EmbeddedCluster(3) as cluster:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, retry_backoff_ms=5)
        await producer.start()
        try:
            await asyncio.wait_for(producer.send_and_wait("new", b"1"), WAIT)
            cluster.move_leader("new", 0, (cluster.leader("new", 0) + 1) % 3)
            await asyncio.wait_for(producer.send_and_wait("new", b"2"), WAIT)
            await cluster.stop_broker(cluster.leader("new", 0))
            await asyncio.wait_for(producer.send_and_wait("new", b"3"), WAIT)
        finally:
            await producer.stop()

        assert [record.value for record in cluster.records("new")] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal_and_leaves_with_0(number):
    async def run() -> None:
        command = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-W", "error", "-m", "aioproducer.testing"),
            *("--brokers", "3", "--port", "0", "--topic", "t:4"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONDEVMODE": "1"},
        )
        try:
            assert command.stdout is not None
            line = (await asyncio.wait_for(command.stdout.readline(), WAIT)).decode()
            assert line.startswith("listening on 127.0.0.1:")
            servers = line.removeprefix("listening on ").strip()
            assert len(servers.split(",")) == 3
            assert await in_thread(lambda: librdkafka_produces(servers, [b"a", b"b"])) == []
            found = await in_thread(lambda: librdkafka_consumes(servers, 4, 2))
            assert {message.value() for message in found} == {b"a", b"b"}
            command.send_signal(number)
            out, errors = await asyncio.wait_for(command.communicate(), WAIT)
            assert (command.returncode, out, errors) == (0, b"", b"")
        finally:
            if command.returncode is None:
                command.kill()
                await command.wait()

    asyncio.run(run())


@pytest.mark.parametrize("arguments", [["--brokers", "0"], ["--versions", "9.9"], ["--topic", "a/b:1"]])
def test_the_command_explains_arguments_that_make_no_sense(arguments):
    async def run() -> None:
        command = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "aioproducer.testing", "--port", "0", *arguments),
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(command.communicate(), WAIT)
        assert command.returncode == 2
        assert len(errors.splitlines()) == 1

    asyncio.run(run())
