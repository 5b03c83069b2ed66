"""Topics that are created, deleted and changed; other acks, other releases, throttling."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from aioproducer import DeliveryError, DeliveryTimeoutError, Outcome
from aioproducer.errors import (
    ConfigError,
    InvalidArgumentError,
    MetadataTimeoutError,
    UnknownPartitionError,
    UnsupportedVersionError,
)
from aioproducer.protocol.api import ApiKey, VersionRange
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    METADATA,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    assert_nothing_left,
    batch_headers,
    error_of,
    metadata_count,
    numbers,
    offsets,
    produce_count,
    producing,
    quick_producer,
    results,
    send_numbers,
    until,
    until_chosen_from,
    values,
    within,
)

# -------------------------------------------------------------------------------------------------- topics


@in_virtual_time
async def test_an_unknown_topic_fails_by_name_and_other_topics_are_not_affected():
    async with producing(cluster={"auto_create": False}, max_block_ms=100_000 * MS) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        unknown = asyncio.create_task(producer.send("not.there", b"v"))
        for number in range(1, 6):
            await within(0.2, producer.send_and_wait("t", b"%d" % number))

        error = await error_of(unknown, 1)

        assert isinstance(error, MetadataTimeoutError)
        assert error.topic == "not.there"
        assert error.outcome is Outcome.NOT_PERSISTED
        assert "not.there" in str(error)
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(error)
        assert numbers(cluster) == list(range(6))


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "`send` waits for a topic that is being created; an unknown topic is asked for again, also for "
    "`try_send`, which does not wait",
)
async def test_a_topic_that_is_created_while_send_waits_gets_the_record():
    async with producing(cluster={"auto_create": False}) as (cluster, producer):
        waiting = asyncio.create_task(producer.send_and_wait("later", b"v"))
        await until(lambda: metadata_count(cluster) >= 3)
        assert not waiting.done()

        cluster.create_topic("later", 1)

        assert (await within(1, waiting)).offset == 0


@pytest.mark.promise("Rules of Kafka's producer", "`max_block_ms` is one budget for metadata and room")
async def test_a_partition_that_does_not_exist_yet_is_waited_for():
    async with producing(topics={"t": 2}) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        waiting = asyncio.create_task(producer.send_and_wait("t", b"v", partition=3))
        await until(lambda: metadata_count(cluster) >= 4)

        cluster.add_partitions("t", 4)

        metadata = await within(1, waiting)
        assert (metadata.partition, metadata.offset) == (3, 0)


@pytest.mark.promise("Rules of Kafka's producer", "`max_block_ms` is one budget for metadata and room")
@in_virtual_time
async def test_a_partition_that_does_not_exist_fails_after_max_block():
    async with producing(topics={"t": 2}, max_block_ms=40_000 * MS) as (_, producer):
        await producer.partitions_for("t")

        error = await error_of(producer.send("t", b"v", partition=2), 1)

        assert isinstance(error, UnknownPartitionError)
        assert (error.topic, error.partition, error.outcome) == ("t", 2, Outcome.NOT_PERSISTED)


@pytest.mark.promise("Accumulator, sender, connections", "metadata are refreshed when they are old")
async def test_partitions_that_are_added_are_used_after_the_next_refresh():
    async with producing(topics={"t": 1}, metadata_max_age_ms=30) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.add_partitions("t", 4)

        await until_chosen_from(producer, lambda: len(producer._metadata.topic("t").partitions) == 4)
        found = [await producer.send_and_wait("t", b"v", b"key %d" % number) for number in range(40)]

        assert {metadata.partition for metadata in found} == {0, 1, 2, 3}


@pytest.mark.promise("Accumulator, sender, connections", "topic ids reveal a topic that was re-created")
@pytest.mark.parametrize("versions", ["2.1", "2.8", "3.9", "4.0", "4.1"])
async def test_a_re_created_topic_swallows_nothing(versions):
    """The new log may contain records under sequence numbers that the producer would otherwise use again."""
    async with producing(cluster={"versions": versions}) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)

        found = []
        for number in range(6):
            found.append(await within(2, producer.send_and_wait("t", b"%d" % number)))
            if number in (1, 3):
                updates = producer.metrics().metadata_updates
                producer._metadata.request_update()
                await until(lambda updates=updates: producer.metrics().metadata_updates > updates)

        assert numbers(cluster) == list(range(6))
        assert [metadata.offset for metadata in found] == list(range(6))


@pytest.mark.parametrize("versions", ["2.1", "4.0", "4.1"])
async def test_a_topic_re_created_under_load_contains_every_record_that_is_reported_delivered(versions):
    async with producing(cluster={"versions": versions}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"-1")
        await offsets(await send_numbers(producer, range(3)))
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        deliveries = await send_numbers(producer, range(3, 9))
        await within(1, held.reached())
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        release.set()

        deliveries += await send_numbers(producer, range(9, 15))
        found = await results(deliveries)

        delivered = [3 + place for place, end in enumerate(found) if not isinstance(end, BaseException)]
        known_lost = [3]  # appended to the old log, and deleted with it
        log = numbers(cluster)
        assert log == sorted(set(log)), "reordered or duplicated records"
        assert set(delivered) - set(known_lost) <= set(log)
        for place, end in enumerate(found):
            if isinstance(end, BaseException):
                assert end.outcome is Outcome.UNKNOWN or 3 + place not in log


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "leader epochs go backwards only for a topic without id whose leader is gone or denies leading: it "
    "may have been re-created",
)
@pytest.mark.parametrize("versions", ["2.1", "2.8", "4.0"])
@pytest.mark.parametrize("lost", [False, True])
async def test_a_topic_re_created_after_its_leader_had_moved_is_written_to_soon(versions, lost):
    """The new topic's leader epochs start at 0; before Kafka 2.8, no topic id shows that they are not outdated."""
    settings = {"cluster": {"versions": versions}, "enable_idempotence": False}
    async with producing(brokers=3, topics={}, **settings) as (cluster, producer):
        cluster.create_topic("t", 1)
        await producer.send_and_wait("t", b"old")
        for _ in range(4):
            cluster.move_leader("t", 0, (cluster.leader("t", 0) + 1) % 3)
        await producer.send_and_wait("t", b"old")
        known = cluster.leader("t", 0)

        cluster.delete_topic("t")
        if lost:
            await cluster.stop_broker(known)
        cluster.create_topic("t", 1, replication_factor=2)
        if cluster.leader("t", 0) == known:
            others = [replica for replica in cluster.partition("t", 0).replicas if replica != known]
            cluster.move_leader("t", 0, others[0])

        await within(3, producer.send_and_wait("t", b"new"))
        assert values(cluster) == [b"new"]


