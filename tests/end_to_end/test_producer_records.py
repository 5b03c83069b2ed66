"""Valid and invalid records, and the time limits of a record."""

from __future__ import annotations

import array
import asyncio
import pickle

import pytest

from aioproducer import BufferFullError, Outcome, TopicPartition
from aioproducer.errors import (
    BufferTimeoutError,
    DeliveryTimeoutError,
    InvalidRecordError,
    InvalidTopicError,
    RecordTooLargeError,
    UnknownPartitionError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    error_of,
    numbers,
    produce_count,
    producing,
    results,
    until,
    values,
    within,
)

# ------------------------------------------------------------------------------------------- values and errors


@pytest.mark.promise("Public API", "values are bytes, bytearray, memoryview or None")
@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (b"bytes", b"bytes"),
        (bytearray(b"bytearray"), b"bytearray"),
        (memoryview(b"memoryview"), b"memoryview"),
        (memoryview(b"a slice of it")[2:7], b"slice"),
        (array.array("b", [1, 2, 3]), b"\x01\x02\x03"),
        (b"", b""),
        (None, None),
    ],
)
async def test_values_and_keys_are_bytes_like_or_none(value, wire):
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", value, value)

        (record,) = cluster.records("t")
        assert (record.key, record.value) == (wire, wire)


@pytest.mark.promise("Public API", "values are bytes, bytearray, memoryview or None")
async def test_the_value_is_copied_before_send_returns():
    async with producing(linger_ms=60_000, delivery_timeout_ms=120_000) as (cluster, producer):
        value = bytearray(b"before")
        await producer.send("t", value)
        value[:] = b"after!"
        value.extend(b"it is not locked either")

        await producer.flush()

        assert values(cluster) == [b"before"]


async def test_metadata_says_where_a_record_is():
    async with producing(topics={"t": 3}) as (_, producer):
        delivery = await producer.send("t", b"v", partition=2, timestamp_ms=1_700_000_000_000)
        assert delivery.topic_partition == TopicPartition("t", 2)

        metadata = await within(1, delivery)

        assert (metadata.topic, metadata.partition, metadata.offset) == ("t", 2, 0)
        assert (metadata.timestamp, metadata.timestamp_type) == (1_700_000_000_000, 0)
        assert metadata.topic_partition == TopicPartition("t", 2)
        assert metadata.log_start_offset == 0
        assert pickle.loads(pickle.dumps(metadata)) == metadata


async def test_log_append_time_shows_in_the_metadata():
    async with producing(topics={}) as (cluster, producer):
        cluster.create_topic("t", 1, config={"message.timestamp.type": "LogAppendTime"})

        metadata = await producer.send_and_wait("t", b"v", timestamp_ms=5)

        assert metadata.timestamp_type == 1
        assert metadata.timestamp == cluster.records("t")[0].timestamp != 5


async def test_headers_keep_their_order_and_may_repeat():
    headers = [("b", b"1"), ("a", None), ("b", b""), ("naïve ☃", b"2"), ("", b"3")]
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"v", headers=headers)
        await producer.send_and_wait("t", b"v", headers=tuple(headers))
        await producer.send_and_wait("t", b"v", headers=[])

        assert [record.headers for record in cluster.records("t")] == [tuple(headers), tuple(headers), ()]


