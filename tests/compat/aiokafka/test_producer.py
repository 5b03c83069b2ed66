"""The properties that aiokafka's own tests check of its producer, checked here of the compat producer
on the embedded cluster."""

from __future__ import annotations

import asyncio
import json
import time
import weakref

import aiokafka
import pytest

from aioproducer import DeliveryError, Outcome
from aioproducer.compat.aiokafka import AIOKafkaProducer, TopicPartition
from aioproducer.compat.aiokafka import producer as producer_module
from aioproducer.compat.aiokafka.errors import (
    IllegalOperation,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFenced,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartitionError,
)
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster, RecordingProducer
from aioproducer.testing.embedded.authorizer import Operation
from tests.conftest import MS
from tests.end_to_end.test_dropped_producer import dropping
from tests.support.compat import aiokafka_producing, quick_aiokafka
from tests.support.producing import INIT_PRODUCER_ID, PRODUCE, until, values, within
from tests.support.scripted_broker import dead_port

SHORT = {"request_timeout_ms": 300_000 * MS, "delivery_timeout_ms": 300_000 * MS, "linger_ms": 0}
"""Settings that make records fail soon."""


def as_json(value):
    return json.dumps(value).encode()


# ---------------------------------------------------------------------------------------- start and stop


async def test_start_partitions_for_and_stop():
    async with EmbeddedCluster(topics={"t": 2}) as cluster:
        producer = quick_aiokafka(cluster)
        await producer.start()

        assert await producer.partitions_for("t") == {0, 1}
        assert not producer._closed
        assert "running" in repr(producer)
        await producer.stop()
        await producer.stop()  # has no effect
        assert producer._closed


async def test_start_without_a_broker_is_a_connection_error():
    producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{dead_port()}", max_block_ms=50)

    with pytest.raises(KafkaConnectionError):
        await producer.start()
    assert producer._closed


async def test_a_dropped_producer_warns_and_is_collected():
    async with EmbeddedCluster(topics={"t": 2}) as cluster:
        producer = quick_aiokafka(cluster)
        await producer.start()
        reference = weakref.ref(producer)

        with dropping() as warned:
            del producer

        assert reference() is None
        assert ["was not closed" in warning for warning in warned] == [True]
        # The producer closes itself in its loop.
        await until(
            lambda: not any(task.get_name().startswith("aioproducer") for task in asyncio.all_tasks())
        )


def test_a_producer_can_be_built_without_a_running_loop():
    async def main():
        async with EmbeddedCluster(topics={"t": 2}) as cluster:
            with pytest.warns(DeprecationWarning, match="loop is ignored"):
                producer = quick_aiokafka(cluster, loop=asyncio.get_running_loop())
            await producer.start()
            try:
                return await (await producer.send("t", b"hello, Kafka!", partition=0))
            finally:
                await producer.stop()

    found = asyncio.run(main())

    assert (found.topic, found.partition, found.offset) == ("t", 0, 0)


async def test_async_with_delivers_also_when_an_exception_leaves_the_block():
    async with EmbeddedCluster(topics={"t": 2}) as cluster:
        producer = quick_aiokafka(cluster, linger_ms=50)

        async def leave():
            async with producer:
                await producer.send("t", b"value", key=b"KEY", partition=1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await leave()

        assert producer._closed
        assert [record.value for record in cluster.records("t", 1)] == [b"value"]


async def test_the_producer_behind_it_has_all_other_calls():
    async with aiokafka_producing() as (cluster, producer):
        await (await producer.producer.send_many("t", [b"1", b"2"], partitions=[0, 1]))

        assert producer.producer.health().ok
        assert producer.config.bootstrap_servers == producer.producer.config.bootstrap_servers
        assert sorted(values(cluster, partition=0) + values(cluster, partition=1)) == [b"1", b"2"]


async def test_a_double_can_replace_the_producer(monkeypatch):
    monkeypatch.setattr(producer_module.AIOKafkaProducer, "_make_producer", RecordingProducer)

    async with AIOKafkaProducer(value_serializer=as_json) as producer:
        await producer.send_and_wait("t", {"a": 1})

    assert [record.value for record in producer.producer.sent] == [b'{"a": 1}']


# ------------------------------------------------------------------------------------------------- records


async def test_send_returns_the_position_of_the_record_and_raises_after_stop():
    async with aiokafka_producing() as (_, producer):
        with pytest.raises(TypeError):
            await producer.send("t", "hello, Kafka!", partition=0)
        first = await (await producer.send("t", b"hello, Kafka!", partition=0))
        second = await (await producer.send("t", b"second msg", partition=1))
        third = await (await producer.send("t", b"value", key=b"KEY"))
        fourth = await producer.send_and_wait("t", b"value")

        assert (first.topic, first.partition, first.offset, second.partition) == ("t", 0, 0, 1)
        assert {third.partition, fourth.partition} <= {0, 1}
        await producer.stop()
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"value", key=b"KEY")