async def test_nothing_is_sent_to_a_re_created_topic_while_the_old_one_has_records_in_flight():
    """Otherwise later records would be first in the new log, before those that the old topic rejected."""
    settings = {"request_timeout_ms": 2000, **ONE_BATCH_PER_RECORD}
    async with producing(brokers=2, topics={"t": 1, "u": 1}, **settings) as (cluster, producer):
        leader = cluster.leader("t", 0)
        cluster.move_leader("u", 0, 1 - leader)
        await producer.send_and_wait("t", b"0")
        await producer.send_and_wait("u", b"0")  # the other broker is connected and answers metadata requests
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        await send_numbers(producer, [1])
        await within(1, held.reached())
        deliveries = await send_numbers(producer, [2])
        await until(lambda: producer.metrics().in_flight == 2)
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        cluster.move_leader("t", 0, leader)
        producer._metadata.request_update()
        topic_id = cluster.topics["t"].topic_id
        await until(lambda: producer._metadata.topic("t").topic_id == topic_id)

        deliveries += await send_numbers(producer, [3, 4, 5])
        await asyncio.sleep(5 * MS)
        release.set()

        assert await offsets(deliveries) == [0, 1, 2, 3]
        assert numbers(cluster) == [2, 3, 4, 5]


async def test_a_topic_re_created_with_fewer_partitions_accepts_keyed_records():
    async with producing(topics={"t": 6}) as (cluster, producer):
        for number in range(12):
            await producer.send_and_wait("t", b"v", b"key %d" % number)
        cluster.delete_topic("t")
        cluster.create_topic("t", 2)
        producer._metadata.request_update()
        await until_chosen_from(producer, lambda: len(producer._metadata.topic("t").partitions) == 2)

        deliveries = [await producer.send("t", b"v", b"key %d" % number) for number in range(12)]
        deliveries += [await producer.send("t", b"v") for _ in range(12)]
        found = await results(deliveries)

        assert not [end for end in found if isinstance(end, BaseException)]
        assert {metadata.partition for metadata in found} <= {0, 1}


