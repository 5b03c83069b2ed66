"""The choice of a record's partition, from `send` to the log."""

from __future__ import annotations

import asyncio
import enum
import zlib
from collections import Counter
from random import Random

import pytest

from aioproducer import ConfigError, Outcome
from aioproducer.config import ProducerConfig
from aioproducer.errors import DeliveryTimeoutError, InvalidRecordError
from aioproducer.partitioner import murmur2, murmur2_partition
from aioproducer.protocol.api import ApiKey
from aioproducer.records._record_path import murmur2 as compiled_murmur2
from aioproducer.records.arguments import describe
from aioproducer.records.partition_choice import COMPILED_PATH_CHOOSES, PartitionChoice
from tests.conftest import MS, in_virtual_time
from tests.support.accumulator_bench import topic_info
from tests.support.producing import (
    numbers,
    producing,
    quick_producer,
    results,
    until_chosen_from,
    values,
    within,
)

# org.apache.kafka.common.utils.UtilsTest.testMurmur2, and franz-go's and kafka-python's tests.
PUBLISHED = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.promise("Records", "keys are hashed by Java's murmur2")
@pytest.mark.parametrize("key", PUBLISHED)
async def test_a_key_is_sent_to_the_partition_of_javas_client(key):
    assert compiled_murmur2(key) == murmur2(key) == PUBLISHED[key]
    for count in (1, 7, 12):
        async with producing(topics={"t": count}) as (_, producer):
            metadata = await within(1, producer.send_and_wait("t", b"v", key))

            assert metadata.partition == (PUBLISHED[key] & 0x7FFFFFFF) % count


async def test_keys_of_any_length_and_type_are_sent_to_the_partition_of_the_reference():
    async with producing(topics={"t": 12}) as (_, producer):
        keys = [bytes((7 * place + length) % 256 for place in range(length)) for length in range(40)]
        deliveries = [await producer.send("t", b"v", key) for key in keys]
        deliveries += [await producer.send("t", b"v", bytearray(key)) for key in keys]
        deliveries += [await producer.send("t", b"v", memoryview(key)) for key in keys]

        found = [metadata.partition for metadata in await results(deliveries)]

        assert found == [murmur2_partition(key, 12) for key in keys] * 3


async def test_an_empty_key_is_a_key():
    async with producing(topics={"t": 12}) as (cluster, producer):
        found = await results([await producer.send("t", b"v", b"") for _ in range(10)])

        assert {metadata.partition for metadata in found} == {murmur2_partition(b"", 12)}
        assert {record.key for record in cluster.records("t")} == {b""}


async def test_the_name_default_is_murmur2():
    async with producing(topics={"t": 12}, partitioner="default") as (_, producer):
        metadata = await producer.send_and_wait("t", b"v", b"foobar")

        assert metadata.partition == murmur2_partition(b"foobar", 12)


@pytest.mark.promise("Records", "an explicit partition wins over the key")
async def test_an_explicit_partition_overrides_the_key():
    async with producing(topics={"t": 3}) as (_, producer):
        for partition in (0, 1, 2):
            metadata = await producer.send_and_wait("t", b"v", b"the same key", partition)
            assert metadata.partition == partition


class Region(enum.IntEnum):
    EUROPE = 0
    ASIA = 2