WRONG = {
    "a text as value": (InvalidRecordError, {"value": "text"}),
    "a number as value": (InvalidRecordError, {"value": 5}),
    "a list as value": (InvalidRecordError, {"value": [1]}),
    "a view with gaps as value": (InvalidRecordError, {"value": memoryview(b"abcd")[::2]}),
    "a text as key": (InvalidRecordError, {"key": "text"}),
    "a number as key": (InvalidRecordError, {"key": 5}),
    "a negative partition": (InvalidRecordError, {"partition": -1}),
    "a partition of text": (InvalidRecordError, {"partition": "0"}),
    "a partition of bool": (InvalidRecordError, {"partition": True}),
    "a partition with a fraction": (InvalidRecordError, {"partition": 0.5}),
    "a partition that does not exist": (UnknownPartitionError, {"partition": 99}),
    "a partition beyond 32 bits": (UnknownPartitionError, {"partition": 2**40}),
    "a negative timestamp": (InvalidRecordError, {"timestamp_ms": -1}),
    "a timestamp beyond 63 bits": (InvalidRecordError, {"timestamp_ms": 2**63}),
    "a timestamp in seconds": (InvalidRecordError, {"timestamp_ms": 1.5}),
    "a timestamp of text": (InvalidRecordError, {"timestamp_ms": "now"}),
    "a timestamp of bool": (InvalidRecordError, {"timestamp_ms": True}),
    "a dict as headers": (InvalidRecordError, {"headers": {"a": b"b"}}),
    "a text as headers": (InvalidRecordError, {"headers": "ab"}),
    "a header that is not a tuple": (InvalidRecordError, {"headers": [["a", b"b"]]}),
    "a header of three": (InvalidRecordError, {"headers": [("a", b"b", b"c")]}),
    "a header with a name of bytes": (InvalidRecordError, {"headers": [(b"a", b"b")]}),
    "a header with a value of text": (InvalidRecordError, {"headers": [("a", "b")]}),
    "a header that is not UTF-8": (InvalidRecordError, {"headers": [("\ud800", b"b")]}),
    "a timeout of text": ((InvalidRecordError, TypeError, ValueError), {"timeout": "1"}),
    "no topic": (InvalidTopicError, {"topic": None}),
    "a topic of bytes": (InvalidTopicError, {"topic": b"t"}),
    "an empty topic": (InvalidTopicError, {"topic": ""}),
    "a topic of one dot": (InvalidTopicError, {"topic": "."}),
    "a topic of two dots": (InvalidTopicError, {"topic": ".."}),
    "a topic with a slash": (InvalidTopicError, {"topic": "a/b"}),
    "a topic with an end of line": (InvalidTopicError, {"topic": "t\n"}),
    "a topic with a NUL": (InvalidTopicError, {"topic": "t\0"}),
    "a topic that is too long": (InvalidTopicError, {"topic": "t" * 250}),
}


@pytest.mark.promise("Public API", "values are bytes, bytearray, memoryview or None")
@pytest.mark.parametrize("what", WRONG)
@in_virtual_time
async def test_an_invalid_record_has_a_narrow_error_and_no_other_is_lost(what):
    expected, wrong = WRONG[what]
    settings = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000, "max_block_ms": 150_000 * MS}
    async with producing(**settings) as (cluster, producer):
        before = await producer.send("t", b"before")
        buffered = producer.metrics().buffer_available

        arguments = {"topic": "t", "value": b"v", **wrong}
        for call in (producer.send, producer.send_and_wait):
            with pytest.raises(expected) as caught:
                await within(1, call(**arguments))
            assert getattr(caught.value, "outcome", Outcome.NOT_PERSISTED) is Outcome.NOT_PERSISTED
        if "timeout" not in wrong:
            with pytest.raises(
                (expected, BufferFullError) if expected is UnknownPartitionError else expected
            ):
                producer.try_send(**arguments)

        assert producer.metrics().records_buffered == 1
        assert producer.metrics().buffer_available == buffered
        after = await producer.send("t", b"after")
        await within(1, producer.flush())
        assert [metadata.offset for metadata in await results([before, after])] == [0, 1]
        assert values(cluster) == [b"before", b"after"]


async def test_errors_never_show_a_value_a_key_or_a_header():
    async with producing(max_request_size=1024) as (cluster, producer):
        secret = b"SECRET" * 1000
        cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD)
        shown = [
            str(await error_of(producer.send("t", secret))),
            str(await error_of(producer.send("t", "SECRET"))),
            str(await error_of(producer.send("t", b"v", "SECRET"))),
            str(await error_of(producer.send("t", b"v", headers=[("SECRET", "SECRET")]))),
            str(await error_of(producer.send_and_wait("t", b"SECRET", b"SECRET"))),
            repr(producer),
        ]

        assert not [text for text in shown if "SECRET" in text]


async def test_a_record_above_the_limit_is_rejected_with_size_and_limit():
    async with producing(max_request_size=2000) as (cluster, producer):
        with pytest.raises(RecordTooLargeError) as caught:
            await producer.send("t", bytes(2000))
        assert caught.value.size > 2000
        assert caught.value.limit == 2000

        await producer.send_and_wait("t", bytes(1900))
        assert [len(value or b"") for value in values(cluster)] == [1900]


