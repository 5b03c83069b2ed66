"""The compiled path: its encoder compared with the plain-Python one, rejected records, chosen partitions, and
`send`."""

from __future__ import annotations

import array
import asyncio
import ctypes
import itertools
import re
import subprocess
import sys
import traceback
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import partitioner
from aioproducer.errors import (
    DeliveryError,
    InvalidRecordError,
    ProducerClosed,
    ProducerNotStartedError,
    RecordTooLargeError,
    WrongLoopError,
)
from aioproducer.protocol.recordbatch import read_header, read_records
from aioproducer.records._record_path import HEADER_SIZE, BufferMemory, Delivery, Rows, murmur2
from aioproducer.records.idempotence import ProducerIdentity
from aioproducer.types import Outcome, ProducerRecord, TopicPartition
from tests.support.compiled_path import NoLoop, OpensBatches, Path, bound, new_batch, now_ms, sealed
from tests.support.oracle import OracleRecord, encode_batch
from tests.support.producing import producing

LAST_TIMESTAMP = 2**63 - 1
SECRET = "s3cr3t-of-the-user"


@pytest.fixture
async def accumulator() -> OpensBatches:
    return OpensBatches(asyncio.get_running_loop())


@pytest.fixture
def path(accumulator: OpensBatches) -> Path:
    return bound(accumulator)


# ---------------------------------------------------------------------------------------------- the encoder

GIVEN_AS = (
    bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(b"<" + data + b">")[1:-1],
    lambda data: array.array("B", data),
)
data = st.none() | st.binary(max_size=40) | st.integers(100, 20_000).map(lambda size: b"x" * size)
timestamps = st.integers(1_700_000_000_000, 1_700_000_100_000) | st.integers(0, LAST_TIMESTAMP)
headers = st.none() | st.lists(
    st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=80)), max_size=4
)
records = st.lists(
    st.tuples(data, data, timestamps, headers, st.sampled_from(GIVEN_AS)), min_size=1, max_size=40
)


def as_oracle(given_records: Sequence[tuple]) -> list[OracleRecord]:
    return [
        OracleRecord(timestamp, key, value, headers or ())
        for key, value, timestamp, headers, _ in given_records
    ]


@pytest.mark.promise(
    "Records",
    "the compiled writer of batch v2 writes keys, values, headers and timestamps as the oracle does",
)
@pytest.mark.promise("KIPs", "KIP-98: record batch v2, idempotent producer")
@settings(max_examples=150, deadline=None)
@given(records, st.integers(1, 8), st.integers(0, 4000))
def test_batch_is_byte_for_byte_what_the_oracle_writes(given_records, times, capacity):
    given_records = given_records * times
    batch = new_batch(capacity=capacity, limit=1 << 30)

    for key, value, timestamp, headers, form in given_records:
        key, value = (None if data is None else form(data) for data in (key, value))
        assert batch.try_append(value, key, timestamp, headers)

    assert sealed(batch) == encode_batch(as_oracle(given_records))
    assert batch.record_count == len(given_records)


