"""Other transactional clients cannot distinguish the embedded cluster from Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import aiokafka
import aiokafka.errors
import confluent_kafka
import pytest

from aioproducer.testing import EmbeddedCluster

T = TypeVar("T")

WAIT = 30.0  # seconds; longer than any step takes on a slow machine

releases = pytest.mark.parametrize(("versions", "tv"), [("2.1", 0), ("3.9", 0), ("4.3", 2)])

# Three transactions of ten records each in three partitions; the second is aborted.
ENDS = (True, False, True)
COMMITTED = sorted(b"%d-%d" % (number, record) for number in (0, 2) for record in range(10))


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread, because librdkafka's calls block and the brokers need the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


def librdkafka_transacts(servers: str) -> list[int]:
    """Produce and commit offsets in transactions; return the group's offset after each transaction."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "txn"})
    producer.init_transactions(WAIT)
    consumer = librdkafka_consumer(servers, "read_committed")
    found = []
    try:
        for number, commit in enumerate(ENDS):
            producer.begin_transaction()
            for record in range(10):
                producer.produce("t", b"%d-%d" % (number, record), partition=record % 3)
            assert producer.flush(WAIT) == 0
            offset = confluent_kafka.TopicPartition("in", 0, number + 1)
            producer.send_offsets_to_transaction([offset], consumer.consumer_group_metadata(), WAIT)
            if commit:
                producer.commit_transaction(WAIT)
            else:
                producer.abort_transaction(WAIT)
            (committed,) = consumer.committed([confluent_kafka.TopicPartition("in", 0)], WAIT)
            found.append(committed.offset)
    finally:
        consumer.close()
    return found


def librdkafka_consumer(servers: str, isolation_level: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "group",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
        }
    )


def librdkafka_reads(servers: str, isolation_level: str) -> list[bytes]:
    """Read the three partitions to their ends; return the values, sorted."""
    consumer = librdkafka_consumer(servers, isolation_level)
    beginning = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition("t", index, beginning) for index in range(3)])
    values: list[bytes] = []
    ends = 0
    give_up = time.monotonic() + WAIT
    try:
        while ends < 3 and time.monotonic() < give_up:
            for message in consumer.consume(100, 0.2):
                if message.error() is None:
                    values.append(message.value())
                else:
                    assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                    ends += 1
    finally:
        consumer.close()
    assert ends == 3
    return sorted(values)


async def aiokafka_reads(servers: str, isolation_level: str) -> list[bytes]:
    """Read the three partitions to their ends; return the values, sorted."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers,
        group_id=None,
        auto_offset_reset="earliest",
        isolation_level=isolation_level,
    )
    await consumer.start()
    try:
        partitions = [aiokafka.TopicPartition("t", index) for index in range(3)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        values: list[bytes] = []
        async with asyncio.timeout(WAIT):
            while any([await consumer.position(one) < ends[one] for one in partitions]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    values += [record.value for record in records]
        return sorted(values)
    finally:
        await consumer.stop()


async def check_what_is_read(cluster: EmbeddedCluster) -> None:
    """Assert that the consumers of both clients and the cluster itself agree."""
    servers = cluster.bootstrap_servers
    assert sorted(record.value for record in cluster.records("t", committed=True)) == COMMITTED
    assert await in_thread(lambda: librdkafka_reads(servers, "read_committed")) == COMMITTED
    assert await aiokafka_reads(servers, "read_committed") == COMMITTED
    everything = sorted(record.value for record in cluster.records("t"))
    assert len(everything) == 30
    assert await in_thread(lambda: librdkafka_reads(servers, "read_uncommitted")) == everything
    assert await aiokafka_reads(servers, "read_uncommitted") == everything


@pytest.mark.promise(
    "Test clusters", "consumers of the embedded cluster see only committed transactions with read_committed"
)
@releases
async def test_librdkafka_commits_and_aborts(versions, tv):
    topics = {"t": 3, "in": 1}
    async with EmbeddedCluster(3, topics=topics, versions=versions, transaction_version=tv) as cluster:
        assert await in_thread(lambda: librdkafka_transacts(cluster.bootstrap_servers)) == [1, 1, 3]
        await check_what_is_read(cluster)


@pytest.mark.promise(
    "Test clusters", "consumers of the embedded cluster see only committed transactions with read_committed"
)
@releases
async def test_aiokafka_commits_and_aborts(versions, tv):
    topics = {"t": 3, "in": 1}
    async with EmbeddedCluster(3, topics=topics, versions=versions, transaction_version=tv) as cluster:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id="txn"
        )
        await producer.start()
        try:
            async with asyncio.timeout(WAIT):
                for number, commit in enumerate(ENDS):
                    await producer.begin_transaction()
                    for record in range(10):
                        await producer.send("t", b"%d-%d" % (number, record), partition=record % 3)
                    await producer.flush()
                    offsets = {aiokafka.TopicPartition("in", 0): number + 1}
                    await producer.send_offsets_to_transaction(offsets, "group")
                    await (producer.commit_transaction if commit else producer.abort_transaction)()
        finally:
            await producer.stop()
        assert cluster.groups.offsets("group") == {("in", 0): 3}
        await check_what_is_read(cluster)


async def test_a_second_producer_fences_the_first():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        servers = cluster.bootstrap_servers
        first, second = (
            aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="txn") for _ in range(2)
        )
        await first.start()
        try:
            await first.begin_transaction()
            await asyncio.wait_for(first.send_and_wait("t", b"zombie"), WAIT)
            await second.start()
            try:
                async with second.transaction():
                    await asyncio.wait_for(second.send_and_wait("t", b"successor"), WAIT)
                with pytest.raises(aiokafka.errors.ProducerFenced):
                    await asyncio.wait_for(first.send_and_wait("t", b"zombie"), WAIT)
            finally:
                await second.stop()
        finally:
            await first.stop()
        assert [record.value for record in cluster.records("t", committed=True)] == [b"successor"]


async def test_librdkafka_survives_a_coordinator_that_moves():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "txn"}
        )

        def transact(value: bytes) -> None:
            producer.begin_transaction()
            producer.produce("t", value)
            assert producer.flush(WAIT) == 0

        await in_thread(lambda: producer.init_transactions(WAIT))
        for number in range(3):
            await in_thread(lambda number=number: transact(b"%d" % number))
            cluster.transactions.move("txn", (cluster.transactions.node("txn") + 1) % 3)
            await in_thread(lambda: producer.commit_transaction(WAIT))
        assert [record.value for record in cluster.records("t", committed=True)] == [b"0", b"1", b"2"]