@in_virtual_time
async def test_a_deleted_topic_fails_its_records_and_no_others():
    settings = {"request_timeout_ms": 40_000 * MS, "delivery_timeout_ms": 120_000 * MS}
    async with producing(topics={"t": 1, "u": 1}, cluster={"auto_create": False}, **settings) as (
        cluster,
        producer,
    ):
        await producer.send_and_wait("t", b"0")
        await producer.send_and_wait("u", b"0")
        cluster.delete_topic("t")

        lost = await producer.send("t", b"1")
        for number in range(1, 6):
            await within(0.5, producer.send_and_wait("u", b"%d" % number))
        error = await error_of(lost, 1)

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.NOT_PERSISTED, "an unknown topic id proves it"
        assert numbers(cluster, "u") == list(range(6))


async def test_a_topic_that_is_temporarily_missing_from_metadata_keeps_its_numbers():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await offsets(await send_numbers(producer, range(3)))
        gone = cluster.faults.add(METADATA, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic="t", count=1000)
        producer._metadata.request_update()
        await until(lambda: producer._metadata.topic("t") is None)
        waiting = asyncio.create_task(producer.send_and_wait("t", b"3"))
        await within(1, gone.reached(2))
        gone.count = 0

        assert (await within(1, waiting)).offset == 3
        assert await offsets(await send_numbers(producer, range(4, 9))) == list(range(4, 9))
        assert numbers(cluster) == list(range(9)), "reused numbers would be taken for duplicates"


@in_virtual_time
async def test_a_topic_without_partitions_is_not_available_and_nothing_is_reported_delivered():
    async with producing(max_block_ms=100_000 * MS) as (cluster, producer):
        cluster.faults.add(METADATA, omit_partitions=True, topic="t", count=1000)

        error = await error_of(producer.send("t", b"v"), 1)

        assert isinstance(error, MetadataTimeoutError)


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a batch is compressed when it closes, numbered and checksummed when it is drained",
)
async def test_records_for_a_partition_without_a_leader_wait_for_one_and_use_no_number():
    async with producing(brokers=2, topics={}) as (cluster, producer):
        cluster.create_topic("t", 1, replication_factor=1)
        leader = cluster.leader("t", 0)
        await producer.send_and_wait("t", b"0")
        await cluster.stop_broker(leader)
        producer._metadata.request_update()
        await until(lambda: producer._metadata.cluster.partition("t", 0).leader == -1)
        delivery = await producer.send("t", b"1")
        asked = metadata_count(cluster)
        await until(lambda: metadata_count(cluster) >= asked + 2)
        assert not delivery.done()

        await cluster.start_broker(leader)

        assert (await within(2, delivery)).offset == 1
        assert batch_headers(cluster) == [(0, 0, 1), (0, 1, 1)]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "records without a leader, a refused or lost connection, and a close at acks=0 cause one coalesced "
    "metadata refresh",
)
async def test_data_without_a_leader_requests_one_refresh_after_another_and_not_a_storm():
    async with producing(brokers=2, topics={}, retry_backoff_ms=20, retry_backoff_max_ms=20) as (
        cluster,
        producer,
    ):
        cluster.create_topic("t", 8, replication_factor=1)
        await producer.partitions_for("t")
        await cluster.stop_broker(0)
        producer._metadata.request_update()
        await until(lambda: producer._metadata.cluster.partition("t", 0).leader == -1)
        asked = metadata_count(cluster)
        loop = asyncio.get_running_loop()
        began = loop.time()

        deliveries = [await producer.send("t", b"v", partition=2 * number % 8) for number in range(100)]
        await until(lambda: metadata_count(cluster) >= asked + 4)

        assert loop.time() - began >= 3 * 0.015, "refreshes keep their back-off"
        await cluster.start_broker(0)
        await offsets(deliveries)


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "records without a leader, a refused or lost connection, and a close at acks=0 cause one coalesced "
    "metadata refresh",
)
async def test_a_lost_connection_and_a_refused_connect_request_one_coalesced_refresh():
    async with producing(brokers=2, topics={"t": 2}) as (cluster, producer):
        for what_happens in (cluster.close_connections, cluster.stop_broker):
            for partition in (0, 1):
                await producer.send_and_wait("t", b"0", partition=partition)
            await until(lambda: not producer._metadata._update_requested)
            asked = metadata_count(cluster)

            await what_happens(1)

            await until(lambda asked=asked: metadata_count(cluster) > asked)
            assert metadata_count(cluster) - asked <= 3
        assert (await within(1, producer.send_and_wait("t", b"1", partition=1))).offset == 2
        assert cluster.leader("t", 1) == 0