@pytest.mark.promise("Records", "CRC-32C, attributes and sequence numbers are in the batch header")
@settings(max_examples=100, deadline=None)
@given(records, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))
def test_numbered_batch_is_what_the_oracle_writes(given_records, producer_id, epoch, sequence):
    batch = new_batch()
    for key, value, timestamp, headers, _ in given_records:
        batch.try_append(value, key, timestamp, headers)

    batch.close()
    batch.number(ProducerIdentity(producer_id, epoch), sequence)

    expected = encode_batch(
        as_oracle(given_records), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    assert b"".join(batch.seal()) == expected


@settings(max_examples=100, deadline=None)
@given(records, st.integers(100, 30_000))
def test_sent_records_are_what_the_oracle_writes_into_as_many_batches_as_needed(given_records, limit):
    accumulator = OpensBatches(NoLoop(), limit=limit)
    path = bound(accumulator)
    topic = accumulator.topics["orders"]

    for key, value, timestamp, headers, form in given_records:
        key, value = (None if data is None else form(data) for data in (key, value))
        assert path._append(topic, value, key, 0, timestamp, headers, False) is not None

    left = as_oracle(given_records)
    for batch in topic.queues[0].batches:
        own, left = left[: batch.record_count], left[batch.record_count :]
        assert batch.size - HEADER_SIZE <= max(limit, len(encode_batch(own[:1])))
        assert sealed(batch) == encode_batch(own)
    assert left == []


@settings(max_examples=100, deadline=None)
@given(records, st.data())
def test_batch_without_its_withdrawn_records_reads_as_if_they_had_never_been_sent(given_records, data):
    left_out = data.draw(st.sets(st.integers(0, len(given_records) - 1), max_size=len(given_records) - 1))
    accumulator = OpensBatches(NoLoop())
    path = bound(accumulator, max_request_size=1 << 24)
    deliveries = [
        path._append(accumulator.topics["orders"], value, key, 0, timestamp, headers, False)
        for key, value, timestamp, headers, _ in given_records
    ]
    batch = accumulator.tail
    batch.close()

    for index in left_out:
        batch.end_record(deliveries[index], DeliveryError("too late"), True)
    batch.leave_out_withdrawn()

    kept = [record for index, record in enumerate(as_oracle(given_records)) if index not in left_out]
    header = read_header(encode_batch(as_oracle(given_records)))._replace(
        last_offset_delta=len(kept) - 1, record_count=len(kept)
    )
    read = list(read_records(batch.records, header))
    assert [(record.offset, record.timestamp, record.key, record.value) for record in read] == [
        (offset, record.timestamp, record.key, record.value) for offset, record in enumerate(kept)
    ]
    assert [record.headers for record in read] == [tuple(record.headers) for record in kept]
    assert batch.record_count == len(kept)
    assert batch.max_timestamp == max(record.timestamp for record in kept)
    positions = [index for index in range(len(given_records)) if index not in left_out]
    assert [batch.original_index(index) for index in range(len(kept))] == positions


@pytest.mark.promise(
    "Records",
    "the compiled writer of batch v2 writes keys, values, headers and timestamps as the oracle does",
)
def test_there_is_room_for_the_longest_possible_record():
    batch = new_batch(capacity=1)
    batch.try_append(None, None, 0, None)
    batch.try_append(b"v" * 300_000, b"k" * 300_000, LAST_TIMESTAMP, [("n" * 300_000, b"h" * 300_000)] * 3)

    expected = [
        OracleRecord(0),
        OracleRecord(LAST_TIMESTAMP, b"k" * 300_000, b"v" * 300_000, [("n" * 300_000, b"h" * 300_000)] * 3),
    ]
    assert sealed(batch) == encode_batch(expected)


def test_the_buffer_grows_by_many_reallocations_and_reserves_the_size_of_its_content():
    batch = new_batch(capacity=0)
    reserved = set()

    for number in range(5000):
        assert batch.try_append(b"%d" % number * (number % 7), b"%d" % number, number, None)
        assert batch.reserved >= batch.size - HEADER_SIZE
        reserved.add(batch.reserved)

    assert len(reserved) > 8
    expected = [OracleRecord(number, b"%d" % number, b"%d" % number * (number % 7)) for number in range(5000)]
    assert sealed(batch) == encode_batch(expected)
    assert batch.reserved == batch.size - HEADER_SIZE


def test_a_full_batch_accepts_no_record_and_does_not_change():
    batch = new_batch(limit=200)
    while batch.try_append(b"v" * 20, None, 1, None):
        pass
    count, size = batch.record_count, batch.size

    assert not batch.try_append(b"v" * 20, None, 1, None)

    assert (batch.record_count, batch.size) == (count, size)
    assert size - HEADER_SIZE <= 200
    assert sealed(batch) == encode_batch([OracleRecord(1, None, b"v" * 20)] * count)


def test_a_closed_batch_accepts_no_record():
    batch = new_batch()
    batch.try_append(b"v", None, 1, None)
    batch.close()

    assert not batch.try_append(b"v", None, 1, None)


def test_without_a_timestamp_a_record_has_the_current_time():
    accumulator = OpensBatches(NoLoop())
    before = now_ms()
    bound(accumulator)._append(accumulator.topics["orders"], b"v", None, 0, None, None, False)

    assert before <= accumulator.tail.base_timestamp <= now_ms()


def test_headers_that_change_while_a_batch_is_opened_are_sent_as_they_were_checked():
    accumulator = OpensBatches(NoLoop())
    headers = [("one", b"1"), ("two", b"2")]
    # Opening a batch runs Python code, so another thread or a finalizer may run during it.
    accumulator.when_opening = headers.pop

    bound(accumulator)._append(accumulator.topics["orders"], b"v", None, 0, 7, headers, False)

    assert sealed(accumulator.tail) == encode_batch(
        [OracleRecord(7, None, b"v", [("one", b"1"), ("two", b"2")])]
    )


# ------------------------------------------------------------------------------------------------ bad records


def released(data: bytes) -> memoryview:
    view = memoryview(data)
    view.release()
    return view


STRIDED = memoryview(SECRET.encode() * 2)[::2]
BAD_RECORDS = {
    "value is str": {"value": SECRET},
    "value is int": {"value": 17},
    "value is a list": {"value": [SECRET]},
    "value is a strided memoryview": {"value": STRIDED},
    "value is a released memoryview": {"value": released(SECRET.encode())},
    "key is str": {"key": SECRET},
    "key is a tuple": {"key": (SECRET,)},
    "key is a strided memoryview": {"key": STRIDED},
    "key is bad and value a buffer": {"key": SECRET, "value": bytearray(b"v")},
    "timestamp is negative": {"timestamp_ms": -1},
    "timestamp is too large": {"timestamp_ms": 2**63},
    "timestamp is float": {"timestamp_ms": 1.5},
    "timestamp is bool": {"timestamp_ms": True},
    "timestamp is str": {"timestamp_ms": SECRET},
    "headers are a dict": {"headers": {"a": b"1"}},
    "headers are a str": {"headers": SECRET},
    "headers are an iterator": {"headers": iter([("a", b"1")])},
    "header is a list": {"headers": [["a", b"1"]]},
    "header is a str of two": {"headers": ["ab"]},
    "header has three parts": {"headers": [("a", b"1", b"2")]},
    "header has one part": {"headers": (("a",),)},
    "header is None": {"headers": [None]},
    "header name is bytes": {"headers": [(SECRET.encode(), b"1")]},
    "header name is None": {"headers": [(None, b"1")]},
    "header name is not UTF-8": {"headers": [("a", b"1"), (SECRET + "\ud800", b"1")]},
    "header value is str": {"headers": [("a", SECRET)]},
    "header value is int": {"headers": [("a", b"1"), ("b", 2)]},
    "header value is bytearray": {"headers": [("a", bytearray(SECRET.encode()))]},
}
bad_records = pytest.mark.parametrize("bad", BAD_RECORDS.values(), ids=BAD_RECORDS)


@bad_records
def test_a_batch_rejects_an_invalid_record_and_does_not_change(bad):
    batch = new_batch()
    batch.try_append(b"v", b"k", 5, None)
    record = {"value": None, "key": None, "timestamp_ms": None, "headers": None} | bad

    with pytest.raises(InvalidRecordError) as raised:
        batch.try_append(**record)

    assert SECRET not in "".join(traceback.format_exception(raised.value, limit=0))
    assert SECRET not in repr(raised.value)
    assert sealed(batch) == encode_batch([OracleRecord(5, b"k", b"v")])


@bad_records
async def test_send_rejects_an_invalid_record_and_opens_and_reserves_nothing(path, accumulator, bad):
    with pytest.raises(InvalidRecordError) as raised:
        await path.send("orders", **bad)
    with pytest.raises(InvalidRecordError):
        path.try_send("orders", **bad)

    assert SECRET not in str(raised.value)
    assert raised.value.outcome is Outcome.NOT_PERSISTED
    assert accumulator.tail is None
    assert accumulator.topics["orders"].sticky_bytes == 0


def test_a_rejected_record_releases_the_buffers_of_its_key_and_value():
    value, key = bytearray(b"value"), bytearray(b"key")
    batch = new_batch()

    for bad in ({"headers": 1}, {"timestamp_ms": -1}, {"key": SECRET}):
        with pytest.raises(InvalidRecordError):
            batch.try_append(**{"value": value, "key": key, "timestamp_ms": 1, "headers": None} | bad)

    value.append(1)  # BufferError if anything still references it
    key.append(1)


def test_record_above_max_request_size_is_refused_with_both_sizes():
    accumulator = OpensBatches(NoLoop())
    path = bound(accumulator, max_request_size=2000)

    with pytest.raises(RecordTooLargeError, match="max_request_size") as raised:
        path._append(accumulator.topics["orders"], SECRET.encode() * 1000, None, 0, 1, None, False)

    assert raised.value.size > len(SECRET) * 1000
    assert raised.value.limit == 2000
    assert SECRET not in str(raised.value)
    assert accumulator.tail is None


# --------------------------------------------------------------------------------------------------- partitions


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_murmur2_agrees_with_the_reference(key):
    assert murmur2(key) == partitioner.murmur2(key)
    assert murmur2(bytearray(key)) == murmur2(memoryview(key)) == murmur2(key)


@pytest.mark.promise("Records", "keys are hashed by Java's murmur2")
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # org.apache.kafka.common.utils.UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        # librdkafka's rdmurmur2.c
        (b"", 0x106E08D9),
        (b"kafka", 0xD067CF64 - 2**32),
    ],
)
def test_murmur2_has_the_published_values(key, expected):
    assert murmur2(key) == expected


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=30), st.integers(1, 50))
def test_a_record_with_a_key_is_sent_to_javas_partition(key, partitions):
    accumulator = OpensBatches(NoLoop(), partitions=partitions)

    delivery = bound(accumulator)._append(accumulator.topics["orders"], b"v", key, -1, 1, None, False)

    assert delivery.topic_partition == TopicPartition(
        "orders", partitioner.murmur2_partition(key, partitions)
    )


