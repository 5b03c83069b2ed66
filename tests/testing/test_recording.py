"""RecordingProducer accepts and rejects the same records as Producer, and shows the accepted ones."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import pickle
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aioproducer import (
    BufferFullError,
    DeliveryError,
    InvalidRecordError,
    Outcome,
    Producer,
    ProducerClosed,
    RecordMetadata,
    TopicPartition,
)
from aioproducer.errors import (
    BufferTimeoutError,
    IllegalStateError,
    InvalidTopicError,
    KafkaTimeoutError,
    MetadataTimeoutError,
    ProducerNotStartedError,
    SerializationError,
    TransactionAbortableError,
    UnknownPartitionError,
)
from aioproducer.metrics import MetricsSnapshot
from aioproducer.partitioner import murmur2_partition
from aioproducer.testing import EmbeddedCluster, RecordingProducer, SentRecord
from tests.conftest import MS
from tests.support.producing import error_of, producing


def public_calls(cls):
    return {
        name: member
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_") or name in ("__init__", "__aenter__", "__aexit__")
    }


@pytest.mark.promise("Test clusters", "the test double accepts and rejects what the producer does")
def test_every_call_of_the_producer_has_the_same_signature():
    double = public_calls(RecordingProducer)

    for name, call in public_calls(Producer).items():
        try:
            expected = inspect.signature(call)
        except ValueError:  # compiled
            assert double[name] is call or getattr(RecordingProducer, name) == call, name
            continue
        assert inspect.signature(double[name]) == expected, name


def test_it_is_an_instance_of_producer_with_the_same_signature():
    assert isinstance(RecordingProducer(), Producer)
    assert inspect.signature(RecordingProducer) == inspect.signature(Producer)


async def test_records_are_recorded_in_order():
    async with RecordingProducer() as producer:
        producer.set_partitions("orders", 3)
        await producer.send("orders", b"1", b"key", 2, 1_700_000_000_000, [("trace", b"x"), ("none", None)])
        await producer.send("orders", bytearray(b"2"), partition=2, timestamp_ms=5)
        await producer.send("orders", None, memoryview(b"k"), partition=0, timestamp_ms=6)

        assert producer.sent == [
            SentRecord(
                "orders",
                2,
                0,
                b"key",
                b"1",
                (("trace", b"x"), ("none", None)),
                1_700_000_000_000,
            ),
            SentRecord("orders", 2, 1, None, b"2", (), 5),
            SentRecord("orders", 0, 0, b"k", None, (), 6),
        ]


async def test_a_record_of_many_mib_is_recorded_whole():
    value = bytes(range(256)) * 20_000
    async with RecordingProducer(max_request_size=6_000_000) as producer:
        await producer.send("t", value)

        assert producer.sent[0].value == value


async def test_deliveries_have_plausible_metadata():
    async with RecordingProducer() as producer:
        first = await producer.send("orders", b"1", timestamp_ms=7)
        second = await producer.send_and_wait("orders", b"2")
        third = await producer.try_send("orders", b"3")

    assert asyncio.isfuture(first)
    assert await first == RecordMetadata("orders", 0, 0, 7, 0, 0)
    assert (second.offset, third.offset) == (1, 2)
    assert second.topic_partition == TopicPartition("orders", 0)
    assert second.timestamp > 1_700_000_000_000


async def test_without_acknowledgements_there_are_no_offsets():
    async with RecordingProducer(acks=0, enable_idempotence=False) as producer:
        metadata = await producer.send_and_wait("orders", b"1")

    assert metadata.offset is None
    assert producer.sent[0].offset == 0


@pytest.mark.promise("Test clusters", "the test double accepts and rejects what the producer does")
async def test_keys_go_to_the_same_partitions_as_with_the_producer():
    keys = [f"key-{number}".encode() for number in range(50)]
    async with RecordingProducer() as producer:
        producer.set_partitions("orders", 12)
        for key in keys:
            await producer.send("orders", b"", key=key)

    assert [record.partition for record in producer.sent] == [murmur2_partition(key, 12) for key in keys]


@pytest.mark.parametrize(
    ("partitioner", "expected"),
    [("round_robin", [0, 1, 2, 0, 1]), (lambda key, every, available: every[-1], [2, 2, 2, 2, 2])],
)
async def test_the_setting_partitioner_is_honoured(partitioner, expected):
    async with RecordingProducer(partitioner=partitioner) as producer:
        producer.default_partitions = 3
        for _ in range(5):
            await producer.send("orders", b"")

    assert [record.partition for record in producer.sent] == expected


async def test_records_without_a_key_stay_in_a_partition_for_a_batch():
    async with RecordingProducer(batch_size=1000) as producer:
        producer.set_partitions("orders", 100)
        for _ in range(40):
            await producer.send("orders", bytes(100))

    chosen = [record.partition for record in producer.sent]
    changes = sum(before != after for before, after in itertools.pairwise(chosen))
    assert 2 <= changes <= 5


async def test_serializers_and_interceptors_run_as_in_the_producer():
    told = []

    class Trace:
        def on_send(self, record):
            return record._replace(headers=[("trace", b"1")])

        def on_acknowledgement(self, result):
            told.append(result)

    class Framed:
        async def serialize(self, topic, value, headers):
            await asyncio.sleep(0)
            return f"{topic}:{value}:{headers[0][0]}".encode()

    settings = {"key_serializer": str.encode, "value_serializer": Framed(), "interceptors": [Trace()]}
    async with RecordingProducer(**settings) as producer:
        await producer.send("orders", 7, key="k")
        producer.fail_next()
        await producer.send("orders", 8, key="k")
        await asyncio.sleep(0)
        with pytest.raises(IllegalStateError, match=r"async value_serializer .*Framed"):
            producer.try_send("orders", 9)

    [record] = producer.sent
    assert (record.key, record.value, record.headers) == (b"k", b"orders:7:trace", (("trace", b"1"),))
    assert [type(result).__name__ for result in told] == [
        "RecordMetadata",
        "DeliveryError",
        "IllegalStateError",
    ]


async def test_a_serializer_receives_the_context_and_a_record_may_have_its_own():
    def with_context(value, context):
        assert value is not None, "None reached a serializer"
        context.headers.append((context.field, context.topic.encode()))
        return b"<%d>" % value

    async def later(value):
        await asyncio.sleep(0)
        return b"own %d" % value

    async with RecordingProducer(value_serializer=with_context) as producer:
        await producer.send("orders", 1)
        producer.try_send("orders", None)
        await producer.send_and_wait("orders", 2, "k", key_serializer=str.encode, value_serializer=later)
        producer.try_send("orders", 3, value_serializer=bytes)
        with pytest.raises(SerializationError, match="value_serializer str returned str for topic orders"):
            await producer.send("orders", 4, value_serializer=str)

    assert [(record.key, record.value, record.headers) for record in producer.sent] == [
        (None, b"<1>", (("value", b"orders"),)),
        (None, None, ()),
        (b"k", b"own 2", ()),
        (None, b"\0\0\0", ()),
    ]


# -------------------------------------------------------------------------------- agreement with the producer

BAD_RECORDS = [
    {"topic": 7},
    {"topic": ""},
    {"topic": "no/slash"},
    {"topic": ".."},
    {"topic": "orders", "value": "text"},
    {"topic": "orders", "key": 7},
    {"topic": "orders", "partition": -1},
    {"topic": "orders", "partition": "1"},
    {"topic": "orders", "partition": True},
    {"topic": "orders", "timestamp_ms": -1},
    {"topic": "orders", "timestamp_ms": "now"},
    {"topic": "orders", "headers": {"a": b"b"}},
    {"topic": "orders", "headers": [("a", "b")]},
    {"topic": "orders", "headers": [(b"a", b"b")]},
    {"topic": "orders", "headers": [("a",)]},
    {"topic": "orders", "value": bytes(2_000_000)},
    {"topic": "orders", "value": b"", "timeout": -1},
    {"topic": "orders", "value": b"", "timeout": "soon"},
]


async def refusal(producer, record):
    with pytest.raises(Exception) as refused:  # noqa: PT011 - only the two producers must agree on the error
        await producer.send(**record)
    return type(refused.value), str(refused.value)


@pytest.mark.promise("Test clusters", "the test double accepts and rejects what the producer does")
@pytest.mark.parametrize("record", BAD_RECORDS, ids=lambda record: repr(record)[:60])
async def test_invalid_input_raises_the_same_errors_as_the_producer(record):
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        async with Producer(cluster.bootstrap_servers) as producer:
            expected = await refusal(producer, record)

    async with RecordingProducer() as double:
        told = await refusal(double, record)

    assert told == expected
    assert issubclass(told[0], InvalidRecordError)
    assert double.sent == []


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send("orders", b""),
        lambda producer: producer.send_and_wait("orders", b""),
        lambda producer: producer.partitions_for("orders"),
        lambda producer: producer.flush(),
    ],
)
async def test_it_can_be_used_only_between_start_and_close(call):
    producer = RecordingProducer()

    with pytest.raises(ProducerNotStartedError, match="not started"):
        await call(producer)
    with pytest.raises(ProducerNotStartedError, match="not started"):
        producer.try_send("orders", b"")
    await producer.start()
    with pytest.raises(IllegalStateError, match="it can only be started once"):
        await producer.start()
    await call(producer)
    await producer.stop()
    with pytest.raises(ProducerClosed, match="closed"):
        await call(producer)
    with pytest.raises(ProducerClosed, match="closed"):
        producer.create_batch()


@pytest.mark.promise(
    "Test clusters", "the test double fails as configured; transactions are in `sent` once committed"
)
async def test_records_of_a_transaction_are_sent_once_it_is_committed():
    async with RecordingProducer(transactional_id="orders-1") as producer:
        async with producer.transaction() as transaction:
            await producer.send("orders", b"1")
            await transaction.send_offsets({TopicPartition("in", 0): 17}, "group")
            assert [record.value for record in producer.uncommitted] == [b"1"]
            assert (producer.sent, producer.committed_offsets) == ([], {})
        async with producer.transaction() as transaction:
            await producer.send("orders", b"2")
            await transaction.send_offsets({TopicPartition("in", 1): 5}, "group")

    assert [record.value for record in producer.sent] == [b"1", b"2"]
    assert producer.uncommitted == []
    offsets = producer.committed_offsets["group"]
    assert {place.partition: offset.offset for place, offset in offsets.items()} == {0: 17, 1: 5}


async def test_records_of_a_transaction_that_is_aborted_are_forgotten():
    async with RecordingProducer(transactional_id="orders-1") as producer:
        await producer.begin_transaction()
        await producer.send("orders", b"1")
        await producer.send_offsets_to_transaction({TopicPartition("in", 0): 17}, "group")
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send("orders", b"2")
        await producer.commit_transaction()

    assert [record.value for record in producer.sent] == [b"2"]
    assert producer.committed_offsets == {}


async def test_a_transaction_with_a_failed_record_can_not_be_committed():
    async with RecordingProducer(transactional_id="orders-1") as producer:
        producer.fail_next()
        await producer.begin_transaction()
        await producer.send("orders", b"1")
        with pytest.raises(TransactionAbortableError):
            await producer.send("orders", b"2")
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("orders", b"3")

    assert [record.value for record in producer.sent] == [b"3"]


async def test_transactions_can_be_shared_and_fenced():
    async with RecordingProducer(transactional_id="orders-1") as producer:
        producer.set_partitions("orders", 2)
        await producer.begin_transaction()
        handle = await producer.export_transaction([("orders", 1)])
        participant = RecordingProducer.attach(handle, partitions=[("orders", 1)])
        participant.set_partitions("orders", 2)
        async with participant:
            await participant.send("orders", b"1", partition=1)
        await producer.send("orders", b"2", partition=0)
        await producer.fence_transaction()

    assert [record.value for record in participant.uncommitted] == [b"1"]
    assert participant.sent == []
    assert (producer.sent, producer.uncommitted) == ([], [])


async def test_transactions_fail_in_the_same_states_as_with_the_producer():
    async with RecordingProducer() as producer:
        with pytest.raises(IllegalStateError, match="requires a producer with a transactional_id"):
            await producer.begin_transaction()
    async with RecordingProducer(transactional_id="orders-1") as producer:
        with pytest.raises(IllegalStateError, match="send cannot be called now"):
            await producer.send("orders", b"1")
        with pytest.raises(IllegalStateError, match="commit_transaction cannot be called now"):
            await producer.commit_transaction()
        await producer.begin_transaction()  # close() ends it

    assert producer.sent == []


async def test_try_send_fails_once_for_an_unknown_topic_and_then_knows_it():
    async with RecordingProducer() as producer:
        with pytest.raises(BufferFullError, match="not known yet"):
            producer.try_send("orders", b"1")
        await producer.send("others", b"2")
        producer.try_send("orders", b"3")

    assert [record.value for record in producer.sent] == [b"2", b"3"]


async def test_batches_that_are_built_by_hand_are_recorded():
    async with RecordingProducer(compression_type="zstd") as producer:
        producer.set_partitions("orders", 2)
        await producer.send("orders", b"0", partition=1)
        for size in (10, 20_000):  # compressed at once or in a thread
            batch = producer.create_batch()
            batch.append(key=b"a", value=bytes(size), timestamp=5)
            batch.append(key=None, value=b"2", timestamp=6, headers=[("h", b"")])
            metadata = await (await producer.send_batch(batch, "orders", partition=1))
        producer.fail_next()
        batch = producer.create_batch()
        batch.append(key=None, value=b"lost")
        failed = await producer.send_batch(batch, "orders", partition=0)

        with pytest.raises(DeliveryError):
            await failed
        with pytest.raises(IllegalStateError, match="already been sent"):
            await producer.send_batch(batch, "orders", partition=1)

    assert metadata.offset == 3
    assert [record.offset for record in producer.sent] == [0, 1, 2, 3, 4]
    assert producer.sent[2] == SentRecord("orders", 1, 2, None, b"2", (("h", b""),), 6)


async def test_a_test_can_set_the_partitions():
    producer = RecordingProducer()
    producer.set_partitions("orders", 2)
    async with producer:
        assert await producer.partitions_for("orders") == {0, 1}
        producer.set_partitions("orders", 4)
        assert await producer.partitions_for("orders") == {0, 1, 2, 3}
        assert await producer.partitions_for("others") == {0}
        assert [info.leader for info in await producer.partition_info("others")] == [0]
        await producer.send("orders", b"", partition=3)

        with pytest.raises(UnknownPartitionError, match="4 partitions; partition 4 did not appear"):
            await producer.send("orders", b"", partition=4)
        with pytest.raises(ValueError, match="the minimum is 4"):
            producer.set_partitions("orders", 3)
        with pytest.raises(ValueError, match=r"the minimum is 1$"):
            producer.set_partitions("new", 0)
        with pytest.raises(InvalidTopicError):
            producer.set_partitions("a b", 1)


async def test_topic_with_records_keeps_its_default_partitions():
    async with RecordingProducer() as producer:
        producer.default_partitions = 12
        await producer.send("orders", b"")

        with pytest.raises(ValueError, match="the minimum is 12"):
            producer.set_partitions("orders", 3)
        producer.set_partitions("others", 3)

        assert len(await producer.partitions_for("orders")) == 12
        assert len(await producer.partitions_for("others")) == 3


async def test_topics_that_can_not_be_created_are_unknown_at_once():
    producer = RecordingProducer(allow_auto_create_topics=False)
    producer.set_partitions("orders", 1)
    async with producer:
        await producer.send("orders", b"")

        with pytest.raises(
            MetadataTimeoutError, match=r"others .*set_partitions\(\) was not called for this topic"
        ):
            await producer.send("others", b"")


# -------------------------------------------------------------------------------------------- requested failures


async def test_a_delivery_fails_as_requested_and_the_next_does_not():
    async with RecordingProducer() as producer:
        producer.fail_next()
        failed = await producer.send("orders", b"1")
        await producer.send_and_wait("orders", b"2")

        with pytest.raises(DeliveryError) as error:
            await failed

    facts = error.value
    assert (facts.topic, facts.partition, facts.broker, facts.attempts) == ("orders", 0, 0, 1)
    assert facts.outcome is Outcome.NOT_PERSISTED
    assert pickle.loads(pickle.dumps(facts)).outcome is Outcome.NOT_PERSISTED
    assert [(record.value, record.offset) for record in producer.sent] == [(b"2", 0)]


@pytest.mark.promise(
    "Test clusters", "the test double fails as configured; transactions are in `sent` once committed"
)
async def test_failures_can_have_a_topic_count_error_and_outcome():
    mine = DeliveryError("mine", outcome=Outcome.UNKNOWN)
    async with RecordingProducer() as producer:
        producer.fail_next(mine, topic="orders", count=2)
        producer.fail_next(topic="orders", outcome=Outcome.UNKNOWN)
        await producer.send_and_wait("others", b"1")

        for _ in range(2):
            with pytest.raises(DeliveryError) as error:
                await producer.send_and_wait("orders", b"2")
            assert str(error.value) == "mine"
        with pytest.raises(DeliveryError) as error:
            await producer.send_and_wait("orders", b"3")
        assert error.value.outcome is Outcome.UNKNOWN
        await producer.send_and_wait("orders", b"4")

        report = await producer.close()

    assert (report.delivered, report.failed, report.unknown) == (2, 0, 3)


@pytest.mark.promise(
    "Test clusters", "the test double fails as configured; transactions are in `sent` once committed"
)
async def test_send_itself_fails_as_requested_and_nothing_is_sent():
    async with RecordingProducer() as producer:
        await producer.partitions_for("orders")
        producer.refuse_next(BufferTimeoutError("full"), topic="orders", count=2)
        producer.refuse_next(BufferFullError("full"))

        await_failed = producer.send("orders", b"1")
        with pytest.raises(BufferTimeoutError):
            await await_failed
        batch = producer.create_batch()
        batch.append(key=None, value=b"2")
        with pytest.raises(BufferTimeoutError):
            await producer.send_batch(batch, "orders", partition=0)
        with pytest.raises(BufferFullError):
            producer.try_send("orders", b"3")
        await producer.send_batch(batch, "orders", partition=0)

    assert [record.value for record in producer.sent] == [b"2"]


async def test_an_invalid_record_does_not_use_up_a_requested_failure():
    async with RecordingProducer() as producer:
        producer.fail_next()
        with pytest.raises(InvalidRecordError):
            await producer.send("orders", "text")

        with pytest.raises(DeliveryError):
            await producer.send_and_wait("orders", b"1")


@pytest.mark.parametrize("call", ["fail_next", "refuse_next"])
def test_invalid_failures_are_rejected(call):
    producer = RecordingProducer()

    with pytest.raises(TypeError, match="must be an exception, not <class"):
        getattr(producer, call)(DeliveryError)
    with pytest.raises(ValueError, match="count=0 must be 1 or more"):
        getattr(producer, call)(DeliveryError(), count=0)


# --------------------------------------------------------------------------------------------------- resources


async def test_it_leaves_no_task_thread_or_memory_behind():
    threads = threading.active_count()
    tasks = asyncio.all_tasks()
    async with RecordingProducer() as producer:
        for _ in range(1000):
            await producer.send("orders", bytes(100))
        await producer.flush()

        accumulator = producer._accumulator
        assert accumulator.memory.available == accumulator.memory.total
        assert (len(accumulator._lingers), len(accumulator._filled), len(accumulator.incomplete)) == (
            0,
            0,
            0,
        )
        assert asyncio.all_tasks() == tasks
        assert threading.active_count() == threads

    assert len(producer.sent) == 1000


async def test_a_loop_of_sends_lets_other_tasks_run():
    async with RecordingProducer() as producer:
        ran = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ran.set_result, None)

        async with asyncio.timeout(5000 * MS):
            while not ran.done():
                await producer.send("orders", bytes(1000))


async def test_each_producer_has_its_own_records():
    async with RecordingProducer() as one, RecordingProducer() as other:
        await one.send("orders", b"1")

    assert len(one.sent) == 1
    assert other.sent == []


async def test_client_instance_id_fails_at_once_without_a_broker():
    async with RecordingProducer() as producer:
        with pytest.raises(KafkaTimeoutError, match="no broker gave this client an id"):
            await asyncio.wait_for(producer.client_instance_id(timeout=60), 1)


async def test_its_metrics_count_the_same_as_those_of_the_producer():
    """Counts that depend on a broker or on time are excluded: requests, compression, retries, waits."""

    async def sent_with(producer: Producer) -> MetricsSnapshot:
        await producer.send_and_wait("orders", b"v" * 100)
        await producer.send_and_wait("orders", b"v" * 50, key=b"k")
        built = producer.create_batch()
        for number in range(3):
            built.append(key=None, value=b"%d" % number)
        await (await producer.send_batch(built, "orders", partition=0))
        return producer.metrics()

    async with producing(topics={"orders": 1}) as (_, real):
        expected = await sent_with(real)
    async with RecordingProducer() as producer:
        found = await sent_with(producer)
        before = time.time()
        producer.fail_next()
        await error_of(await producer.send("bills", b"v"))
        failed = producer.metrics()

    for name in (
        "records_accepted",
        "records_sent",
        "records_acked",
        "record_bytes",
        "batches",
        "batch_bytes",
        "produce_requests",
        "batch_size",
        "records_per_request",
    ):
        assert getattr(found, name) == getattr(expected, name), name
    for name in ("queue_time", "time_to_ack", "time_to_result"):
        assert getattr(found, name).count == getattr(expected, name).count, name
    assert (found.records_buffered, found.buffer_available) == (0, found.buffer_total)
    [topic], [expected_topic] = found.topics, expected.topics
    assert replace(topic, last_ack_time=None) == replace(expected_topic, last_ack_time=None)
    assert topic.last_ack_time == pytest.approx(before, abs=5)
    assert (failed.records_failed, failed.batches) == (1, found.batches + 1)
    assert failed.time_to_ack == found.time_to_ack
    assert failed.time_to_result.count == found.time_to_result.count + 1


@pytest.mark.parametrize("field", ["requests", "in_flight", "nodes", "retries", "metadata_updates"])
async def test_the_guide_lists_what_its_metrics_do_not_count(field):
    async with RecordingProducer() as producer:
        await producer.send("orders", b"v")
        metrics = producer.metrics()
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    assert not getattr(metrics, field)
    assert f"`{field}`" in page.split("does not simulate time")[1].split("\n\n")[0]
