"""Three readers find in a real Kafka exactly the records that the producer sent.

The tests run on the newest Kafka and on a release of the previous line. `read_thrice` compares confluent-kafka,
aiokafka and Kafka's own tool, and checks each batch."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import pyarrow as pa
import pytest

from aioproducer import DeliveryError, Outcome, Producer, RecordMetadata, RecordTooLargeError
from aioproducer.testing.apache.kafka import ApacheKafka
from tests.conftest import MS
from tests.support.apache_log import ends_of, read_thrice
from tests.support.read_back import Sent, assert_in_order, compare_with_log, read_back, result_of

pytestmark = pytest.mark.apache

CREATED = 1_700_000_000_000


# Records


@pytest.mark.promise("Records", "gzip, snappy, lz4 and zstd are supported, with levels")
@pytest.mark.promise("Records", "incompressible batches go uncompressed")
@pytest.mark.promise("As a whole", "a real Kafka: every codec is read back")
@pytest.mark.promise("KIPs", "KIP-110: zstd")
@pytest.mark.parametrize("compression", [None, "none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_is_read_back(each_kafka, topic, compression):
    await send_and_read_back(each_kafka, topic, compression, None)


@pytest.mark.parametrize(
    ("compression", "level"), [("gzip", 1), ("gzip", 9), ("lz4", 2), ("lz4", 12), ("zstd", 19), ("zstd", -7)]
)
async def test_every_level_of_compression_is_read_back(apache_kafka, topic, compression, level):
    await send_and_read_back(apache_kafka, topic, compression, level)


@pytest.mark.promise("Records", "snappy is written in xerial framing, lz4 as a frame that Kafka reads")
@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("size", [70_000, 300_000, 1_100_000, 5_000_000])
async def test_a_batch_of_any_size_is_read_back(apache_kafka, topic, compression, size):
    await apache_kafka.create_topic(topic, config={"max.message.bytes": "12000000"})
    noise = random.Random(size)
    value = b"".join(b"%d," % noise.randrange(99) for _ in range(size // 3))

    async with Producer(
        apache_kafka.bootstrap_servers, compression_type=compression, max_request_size=12_000_000
    ) as producer:
        await producer.send_and_wait(topic, value)
    found = await read_thrice(apache_kafka, topic)

    assert [record.value for record in found.log[0]] == [value]
    assert found.codecs == {compression}


async def send_and_read_back(
    kafka: ApacheKafka, topic: str, compression: str | None, level: int | None
) -> None:
    """Send a small batch, batches that compress well and batches that don't, and read them back."""
    await kafka.create_topic(topic)
    noise = random.Random(7)
    values = [f"{number}:".encode() + b"wind north-east, " * 40 for number in range(300)]
    incompressible = [f"{number}:".encode() + noise.randbytes(900) for number in range(300, 330)]

    async with Producer(
        kafka.bootstrap_servers,
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
    found = await read_thrice(kafka, topic)

    sent = [b"small:" + b"calm, " * 20, *values, *incompressible]
    assert [record.value for record in found.log[0]] == sent
    assert [result.offset for result in (small, *metadata, *noisy)] == list(range(331))
    assert (compression or "none") in found.codecs
    # Batches that don't become smaller are sent uncompressed.
    assert found.codecs <= {"none", compression}
    assert [epoch for _, epoch in found.producers] == [0]


@pytest.mark.promise("As a whole", "a real Kafka: headers are read back")
async def test_headers_are_read_back(each_kafka, topic):
    await each_kafka.create_topic(topic)
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

    async with Producer(each_kafka.bootstrap_servers) as producer:
        for number, some in enumerate(headers):
            await producer.send(topic, str(number).encode(), headers=some)
    log = (await read_thrice(each_kafka, topic)).log

    assert [list(record.headers) for record in log[0]] == [some or [] for some in headers]


@pytest.mark.promise("As a whole", "a real Kafka: null and empty keys and values stay apart")
async def test_null_and_empty_keys_and_values_stay_apart(each_kafka, topic):
    await each_kafka.create_topic(topic)
    records = list(itertools.product((None, b"", b"k"), (None, b"", b"v")))

    async with Producer(each_kafka.bootstrap_servers) as producer:
        for key, value in records:
            await producer.send(topic, value, key=key)
        flushed = await producer.send_and_wait(topic, bytearray(b"mutable"), key=memoryview(b"view"))
    log = (await read_thrice(each_kafka, topic)).log

    assert [(record.key, record.value) for record in log[0]] == [*records, (b"view", b"mutable")]
    assert flushed.offset == len(records)


@pytest.mark.promise("Public API", "`send_many`: columns become the bytes that the oracle writes")
@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_columns_are_read_back(each_kafka, topic, compression):
    """Send Arrow columns, a single record, and lists: all are where their results say, in the order of the calls."""
    await each_kafka.create_topic(topic, partitions=3)
    count = 20_000
    keys = [None if number % 11 == 0 else b"key-%d" % (number % 997) for number in range(count)]
    values = [None if number % 13 == 0 else b"%d:" % number + b"calm, " * 8 for number in range(count)]
    headers = [[("row", b"%d" % number), ("none", None)][: number % 3] for number in range(count)]
    times = [CREATED + number for number in range(count)]
    table = pa.table(
        {
            "key": pa.array(keys).dictionary_encode(),
            "value": pa.chunked_array([pa.array(values[:777]), pa.array(values[777:])]),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())),
            "timestamp": pa.array(times, pa.timestamp("ms")),
        }
    )

    async with Producer(each_kafka.bootstrap_servers, compression_type=compression) as producer:
        first = await producer.send_many(topic, table)
        single = await producer.send(topic, b"between", key=keys[1])
        second = await producer.send_many(topic, values, keys=keys, headers=headers, timestamps=times)
        await first
        await second
        between = await single
    log = (await read_thrice(each_kafka, topic)).log

    for receipt in (first, second):
        for row in range(count):
            place = await receipt.delivery(row)
            record = log[place.partition][place.offset]
            assert record == (
                place.partition, place.offset, times[row], 0, keys[row], values[row], tuple(headers[row])
            )  # fmt: skip
            if keys[row] == keys[1]:
                assert (place.offset < between.offset) is (receipt is first)
        assert sum(len(found) for ranges in receipt.offsets.values() for found in ranges) == count
    assert sum(map(len, log.values())) == 2 * count + 1