@pytest.mark.promise(
    "Rules of Kafka's producer", "a metadata refresh never waits behind a full deque of requests in flight"
)
async def test_a_metadata_refresh_does_not_wait_behind_a_full_deque_in_flight():
    async with producing(**ONE_BATCH_PER_RECORD, max_in_flight_requests_per_connection=1) as (
        cluster,
        producer,
    ):
        await producer.send_and_wait("t", b"0")
        (connection,) = [entry.connection for entry in producer._brokers._entries.values()]
        cluster.freeze_broker(0)
        await producer.send("t", b"1")
        await until(lambda: producer.metrics().in_flight == 1)
        sent = connection._metrics.requests

        producer._metadata.request_update()

        await until(lambda: connection._metrics.requests > sent)
        assert not connection.can_send
        cluster.thaw_broker(0)
        await within(1, producer.flush())


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a request for any broker goes to the least loaded one, else to one that is connecting, else to a "
    "free one in rotation",
)
async def test_requests_for_any_broker_avoid_one_that_does_not_answer():
    async with producing(brokers=3, topics={"t": 3}, request_timeout_ms=2000) as (cluster, producer):
        for partition in range(3):
            await producer.send_and_wait("t", b"0", partition=partition)
        busy = cluster.leader("t", 0)
        cluster.freeze_broker(busy)
        await producer.send("t", b"1", partition=0)
        await until(lambda: producer.metrics().in_flight == 1)

        for _ in range(5):
            updates = producer.metrics().metadata_updates
            producer._metadata.request_update()
            await until(lambda updates=updates: producer.metrics().metadata_updates > updates, 0.5)

        cluster.thaw_broker(busy)
        await within(1, producer.flush())


