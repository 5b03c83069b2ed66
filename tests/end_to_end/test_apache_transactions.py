"""Transactions on real Kafka clusters, v1 on 3.9.2, v1 and v2 on 4.3.1, read back by confluent-kafka's
read_committed."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import uuid4

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition

from aioproducer import (
    DeliveryError,
    Producer,
    ProducerFencedError,
    TopicPartition,
    TransactionAbortableError,
)
from aioproducer.errors import RequestTimedOutError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ApiVersionsRequest, TxnOffsetCommitRequest
from aioproducer.testing import ApacheKafka
from tests.support.apache_clusters import SHARED, running
from tests.support.producing import within
from tests.support.raw_client import RawClient
from tests.support.read_back import read_back

pytestmark = [pytest.mark.apache, pytest.mark.slow]

SECONDS = 30


CLUSTERS = {"3.9-v1": "apache_kafka_39", "4.3-v1": "apache_kafka_at_v1", "4.3-v2": "apache_kafka"}


@pytest.fixture(scope="module")
def apache_kafka_at_v1(request):
    """A Kafka 4.3.1 that has finalized transactions v1, although it supports v2."""
    level = ("--feature", "transaction.version=1")
    with running(ApacheKafka(jvm_args=SHARED, format_args=level), has_finalized_v1, request=request) as kafka:
        yield kafka


async def has_finalized_v1(kafka):
    """Check the level. With another one, the tests would pass without testing v1."""
    async with RawClient(kafka.bootstrap_servers) as client:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answer = await client.ask(request, version=4)
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert levels["transaction.version"] == 1


@pytest.fixture(params=CLUSTERS)
def kafka(request):
    return request.getfixturevalue(CLUSTERS[request.param])


@pytest.fixture
def is_v2(request):
    return request.node.callspec.params["kafka"].endswith("v2")


@pytest.fixture
def name():
    """The name of the test's own topic, group and transactional id."""
    return f"transactions-{uuid4().hex[:8]}"


def transactional(kafka, name, **settings):
    return Producer(
        kafka.bootstrap_servers, transactional_id=name, linger_ms=2, max_block_ms=20_000, **settings
    )


async def committed(kafka, topic):
    log = await read_back(kafka.bootstrap_servers, topic, committed_only=True)
    return [record.value for partition in sorted(log) for record in log[partition]]


def committed_offset(kafka, group, topic):
    consumer = ConfluentConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    try:
        return consumer.committed([ConfluentPartition(topic, 0)], timeout=SECONDS)[0].offset
    finally:
        consumer.close()


@pytest.mark.promise("Transactions", "a transaction is committed whole or not at all, v1 and v2")
async def test_committed_blocks_are_read_and_aborted_ones_are_not(kafka, name, is_v2):
    async with transactional(kafka, name) as producer:
        for number in range(6):
            try:
                async with producer.transaction() as transaction:
                    deliveries = [
                        await producer.send(name, b"%d-%d" % (number, index)) for index in range(200)
                    ]
                    await transaction.send_offsets({TopicPartition(name, 0): number + 1}, name)
                    if number % 2:
                        await deliveries[-1]
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        assert producer._transaction.is_v2 is is_v2

    expected = [b"%d-%d" % (number, index) for number in (0, 2, 4) for index in range(200)]
    assert await committed(kafka, name) == expected
    assert await asyncio.to_thread(committed_offset, kafka, name, name) == 5


@pytest.mark.promise("Transactions", "a transaction is committed whole or not at all, v1 and v2")
async def test_one_transaction_over_many_partitions(kafka, name):
    await kafka.create_topic(name, 30)
    async with transactional(kafka, name) as producer:
        for _ in range(2):
            async with producer.transaction():
                for index in range(600):
                    await producer.send(name, b"%d" % index, partition=index % 30)

    log = await read_back(kafka.bootstrap_servers, name, committed_only=True)
    for partition in range(30):
        values = [int(record.value) for record in log[partition]]
        assert values == [*range(partition, 600, 30)] * 2


@pytest.mark.promise(
    "Transactions", "a failed record makes the commit impossible, and the error says so (KIP-1050)"
)
async def test_a_rejected_record_aborts_the_whole_transaction(kafka, name):
    await kafka.create_topic(name, 2, config={"max.message.bytes": "2000"})
    async with transactional(kafka, name) as producer:
        with pytest.raises(TransactionAbortableError, match="MESSAGE_TOO_LARGE"):  # noqa: PT012  # the block is tested
            async with producer.transaction():
                await producer.send(name, b"small", partition=0)
                await producer.send(name, b"large" * 1000, partition=1)
        async with producer.transaction():
            for index in range(500):  # several batches, each split until it fits
                await producer.send(name, b"%0100d" % index, partition=1)

    values = await committed(kafka, name)
    assert [int(value) for value in values] == list(range(500))