def test_records_without_a_key_stay_with_a_partition_until_it_has_batch_size_bytes():
    accumulator = OpensBatches(NoLoop(), partitions=5, limit=1000 - HEADER_SIZE)
    path = bound(accumulator, batch_size=1000)
    topic = accumulator.topics["orders"]

    went_to = [
        path._append(topic, b"v" * 60, None, -1, 1, None, False).topic_partition.partition for _ in range(100)
    ]

    runs = [1]
    for before, after in itertools.pairwise(went_to):
        if before == after:
            runs[-1] += 1
        else:
            runs.append(1)
    assert len(runs) > 5
    # A record has 70 bytes on the wire, and may reserve 31 more while the length of its varints is unknown.
    assert all(1000 // 101 <= run <= 2 * 1000 // 70 for run in runs[:-1])
    assert accumulator.switches[0] == 0
    assert all(1000 <= used <= 2 * 1000 + 101 for used in accumulator.switches[1:])


@pytest.mark.promise(
    "Records", "records without a key go to uniformly sticky partitions, adaptive to slow brokers"
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_record_that_found_no_room_does_not_count_for_the_sticky_partition(at_once):
    """KIP-794: BuiltInPartitioner.updatePartitionInfo is called once the record is in its batch."""
    accumulator = OpensBatches(NoLoop(), partitions=5)
    path = bound(accumulator)
    topic = accumulator.topics["orders"]

    def append():
        if at_once:
            path._append_rows(topic, Rows([b"v" * 60], None, None, None, None), None, True)
        else:
            path._append(topic, b"v" * 60, None, -1, 1, None, True)

    accumulator.is_full = True
    for _ in range(3):
        append()
    assert topic.sticky_bytes == 0
    accumulator.is_full = False
    append()
    assert 70 <= topic.sticky_bytes <= 101
    path._append(topic, b"v" * 60, b"key", -1, 1, None, True)
    assert topic.sticky_bytes <= 101


# --------------------------------------------------------------------------------------------------- send


@pytest.mark.promise("Public API", "`send` is a coroutine that returns the delivery")
async def test_send_returns_the_delivery_without_yielding_to_the_loop(path, accumulator):
    ran = []
    asyncio.get_running_loop().call_soon(ran.append, 1)

    delivery = await path.send("orders", b"v", b"k", 0, 7, [("a", None)])

    assert ran == []
    assert isinstance(delivery, Delivery)
    assert sealed(accumulator.tail) == encode_batch([OracleRecord(7, b"k", b"v", [("a", None)])])


@pytest.mark.promise("Public API", "`send` is a coroutine that returns the delivery")
async def test_send_can_be_a_task(path, accumulator):
    delivery = await asyncio.create_task(path.send("orders", b"v"))

    assert not delivery.done()


@pytest.mark.parametrize(("size", "count"), [(1, 20_000), (20_000, 500)])
async def test_a_long_loop_of_sends_lets_other_tasks_run(path, size, count):
    turns = []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    for _ in range(count):
        await path.send("orders", b"v" * size)
    task.cancel()
    await asyncio.wait([task])

    # The loop sends about 10 MB if a small record counts as half a kilobyte, and one turn sends about 1 MB.
    assert len(turns) >= 7


async def test_a_loop_of_sends_that_open_batches_lets_other_tasks_run_more_often(path, accumulator):
    """Opening a batch takes about as long as appending 16 records."""
    turns = []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    for _ in range(1000):
        await path.send("orders", b"v")
        accumulator.tail.queue.tail = None
    task.cancel()
    await asyncio.wait([task])

    assert 5 <= len(turns) <= 50


class HeaderAdder:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(headers=[("a", b"1")])


class Spans:
    """A tracer and its only span."""

    headers = None

    def begin(self, *_: object) -> Spans:
        return self

    def watch(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("config", "tracer", "value", "most"),
    [
        ({}, None, bytes(100), 1700),
        ({"interceptors": [HeaderAdder()]}, None, bytes(100), 650),
        ({"value_serializer": str.encode}, None, "v" * 100, 340),
        ({"value_serializer": str.encode}, None, "v" * 10_000, 7),
        ({}, Spans(), bytes(100), 45),
    ],
    ids=["plain", "interceptor", "serializer", "serializer of 10 KB", "traced"],
)
async def test_sends_that_take_longer_let_other_tasks_run_after_fewer_records(config, tracer, value, most):
    async with producing(**config) as (_, producer):
        await producer.send_and_wait("t", value)
        producer._tracer = tracer
        in_turns = [0]

        async def other() -> None:
            while True:
                in_turns.append(0)
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(3 * most):
            await producer.send("t", value)
            in_turns[-1] += 1
        task.cancel()

    assert most / 2 < max(in_turns[1:]) <= most, "about a millisecond in each turn"


async def test_send_and_wait_makes_its_batch_due_once_and_returns_the_metadata(path, accumulator):
    tasks = [asyncio.ensure_future(path.send_and_wait("orders", b"v")) for _ in range(3)]
    await asyncio.sleep(0)

    assert accumulator.hurried == [accumulator.tail]
    assert accumulator.tail.is_due
    accumulator.tail.succeed(3, -1, -1)
    assert [metadata.offset for metadata in await asyncio.gather(*tasks)] == [3, 4, 5]


@pytest.mark.promise("Public API", "`send_and_wait` returns the metadata and never lingers")
async def test_send_and_wait_raises_the_error_of_the_record(path, accumulator):
    tasks = [asyncio.ensure_future(path.send_and_wait("orders", b"v")) for _ in range(2)]
    await asyncio.sleep(0)
    error = DeliveryError("refused", outcome=Outcome.UNKNOWN)

    accumulator.tail.give_up(error)

    assert list(map(repr, await asyncio.gather(*tasks, return_exceptions=True))) == [repr(error)] * 2


async def test_cancelling_send_and_wait_leaves_the_record_in_its_batch(path, accumulator):
    task = asyncio.ensure_future(path.send_and_wait("orders", b"v"))
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert accumulator.tail.record_count == 1
    accumulator.tail.succeed(0, -1, -1)


async def test_send_takes_the_slow_path_for_records_that_it_cannot_append_immediately(path, accumulator):
    for refused in (
        {"topic": "unknown"},
        {"topic": "orders", "partition": 1},
        {"topic": "orders", "partition": -1},
        {"topic": "orders", "partition": True},
        {"topic": b"orders"},
    ):
        with pytest.raises(NotImplementedError):
            await path.send(**refused, value=b"v")
        with pytest.raises(NotImplementedError):
            path.try_send(**refused, value=b"v")
    accumulator.is_full = True
    with pytest.raises(NotImplementedError):
        await path.send("orders", b"v")


async def test_no_caller_overtakes_those_that_wait_for_memory(path, accumulator):
    topic = accumulator.topics["orders"]
    path.try_send("orders", b"v")
    accumulator.memory.waiters = 1

    assert path._append(topic, b"v", None, 0, None, None, False) is None
    assert path._append(topic, b"v", None, 0, None, None, True) is not None


async def test_send_before_the_start_and_after_the_close_is_refused(path):
    with pytest.raises(ProducerNotStartedError):
        await Path().send("orders", b"v")
    path._unbind()
    with pytest.raises(ProducerClosed):
        await path.send("orders", b"v")
    with pytest.raises(ProducerClosed):
        path.try_send("orders", b"v")


async def test_send_from_another_loop_or_thread_is_refused(path):
    def without_loop() -> None:
        path.try_send("orders", b"v")

    def with_loop() -> None:
        asyncio.run(path.send("orders", b"v"))

    for elsewhere in (without_loop, with_loop):
        with pytest.raises(WrongLoopError, match="one producer for each event loop"):
            await asyncio.to_thread(elsewhere)


def test_send_from_a_later_loop_of_the_same_thread_is_refused():
    async def bind() -> Path:
        return bound(OpensBatches(asyncio.get_running_loop()))

    path = asyncio.run(bind())

    with pytest.raises(WrongLoopError):
        asyncio.run(path.send("orders", b"v"))
    with pytest.raises(WrongLoopError):
        path.try_send("orders", b"v")


def test_producer_is_refused_in_a_forked_child():
    # In a separate process, which has no other threads.
    script = """
import asyncio, os
from aioproducer.records._record_path import BufferMemory, RecordPath
from aioproducer.errors import ForkedError

class Nothing:
    topics = {}

async def main():
    path = RecordPath()
    path._bind(asyncio.get_running_loop(), Nothing(), BufferMemory(1), 1, 1, True)
    path._check_usable()
    child = os.fork()
    if child == 0:
        try:
            path.try_send("t")
        except ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    path._check_usable()
    print("refused in the child")

asyncio.run(main())
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )

    assert ran.stdout.strip() == "refused in the child", ran.stderr


# ----------------------------------------------------------------------------------------------- BufferMemory


@pytest.mark.promise("Accumulator, sender, connections", "buffer memory is accounted exactly")
def test_buffer_memory_hands_out_no_more_than_it_has():
    memory = BufferMemory(100)

    assert memory.take(60)
    assert not memory.take(41)
    assert memory.take(40)
    assert memory.available == 0
    memory.give(100)

    assert memory.available == memory.total == 100
    with pytest.raises(AssertionError, match="returned twice"):
        memory.give(1)


# ------------------------------------------------------------------------------------------- buffers of other items

OTHER_ITEMS = {
    "array.array of ints": (array.array("i", [1, 2]), "array of format 'i' with 4 bytes"),
    "array.array of doubles": (array.array("d", [1.0]), "array of format 'd' with 8 bytes"),
    "a memoryview of numbers": (memoryview(bytes(8)).cast("q"), "memoryview of format 'q' with 8 bytes"),
    "a memoryview of truth values": (memoryview(bytes(8)).cast("?"), "memoryview of format '?' with 1 bytes"),
    "ctypes numbers": ((ctypes.c_int32 * 2)(1, 2), "c_int_Array_2 of format '<i' with 4 bytes"),
}
ITEMS_ARE_BYTES = {
    "array.array of unsigned bytes": array.array("B", b"abcd"),
    "array.array of signed bytes": array.array("b", b"abcd"),
    "bytes in two dimensions": memoryview(b"abcd").cast("B", shape=[2, 2]),
    "a memoryview of characters": memoryview(b"abcd").cast("c"),
    "a memoryview of a bytearray": memoryview(bytearray(b"abcd")),
    "ctypes characters": (ctypes.c_char * 4)(*b"abcd"),
    "ctypes bytes": (ctypes.c_ubyte * 4)(*b"abcd"),
}


@pytest.mark.parametrize("part", ["value", "key"])
@pytest.mark.parametrize("case", OTHER_ITEMS)
def test_a_buffer_whose_items_are_not_bytes_is_rejected_with_its_type_and_format(case, part):
    data, words = OTHER_ITEMS[case]
    accumulator = OpensBatches(NoLoop())
    topic = accumulator.topics["orders"]

    with pytest.raises(InvalidRecordError, match=re.escape(f"the {part} is a {words}")) as caught:
        bound(accumulator)._append(
            topic, *((data, None) if part == "value" else (None, data)), 0, None, None, False
        )

    assert caught.value.argument == part
    assert accumulator.tail is None


def test_an_array_of_numpy_is_sent_only_if_its_items_are_bytes():
    numpy = pytest.importorskip("numpy")  # not every interpreter of `make matrix` has it
    accumulator = OpensBatches(NoLoop())
    topic = accumulator.topics["orders"]
    path = bound(accumulator)

    for array_of_others in (numpy.arange(3), numpy.ones(2), numpy.frombuffer(b"abcdef", "u1")[::2]):
        with pytest.raises(InvalidRecordError, match="the value is a ndarray"):
            path._append(topic, array_of_others, None, 0, None, None, False)
    assert accumulator.tail is None
    path._append(topic, numpy.frombuffer(b"abcd", "u1"), None, 0, None, None, False)
    assert sealed(accumulator.tail).count(b"abcd") == 1


@pytest.mark.parametrize("case", ITEMS_ARE_BYTES)
def test_a_buffer_of_bytes_is_sent_unchanged_whatever_its_type(case):
    accumulator = OpensBatches(NoLoop())
    data = ITEMS_ARE_BYTES[case]

    bound(accumulator)._append(accumulator.topics["orders"], data, data, 0, None, None, False)

    data = sealed(accumulator.tail)
    assert data.count(b"abcd") == 2
