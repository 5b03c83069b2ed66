"""What the producer sends to a real Kafka is what confluent-kafka reads back, record for record."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from conftest import MS

import aioproducer.connection
from aioproducer import DeliveryError, Outcome, Producer, RecordMetadata, RecordTooLargeError
from aioproducer.compression import Codec
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import ApiVersionsRequest, ProduceRequest
from aioproducer.recordbatch import BatchHeader, read_header, split_batches
from aioproducer.testing.apache import ApacheKafka
from tests.raw_client import RawClient
from tests.read_back import Sent, assert_in_order, compare_with_log, read_back, result_of

pytestmark = pytest.mark.apache

LEAN = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
CREATED = 1_700_000_000_000

_numbers = itertools.count()


@pytest.fixture
def topic(request) -> str:
    """A name for this test alone."""
    name = request.function.__name__.removeprefix("test_")[:60]
    return f"{name}-{next(_numbers)}"


@pytest.fixture
def produced(monkeypatch) -> list[tuple[int, ProduceRequest]]:
    """The Produce requests that are written, with their versions, as they go through the one encoder."""
    requests: list[tuple[int, ProduceRequest]] = []
    encode = aioproducer.connection.encode_request

    def record(message, version, *more):
        if isinstance(message, ProduceRequest):
            requests.append((version, message))
        return encode(message, version, *more)

    monkeypatch.setattr(aioproducer.connection, "encode_request", record)
    return requests


def batches_on_disk(kafka: ApacheKafka, topic: str, partition: int = 0) -> list[BatchHeader]:
    """The headers of all batches as the broker has written them."""
    data = kafka.directory / "node-0" / "data" / f"{topic}-{partition}"
    segments = sorted(Path(data).glob("*.log"))
    return [read_header(batch) for segment in segments for batch in split_batches(segment.read_bytes())]


async def newest_produce_version(servers: str) -> int:
    """What the broker's ApiVersions answer says."""
    async with RawClient(servers.partition(",")[0]) as client:
        answer = await client.ask(ApiVersionsRequest(), 0)
    return next(entry.max_version for entry in answer.api_keys if entry.api_key == ApiKey.PRODUCE)


# An older broker; first, so that it has gone before the shared one starts


async def test_kafka_3_9_takes_what_its_versions_allow(produced):
    async with ApacheKafka(version="3.9.2", jvm_args=LEAN) as kafka:
        await kafka.create_topic("t", partitions=6)
        async with Producer(kafka.bootstrap_servers, compression_type="zstd", batch_size=2048) as producer:
            assert producer.config.enable_idempotence
            values = [(f"key-{number % 40}", number) for number in range(3000)]
            deliveries = [
                (value := f"{key}:{number}".encode(), await producer.send("t", value, key=key.encode()))
                for key, number in values
            ]
            sent = [Sent(value, await result_of(delivery)) for value, delivery in deliveries]
        log = await read_back(kafka.bootstrap_servers, "t")
        newest = await newest_produce_version(kafka.bootstrap_servers)
        batches = [batch for partition in range(6) for batch in batches_on_disk(kafka, "t", partition)]

    assert compare_with_log(sent, log)["acknowledged"] == 3000
    assert_in_order(log)
    assert newest < 13
    assert {version for version, _ in produced} == {newest}
    assert all(batch.producer_id >= 0 and batch.base_sequence >= 0 for batch in batches)


# Records


