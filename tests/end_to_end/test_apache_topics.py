"""A real Kafka with a dead bootstrap address, and with topics that exist, are created by the first record, grow, or are
deleted."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import socket
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from aioproducer import Producer, RecordMetadata
from aioproducer.errors import MetadataTimeoutError
from aioproducer.protocol.api import ApiKey, decode_request
from aioproducer.protocol.messages import ApiVersionsRequest, ProduceRequest
from aioproducer.protocol.produce import ProduceBatches
from aioproducer.testing import ApacheKafka
from tests.conftest import MS
from tests.support.apache_clusters import LEAN, running
from tests.support.apache_log import read_thrice
from tests.support.raw_client import RawClient
from tests.support.read_back import Sent, assert_in_order, compare_with_log, result_of

pytestmark = [pytest.mark.apache, pytest.mark.slow]

LENGTH = 4
"""The number of bytes in a frame before the request."""


@pytest.fixture
def produced(monkeypatch) -> list[tuple[int, ProduceRequest]]:
    """The versions and the decoded messages of the Produce requests that are written."""
    requests: list[tuple[int, ProduceRequest]] = []
    frame = ProduceBatches.frame

    def record(self, *told):
        segments = frame(self, *told)
        header, message = decode_request(b"".join(segments)[LENGTH:])
        requests.append((header.version, message))
        return segments

    monkeypatch.setattr(ProduceBatches, "frame", record)
    return requests


async def newest_produce_version(servers: str) -> int:
    """Return the newest Produce version in the broker's ApiVersions response."""
    async with RawClient(servers.partition(",")[0]) as client:
        answer = await client.ask(ApiVersionsRequest(), 0)
    return next(entry.max_version for entry in answer.api_keys if entry.api_key == ApiKey.PRODUCE)


# Addresses


@pytest.mark.promise("Test clusters", "a real Kafka: auto-create on and off; a dead first address")
@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_a_dead_first_bootstrap_address_costs_no_record(each_kafka, topic, how):
    await each_kafka.create_topic(topic)
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        if how == "silent":
            dead.listen()  # connections are accepted, but no requests are answered
        servers = f"127.0.0.1:{dead.getsockname()[1]},{each_kafka.bootstrap_servers}"

        async with (
            asyncio.timeout(30_000 * MS),
            Producer(servers, request_timeout_ms=1000, socket_connection_setup_timeout_ms=1000) as producer,
        ):
            metadata = [await producer.send_and_wait(topic, b"%d" % number) for number in range(10)]
    found = await read_thrice(each_kafka, topic)

    assert [result.offset for result in metadata] == list(range(10))
    assert [record.value for record in found.log[0]] == [b"%d" % number for number in range(10)]


# Topics and partitions


@pytest.mark.promise("Test clusters", "a real Kafka: auto-create on and off; a dead first address")
@pytest.mark.promise(
    "Accumulator, sender, connections",
    "`send` waits for a topic that is being created; an unknown topic is asked for again, also for "
    "`try_send`, which does not wait",
)
async def test_first_send_creates_the_topic(each_kafka, topic):
    async with Producer(each_kafka.bootstrap_servers) as producer:
        sends = [producer.send_and_wait(topic, b"%d" % number) for number in range(20)]
        metadata = await asyncio.gather(*sends)
    log = (await read_thrice(each_kafka, topic)).log

    assert sorted(result.offset for result in metadata) == list(range(20))
    for number, result in enumerate(metadata):
        assert log[0][result.offset].value == b"%d" % number


@pytest.mark.promise("Test clusters", "a real Kafka: auto-create on and off; a dead first address")
async def test_a_producer_that_may_not_create_topics_does_not(each_kafka, topic):
    async with Producer(
        each_kafka.bootstrap_servers, allow_auto_create_topics=False, max_block_ms=500_000 * MS
    ) as producer:
        with pytest.raises(
            MetadataTimeoutError, match=f"topic {topic} is still unknown after .* s: .*UNKNOWN_TOPIC"
        ):
            await producer.send(topic, b"v")

        await each_kafka.create_topic(topic)
        metadata = await producer.send_and_wait(topic, b"v")

    assert metadata.offset == 0
    assert [record.value for record in (await read_thrice(each_kafka, topic)).log[0]] == [b"v"]


@pytest.fixture(scope="module", params=["4.3.1", "3.9.2"], ids=["4.3", "3.9"])
def kafka_without_auto_create(request) -> Iterator[ApacheKafka]:
    settings = {"auto.create.topics.enable": False}
    with running(
        ApacheKafka(version=request.param, config=settings, jvm_args=LEAN), request=request
    ) as kafka:
        yield kafka


@pytest.mark.promise("Test clusters", "a real Kafka: auto-create on and off; a dead first address")
async def test_the_error_says_that_the_broker_does_not_create_the_topic(kafka_without_auto_create, topic):
    kafka = kafka_without_auto_create
    async with Producer(kafka.bootstrap_servers, max_block_ms=500_000 * MS) as producer:
        with pytest.raises(
            MetadataTimeoutError, match=rf"topic {topic} is still unknown after .*UNKNOWN_TOPIC"
        ):
            await producer.send(topic, b"refused")

        await kafka.create_topic(topic, partitions=2)
        values = [b"0", b"1", b"2", b"3"]
        sent = [
            Sent(value, await producer.send_and_wait(topic, value, partition=int(value) % 2))
            for value in values
        ]
    log = (await read_thrice(kafka, topic)).log

    assert compare_with_log(sent, log) == {"acknowledged": 4}
    assert {partition: [record.value for record in log[partition]] for partition in log} == {
        0: [b"0", b"2"],
        1: [b"1", b"3"],
    }