# --------------------------------------------------------------------------------------------- acks 0 and 1


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "an acks=0 request is never in flight: its deliveries resolve without an offset once the bytes have left",
)
async def test_acks_0_resolves_without_an_offset_once_the_bytes_were_sent():
    async with producing(acks=0) as (cluster, producer):
        assert not producer.config.enable_idempotence
        metadata = await within(1, producer.send_and_wait("t", b"v", timestamp_ms=1234))

        assert (metadata.topic, metadata.partition, metadata.offset) == ("t", 0, None)
        assert metadata.timestamp == 1234
        await until(lambda: values(cluster) == [b"v"])
        assert producer.metrics().in_flight == 0
        assert cluster.batches("t", 0)[0].header.producer_id == -1


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "an acks=0 request is never in flight: its deliveries resolve without an offset once the bytes have left",
)
async def test_acks_0_does_not_resolve_before_the_bytes_were_sent():
    async with producing(acks=0, max_request_size=32 * 1024 * 1024, request_timeout_ms=2000) as (
        cluster,
        producer,
    ):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)
        # More than the socket buffers on both sides can hold.
        delivery = await producer.send("t", bytes(24 * 1024 * 1024))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not delivery.done()

        cluster.thaw_broker(0)

        assert (await within(2, delivery)).offset is None
        assert len(cluster.records("t")) in (1, 2)


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "an acks=0 request is never in flight: its deliveries resolve without an offset once the bytes have left",
)
async def test_acks_0_keeps_order_and_is_not_limited_by_requests_in_flight():
    async with producing(acks=0, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        deliveries = await send_numbers(producer, range(50))

        assert await offsets(deliveries) == [None] * 50
        await until(lambda: len(values(cluster)) == 50)
        assert numbers(cluster) == list(range(50))


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "records without a leader, a refused or lost connection, and a close at acks=0 cause one coalesced "
    "metadata refresh",
)
async def test_a_connection_closed_for_acks_0_requests_a_refresh():
    async with producing(brokers=2, acks=0) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        await until(lambda: values(cluster) == [b"0"])
        asked = metadata_count(cluster)
        cluster.move_leader("t", 0, 1)

        await producer.send_and_wait("t", b"lost")
        await until(lambda: metadata_count(cluster) > asked)
        await until(lambda: producer._metadata.cluster.partition("t", 0).leader == 1)

        await producer.send_and_wait("t", b"1")
        await until(lambda: len(values(cluster)) == 2)
        assert numbers(cluster) == [0, 1]


async def test_acks_0_into_a_broken_connection_is_unknown_and_not_sent_twice():
    async with producing(acks=0, max_request_size=32 * 1024 * 1024) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)
        delivery = await producer.send("t", bytes(24 * 1024 * 1024))
        await until(lambda: producer.metrics().in_flight == 1)

        await cluster.close_connections(0)
        error = await error_of(delivery, 2)

        assert error.outcome is Outcome.UNKNOWN
        cluster.thaw_broker(0)


async def test_acks_1_is_answered_by_the_leader_alone():
    async with producing(brokers=2, acks=1) as (cluster, producer):
        assert not producer.config.enable_idempotence
        cluster.hold_replication("t", 0)

        metadata = await within(1, producer.send_and_wait("t", b"v"))

        assert metadata.offset == 0
        assert cluster.requests_of(PRODUCE)[0].message.acks == 1
        assert cluster.batches("t", 0)[0].header.producer_id == -1


async def test_without_idempotence_one_request_per_partition_is_in_flight():
    async with producing(acks=1, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        deliveries = await send_numbers(producer, range(1, 6))
        await within(1, held.reached())

        assert producer.metrics().in_flight == 1
        release.set()
        assert await offsets(deliveries) == list(range(1, 6))


def test_settings_that_would_break_idempotence_are_rejected():
    for settings in (
        {"max_in_flight_requests_per_connection": 6, "enable_idempotence": True},
        {"acks": 1, "enable_idempotence": True},
        {"acks": 0, "enable_idempotence": True},
    ):
        with pytest.raises(ConfigError):
            quick_producer("localhost:1", **settings)


# --------------------------------------------------------------------------------------------- versions


@pytest.mark.promise("Protocol", "requests use the newest version that both sides support, for each release")
@pytest.mark.promise("KIPs", "KIP-110: zstd")
@pytest.mark.parametrize(
    "versions", ["2.1", "2.2", "2.4", "2.7", "2.8", "3.0", "3.5", "3.7", "3.8", "3.9", "4.0", "4.1", "4.3"]
)
async def test_each_release_works_up_to_its_own_ceilings(versions):
    settings = {"compression_type": "zstd", **ONE_BATCH_PER_RECORD}
    async with producing(2, {"t": 2}, {"versions": versions}, **settings) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS)
        first = await send_numbers(producer, range(6), partition=0)
        second = await send_numbers(producer, range(6), partition=1)
        third = await producer.send("made.at.once", b"0", headers=[("h", b"x")])

        assert await offsets(first) == await offsets(second) == list(range(6))
        assert await offsets([third]) == [0]
        assert numbers(cluster, "t", 0) == numbers(cluster, "t", 1) == list(range(6))
        ceiling = cluster.broker(0).release.versions[PRODUCE].max
        assert {request.header.version for request in cluster.requests_of(PRODUCE)} == {ceiling}