@pytest.mark.parametrize(
    ("compression", "level"),
    [
        (None, None),
        ("none", None),
        ("gzip", None),
        ("gzip", 1),
        ("gzip", 9),
        ("snappy", None),
        ("lz4", None),
        ("lz4", 12),
        ("zstd", None),
        ("zstd", 19),
        ("zstd", -7),
    ],
)
async def test_every_codec_is_read_back(apache_kafka, topic, compression, level):
    await apache_kafka.create_topic(topic)
    noise = random.Random(7)
    values = [f"{number}:".encode() + b"wind north-east, " * 40 for number in range(300)]
    incompressible = [f"{number}:".encode() + noise.randbytes(900) for number in range(300, 330)]

    async with Producer(
        apache_kafka.bootstrap_servers,
        compression_type=compression,
        compression_level=level,
        batch_size=100_000,
        linger_ms=50,
    ) as producer:
        small = await producer.send_and_wait(topic, b"small:" + b"calm, " * 20)
        deliveries = [await producer.send(topic, value) for value in values]
        metadata = await asyncio.gather(*deliveries)
        await producer.flush()
        noisy = await asyncio.gather(*[await producer.send(topic, value) for value in incompressible])
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    sent = [b"small:" + b"calm, " * 20, *values, *incompressible]
    assert [record.value for record in log[0]] == sent
    assert [result.offset for result in (small, *metadata, *noisy)] == list(range(331))
    codecs = {batch.codec for batch in batches_on_disk(apache_kafka, topic)}
    assert Codec[(compression or "none").upper()] in codecs
    # What does not shrink goes as it is.
    assert codecs <= {Codec.NONE, Codec[(compression or "none").upper()]}


async def test_headers_are_read_back(apache_kafka, topic):
    await apache_kafka.create_topic(topic)
    headers = [
        [("trace", b"1")],
        [("trace", b"1"), ("trace", b"2"), ("other", b"x"), ("trace", b"1")],
        [("none", None), ("empty", b"")],
        [("naïve-名前-🛫", "значение".encode()), ("", b"empty name")],
        [("long", bytes(range(256)) * 300)],
        [(f"h{number}", str(number).encode()) for number in range(200)],
        [],
        None,
    ]

    async with Producer(apache_kafka.bootstrap_servers) as producer:
        for number, some in enumerate(headers):
            await producer.send(topic, str(number).encode(), headers=some)
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert [list(record.headers) for record in log[0]] == [some or [] for some in headers]


async def test_null_and_empty_keys_and_values_stay_apart(apache_kafka, topic):
    await apache_kafka.create_topic(topic)
    records = list(itertools.product((None, b"", b"k"), (None, b"", b"v")))

    async with Producer(apache_kafka.bootstrap_servers) as producer:
        for key, value in records:
            await producer.send(topic, value, key=key)
        flushed = await producer.send_and_wait(topic, bytearray(b"mutable"), key=memoryview(b"view"))
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert [(record.key, record.value) for record in log[0]] == [*records, (b"view", b"mutable")]
    assert flushed.offset == len(records)


async def test_timestamps_are_the_users_or_the_clocks(apache_kafka, topic):
    await apache_kafka.create_topic(topic)
    # Out of order, and years apart within one batch: deltas of both signs that need many bytes.
    given = [CREATED, CREATED - 1, CREATED + 40_000_000_000, 0, 1, CREATED + 1]

    async with Producer(apache_kafka.bootstrap_servers, linger_ms=20) as producer:
        deliveries = [await producer.send(topic, b"v", timestamp_ms=timestamp) for timestamp in given]
        before = time.time_ns() // 1_000_000
        deliveries.append(await producer.send(topic, b"now"))
        after = time.time_ns() // 1_000_000
        metadata = await asyncio.gather(*deliveries)
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert [record.timestamp for record in log[0][:-1]] == given
    assert before <= log[0][-1].timestamp <= after
    assert [result.timestamp for result in metadata] == [record.timestamp for record in log[0]]
    assert (
        {result.timestamp_type for result in metadata} == {0} == {record.timestamp_type for record in log[0]}
    )


async def test_log_append_time_is_the_brokers(apache_kafka, topic):
    await apache_kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})

    before = time.time_ns() // 1_000_000
    async with Producer(apache_kafka.bootstrap_servers, linger_ms=20) as producer:
        deliveries = [await producer.send(topic, b"v", timestamp_ms=CREATED) for _ in range(3)]
        metadata = await asyncio.gather(*deliveries)
    after = time.time_ns() // 1_000_000
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert (
        {result.timestamp_type for result in metadata} == {1} == {record.timestamp_type for record in log[0]}
    )
    assert [result.timestamp for result in metadata] == [record.timestamp for record in log[0]]
    assert all(before <= result.timestamp <= after for result in metadata)


