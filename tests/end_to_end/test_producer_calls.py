"""The public calls besides send - flush, batches built by hand, metrics, try_send - and the order of send's steps."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import BufferFullError, Outcome
from aioproducer.errors import (
    DeliveryError,
    IllegalStateError,
    InvalidRecordError,
    InvalidTopicError,
    MetadataTimeoutError,
    RecordTooLargeError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from tests.conftest import MS, at_most, in_virtual_time
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    numbers,
    producing,
    results,
    send_numbers,
    until,
    values,
    within,
)

# ----------------------------------------------------------------------------------------------------- flush


@pytest.mark.promise("Public API", "`flush(timeout=)` cuts linger short")
async def test_flush_cuts_the_linger_short():
    async with producing(linger_ms=60_000, delivery_timeout_ms=120_000) as (cluster, producer):
        deliveries = await send_numbers(producer, range(3))

        await within(0.5, producer.flush())

        assert all(delivery.done() for delivery in deliveries)
        assert numbers(cluster) == [0, 1, 2]


async def test_flush_of_an_empty_producer_returns_at_once():
    async with producing() as (_, producer):
        await within(0.2, producer.flush())


async def test_flush_also_returns_when_records_fail():
    async with producing() as (cluster, producer):
        cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD)
        delivery = await producer.send("t", b"v")

        await within(0.5, producer.flush())

        assert isinstance(delivery.exception(), DeliveryError)


@pytest.mark.promise("Public API", "`flush(timeout=)` cuts linger short")
async def test_flush_with_a_timeout_raises_and_leaves_the_records_on_their_way():
    async with producing() as (cluster, producer):
        release = asyncio.Event()
        cluster.faults.add(ApiKey.PRODUCE, hold=release)
        delivery = await producer.send("t", b"v")

        with pytest.raises(TimeoutError):
            await producer.flush(timeout=20 * MS)

        assert not delivery.done()
        release.set()
        assert (await within(1, delivery)).offset == 0


async def test_a_cancelled_flush_has_no_effect_on_the_records():
    async with producing() as (cluster, producer):
        release = asyncio.Event()
        held = cluster.faults.add(ApiKey.PRODUCE, hold=release)
        delivery = await producer.send("t", b"v")
        flushing = asyncio.create_task(producer.flush())
        await within(1, held.reached())

        flushing.cancel()
        await asyncio.wait([flushing])

        assert flushing.cancelled()
        assert not delivery.done()
        release.set()
        assert (await within(1, delivery)).offset == 0
        await within(1, producer.flush())


@pytest.mark.promise("Public API", "`flush(timeout=)` cuts linger short")
async def test_flush_waits_only_for_earlier_records():
    async with producing(topics={"t": 1, "u": 1}, brokers=2) as (cluster, producer):
        cluster.move_leader("u", 0, 1)
        await asyncio.gather(producer.partitions_for("t"), producer.partitions_for("u"))
        release, first = asyncio.Event(), asyncio.Event()
        cluster.faults.add(ApiKey.PRODUCE, topic="t", hold=first)
        cluster.faults.add(ApiKey.PRODUCE, topic="u", hold=release)
        await producer.send("t", b"v")
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)

        late = await producer.send("u", b"v")
        first.set()

        await within(1, flushing)
        assert not late.done()
        release.set()
        await within(1, late)


async def test_two_flushes_at_once_both_return():
    async with producing(linger_ms=60_000, delivery_timeout_ms=120_000) as (cluster, producer):
        await send_numbers(producer, range(3))

        await within(0.5, asyncio.gather(producer.flush(), producer.flush()))

        assert numbers(cluster) == [0, 1, 2]


# ------------------------------------------------------------------------------------- batches built by hand


@pytest.mark.promise(
    "Public API", "`create_batch` and `send_batch`: a batch built by hand stays one batch in the log"
)
async def test_a_batch_built_by_hand_is_one_batch_in_the_log():
    async with producing(topics={"t": 2}) as (cluster, producer):
        builder = producer.create_batch()
        for number in range(3):
            metadata = builder.append(
                key=b"k", value=b"%d" % number, timestamp=1000 + number, headers=[("h", b"x")]
            )
            assert metadata is not None
            assert metadata.offset == number
        assert builder.record_count() == 3

        delivery = await producer.send_batch(builder, "t", partition=1)
        metadata = await within(1, delivery)

        assert (metadata.topic, metadata.partition, metadata.offset) == ("t", 1, 0)
        (batch,) = cluster.batches("t", 1)
        assert [
            (record.key, record.value, record.timestamp, record.headers) for record in batch.records()
        ] == [(b"k", b"%d" % number, 1000 + number, (("h", b"x"),)) for number in range(3)]


@pytest.mark.promise(
    "Public API", "`create_batch` and `send_batch`: a batch built by hand stays one batch in the log"
)
async def test_a_batch_built_by_hand_keeps_its_place_among_other_records():
    async with producing(linger_ms=60_000, delivery_timeout_ms=120_000) as (cluster, producer):
        await send_numbers(producer, [0, 1])
        builder = producer.create_batch()
        builder.append(key=None, value=b"2")
        await producer.send_batch(builder, "t", partition=0)
        await send_numbers(producer, [3])

        await within(1, producer.flush())

        assert numbers(cluster) == [0, 1, 2, 3]
        assert len(cluster.batches("t", 0)) == 3


async def test_a_builder_is_full_at_batch_size_but_takes_one_record_that_is_larger():
    async with producing(batch_size=300) as (cluster, producer):
        builder = producer.create_batch()
        while builder.append(key=None, value=bytes(50)) is not None:
            pass
        assert 1 < builder.record_count() < 6
        assert builder.size() <= 300

        large = producer.create_batch()
        assert large.append(key=None, value=bytes(1000)) is not None
        assert large.append(key=None, value=b"") is None

        sizes = [builder.size(), large.size()]
        await within(1, await producer.send_batch(builder, "t", partition=0))
        await within(1, await producer.send_batch(large, "t", partition=0))
        assert [len(batch.data) for batch in cluster.batches("t", 0)] == sizes


@pytest.mark.promise(
    "Public API", "`create_batch` and `send_batch`: a batch built by hand stays one batch in the log"
)
async def test_a_batch_can_be_sent_only_once_and_not_empty():
    async with producing() as (cluster, producer):
        builder = producer.create_batch()
        with pytest.raises(IllegalStateError):
            await producer.send_batch(builder, "t", partition=0)

        builder = producer.create_batch()
        builder.append(key=None, value=b"v")
        await within(1, await producer.send_batch(builder, "t", partition=0))
        with pytest.raises(IllegalStateError):
            await producer.send_batch(builder, "t", partition=0)
        assert builder.append(key=None, value=b"late") is None

        assert values(cluster) == [b"v"]


async def test_a_batch_that_waits_for_room_can_not_be_sent_twice():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        for _ in range(4):
            await producer.send("t", bytes(LARGE))
        builder = producer.create_batch()
        builder.append(key=None, value=bytes(LARGE - 1))
        sends = [asyncio.create_task(producer.send_batch(builder, "t", partition=0)) for _ in range(2)]
        await until(lambda: producer.metrics().buffer_waiters == 2)

        cluster.thaw_broker(0)
        ends = await within(2, asyncio.gather(*sends, return_exceptions=True))
        await within(1, ends[0])

        assert isinstance(ends[1], IllegalStateError)
        assert len(values(cluster)) == 5


@in_virtual_time
async def test_a_batch_of_at_most_buffer_memory_finds_room_in_an_empty_buffer():
    async with producing(buffer_memory=3000, max_block_ms=200) as (_, producer):
        builder = producer.create_batch()
        builder.append(key=None, value=bytes(1000))
        builder.append(key=None, value=bytes(1500))

        delivery = await producer.send_batch(builder, "t", partition=0)

        assert (await within(1, delivery)).offset == 0


async def test_a_batch_larger_than_the_limits_is_rejected():
    async with producing(max_request_size=2000) as (cluster, producer):
        builder = producer.create_batch()
        builder.append(key=None, value=bytes(3000))

        with pytest.raises(RecordTooLargeError) as caught:
            await producer.send_batch(builder, "t", partition=0)

        assert caught.value.limit == 2000
        assert values(cluster) == []


async def test_a_builder_rejects_the_same_arguments_as_send():
    async with producing() as (_, producer):
        builder = producer.create_batch()
        for wrong in (
            {"key": "k", "value": b"v"},
            {"key": None, "value": 5},
            {"key": None, "value": b"v", "timestamp": -1},
            {"key": None, "value": b"v", "headers": [("h", "text")]},
        ):
            with pytest.raises(InvalidRecordError):
                builder.append(**wrong)
        assert builder.record_count() == 0


@pytest.mark.parametrize("partition", [-1, "0", None, 1.0, True])
async def test_send_batch_needs_a_partition(partition):
    async with producing() as (cluster, producer):
        builder = producer.create_batch()
        builder.append(key=None, value=b"v")

        with pytest.raises(InvalidRecordError):
            await producer.send_batch(builder, "t", partition=partition)

        assert values(cluster) == []


# ------------------------------------------------------------------------------------ metadata and metrics


@pytest.mark.promise("Public API", "`partitions_for` names all partitions")
async def test_partitions_for_names_all_partitions():
    async with producing(topics={"t": 3}) as (_, producer):
        assert await producer.partitions_for("t") == {0, 1, 2}
        assert await producer.partitions_for("made.at.once") == {0}
        with pytest.raises(InvalidTopicError):
            await producer.partitions_for("no/topic")


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "leader, leader epoch, replicas and ISR are kept, and given by `partition_info`",
)
async def test_partition_info_gives_leader_epoch_replicas_and_isr():
    async with producing(brokers=3, topics={"t": 2}) as (cluster, producer):
        cluster.move_leader("t", 0, 2)
        cluster.set_isr("t", 0, [2, 0])

        first, second = await producer.partition_info("t")

        assert (first.topic, first.partition, first.leader, first.leader_epoch) == ("t", 0, 2, 1)
        assert first.replicas == cluster.partition("t", 0).replicas
        assert set(first.isr) == {0, 2}
        assert (second.partition, second.leader, second.leader_epoch) == (1, cluster.leader("t", 1), 0)


@pytest.mark.promise("Public API", "`metrics()` returns frozen snapshots")
@pytest.mark.promise(
    "Rules of Kafka's producer", "`metrics()` counts nodes, buffer, batches, retries and errors"
)
async def test_metrics_count_nodes_buffer_batches_retries_and_errors():
    async with producing(topics={"t": 2}) as (cluster, producer):
        cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS)
        for number in range(4):
            await producer.send_and_wait("t", b"%d" % number, partition=number % 2)
        release = asyncio.Event()
        held = cluster.faults.add(ApiKey.PRODUCE, hold=release)
        await producer.send("t", b"held", partition=0)
        await within(1, held.reached())

        metrics = producer.metrics()

        assert (metrics.records_acked, metrics.records_failed, metrics.records_unknown) == (4, 0, 0)
        assert metrics.records_buffered == 1
        assert (metrics.retries, metrics.errors) == (1, {"NOT_ENOUGH_REPLICAS": 1})
        assert metrics.produce_requests == 6
        assert metrics.batches == 5
        assert metrics.batch_size.count == 5
        assert metrics.records_per_request.count == 6
        assert metrics.time_to_ack.count == 4
        assert metrics.buffer_total == 64 * 1024 * 1024
        assert 0 < metrics.buffer_total - metrics.buffer_available < 10_000
        assert metrics.buffer_waiters == 0
        assert metrics.in_flight == 1
        assert metrics.metadata_updates >= 2
        (node,) = [node for node in metrics.nodes if node.node_id == 0]
        assert (node.in_flight, node.connects, node.disconnects) == (1, 1, 0)
        assert node.requests >= 6
        assert node.bytes_sent > 300
        assert node.bytes_received > 200
        assert node.latency.count >= 5
        assert 0 <= node.latency.p50 < 1  # uvloop's clock has a resolution of 1 ms
        assert node.throttle_time == 0
        release.set()


# -------------------------------------------------------------------------------------------------- try_send


async def test_try_send_appends_to_a_known_topic():
    async with producing(topics={"t": 2}) as (cluster, producer):
        await producer.partitions_for("t")

        deliveries = [
            producer.try_send("t", b"a", partition=1),
            producer.try_send("t", b"b", b"key", 1, 1234, [("h", None)]),
        ]

        assert [metadata.offset for metadata in await results(deliveries)] == [0, 1]
        record = cluster.records("t", 1)[1]
        assert (record.value, record.key, record.timestamp, record.headers) == (
            b"b",
            b"key",
            1234,
            (("h", None),),
        )


@pytest.mark.promise("Public API", "`try_send` fails at once instead of waiting")
async def test_try_send_rejects_an_unknown_topic_and_requests_its_metadata():
    async with producing() as (cluster, producer):
        with pytest.raises(BufferFullError) as caught:
            producer.try_send("t", b"v")
        assert caught.value.outcome is Outcome.NOT_PERSISTED
        assert caught.value.retriable

        async with at_most(1000 * MS):
            while True:
                try:
                    delivery = producer.try_send("t", b"v")
                    break
                except BufferFullError:
                    await asyncio.sleep(MS)

        assert (await within(1, delivery)).offset == 0
        assert values(cluster) == [b"v"]


@pytest.mark.promise("Public API", "`try_send` fails at once instead of waiting")
async def test_try_send_fails_at_once_if_the_buffer_is_full():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        deliveries = [producer.try_send("t", bytes(LARGE)) for _ in range(4)]

        with pytest.raises(BufferFullError) as caught:
            producer.try_send("t", bytes(LARGE))

        assert caught.value.outcome is Outcome.NOT_PERSISTED
        cluster.thaw_broker(0)
        await results(deliveries)
        assert len(values(cluster)) == 4
        await within(1, producer.try_send("t", bytes(LARGE)))


@pytest.mark.promise("Public API", "`try_send` fails at once instead of waiting")
async def test_try_send_does_not_overtake_waiting_callers():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        for _ in range(4):
            await producer.send("t", bytes(LARGE))
        waiting = asyncio.create_task(producer.send("t", bytes(LARGE)))
        await until(lambda: producer.metrics().buffer_waiters == 1)

        with pytest.raises(BufferFullError):
            producer.try_send("t", b"small enough to fit")

        cluster.thaw_broker(0)
        await within(1, await within(1, waiting))


# ------------------------------------------------------------------------------------ the order of the steps


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "order of work: metadata, serializers, partitioner, size check, append; nothing is serialized for an "
    "unknown topic",
)
@in_virtual_time
async def test_metadata_serializers_partitioner_size_check_and_append_come_in_this_order():
    seen = []

    def serialize_value(value: bytes) -> bytes:
        seen.append("value")
        return value * 3000

    def serialize_key(key: bytes) -> bytes:
        seen.append("key")
        return key

    def partition(key: bytes, every: list[int], available: list[int]) -> int:
        seen.append(f"partition for {key!r} of {every}")
        return 1

    async with producing(
        topics={"t": 2},
        cluster={"auto_create": False},
        value_serializer=serialize_value,
        key_serializer=serialize_key,
        partitioner=partition,
        max_request_size=4000,
        max_block_ms=300_000 * MS,
    ) as (_, producer):
        with pytest.raises(MetadataTimeoutError):
            await producer.send("unknown", b"v", b"k")
        assert seen == [], "nothing is serialized for an unknown topic"

        with pytest.raises(RecordTooLargeError):
            await producer.send("t", b"vv", b"k")
        assert seen == ["value", "key", "partition for b'k' of [0, 1]"]
        assert producer.metrics().records_buffered == 0

        assert (await producer.send_and_wait("t", b"v", b"k")).partition == 1