async def test_without_acknowledgements_the_result_is_none():
    async with aiokafka_producing(acks=0) as (_, producer):
        futures = [await producer.send("t", b"hello, Kafka!", partition=number) for number in (0, 1)]

        done, _ = await asyncio.wait(futures)

        assert [future.result() for future in done] == [None, None]
        assert await producer.send_and_wait("t", b"v") is None


async def test_records_are_serialized_before_their_key_chooses_the_partition():
    async with aiokafka_producing(
        topics={"t": 10},
        value_serializer=as_json,
        key_serializer=lambda key: key.upper().encode(),
        acks="all",
        max_request_size=2000,
    ) as (cluster, producer):
        value = {"strKey": 23523.443, 23: "STRval"}
        first = await (await producer.send("t", value, key="some key"))
        second = await (await producer.send("t", "some str", key="some key"))

        assert (second.partition, second.offset) == (first.partition, first.offset + 1)
        stored = cluster.records("t", first.partition)
        assert [(record.key, record.value) for record in stored] == [
            (b"SOME KEY", as_json(value)),
            (b"SOME KEY", b'"some str"'),
        ]
        value[23] = "*VALUE" * 800
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send("t", value, key="some key")


@pytest.mark.promise("Coming from other clients", "None reaches the serializers of compat.aiokafka")
async def test_none_reaches_the_serializers():
    seen = []

    def note(value):
        seen.append(value)
        return b"none" if value is None else value

    async with aiokafka_producing(value_serializer=note, key_serializer=note) as (cluster, producer):
        await producer.send_and_wait("t", key=b"k", partition=0)
        await producer.send("t", b"v", partition=0)

        await producer.flush()
        assert seen == [b"k", None, None, b"v"]
        assert [(record.key, record.value) for record in cluster.records("t", 0)] == [
            (b"k", b"none"),
            (b"none", b"v"),
        ]


async def test_the_exception_of_a_serializer_is_raised_and_nothing_is_sent():
    class OwnError(Exception):
        pass

    def fail(value):
        raise OwnError(value)

    async with aiokafka_producing(value_serializer=fail) as (cluster, producer):
        for send in (producer.send, producer.send_and_wait):
            with pytest.raises(OwnError):
                await send("t", b"v")
        await producer.flush()
        assert cluster.requests_of(PRODUCE) == []


async def test_serializers_may_be_async_or_objects():
    class WithTopic:
        def serialize(self, topic, value, headers):
            return f"{topic}:{value}".encode()

    async def encode(value):
        await asyncio.sleep(0)
        return value.encode()

    async with aiokafka_producing(value_serializer=WithTopic(), key_serializer=encode) as (cluster, producer):
        await producer.send_and_wait("t", 7, key="k", partition=0)

        assert [(record.key, record.value) for record in cluster.records("t", 0)] == [(b"k", b"t:7")]


async def test_compression():
    with pytest.raises(ValueError, match="compression_type"):
        AIOKafkaProducer(compression_type="my_custom")

    async with aiokafka_producing(compression_type="gzip") as (cluster, producer):
        await (await producer.send("t", b"this msg is too short for compress", partition=0))
        await producer.send_and_wait("t", b"large_message-" * 100, partition=1)

        assert [batch.header.codec.name for batch in cluster.batches("t", 1)] == ["GZIP"]
        assert [record.value for record in cluster.records("t", 1)] == [b"large_message-" * 100]