async def test_timestamp_that_the_topic_refuses_fails_and_the_partition_goes_on(apache_kafka, topic):
    await apache_kafka.create_topic(topic, config={"message.timestamp.after.max.ms": 60_000})
    future = time.time_ns() // 1_000_000 + 3_600_000

    async with Producer(apache_kafka.bootstrap_servers, linger_ms=0) as producer:
        await producer.send_and_wait(topic, b"a")
        with pytest.raises(DeliveryError, match="out of range") as told:
            await producer.send_and_wait(topic, b"from tomorrow", timestamp_ms=future)
        after = await producer.send_and_wait(topic, b"b")
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert told.value.outcome is Outcome.NOT_PERSISTED
    assert told.value.last_error.name == "INVALID_TIMESTAMP"
    assert [record.value for record in log[0]] == [b"a", b"b"]
    assert after.offset == 1


# Sizes


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_records_of_a_megabyte_are_read_back(apache_kafka, topic, compression):
    await apache_kafka.create_topic(topic, partitions=2, config={"max.message.bytes": 3_000_000})
    noise = random.Random(3)
    values = [noise.randbytes(1_048_576 + 1000 * number) for number in range(8)]

    async with Producer(
        apache_kafka.bootstrap_servers, compression_type=compression, max_request_size=2_500_000
    ) as producer:
        deliveries = [await producer.send(topic, value, partition=at % 2) for at, value in enumerate(values)]
        metadata = await asyncio.gather(*deliveries)
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    for value, result in zip(values, metadata, strict=True):
        assert log[result.partition][result.offset].value == value


async def test_record_above_max_request_size_is_refused_here(apache_kafka, topic):
    await apache_kafka.create_topic(topic)

    async with Producer(apache_kafka.bootstrap_servers) as producer:
        with pytest.raises(RecordTooLargeError) as told:
            await producer.send(topic, bytes(1_048_577))
        largest = await producer.send_and_wait(topic, bytes(1_048_576 - 200))

    assert told.value.outcome is Outcome.NOT_PERSISTED
    assert largest.offset == 0


@pytest.mark.parametrize("idempotent", [True, False])
async def test_record_that_the_broker_finds_too_large_fails_alone(apache_kafka, topic, idempotent):
    await apache_kafka.create_topic(topic, config={"max.message.bytes": 20_000})

    async with Producer(
        apache_kafka.bootstrap_servers, batch_size=1000, linger_ms=0, enable_idempotence=idempotent
    ) as producer:
        await producer.send_and_wait(topic, b"first:0", key=b"k")
        deliveries = []
        for number in range(1, 201):
            # Batches before and behind the large ones are in flight with them.
            size = 30_000 if number in (50, 51, 120) else 300
            value = b"x" * size + b":%d" % number
            deliveries.append((value, await producer.send(topic, value, key=b"k")))
        sent = [Sent(value, await result_of(delivery)) for value, delivery in deliveries]
        report = await producer.close()
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    sent.append(Sent(b"first:0", RecordMetadata(topic, 0, 0)))
    assert compare_with_log(sent, log) == {"acknowledged": 198, "not persisted": 3}
    assert_in_order(log)
    errors = [record.result for record in sent if isinstance(record.result, DeliveryError)]
    assert all("MESSAGE_TOO_LARGE" in str(error) for error in errors)
    assert (report.delivered, report.failed, report.unknown) == (198, 3, 0)


# Numbers