async def test_producers_with_the_same_transactional_id_fence_each_other(kafka, name):
    async with transactional(kafka, name) as first:
        await first.begin_transaction()
        await first.send_and_wait(name, b"of the first")
        async with transactional(kafka, name) as second:
            async with second.transaction():
                await second.send(name, b"of the second")
            with pytest.raises((ProducerFencedError, TransactionAbortableError, DeliveryError)) as caught:
                await first.send_and_wait(name, b"too late")
            if caught.value.requires_abort:
                with pytest.raises(ProducerFencedError):
                    await first.abort_transaction()
            await first.init_transactions()
            async with first.transaction():
                await first.send(name, b"again the first")
            with pytest.raises((ProducerFencedError, TransactionAbortableError)):  # the block is tested
                async with second.transaction():
                    await second.send(name, b"never")

    assert await committed(kafka, name) == [b"of the second", b"again the first"]


@pytest.mark.promise(
    "Transactions",
    "producers with the same transactional id fence each other, including those of other clients (KIP-360, "
    "KIP-588)",
)
async def test_fencing_between_aioproducer_and_librdkafka(kafka, name):
    def theirs(values, *, opened=False):
        producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for value in values:
            producer.produce(name, value)
        if opened:
            producer.flush(SECONDS)
            return producer
        producer.commit_transaction(SECONDS)
        return producer

    async with transactional(kafka, name) as ours:
        await ours.begin_transaction()
        await ours.send_and_wait(name, b"ours, fenced")
        await asyncio.to_thread(theirs, [b"theirs"])
        with pytest.raises((ProducerFencedError, TransactionAbortableError)) as caught:
            await ours.commit_transaction()
        if caught.value.requires_abort:
            with pytest.raises(ProducerFencedError):
                await ours.abort_transaction()

        stale = await asyncio.to_thread(theirs, [b"theirs, fenced"], opened=True)
        await within(SECONDS, ours.init_transactions())
        async with ours.transaction():
            await ours.send(name, b"ours")
        with pytest.raises(KafkaException) as theirs_failed:
            await asyncio.to_thread(stale.commit_transaction, SECONDS)
        assert theirs_failed.value.args[0].fatal()

    assert await committed(kafka, name) == [b"theirs", b"ours"]


@pytest.mark.promise("Transactions", "offsets are committed with the group's membership (KIP-447)")
async def test_offsets_of_a_real_consumer_are_committed_with_its_membership(kafka, name):
    await kafka.create_topic(name, 1)

    def join():
        consumer = ConfluentConsumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([name])
        assert consumer.poll(SECONDS) is not None
        return consumer

    async with transactional(kafka, name) as producer:
        async with producer.transaction():
            await producer.send(name, b"1")
        consumer = await asyncio.to_thread(join)
        try:
            member = consumer.consumer_group_metadata()
            async with producer.transaction() as transaction:
                await transaction.send_offsets({TopicPartition(name, 0): 1}, member)
            stale = member.replace(b"CGMDv2:\x01", b"CGMDv2:\x63")
            assert stale != member
            with pytest.raises(TransactionAbortableError, match="ILLEGAL_GENERATION"):  # the block is tested
                async with producer.transaction() as transaction:
                    await transaction.send_offsets({TopicPartition(name, 0): 99}, stale)
        finally:
            await asyncio.to_thread(consumer.close)
    assert await asyncio.to_thread(committed_offset, kafka, name, name) == 1


async def test_a_partition_of_an_earlier_transaction_can_be_exported(kafka, name):
    """With v1 both used to have the same epoch, so the broker took the participant's record for the owner's first
    one."""
    await kafka.create_topic(name, 1, config={"message.timestamp.type": "LogAppendTime"})
    place = TopicPartition(name, 0)
    async with transactional(kafka, name) as producer:
        async with producer.transaction():
            await producer.send(name, b"owner", partition=0)
        async with producer.transaction() as transaction:
            handle = await transaction.export([place])
            async with Producer.attach(
                handle, partitions=[place], log_append_time=True, bootstrap_servers=kafka.bootstrap_servers
            ) as participant:
                await participant.send(name, b"participant", partition=0)
        async with producer.transaction():
            await producer.send(name, b"owner again", partition=0)

    assert await committed(kafka, name) == [b"owner", b"participant", b"owner again"]


@pytest.mark.parametrize("end", ["abort_transaction", "commit_transaction"])
async def test_late_offsets_of_a_transaction_are_not_committed_with_the_next(kafka, name, end, monkeypatch):
    """With v1 both transactions used to have the same epoch if only the answer to the offsets was lost, as in Java's
    producer."""
    await kafka.create_topic(name, 2)
    held = []
    async with transactional(kafka, name) as producer:
        ask = producer._brokers.request_node

        async def hold_first(node_id, message, timeout, **settings):
            if isinstance(message, TxnOffsetCommitRequest) and not held:
                settings["about_to_write"]()
                held.append(
                    partial(ask, node_id, message, timeout, version_ceiling=settings["version_ceiling"])
                )
                raise RequestTimedOutError("held on its way", written=True)
            return await ask(node_id, message, timeout, **settings)

        monkeypatch.setattr(producer._brokers, "request_node", hold_first)
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({TopicPartition(name, 0): 10}, name)
        await getattr(producer, end)()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({TopicPartition(name, 1): 20}, name)
        late = await held[0]()
        await producer.commit_transaction()
        found = await producer.committed(name, [(name, 0), (name, 1)])

    assert found[TopicPartition(name, 1)].offset == 20
    if end == "abort_transaction":
        assert found[TopicPartition(name, 0)] is None
    else:
        assert found[TopicPartition(name, 0)].offset == 10
    assert late.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