class Number:
    """An integer type of another library, such as numpy's."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


@pytest.mark.parametrize("partition", [Region.ASIA, Number(2)], ids=["IntEnum", "__index__"])
async def test_an_integer_of_any_type_is_accepted_as_a_partition(partition):
    async with producing(topics={"t": 3}) as (_, producer):
        batch = producer.create_batch()
        batch.append(key=None, value=b"v")
        deliveries = [
            await producer.send("t", b"v", partition=partition),
            producer.try_send("t", b"v", partition=partition),
            await producer.send_batch(batch, "t", partition=partition),
        ]
        receipts = [
            await producer.send_many("t", [b"v"], partitions=partition),
            await producer.send_many("t", [b"v"], partitions=[partition]),
        ]

        assert [metadata.partition for metadata in await results(deliveries)] == [2, 2, 2]
        assert [receipt.partition(0) for receipt in receipts] == [2, 2]
        assert [await receipt.delivery(0) for receipt in receipts]


@pytest.mark.parametrize("partition", [Region.ASIA, Number(2)], ids=["IntEnum", "__index__"])
async def test_a_partitioner_may_return_an_integer_of_any_type(partition):
    async with producing(topics={"t": 3}, partitioner=lambda *_: partition) as (_, producer):
        assert (await producer.send_and_wait("t", b"v")).partition == 2


async def test_a_truth_value_is_not_a_partition():
    async with producing(topics={"t": 3}) as (_, producer):
        with pytest.raises(InvalidRecordError, match="partition must be a whole number"):
            await producer.send("t", b"v", partition=True)
        with pytest.raises(InvalidRecordError):
            await producer.send_many("t", [b"v"], partitions=True)


async def test_a_serialized_key_is_hashed():
    settings = {"key_serializer": lambda key: str(key).encode()}
    async with producing(topics={"t": 12}, **settings) as (_, producer):
        metadata = await producer.send_and_wait("t", b"v", 21)

        assert metadata.partition == (PUBLISHED[b"21"] & 0x7FFFFFFF) % 12


# ----------------------------------------------------------------------------------- records without a key


async def test_records_without_a_key_spread_over_all_partitions():
    async with producing(topics={"t": 6}, batch_size=200) as (_, producer):
        await producer.partitions_for("t")
        deliveries = [await producer.send("t", b"v" * 50) for _ in range(600)]
        await results(deliveries)

        counts = Counter(delivery.result().partition for delivery in deliveries)
        assert set(counts) == set(range(6))
        assert max(counts.values()) < 300


@pytest.mark.promise(
    "Records", "records without a key go to uniformly sticky partitions, adaptive to slow brokers"
)
async def test_records_without_a_key_share_a_batch():
    """Sticky records fill one partition's batch before the next partition is chosen (KIP-794)."""
    async with producing(topics={"t": 12}, batch_size=4000, linger_ms=20) as (cluster, producer):
        await producer.partitions_for("t")
        deliveries = [await producer.send("t", b"v" * 50) for _ in range(40)]
        await results(deliveries)

        assert len({delivery.result().partition for delivery in deliveries}) == 1
        assert sum(len(cluster.batches("t", partition)) for partition in range(12)) == 1


@pytest.mark.promise(
    "Records", "records without a key go to uniformly sticky partitions, adaptive to slow brokers"
)
async def test_lingering_records_without_a_key_reach_all_partitions():
    """The batches never get full, but another partition is still chosen after 16 KiB."""
    async with producing(topics={"t": 12}, linger_ms=1) as (cluster, producer):
        used = set()
        for _ in range(50):
            deliveries = [await producer.send("t", b"v" * 100) for _ in range(100)]
            used |= {metadata.partition for metadata in await results(deliveries)}

        assert len(used) >= 11
        assert sum(len(cluster.batches("t", partition)) for partition in range(12)) < 60


@pytest.mark.promise(
    "Records", "records without a key go to uniformly sticky partitions, adaptive to slow brokers"
)
async def test_records_without_a_key_do_not_stay_with_a_slow_partition():
    async with producing(brokers=2, topics={"t": 2}, batch_size=300) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        cluster.faults.add(ApiKey.PRODUCE, partition=0, hold=release)
        for _ in range(2):
            await producer.send("t", bytes(200), partition=0)
        for _ in range(30):
            await producer.send("t", bytes(200), partition=0)

        for _ in range(200):
            delivery = await producer.send("t", bytes(200))
            if delivery.topic_partition.partition == 1:
                await within(
                    2, delivery
                )  # else the queue of the fast partition would soon be longer than 32 batches

        release.set()
        await within(2, producer.flush())
        fast, slow = len(values(cluster, "t", 1)), len(values(cluster, "t", 0)) - 32
        assert fast + slow == 200
        assert fast > 2 * slow


@pytest.mark.promise(
    "Records", "records without a key go to uniformly sticky partitions, adaptive to slow brokers"
)
@pytest.mark.promise(
    "KIPs", "KIP-794: uniform and adaptive sticky partitions, avoiding brokers that accept nothing"
)
@in_virtual_time
async def test_a_broker_that_is_back_gets_records_without_a_key_again():
    """The broker's old records have expired, so only new ones can show that it is back."""
    settings = {"partitioner_availability_timeout_ms": 20, "batch_size": 1000}
    settings |= {"request_timeout_ms": 100_000 * MS, "delivery_timeout_ms": 300_000 * MS}
    async with producing(brokers=2, topics={"t": 2}, **settings) as (cluster, producer):
        frozen = cluster.leader("t", 0)
        await producer.send_and_wait("t", b"v", partition=0)
        cluster.freeze_broker(frozen)
        lost = [await producer.send("t", bytes(500), partition=0) for _ in range(20)]
        await asyncio.wait(lost)
        assert producer._accumulator.availability.is_available(frozen)
        cluster.thaw_broker(frozen)

        found = await results([await producer.send("t", bytes(500)) for _ in range(100)])

        assert {metadata.partition for metadata in found} == {0, 1}
        assert {type(delivery.exception()) for delivery in lost} == {DeliveryTimeoutError}