async def test_flush_waits_for_all_results():
    async with aiokafka_producing(linger_ms=1000) as (_, producer):
        futures = [await producer.send("t", b"text") for _ in range(2)]
        assert [future.done() for future in futures] == [False, False]

        await producer.flush()

        assert [future.done() for future in futures] == [True, True]


async def test_the_metadata_has_the_timestamp_of_the_record():
    async with aiokafka_producing() as (cluster, producer):
        sent_at = time.time() * 1000
        by_clock = await producer.send_and_wait("t", b"text1", partition=0)
        given = await producer.send_and_wait("t", b"text1", partition=0, timestamp_ms=123123123)
        cluster.create_topic("appended", 1, config={"message.timestamp.type": "LogAppendTime"})
        by_broker = await producer.send_and_wait("appended", b"text1", timestamp_ms=123123123)

        assert -10 < by_clock.timestamp - sent_at < 10_000
        assert (by_clock.timestamp_type, given.timestamp, given.timestamp_type) == (0, 123123123, 0)
        assert by_broker.timestamp_type == 1
        assert by_broker.timestamp >= int(sent_at)


async def test_a_rejected_record_leaves_no_empty_batch_to_send():
    async with aiokafka_producing() as (cluster, producer):
        with pytest.raises(TypeError):
            await producer.send("t", "text1")

        await producer.flush()

        assert cluster.requests_of(PRODUCE) == []


async def test_headers():
    async with aiokafka_producing() as (cluster, producer):
        headers = [("type", b"Normal")]
        await (await producer.send("t", b"msg", partition=0, headers=headers))
        await producer.send_and_wait("t", b"msg", partition=0, headers=headers)

        assert [list(record.headers) for record in cluster.records("t", 0)] == [headers, headers]


# -------------------------------------------------------------------------------------------------- failures


async def test_an_unknown_topic():
    async with aiokafka_producing(
        request_timeout_ms=200, max_block_ms=300_000 * MS, allow_auto_create_topics=False
    ) as (
        _,
        producer,
    ):
        for call in (producer.send("some_topic", b"hello"), producer.partitions_for("some_topic")):
            with pytest.raises(UnknownTopicOrPartitionError):
                await call
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send("t", b"hello", partition=7)


async def test_a_partition_without_a_leader():
    async with aiokafka_producing(2, **SHORT) as (cluster, producer):
        cluster.create_topic("alone", 1, replication_factor=1)
        await producer.send_and_wait("alone", b"before")
        cluster.crash_broker(leader := cluster.leader("alone", 0))
        alone = TopicPartition("alone", 0)
        await until(lambda: producer.client.cluster.leader_for_partition(alone) == -1)

        for kind in (LeaderNotAvailableError, NotLeaderForPartitionError):
            with pytest.raises(kind) as caught:
                await producer.send_and_wait("alone", b"text")
            assert caught.value.outcome is Outcome.NOT_PERSISTED
        await cluster.start_broker(leader)


async def test_a_broker_that_is_gone_is_a_connection_error():
    async with aiokafka_producing(**SHORT) as (cluster, producer):
        await producer.send_and_wait("t", b"before", partition=0)
        cluster.crash_broker(0)

        for kind in (KafkaConnectionError, NodeNotReadyError):
            with pytest.raises(kind):
                await producer.send_and_wait("t", b"text", partition=0)
        await cluster.start_broker(0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.LEADER_NOT_AVAILABLE, LeaderNotAvailableError),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, NotLeaderForPartitionError),
        (ErrorCode.NOT_ENOUGH_REPLICAS, NotEnoughReplicasError),
        (ErrorCode.REQUEST_TIMED_OUT, RequestTimedOutError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, TopicAuthorizationFailedError),
        (ErrorCode.MESSAGE_TOO_LARGE, MessageSizeTooLargeError),
    ],
)
async def test_a_record_that_the_broker_keeps_refusing_fails_with_the_last_error(code, kind):
    async with aiokafka_producing(**SHORT) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=code, partition=0, count=10_000)
        refused = await producer.send("t", b"text1", partition=0)
        stored = await producer.send("t", b"text2", partition=1)

        with pytest.raises(kind) as caught:
            await refused

        assert isinstance(caught.value, DeliveryError)
        assert (await stored).offset == 0
        with pytest.raises(kind):
            await producer.send_and_wait("t", b"text3", partition=0)


