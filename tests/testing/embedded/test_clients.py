"""Other clients cannot distinguish the embedded cluster from Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from aioproducer import Producer, TopicPartition
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.types import ProducerRecord
from tests.support.raw_client import NOW
from tests.support.read_back import group_position

T = TypeVar("T")

WAIT = 30.0  # seconds; longer than any step takes on a slow machine


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread, because librdkafka's calls block and the brokers need the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


def librdkafka_produces(servers: str, values: list[bytes], **settings: object) -> list[int]:
    """Produce to topic t, and return the error codes of failed records."""
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
    """Read topic t from the beginning, with manually assigned partitions."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "readers",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,  # the request for the watermarks waits for the fetch
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


async def aiokafka_consumes(servers: str, partitions: int, count: int) -> list[aiokafka.ConsumerRecord]:
    """Read topic t without a group, from the beginning."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers, group_id=None, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition("t", partition) for partition in range(partitions)])
        return [await asyncio.wait_for(anext(consumer), WAIT) for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.promise("Test clusters", "the embedded cluster answers as Kafka does")
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
        # librdkafka does not compress small batches that would not shrink.
        headers = [batch.header for partition in range(4) for batch in cluster.batches("t", partition)]
        codecs = {header.codec.name.lower() for header in headers if header.record_count >= 20}
        assert codecs == {codec}
        assert all(batch.header.producer_id >= 0 for batch in cluster.batches("t", 0))
        found = await in_thread(lambda: librdkafka_consumes(servers, 4, len(values)))
        assert sorted(message.value() for message in found) == sorted(values)


async def test_librdkafka_loses_and_duplicates_nothing_when_answers_get_lost():
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


async def test_librdkafka_reports_records_that_the_broker_rejects():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.faults.add(ApiKey.PRODUCE, error=10, count=1)
        servers = cluster.bootstrap_servers
        failed = await in_thread(lambda: librdkafka_produces(servers, [b"x"]))
        assert failed == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.promise("Test clusters", "the embedded cluster answers as Kafka does")
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
        found = await aiokafka_consumes(cluster.bootstrap_servers, 4, len(values))
        assert sorted(message.value for message in found) == sorted(values)


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


# Consumer groups


@asynccontextmanager
async def aiokafka_member(servers: str) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
    """A member of the group "g" that reads topic t from the beginning."""
    consumer = aiokafka.AIOKafkaConsumer(
        "t",
        bootstrap_servers=servers,
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=20,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def next_two(consumer: aiokafka.AIOKafkaConsumer) -> set[int]:
    """Read two records and return their partitions."""
    return {(await anext(consumer)).partition for _ in range(2)}


@pytest.mark.promise("Test clusters", "the embedded cluster coordinates consumer groups")
@pytest.mark.parametrize("versions", ["2.1", "2.8", "4.3"])
async def test_aiokafka_consumers_share_a_topic_as_a_group(versions):
    async with (
        asyncio.timeout(WAIT),
        EmbeddedCluster(3, topics={"t": 4}, versions=versions) as cluster,
        aiokafka_member(cluster.bootstrap_servers) as first,
    ):
        await write(cluster.bootstrap_servers, our_records()[:10])
        read = [await anext(first) for _ in range(10)]
        await first.commit()
        assert sum(cluster.groups.offsets("g").values()) == len(read)

        async with aiokafka_member(cluster.bootstrap_servers) as second:
            await cluster.groups.wait_stable("g", 2)
            assert cluster.groups.generation("g") == 2
            reading = [asyncio.create_task(next_two(member)) for member in (first, second)]
            async with Producer(cluster.bootstrap_servers) as producer:
                for partition in range(4):
                    await producer.send("t", b"shared", partition=partition)
            one, other = await asyncio.gather(*reading)
            assert one | other == {0, 1, 2, 3}
        await cluster.groups.wait_stable("g", 1)
        await write(cluster.bootstrap_servers, our_records()[:3])
        again = [await anext(first) for _ in range(3)]
        assert {(one.partition, one.offset) for one in again}.isdisjoint(
            (one.partition, one.offset) for one in read
        )


def librdkafka_reads_as_member(servers: str, strategy: str, count: int) -> tuple[list[bytes | None], str]:
    """Read `count` records of topic t in group "g", commit and leave; return the values and the member id."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": strategy,
            "heartbeat.interval.ms": 20,
        }
    )
    try:
        consumer.subscribe(["t"])
        found: list[bytes | None] = []
        give_up = time.monotonic() + WAIT
        while len(found) < count and time.monotonic() < give_up:
            for message in consumer.consume(count - len(found), 0.2):
                assert message.error() is None, message.error()
                found.append(message.value())
        member_id = consumer.memberid()
        consumer.commit(asynchronous=False)
        return found, member_id
    finally:
        consumer.close()