@pytest.mark.promise("As a whole", "a real Kafka: timestamps are the user's, the clock's or the broker's")
async def test_timestamps_are_the_users_or_the_clocks(each_kafka, topic):
    await each_kafka.create_topic(topic)
    # Out of order, and years apart within one batch: positive and negative deltas of many bytes.
    given = [CREATED, CREATED - 1, CREATED + 40_000_000_000, 0, 1, CREATED + 1]

    async with Producer(each_kafka.bootstrap_servers, linger_ms=20) as producer:
        deliveries = [await producer.send(topic, b"v", timestamp_ms=timestamp) for timestamp in given]
        before = time.time_ns() // 1_000_000
        deliveries.append(await producer.send(topic, b"now"))
        after = time.time_ns() // 1_000_000
        metadata = await asyncio.gather(*deliveries)
    log = (await read_thrice(each_kafka, topic)).log

    assert [record.timestamp for record in log[0][:-1]] == given
    assert before <= log[0][-1].timestamp <= after
    assert [result.timestamp for result in metadata] == [record.timestamp for record in log[0]]
    assert (
        {result.timestamp_type for result in metadata} == {0} == {record.timestamp_type for record in log[0]}
    )


@pytest.mark.promise("As a whole", "a real Kafka: timestamps are the user's, the clock's or the broker's")
async def test_log_append_time_is_the_brokers(each_kafka, topic):
    await each_kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})

    before = time.time_ns() // 1_000_000
    async with Producer(each_kafka.bootstrap_servers, linger_ms=20) as producer:
        deliveries = [await producer.send(topic, b"v", timestamp_ms=CREATED) for _ in range(3)]
        metadata = await asyncio.gather(*deliveries)
    after = time.time_ns() // 1_000_000
    log = (await read_thrice(each_kafka, topic)).log

    assert (
        {result.timestamp_type for result in metadata} == {1} == {record.timestamp_type for record in log[0]}
    )
    assert [result.timestamp for result in metadata] == [record.timestamp for record in log[0]]
    assert all(before <= result.timestamp <= after for result in metadata)