async def test_a_buffer_that_stays_full_is_a_kafka_timeout_error():
    async with aiokafka_producing(batch_size=1024, buffer_memory=4096, max_block_ms=100_000 * MS) as (
        cluster,
        producer,
    ):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        futures = [await producer.send("t", bytes(900), partition=0) for _ in range(4)]

        with pytest.raises(KafkaTimeoutError):
            await producer.send("t", bytes(900), partition=0)

        cluster.thaw_broker(0)
        await asyncio.gather(*futures)


async def test_a_denied_topic():
    async with aiokafka_producing() as (cluster, producer):
        cluster.authorizer.deny(Operation.ALL, topic="t")

        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait("t", b"v")


async def test_a_batch_that_is_sent_again_stays_before_the_next_one():
    async with aiokafka_producing(linger_ms=20) as (cluster, producer):
        fault = cluster.faults.add(PRODUCE, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        first = await producer.send("t", b"Some MSG", partition=0)
        await within(3, fault.reached())
        second = await producer.send("t", b"Some MSG 2", partition=0)

        assert (await second).offset == (await first).offset + 1


async def test_lost_answers_make_no_duplicates_with_idempotence():
    async with aiokafka_producing(enable_idempotence=True) as (cluster, producer):
        cluster.faults.add(PRODUCE, drop_after_append=True, count=2)

        metadata = await producer.send_and_wait("t", b"hello, Kafka!", partition=0)

        [record] = cluster.records("t", 0)
        assert (record.offset, record.timestamp, record.value, record.key) == (
            metadata.offset,
            metadata.timestamp,
            b"hello, Kafka!",
            None,
        )


async def test_a_moved_leader_keeps_the_order():
    async with aiokafka_producing(2, topics={"t": 1}) as (cluster, producer):
        await producer.partitions_for("t")
        old = cluster.leader("t", 0)
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold, node=old)
        futures = []
        for value in (b"1", b"2"):
            batch = producer.create_batch()
            batch.append(key=b"key", value=value, timestamp=None)
            batch.close()
            futures.append(await producer.send_batch(batch, "t", partition=0))
            cluster.move_leader("t", 0, 1 - old)
            await producer.client.force_metadata_update()
            hold.set()

        first, second = await asyncio.gather(*futures)

        assert first.offset < second.offset
        assert [record.value for record in cluster.records("t", 0)] == [b"1", b"2"]


# ---------------------------------------------------------------------------------------------- transactions


async def test_a_transaction_and_one_without_records():
    async with aiokafka_producing(transactional_id="id") as (cluster, producer):
        async with producer.transaction():
            metadata = await producer.send_and_wait("t", b"hello, Kafka!", partition=0)
        await producer.begin_transaction()
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.abort_transaction()

        [record] = cluster.records("t", 0, committed=True)
        assert (record.offset, record.value) == (metadata.offset, b"hello, Kafka!")


async def test_a_second_producer_fences_the_first():
    async with aiokafka_producing(transactional_id="id", client_id="p1") as (cluster, producer):
        other = quick_aiokafka(cluster, transactional_id="id", client_id="p2")
        await other.start()
        async with other.transaction():
            await other.send_and_wait("t", b"hello, Kafka! 2")

        with pytest.raises(ProducerFenced) as caught:
            async with producer.transaction():
                await producer.send_and_wait("t", b"hello, Kafka!")
        assert isinstance(caught.value, KafkaError)
        with pytest.raises(ProducerFenced):
            await producer.begin_transaction()
        await other.stop()


async def test_a_restarted_producer_gets_the_same_producer_id():
    async with aiokafka_producing(transactional_id="id") as (cluster, producer):
        other = quick_aiokafka(cluster, transactional_id="id")
        await other.start()
        before, after = (one.producer.describe().identity for one in (producer, other))
        await other.stop()

        assert (after["producer_id"], after["epoch"]) == (before["producer_id"], before["epoch"] + 1)