async def test_records_without_a_key_are_uniform_if_adaptive_partitioning_is_off():
    settings = {"partitioner_adaptive_partitioning_enable": False, "batch_size": 300}
    async with producing(topics={"t": 2}, **settings) as (cluster, producer):
        await producer.partitions_for("t")
        for _ in range(400):
            await producer.send("t", bytes(200))
        await within(2, producer.flush())

        assert 120 < len(values(cluster, "t", 0)) < 280


async def leaderless(cluster, producer, partition: int) -> None:
    """Remove the leader of a partition of a topic with one replica, and let the producer learn of it."""
    await producer.partitions_for("t")
    await cluster.stop_broker(cluster.leader("t", partition))
    producer._metadata.request_update()
    metadata = producer._metadata
    await until_chosen_from(producer, lambda: metadata.cluster.partition("t", partition).leader == -1)


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a key is hashed over all partitions; a record without a key goes to a partition with a leader, or to "
    "any if none has one; each topic has one round-robin counter",
)
async def test_a_key_is_hashed_over_all_partitions_including_those_without_a_leader():
    async with producing(brokers=3, topics={}) as (cluster, producer):
        cluster.create_topic("t", 3, replication_factor=1)
        await leaderless(cluster, producer, 1)
        keys = [b"key %d" % number for number in range(30)]

        deliveries = [await producer.send("t", b"v", key) for key in keys]

        expected = [murmur2_partition(key, 3) for key in keys]
        assert [delivery.topic_partition.partition for delivery in deliveries] == expected
        await cluster.start_broker(1)
        assert [metadata.partition for metadata in await results(deliveries)] == expected


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a key is hashed over all partitions; a record without a key goes to a partition with a leader, or to "
    "any if none has one; each topic has one round-robin counter",
)
@pytest.mark.parametrize("partitioner", ["murmur2", "consistent_random", "round_robin", "random"])
async def test_records_without_a_key_go_only_to_partitions_with_a_leader(partitioner):
    settings = {"partitioner": partitioner, "batch_size": 100}
    async with producing(brokers=3, topics={}, **settings) as (cluster, producer):
        cluster.create_topic("t", 3, replication_factor=1)
        await leaderless(cluster, producer, 1)

        found = await results([await producer.send("t", bytes(50)) for _ in range(100)])

        assert {metadata.partition for metadata in found} == {0, 2}


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a key is hashed over all partitions; a record without a key goes to a partition with a leader, or to "
    "any if none has one; each topic has one round-robin counter",
)
@pytest.mark.parametrize("partitioner", ["murmur2", "consistent_random", "round_robin", "random"])
async def test_records_without_a_key_go_to_any_partition_if_none_has_a_leader(partitioner):
    settings = {"partitioner": partitioner, "batch_size": 100}
    async with producing(brokers=2, topics={}, **settings) as (cluster, producer):
        cluster.create_topic("u", 1, replication_factor=1)
        cluster.create_topic("t", 1, replication_factor=1)
        cluster.add_partitions("t", 2)
        for partition in (0, 1):
            cluster.partition("t", partition).move_leader(-1)

        deliveries = [await within(1, producer.send("t", bytes(50))) for _ in range(40)]

        assert {delivery.topic_partition.partition for delivery in deliveries} == {0, 1}
        for partition in (0, 1):
            cluster.partition("t", partition).move_leader(cluster.partition("t", partition).replicas[0])
        assert len(await results(deliveries)) == 40


async def test_a_sticky_partition_that_loses_its_leader_is_left():
    async with producing(brokers=3, topics={}, batch_size=60_000, linger_ms=1) as (cluster, producer):
        cluster.create_topic("t", 3, replication_factor=1)
        sticky = (await producer.send_and_wait("t", b"0")).partition
        await leaderless(cluster, producer, sticky)

        metadata = await within(1, producer.send_and_wait("t", b"1"))

        assert metadata.partition != sticky


# ---------------------------------------------------------------------------------------- other partitioners


@pytest.mark.promise("Records", "the round-robin partitioner takes the partitions in turn")
async def test_round_robin_uses_the_partitions_in_turn_with_any_key():
    async with producing(topics={"t": 3}, partitioner="round_robin") as (_, producer):
        keys = [None, b"a", b"a", b"b", None, None, b"a"]
        deliveries = [await producer.send("t", b"v", key) for key in keys]

        found = [metadata.partition for metadata in await results(deliveries)]

        assert found == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a key is hashed over all partitions; a record without a key goes to a partition with a leader, or to "
    "any if none has one; each topic has one round-robin counter",
)
async def test_round_robin_has_one_counter_for_each_topic():
    async with producing(topics={"t": 2, "u": 2}, partitioner="round_robin") as (_, producer):
        first = [await producer.send(topic, b"v") for topic in ("t", "u", "t", "u")]

        assert [metadata.partition for metadata in await results(first)] == [0, 0, 1, 1]