async def test_a_record_above_the_buffer_is_rejected_at_once():
    async with producing(buffer_memory=5000) as (_, producer):
        with pytest.raises(RecordTooLargeError) as caught:
            await within(0.5, producer.send("t", bytes(5000)))
        assert caught.value.limit == 5000


# ------------------------------------------------------------------------------------------- per-record timeout


async def test_a_record_with_a_timeout_is_delivered_like_any_other():
    async with producing() as (_, producer):
        delivery = await producer.send("t", b"v", timeout=5)

        assert (await within(1, delivery)).offset == 0
        assert (await producer.send_and_wait("t", b"w", timeout=5)).offset == 1


@pytest.mark.promise("Public API", "a record can have its own `timeout=`")
@in_virtual_time
async def test_a_records_own_timeout_ends_its_delivery_alone():
    patience = {"request_timeout_ms": 20_000_000 * MS, "delivery_timeout_ms": 40_000_000 * MS}
    async with producing(linger_ms=30, **patience) as (cluster, producer):
        release = asyncio.Event()
        held = cluster.faults.add(ApiKey.PRODUCE, hold=release)
        await producer.partitions_for("t")
        hasty = await producer.send("t", b"hasty", timeout=1000 * MS)
        patient = await producer.send("t", b"patient")
        await within(2, held.reached())

        error = await error_of(hasty, 5)

        assert isinstance(error, DeliveryTimeoutError)
        assert isinstance(error, TimeoutError)
        assert (error.outcome, error.topic, error.partition) == (Outcome.UNKNOWN, "t", 0)
        assert error.attempts == 1
        assert not patient.done()
        release.set()
        assert (await within(1, patient)).offset == 1
        assert values(cluster) == [b"hasty", b"patient"], "exactly once, whatever the delivery reported"
        assert isinstance(hasty.exception(), DeliveryTimeoutError), "a result never changes"


@in_virtual_time
async def test_records_that_ended_by_their_own_timeout_leave_nothing_behind_while_no_broker_answers():
    async with producing(buffer_memory=1 << 20) as (cluster, producer):
        await producer.partitions_for("t")
        await cluster.stop_broker(0)
        await until(lambda: producer._brokers.lost)
        for _ in range(2):
            sent = [await producer.send("t", bytes(1000), timeout=50 * MS) for _ in range(900)]
            assert {type(error) for error in await results(sent)} == {DeliveryTimeoutError}

        await within(1, producer.flush())
        snapshot = producer.metrics()
        assert (snapshot.buffer_available, snapshot.records_buffered) == (1 << 20, 0)
        report = await within(1, producer.close())
        assert (report.delivered, report.failed, report.unknown) == (0, 1800, 0)


@pytest.mark.promise("Public API", "a record can have its own `timeout=`")
@pytest.mark.parametrize("is_frozen", [False, True])
@in_virtual_time
async def test_a_batch_of_records_that_ended_by_their_own_timeout_is_not_sent_again(is_frozen):
    async with producing(linger_ms=10, request_timeout_ms=200_000 * MS) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        if is_frozen:
            cluster.faults.add(ApiKey.PRODUCE, hold=release)
        else:
            cluster.faults.add(ApiKey.PRODUCE, drop_before=True, count=10_000)
        sent = [await producer.send("t", b"late", timeout=100 * MS) for _ in range(3)]

        errors = await results(sent)

        assert {type(error) for error in errors} == {DeliveryTimeoutError}
        assert {error.outcome for error in errors} == {Outcome.UNKNOWN}
        await within(2, producer.flush())
        assert producer.metrics().buffer_available == producer.metrics().buffer_total
        assert producer.metrics().records_unknown == 3
        requests = produce_count(cluster)
        cluster.faults.clear()
        release.set()
        await within(2, producer.send_and_wait("t", b"next"))
        assert produce_count(cluster) == requests + 1
        # The held request may still be handled, although its connection is closed.
        assert values(cluster) in ([b"next"], [b"late"] * 3 + [b"next"])


@in_virtual_time
async def test_a_batch_with_a_live_record_is_sent_again_with_all_of_its_records():
    async with producing(linger_ms=10) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(ApiKey.PRODUCE, drop_before=True, count=10_000)
        late, live = await producer.send("t", b"late", timeout=50 * MS), await producer.send("t", b"live")
        assert isinstance(await error_of(late), DeliveryTimeoutError)

        cluster.faults.clear()

        assert (await within(2, live)).offset == 1
        assert values(cluster) == [b"late", b"live"]