async def test_a_gap_in_the_sequence_of_a_transaction():
    async with aiokafka_producing(transactional_id="id") as (cluster, producer):

        async def transaction():
            async with producer.transaction():
                await producer.send_and_wait("t", b"msg1", partition=0)
                cluster.faults.add(PRODUCE, error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
                await producer.send_and_wait("t", b"msg2", partition=0)

        with pytest.raises(OutOfOrderSequenceNumber):
            await transaction()
        await producer.begin_transaction()
        cluster.faults.add(PRODUCE, error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        await producer.send("t", b"msg3", partition=0)
        with pytest.raises(OutOfOrderSequenceNumber):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert cluster.records("t", 0, committed=True) == []


@pytest.mark.parametrize("fails", [False, True])
async def test_offsets_are_part_of_the_transaction(fails):
    async with aiokafka_producing(transactional_id="id") as (_, producer):

        async def transform():
            async with producer.transaction():
                await producer.send("t", b"OUT", partition=0)
                offsets = {TopicPartition("t", 1): 100, aiokafka.TopicPartition("t", 0): 7}
                await producer.send_offsets_to_transaction(offsets, "group")
                if fails:
                    raise ZeroDivisionError

        if fails:
            with pytest.raises(ZeroDivisionError):
                await transform()
        else:
            await transform()

        found = await producer.producer.committed("group", [("t", 0), ("t", 1)])
        assert [offset and offset.offset for offset in found.values()] == (
            [None, None] if fails else [7, 100]
        )


async def test_offsets_that_cannot_be_sent():
    async with aiokafka_producing(transactional_id="id") as (_, producer):
        with pytest.raises(IllegalOperation):
            await producer.send_offsets_to_transaction({}, group_id=None)

        async with producer.transaction():
            with pytest.raises(ValueError, match="group"):
                await producer.send_offsets_to_transaction({}, group_id=None)


async def test_a_commit_sends_what_is_buffered():
    async with aiokafka_producing(transactional_id="id", linger_ms=3000) as (cluster, producer):
        await producer.begin_transaction()
        futures = [await producer.send("t", b"Super msg") for _ in range(10)]
        for value in (b"1", b"2"):
            batch = producer.create_batch()
            batch.append(timestamp=None, key=None, value=value)
            batch.close()
            futures.append(await producer.send_batch(batch, "t", partition=0))

        await within(3, producer.commit_transaction())

        assert all(future.done() for future in futures)
        assert sum(len(cluster.records("t", number, committed=True)) for number in (0, 1)) == 12


async def test_a_cancelled_commit_or_abort_is_still_completed():
    async with aiokafka_producing(transactional_id="id") as (cluster, producer):
        for end in (producer.commit_transaction, producer.abort_transaction):
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"v", partition=0)
            task = asyncio.ensure_future(end())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await within(3, end())  # joins the first call

        await producer.begin_transaction()
        await producer.abort_transaction()
        assert len(cluster.records("t", 0, committed=True)) == 1


async def test_transactions_need_a_transactional_id():
    async with aiokafka_producing() as (_, producer):
        for call in (
            producer.begin_transaction(),
            producer.commit_transaction(),
            producer.abort_transaction(),
            producer.transaction().__aenter__(),
            producer.send_offsets_to_transaction({}, group_id="123"),
        ):
            with pytest.raises(IllegalOperation):
                await call


async def test_nothing_is_sent_outside_of_a_transaction():
    async with aiokafka_producing(transactional_id="id", linger_ms=0) as (cluster, producer):
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"2")

        async def is_refused():
            for call in (
                producer.send("t", b"2", partition=0),
                producer.send_and_wait("t", b"2", partition=0),
                producer.send_batch(batch, "t", partition=0),
            ):
                with pytest.raises(IllegalOperation):
                    await call

        await is_refused()
        await producer.begin_transaction()
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=hold)
        await producer.send("t", b"1", partition=0)
        commit = asyncio.ensure_future(producer.commit_transaction())
        await asyncio.sleep(5 * MS)
        assert not commit.done()
        await is_refused()
        hold.set()
        await commit
        await is_refused()


async def test_a_denied_transactional_id():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.faults.add(INIT_PRODUCER_ID, error=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        producer = quick_aiokafka(cluster, transactional_id="id")

        with pytest.raises(TransactionalIdAuthorizationFailed):
            await producer.start()