@pytest.mark.promise(
    "Protocol", "Produce names topics by id from version 13 on, and is capped at 12 where an id is missing"
)
@pytest.mark.promise("KIPs", "KIP-516: topic ids")
async def test_topic_ids_are_used_from_version_13_on():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")

        (request,) = cluster.requests_of(PRODUCE)
        assert request.header.version == 13
        assert request.message.topic_data[0].topic_id == cluster.topics["t"].topic_id
        assert request.message.topic_data[0].name == ""


def serve(broker, api_key, versions):
    """Make a broker support only these versions of an API."""
    broker.release = replace(broker.release, versions={**broker.release.versions, api_key: versions})


@pytest.mark.promise(
    "Protocol", "Produce names topics by id from version 13 on, and is capped at 12 where an id is missing"
)
async def test_a_topic_without_an_id_is_addressed_by_name_even_on_a_new_broker():
    """The metadata is from a broker that is too old for topic ids, but the leader supports them."""
    async with EmbeddedCluster(2, topics={"t": 1, "u": 1}) as cluster:
        for node in (0, 1):
            serve(cluster.broker(node), METADATA, VersionRange(0, 9))
        async with quick_producer(cluster) as producer:
            deliveries = [await producer.send("t", b"0"), await producer.send("u", b"0")]

            assert await offsets(deliveries) == [0, 0]
            assert {request.header.version for request in cluster.requests_of(PRODUCE)} == {12}


@pytest.mark.promise(
    "Rules of Kafka's producer", "a request that no common version can carry fails locally, as NOT_PERSISTED"
)
async def test_without_a_common_version_records_fail_locally_as_not_persisted():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        serve(cluster.broker(0), PRODUCE, VersionRange(3, 5))
        async with quick_producer(cluster) as producer:
            error = await error_of(producer.send_and_wait("t", b"0"), 1)

            assert isinstance(error, DeliveryError)
            assert error.outcome is Outcome.NOT_PERSISTED
            assert isinstance(error.last_error, UnsupportedVersionError)
            assert "5" in str(error)
            assert produce_count(cluster) == 0
            error = await error_of(producer.send_and_wait("t", b"0"), 1)
            assert error.outcome is Outcome.NOT_PERSISTED, "the sender is alive"
            assert await within(1, producer.partitions_for("t")) == {0}
        await assert_nothing_left(producer, cluster)


@pytest.mark.promise(
    "Rules of Kafka's producer", "a request that no common version can carry fails locally, as NOT_PERSISTED"
)
async def test_start_rejects_a_cluster_that_is_too_old_for_metadata():
    async with EmbeddedCluster(versions="1.1") as cluster:
        producer = quick_producer(cluster)
        with pytest.raises(UnsupportedVersionError):
            await within(1, producer.start())
        await assert_nothing_left(producer, cluster)


async def test_a_broker_that_rejects_a_version_is_asked_for_its_versions_again():
    """A proxy has kept the connection open while the broker was replaced by an older one."""
    async with producing(cluster={"versions": "4.1"}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, error=ErrorCode.UNSUPPORTED_VERSION, hold=release)
        deliveries = await send_numbers(producer, range(1, 7))
        await within(1, held.reached())
        serve(cluster.broker(0), PRODUCE, VersionRange(3, 11))
        release.set()

        assert await offsets(deliveries) == list(range(1, 7))
        assert cluster.requests_of(PRODUCE)[-1].header.version == 11
        assert numbers(cluster) == list(range(7))
        assert producer.metrics().errors["UNSUPPORTED_VERSION"] == 1