@pytest.mark.promise("Records", "librdkafka's `consistent_random` puts keys where librdkafka does")
async def test_consistent_random_sends_keys_to_librdkafkas_partitions():
    async with producing(topics={"t": 7}, partitioner="consistent_random") as (_, producer):
        keys = [b"key %d" % number for number in range(30)]

        found = await results([await producer.send("t", b"v", key) for key in keys])

        assert [metadata.partition for metadata in found] == [zlib.crc32(key) % 7 for key in keys]


@pytest.mark.promise("Records", "librdkafka's `consistent_random` puts keys where librdkafka does")
async def test_consistent_random_treats_an_empty_key_as_none():
    async with producing(topics={"t": 4}, partitioner="consistent_random") as (_, producer):
        for key in (None, b""):
            found = await results([await producer.send("t", b"v", key) for _ in range(60)])
            assert {metadata.partition for metadata in found} == {0, 1, 2, 3}


async def test_random_uses_any_partition_with_any_key():
    async with producing(topics={"t": 4}, partitioner="random") as (_, producer):
        found = await results([await producer.send("t", b"v", b"one key") for _ in range(60)])

        assert {metadata.partition for metadata in found} == {0, 1, 2, 3}


@pytest.mark.promise("Public API", "calls have aiokafka's names, order and defaults")
@pytest.mark.promise("Records", "any callable can be the partitioner")
async def test_a_callable_has_aiokafkas_signature():
    seen = []

    def partitioner(key, all_partitions, available):
        seen.append((key, all_partitions, available))
        return all_partitions[-1]

    async with producing(brokers=3, topics={}, partitioner=partitioner) as (cluster, producer):
        cluster.create_topic("t", 3, replication_factor=1)
        await leaderless(cluster, producer, 1)

        keyed = await producer.send_and_wait("t", b"v", b"k")
        await within(1, producer.try_send("t", b"v"))
        explicit = await producer.send_and_wait("t", b"v", b"k", 0)

        assert keyed.partition == 2
        assert explicit.partition == 0
        assert seen == [(b"k", [0, 1, 2], [0, 2]), (None, [0, 1, 2], [0, 2])]


@pytest.mark.promise("Records", "any callable can be the partitioner")
@pytest.mark.parametrize("nonsense", [None, -1, 2, "0", 0.0, True, [0]])
async def test_an_invalid_result_of_a_callable_is_an_error_and_nothing_is_buffered(nonsense):
    answers = [nonsense, nonsense, 1]
    async with producing(topics={"t": 2}, partitioner=lambda *_: answers.pop(0)) as (cluster, producer):
        await producer.partitions_for("t")
        with pytest.raises(InvalidRecordError) as caught:
            await producer.send("t", b"v")
        with pytest.raises(InvalidRecordError):
            producer.try_send("t", b"v")

        assert describe(nonsense) in str(caught.value)
        assert caught.value.outcome is Outcome.NOT_PERSISTED
        assert producer.metrics().records_buffered == 0
        assert (await producer.send_and_wait("t", b"0")).partition == 1
        assert numbers(cluster) == [0]


@pytest.mark.promise("Records", "any callable can be the partitioner")
async def test_a_callable_that_raises_is_the_cause_of_the_error_and_nothing_is_buffered():
    def partitioner(key, all_partitions, available):
        raise ZeroDivisionError

    async with producing(topics={"t": 2}, partitioner=partitioner) as (_, producer):
        with pytest.raises(InvalidRecordError, match="raised ZeroDivisionError for topic t") as caught:
            await producer.send("t", b"v")
        with pytest.raises(InvalidRecordError):
            producer.try_send("t", b"v")

        assert caught.value.argument == "partitioner"
        assert type(caught.value.__cause__) is ZeroDivisionError
        assert producer.metrics().records_buffered == 0
        assert (await producer.send_and_wait("t", b"v", partition=1)).partition == 1


def test_only_partitioners_that_are_not_compiled_are_called():
    info = topic_info([0, -1, 0])

    def chosen(partitioner: object) -> int:
        return PartitionChoice(ProducerConfig.of(partitioner=partitioner), Random(1)).partition_for(
            info, b"k"
        )

    assert chosen("default") == chosen("murmur2") == COMPILED_PATH_CHOOSES
    assert chosen("consistent_random") == zlib.crc32(b"k") % 3
    assert chosen(lambda key, every, available: available[-1]) == 2


@pytest.mark.parametrize("setting", ["murmur3", 7, ""])
def test_an_unknown_partitioner_is_rejected_immediately(setting):
    with pytest.raises(ConfigError) as caught:
        quick_producer("localhost:1", partitioner=setting)

    assert caught.value.setting == "partitioner"