@pytest.mark.promise("Test clusters", "the embedded cluster coordinates consumer groups")
@pytest.mark.parametrize(
    ("versions", "strategy"), [("2.1", "range"), ("2.8", "roundrobin"), ("4.3", "cooperative-sticky")]
)
async def test_librdkafka_reads_as_a_member_of_a_group_and_continues_at_its_last_offset(versions, strategy):
    async with EmbeddedCluster(3, topics={"t": 4}, versions=versions) as cluster:
        servers = cluster.bootstrap_servers
        await write(servers, our_records()[:10])
        first, one = await in_thread(lambda: librdkafka_reads_as_member(servers, strategy, 10))
        assert sum(cluster.groups.offsets("g").values()) == 10
        assert cluster.groups.members("g") == {}
        await write(servers, our_records()[10:13])
        second, other = await in_thread(lambda: librdkafka_reads_as_member(servers, strategy, 3))

    assert one != other
    assert (len(first), len(second)) == (10, 3)
    assert second == [record.value for record in our_records()[10:13]]


# Records of our producer


def our_records() -> list[ProducerRecord]:
    """Records with all kinds of keys, values and headers."""
    some = [None, b"", b"plain", bytes(range(256))]
    return [
        ProducerRecord(
            topic="t",
            value=value,
            key=key,
            partition=partition,
            timestamp_ms=NOW + partition,
            headers=(("empty", b""), ("none", None), ("same", b"1"), ("same", b"2")) if value else (),
        )
        for partition in range(3)
        for key in some
        for value in some
    ]


async def write(servers: str, records: list[ProducerRecord], **settings: object) -> list[int]:
    """Send the records with our producer, and return their offsets."""
    async with Producer(servers, **settings) as producer:
        deliveries = [
            await producer.send(
                "t",
                record.value,
                key=record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )
            for record in records
        ]
        return [metadata.offset for metadata in await asyncio.gather(*deliveries)]


@pytest.mark.promise("Test clusters", "other clients read what aioproducer wrote to the embedded cluster")
@pytest.mark.parametrize(
    ("versions", "codec"),
    [("2.1", "zstd"), ("2.8", "lz4"), ("3.9", "snappy"), ("4.3", "none"), ("4.3", "gzip"), ("4.3", "zstd")],
)
async def test_librdkafka_and_aiokafka_read_back_what_our_producer_wrote(versions, codec):
    records = our_records()
    async with EmbeddedCluster(3, topics={"t": 3}, versions=versions) as cluster:
        servers = cluster.bootstrap_servers
        offsets = await write(servers, records, compression_type=codec)
        wanted = sorted(
            (record.partition, offset, record.timestamp_ms, record.key, record.value, tuple(record.headers))
            for record, offset in zip(records, offsets, strict=True)
        )
        by_librdkafka = await in_thread(lambda: librdkafka_consumes(servers, 3, len(records)))
        by_aiokafka = await aiokafka_consumes(servers, 3, len(records))

    assert wanted == sorted(
        (
            one.partition(),
            one.offset(),
            one.timestamp()[1],
            one.key(),
            one.value(),
            tuple(one.headers() or ()),
        )
        for one in by_librdkafka
    )
    assert wanted == sorted(
        (one.partition, one.offset, one.timestamp, one.key, one.value, one.headers) for one in by_aiokafka
    )


async def test_librdkafka_finds_the_position_of_a_group_whose_coordinator_has_moved():
    async with (
        EmbeddedCluster(1, topics={"t": 1}) as cluster,
        Producer(cluster.bootstrap_servers, transactional_id="tx") as producer,
    ):
        async with producer.transaction():
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): 7}, "mine")
        moved = cluster.faults.add(ApiKey.OFFSET_FETCH, error=ErrorCode.NOT_COORDINATOR)

        assert await group_position(cluster.bootstrap_servers, "mine", "t", 0) == 7
        assert moved.is_used_up
        assert await group_position(cluster.bootstrap_servers, "another", "t", 0) is None