async def test_interceptors_get_the_error_of_a_record_that_ended_by_its_own_timeout_while_no_broker_answers():
    heard: list[object] = []

    class Listens:
        def on_acknowledgement(self, result: object) -> None:
            heard.append(result)

    async with producing(interceptors=[Listens()]) as (cluster, producer):
        await producer.partitions_for("t")
        await cluster.stop_broker(0)

        error = await error_of(await producer.send("t", b"v", timeout=20 * MS))

        await until(lambda: heard)
        assert [str(result) for result in heard] == [str(error)]


@pytest.mark.promise("Public API", "a record can have its own `timeout=`")
async def test_send_and_wait_with_a_timeout_ends_in_time():
    async with producing() as (cluster, producer):
        release = asyncio.Event()
        cluster.faults.add(ApiKey.PRODUCE, hold=release)

        error = await error_of(producer.send_and_wait("t", b"v", timeout=30 * MS), 1)

        assert isinstance(error, DeliveryTimeoutError)
        release.set()
        await within(1, producer.flush())
        assert values(cluster) == [b"v"]


@pytest.mark.promise("Public API", "`send_and_wait` returns the metadata and never lingers")
async def test_send_and_wait_never_lingers():
    async with producing(linger_ms=60_000, delivery_timeout_ms=120_000) as (cluster, producer):
        await producer.send("t", b"0")

        metadata = await within(0.5, producer.send_and_wait("t", b"1"))

        assert metadata.offset == 1
        assert numbers(cluster) == [0, 1]
        assert len(cluster.batches("t", 0)) == 1


@pytest.mark.promise("Public API", "`send_and_wait` returns the metadata and never lingers")
async def test_send_and_wait_with_a_serializer_and_many_callers_never_lingers():
    settings = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}
    async with producing(**settings, value_serializer=lambda value: value) as (cluster, producer):
        calls = [producer.send_and_wait("t", b"%d" % number) for number in range(50)]

        metadata = await within(1, asyncio.gather(*calls))

        assert [one.offset for one in metadata] == list(range(50))
        assert produce_count(cluster) < 25, "records sent at the same time share requests"


async def test_a_records_own_timeout_bounds_its_wait_for_room_and_is_named():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        for _ in range(4):
            await producer.send("t", bytes(LARGE))

        error = await error_of(producer.send("t", bytes(LARGE), timeout=50 * MS), 0.5)

        assert isinstance(error, BufferTimeoutError)
        assert "(the call's timeout)" in str(error)
        assert "max_block_ms" not in str(error)


@pytest.mark.promise("Public API", "`send` waits while the buffer is full, bounded by `max_block`")
@in_virtual_time
async def test_max_block_bounds_a_wait_for_room():
    async with producing(**FOUR_RECORDS_FILL_IT, max_block_ms=50) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        for _ in range(4):
            await producer.send("t", bytes(LARGE))

        error = await error_of(producer.send("t", bytes(LARGE)), 0.5)

        assert isinstance(error, BufferTimeoutError)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert "buffer_memory" in str(error)
        cluster.thaw_broker(0)
        await within(1, producer.flush())
        assert len(values(cluster)) == 4


# --------------------------------------------------------------------------------------------- try_send(timeout=)


async def test_a_record_of_try_send_ends_by_its_own_timeout_and_is_not_sent():
    async with producing(linger_ms=1000, topics={"t": 1}) as (cluster, producer):
        await producer.partitions_for("t")
        late = producer.try_send("t", b"late", timeout=5 * MS)
        kept = producer.try_send("t", b"kept", timeout=1000)

        with pytest.raises(DeliveryTimeoutError, match="its own timeout") as caught:
            await within(1, late)
        await within(1, producer.flush())

        assert caught.value.outcome is Outcome.NOT_PERSISTED
        assert (await kept).offset == 0
        assert values(cluster, "t") == [b"kept"]


@pytest.mark.parametrize("nonsense", [-1, True, "1"])
async def test_try_send_rejects_a_timeout_that_is_not_a_number_of_seconds(nonsense):
    async with producing(topics={"t": 1}) as (_, producer):
        await producer.partitions_for("t")
        with pytest.raises(InvalidRecordError, match="timeout must be a number of seconds"):
            producer.try_send("t", b"v", timeout=nonsense)
        assert producer.metrics().records_buffered == 0