@pytest.mark.promise("As a whole", "a real Kafka: timestamps are the user's, the clock's or the broker's")
async def test_timestamp_that_the_topic_rejects_fails_and_the_next_record_is_stored(each_kafka, topic):
    await each_kafka.create_topic(topic, config={"message.timestamp.after.max.ms": 60_000})
    future = time.time_ns() // 1_000_000 + 3_600_000

    async with Producer(each_kafka.bootstrap_servers, linger_ms=0) as producer:
        await producer.send_and_wait(topic, b"a")
        with pytest.raises(DeliveryError, match="out of range") as told:
            await producer.send_and_wait(topic, b"from tomorrow", timestamp_ms=future)
        after = await producer.send_and_wait(topic, b"b")
    log = (await read_thrice(each_kafka, topic)).log

    assert told.value.outcome is Outcome.NOT_PERSISTED
    assert told.value.last_error.name == "INVALID_TIMESTAMP"
    assert [record.value for record in log[0]] == [b"a", b"b"]
    assert after.offset == 1


# Sizes


@pytest.mark.promise("As a whole", "a real Kafka: records of 1 MB are read back")
@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_records_of_a_megabyte_are_read_back(each_kafka, topic, compression):
    await each_kafka.create_topic(topic, partitions=2, config={"max.message.bytes": 3_000_000})
    noise = random.Random(3)
    values = [noise.randbytes(1_048_576 + 1000 * number) for number in range(8)]

    async with Producer(
        each_kafka.bootstrap_servers, compression_type=compression, max_request_size=2_500_000
    ) as producer:
        deliveries = [await producer.send(topic, value, partition=at % 2) for at, value in enumerate(values)]
        metadata = await asyncio.gather(*deliveries)
    log = (await read_thrice(each_kafka, topic)).log

    for value, result in zip(values, metadata, strict=True):
        assert log[result.partition][result.offset].value == value


@pytest.mark.promise(
    "Test clusters", "a real Kafka: a record that is too large for the producer or for the broker fails alone"
)
async def test_record_above_max_request_size_is_rejected_by_the_producer(each_kafka, topic):
    await each_kafka.create_topic(topic)

    async with Producer(each_kafka.bootstrap_servers) as producer:
        with pytest.raises(RecordTooLargeError) as told:
            await producer.send(topic, bytes(1_048_577))
        largest = await producer.send_and_wait(topic, bytes(1_048_576 - 200))

    [record] = (await read_thrice(each_kafka, topic)).log[0]

    assert told.value.outcome is Outcome.NOT_PERSISTED
    assert largest.offset == 0
    assert record.value == bytes(1_048_576 - 200)


@pytest.mark.promise(
    "Test clusters", "a real Kafka: a record that is too large for the producer or for the broker fails alone"
)
@pytest.mark.parametrize("idempotent", [True, False])
async def test_record_that_the_broker_finds_too_large_fails_alone(each_kafka, topic, idempotent):
    await each_kafka.create_topic(topic, config={"max.message.bytes": 20_000})

    async with Producer(
        each_kafka.bootstrap_servers, batch_size=1000, linger_ms=0, enable_idempotence=idempotent
    ) as producer:
        await producer.send_and_wait(topic, b"first:0", key=b"k")
        deliveries = []
        for number in range(1, 201):
            # Batches before and after the large ones are in flight with them.
            size = 30_000 if number in (50, 51, 120) else 300
            value = b"x" * size + b":%d" % number
            deliveries.append((value, await producer.send(topic, value, key=b"k")))
        sent = [Sent(value, await result_of(delivery)) for value, delivery in deliveries]
        report = await producer.close()
    log = (await read_thrice(each_kafka, topic)).log

    sent.append(Sent(b"first:0", RecordMetadata(topic, 0, 0)))
    assert compare_with_log(sent, log) == {"acknowledged": 198, "not persisted": 3}
    assert_in_order(log)
    errors = [record.result for record in sent if isinstance(record.result, DeliveryError)]
    assert all("MESSAGE_TOO_LARGE" in str(error) for error in errors)
    assert (report.delivered, report.failed, report.unknown) == (198, 3, 0)