async def test_a_thousand_tasks_on_a_hundred_partitions(apache_kafka, topic):
    await apache_kafka.create_topic(topic, partitions=100)

    async def task(producer: Producer, number: int) -> list[Sent]:
        key = b"task-%d" % number
        values = [b"%s:%d" % (key, turn) for turn in range(20)]
        if number % 10 == 0:  # some wait for each record, most for all of them
            return [Sent(value, await producer.send_and_wait(topic, value, key=key)) for value in values]
        deliveries = [await producer.send(topic, value, key=key) for value in values]
        return [Sent(*both) for both in zip(values, await asyncio.gather(*deliveries), strict=True)]

    async with Producer(apache_kafka.bootstrap_servers, compression_type="lz4") as producer:
        results = await asyncio.gather(*(task(producer, number) for number in range(1000)))
        report = await producer.close()
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert compare_with_log(itertools.chain(*results), log) == {"acknowledged": 20_000}
    assert_in_order(log)
    assert sum(map(len, log.values())) == 20_000 == report.delivered
    for records in log.values():
        assert [record.offset for record in records] == list(range(len(records)))


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_level_of_acknowledgement(apache_kafka, topic, acks):
    await apache_kafka.create_topic(topic, partitions=3)
    sent = await first_records(apache_kafka, topic, 3)

    async with Producer(apache_kafka.bootstrap_servers, acks=acks, batch_size=4000) as producer:
        assert producer.config.enable_idempotence == (acks == "all")
        deliveries = []
        for number in range(1000):
            key = b"%d" % (number % 7)
            value = b"%s:%d" % (key, number)
            deliveries.append((value, await producer.send(topic, value, key=key)))
        results = [Sent(value, await result_of(delivery)) for value, delivery in deliveries]
    # acks=0 is done when the bytes are written: the broker may still be reading them.
    until = {} if acks else await ends_of(apache_kafka, topic, 1003)
    log = await read_back(apache_kafka.bootstrap_servers, topic, until=until)

    assert compare_with_log(sent + results, log) == {"acknowledged": 1003}
    assert_in_order(log)
    assert all((result.offset is None) == (acks == 0) for _, result in results)


async def first_records(kafka: ApacheKafka, topic: str, partitions: int) -> list[Sent]:
    """A record in each partition. A broker tells about a new topic a moment before it has opened its logs;
    what comes with acks=0 until then is lost."""
    values = [(b"first-%d" % partition, partition) for partition in range(partitions)]
    async with Producer(kafka.bootstrap_servers, acks=1) as producer:
        return [
            Sent(key + b":0", await producer.send_and_wait(topic, key + b":0", key=key, partition=partition))
            for key, partition in values
        ]


async def ends_of(kafka: ApacheKafka, topic: str, records: int) -> dict[int, int]:
    """The end offsets, once there are so many records in all."""
    async with asyncio.timeout(10_000 * MS):
        while True:
            log = await read_back(kafka.bootstrap_servers, topic)
            if sum(map(len, log.values())) >= records:
                return {partition: len(found) for partition, found in log.items()}


# Topics and partitions


async def test_first_send_creates_the_topic(apache_kafka, topic):
    async with Producer(apache_kafka.bootstrap_servers) as producer:
        sends = [producer.send_and_wait(topic, b"%d" % number) for number in range(20)]
        metadata = await asyncio.gather(*sends)
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert sorted(result.offset for result in metadata) == list(range(20))
    for number, result in enumerate(metadata):
        assert log[0][result.offset].value == b"%d" % number


async def test_keys_go_where_librdkafkas_murmur2_puts_them(apache_kafka, topic):
    await apache_kafka.create_topic(topic, partitions=17)
    noise = random.Random(1)
    keys = [b"", *(noise.randbytes(size % 40 + 1) for size in range(400))]

    async with Producer(apache_kafka.bootstrap_servers) as producer:
        deliveries = [await producer.send(topic, b"v", key=key) for key in keys]
        ours = [result.partition for result in await asyncio.gather(*deliveries)]
    theirs = await asyncio.to_thread(confluent_partitions, apache_kafka.bootstrap_servers, topic, keys)
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert ours == theirs
    assert {record.key for partition in set(ours) for record in log[partition]} == set(keys)