@pytest.mark.promise("Records", "keys are hashed by Java's murmur2")
async def test_keys_go_where_librdkafkas_murmur2_puts_them(each_kafka, topic):
    await each_kafka.create_topic(topic, partitions=17)
    noise = random.Random(1)
    keys = [b"", *(noise.randbytes(size % 40 + 1) for size in range(400))]

    async with Producer(each_kafka.bootstrap_servers) as producer:
        deliveries = [await producer.send(topic, b"v", key=key) for key in keys]
        ours = [result.partition for result in await asyncio.gather(*deliveries)]
    theirs = await asyncio.to_thread(confluent_partitions, each_kafka.bootstrap_servers, topic, keys)
    log = (await read_thrice(each_kafka, topic)).log

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


async def test_partitions_added_while_sending_are_used(each_kafka, topic):
    await each_kafka.create_topic(topic, partitions=2)
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
        Producer(each_kafka.bootstrap_servers, metadata_max_age_ms=200, batch_size=200) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        await producer.send_and_wait(topic, b"0:-1", partition=0)
        for name in range(20):
            tasks.create_task(keep_sending(producer, name))
        await asyncio.to_thread(add_partitions, each_kafka.bootstrap_servers, topic, 6)
        # This need not wait for the regular metadata refresh: the unknown partition causes an earlier one.
        explicit = await producer.send_and_wait(topic, b"0:-2", partition=5)
    log = (await read_thrice(each_kafka, topic)).log

    assert explicit.partition == 5
    sent += [Sent(b"0:-1", RecordMetadata(topic, 0, 0)), Sent(b"0:-2", explicit)]
    assert compare_with_log(sent, log) == {"acknowledged": len(sent)}


def add_partitions(servers: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)


# The protocol


@pytest.mark.promise(
    "Protocol", "Produce names topics by id from version 13 on, and is capped at 12 where an id is missing"
)
@pytest.mark.promise("KIPs", "KIP-516: topic ids")
async def test_produce_13_names_topics_by_id(apache_kafka, topic, produced):
    await apache_kafka.create_topic(topic)

    async with Producer(apache_kafka.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, b"v")
    log = (await read_thrice(apache_kafka, topic)).log

    assert await newest_produce_version(apache_kafka.bootstrap_servers) >= 13
    ((version, request),) = produced
    assert version == 13
    assert request.topic_data[0].topic_id.int != 0
    assert [record.value for record in log[0]] == [b"v"]


@pytest.mark.promise("Protocol", "requests use the newest version that both sides support, for each release")
async def test_kafka_3_9_gets_requests_of_its_newest_version(apache_kafka_39, topic, produced):
    await apache_kafka_39.create_topic(topic, partitions=6)
    servers = apache_kafka_39.bootstrap_servers

    async with Producer(servers, compression_type="zstd", batch_size=2048) as producer:
        assert producer.config.enable_idempotence
        values = [(b"key-%d" % (number % 40), number) for number in range(3000)]
        deliveries = [
            (value := b"%s:%d" % (key, number), await producer.send(topic, value, key=key))
            for key, number in values
        ]
        sent = [Sent(value, await result_of(delivery)) for value, delivery in deliveries]
    newest = await newest_produce_version(servers)
    found = await read_thrice(apache_kafka_39, topic)

    assert compare_with_log(sent, found.log)["acknowledged"] == 3000
    assert_in_order(found.log)
    assert newest < 13
    assert {version for version, _ in produced} == {newest}
    assert "zstd" in found.codecs


@pytest.mark.promise("Accumulator, sender, connections", "idempotence is on by default")
@pytest.mark.promise("KIPs", "KIP-98: record batch v2, idempotent producer")
async def test_log_has_the_numbers_of_an_idempotent_producer(each_kafka, topic):
    await each_kafka.create_topic(topic)

    async with Producer(each_kafka.bootstrap_servers, batch_size=500) as producer:
        for _ in range(100):
            await producer.send(topic, os.urandom(100))
    found = await read_thrice(each_kafka, topic)

    assert len(found.batches[0]) > 10
    [(producer_id, epoch)] = found.producers
    assert producer_id >= 0
    assert epoch == 0
    # The sequence numbers equal the offsets, so none was used without being sent.
    assert [batch.base_sequence for batch in found.batches[0]] == [
        batch.base_offset for batch in found.batches[0]
    ]


@pytest.mark.promise("Accumulator, sender, connections", "topic ids reveal a topic that was re-created")
async def test_topic_re_created_under_the_same_name_accepts_records(each_kafka, topic):
    await each_kafka.create_topic(topic)

    async with Producer(each_kafka.bootstrap_servers, retry_backoff_max_ms=200) as producer:
        first = await producer.send_and_wait(topic, b"old")
        await asyncio.to_thread(delete_topic, each_kafka.bootstrap_servers, topic)
        await each_kafka.create_topic(topic)
        second = await producer.send_and_wait(topic, b"new")
    # If the request names the topic, the record may arrive before the new metadata, and a new log accepts any first
    # sequence number (KAFKA-15591).
    log = (await read_thrice(each_kafka, topic, any_first_sequence=True)).log

    assert (first.offset, second.offset) == (0, 0)
    assert [record.value for record in log[0]] == [b"new"]


def delete_topic(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic])[topic].result(30)