# Numbers


@pytest.mark.promise("As a whole", "a real Kafka: 1,000 tasks write to 100 partitions")
async def test_a_thousand_tasks_on_a_hundred_partitions(each_kafka, topic):
    await each_kafka.create_topic(topic, partitions=100)

    async def task(producer: Producer, number: int) -> list[Sent]:
        key = b"task-%d" % number
        values = [b"%s:%d" % (key, turn) for turn in range(20)]
        if number % 10 == 0:  # some await each record, most await all at the end
            return [Sent(value, await producer.send_and_wait(topic, value, key=key)) for value in values]
        deliveries = [await producer.send(topic, value, key=key) for value in values]
        return [Sent(*both) for both in zip(values, await asyncio.gather(*deliveries), strict=True)]

    async with Producer(each_kafka.bootstrap_servers, compression_type="lz4") as producer:
        results = await asyncio.gather(*(task(producer, number) for number in range(1000)))
        report = await producer.close()
    log = (await read_thrice(each_kafka, topic)).log

    assert compare_with_log(itertools.chain(*results), log) == {"acknowledged": 20_000}
    assert_in_order(log)
    assert sum(map(len, log.values())) == 20_000 == report.delivered
    for records in log.values():
        assert [record.offset for record in records] == list(range(len(records)))


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_level_of_acknowledgement(each_kafka, topic, acks):
    await each_kafka.create_topic(topic, partitions=3)
    sent = await first_records(each_kafka, topic, 3)

    async with Producer(each_kafka.bootstrap_servers, acks=acks, batch_size=4000) as producer:
        assert producer.config.enable_idempotence == (acks == "all")
        deliveries = []
        for number in range(1000):
            key = b"%d" % (number % 7)
            value = b"%s:%d" % (key, number)
            deliveries.append((value, await producer.send(topic, value, key=key)))
        results = [Sent(value, await result_of(delivery)) for value, delivery in deliveries]
    # With acks=0 a record is done when its bytes are written; the broker may still be reading them.
    until = {} if acks else await ends_with(each_kafka, topic, 1003)
    found = await read_thrice(each_kafka, topic, until=until)

    assert compare_with_log(sent + results, found.log) == {"acknowledged": 1003}
    assert_in_order(found.log)
    assert all((result.offset is None) == (acks == 0) for _, result in results)
    assert len(found.producers) == (2 if acks == "all" else 1)
    assert (-1, -1) in found.producers


async def first_records(kafka: ApacheKafka, topic: str, partitions: int) -> list[Sent]:
    """Send a record to each partition. A broker reports a new topic a moment before it has opened its logs; records
    with acks=0 that arrive before that are lost."""
    values = [(b"first-%d" % partition, partition) for partition in range(partitions)]
    async with Producer(kafka.bootstrap_servers, acks=1) as producer:
        return [
            Sent(key + b":0", await producer.send_and_wait(topic, key + b":0", key=key, partition=partition))
            for key, partition in values
        ]


async def ends_with(kafka: ApacheKafka, topic: str, records: int) -> dict[int, int]:
    """Wait until there are this many records in total; return the end offsets."""
    async with asyncio.timeout(10_000 * MS):
        while True:
            ends = ends_of(await read_back(kafka.bootstrap_servers, topic))
            if sum(ends.values()) >= records:
                return ends