async def test_records_fail_if_a_broker_rejects_a_version_that_it_offers():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        asked = len(cluster.requests_of(ApiKey.API_VERSIONS))
        cluster.faults.add(PRODUCE, error=ErrorCode.UNSUPPORTED_VERSION, count=2)

        error = await error_of(producer.send_and_wait("t", b"1"), 1)

        assert type(error) is DeliveryError
        assert (error.attempts, error.outcome, error.last_error.code) == (2, Outcome.NOT_PERSISTED, 35)
        assert len(cluster.requests_of(ApiKey.API_VERSIONS)) == asked + 1
        assert (await producer.send_and_wait("t", b"2")).offset == 1


@pytest.mark.promise("Accumulator, sender, connections", "versions are negotiated on each connection")
async def test_a_broker_that_comes_back_older_is_asked_for_its_versions_again():
    async with producing(brokers=2, cluster={"versions": "4.1"}) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        await cluster.stop_broker(0)
        await cluster.start_broker(0, versions="3.9")
        cluster.move_leader("t", 0, 0)

        assert (await within(2, producer.send_and_wait("t", b"1"))).offset == 1
        assert cluster.requests_of(PRODUCE)[-1].header.version == 11


# ----------------------------------------------------------------------------------------------- throttling


@pytest.mark.promise("Accumulator, sender, connections", "a throttle is honoured")
@pytest.mark.promise("KIPs", "KIP-219: a throttled client mutes itself")
@pytest.mark.promise(
    "Rules of Kafka's producer", "the sender wakes after a throttle and after a reconnect back-off"
)
@in_virtual_time
async def test_a_throttle_mutes_its_broker_and_no_other():
    async with producing(brokers=2, topics={"t": 2}) as (cluster, producer):
        for partition in (0, 1):
            await producer.send_and_wait("t", b"0", partition=partition)
        muted = cluster.leader("t", 0)
        cluster.faults.add(PRODUCE, throttle_ms=150, node=muted)
        await producer.send_and_wait("t", b"1", partition=0)
        loop = asyncio.get_running_loop()
        began = loop.time()

        for number in range(5):
            await within(0.1, producer.send_and_wait("t", b"%d" % number, partition=1))
        assert loop.time() - began < 0.14
        await within(1, producer.send_and_wait("t", b"2", partition=0))

        assert loop.time() - began >= 0.14
        times = [request.at for request in cluster.requests_of(PRODUCE, muted)]
        assert times[-1] - times[-2] >= 0.145
        assert producer.metrics().retries == 0
        (node,) = [node for node in producer.metrics().nodes if node.node_id == muted]
        assert node.throttle_time == pytest.approx(0.15)


@pytest.mark.promise(
    "Accumulator, sender, connections", "every record has a delivery timeout, with an honest outcome"
)
@in_virtual_time
async def test_the_delivery_timeout_continues_while_a_broker_is_muted():
    settings = {"request_timeout_ms": 50, "delivery_timeout_ms": 100}
    async with producing(**settings) as (cluster, producer):
        cluster.faults.add(PRODUCE, throttle_ms=300)
        await producer.send_and_wait("t", b"0")

        error = await error_of(producer.send_and_wait("t", b"1"), 1)

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.NOT_PERSISTED


async def test_the_wait_for_a_topic_can_be_limited_and_its_error_names_what_the_cluster_reports():
    async with EmbeddedCluster(auto_create=False) as cluster, quick_producer(cluster) as producer:
        for call, timeout in ((producer.partition_info, 1000 * MS), (producer.partitions_for, 0)):
            with pytest.raises(MetadataTimeoutError, match="topic t is still unknown after") as caught:
                await call("t", timeout=timeout)
            assert caught.value.reported == "UNKNOWN_TOPIC_OR_PARTITION"
        with pytest.raises(InvalidArgumentError, match="timeout"):
            await producer.partitions_for("t", timeout=-1)