def confluent_partitions(servers: str, topic: str, keys: list[bytes]) -> list[int]:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    partitions: dict[int, int] = {}

    def acknowledged(at):
        def note(error, message):
            assert error is None
            partitions[at] = message.partition()

        return note

    for at, key in enumerate(keys):
        producer.produce(topic, b"v", key, on_delivery=acknowledged(at))
    assert producer.flush(30) == 0
    return [partitions[at] for at in range(len(keys))]


async def test_partitions_added_while_sending_are_used(apache_kafka, topic):
    await apache_kafka.create_topic(topic, partitions=2)
    used: set[int] = set()
    sent: list[Sent] = []

    async def keep_sending(producer: Producer, name: int) -> None:
        for number in itertools.count():
            if used == set(range(6)):
                return
            value = b"%d:%d" % (name, number)
            result = await result_of(await producer.send(topic, value))
            used.add(result.partition)
            sent.append(Sent(value, result))

    async with (
        asyncio.timeout(30_000 * MS),
        Producer(apache_kafka.bootstrap_servers, metadata_max_age_ms=200, batch_size=200) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        await producer.send_and_wait(topic, b"0:-1", partition=0)
        for name in range(20):
            tasks.create_task(keep_sending(producer, name))
        await asyncio.to_thread(add_partitions, apache_kafka.bootstrap_servers, topic, 6)
        # Named before metadata is old enough to be refreshed by itself: the name alone asks for it.
        explicit = await producer.send_and_wait(topic, b"0:-2", partition=5)
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert explicit.partition == 5
    sent += [Sent(b"0:-1", RecordMetadata(topic, 0, 0)), Sent(b"0:-2", explicit)]
    assert compare_with_log(sent, log) == {"acknowledged": len(sent)}


def add_partitions(servers: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)


# The protocol


async def test_produce_13_names_topics_by_id(apache_kafka, topic, produced):
    await apache_kafka.create_topic(topic)

    async with Producer(apache_kafka.bootstrap_servers) as producer:
        metadata = await producer.send_and_wait(topic, b"v")
    log = await read_back(apache_kafka.bootstrap_servers, topic, offsets={0: metadata.offset})

    assert await newest_produce_version(apache_kafka.bootstrap_servers) >= 13
    ((version, request),) = produced
    assert version == 13
    assert request.topic_data[0].topic_id.int != 0
    assert [record.value for record in log[0]] == [b"v"]


async def test_log_has_the_numbers_of_an_idempotent_producer(apache_kafka, topic):
    await apache_kafka.create_topic(topic)

    async with Producer(apache_kafka.bootstrap_servers, batch_size=500) as producer:
        for _ in range(100):
            await producer.send(topic, os.urandom(100))
    batches = batches_on_disk(apache_kafka, topic)

    assert len(batches) > 10
    assert len({(batch.producer_id, batch.producer_epoch) for batch in batches}) == 1
    assert batches[0].producer_id >= 0
    # One after the other, and as the offsets: nothing was numbered and not sent.
    assert [batch.base_sequence for batch in batches] == [batch.base_offset for batch in batches]


async def test_topic_made_anew_under_the_same_name_takes_records(apache_kafka, topic):
    await apache_kafka.create_topic(topic)

    async with Producer(apache_kafka.bootstrap_servers, retry_backoff_max_ms=200) as producer:
        first = await producer.send_and_wait(topic, b"old")
        await asyncio.to_thread(delete_topic, apache_kafka.bootstrap_servers, topic)
        await apache_kafka.create_topic(topic)
        second = await producer.send_and_wait(topic, b"new")
    log = await read_back(apache_kafka.bootstrap_servers, topic)

    assert (first.offset, second.offset) == (0, 0)
    assert [record.value for record in log[0]] == [b"new"]


def delete_topic(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic])[topic].result(30)
