"""send_many: columns of records as lists or Arrow arrays, batches shared with `send`, and the receipt."""

from __future__ import annotations

import asyncio
import datetime
import gc
import itertools
import logging
import math
import time

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import (
    Interceptor,
    InvalidRecordError,
    Outcome,
    Producer,
    ProducerClosed,
    RecordTooLargeError,
    SendManyError,
    TopicPartition,
    TransactionAbortedError,
)
from aioproducer.errors import (
    BufferTimeoutError,
    DeliveryTimeoutError,
    InvalidTopicError,
    SerializationError,
    UnknownPartitionError,
)
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records._record_path import ALL_APPENDED, NO_ROOM, OTHERS_TURN, Rows, murmur2
from aioproducer.sending.bulk import end_of
from aioproducer.testing import EmbeddedCluster, RecordingProducer
from tests.conftest import MS, in_virtual_time
from tests.support.compiled_path import NoLoop, OpensBatches, bound, now_ms, sealed
from tests.support.log_lines import log_lines
from tests.support.oracle import OracleRecord, encode_batch
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    METADATA,
    PRODUCE,
    QUICK,
    error_of,
    produce_count,
    producing,
    until,
    values,
    within,
)

BYTES_TYPES = {
    "binary": pa.binary(),
    "large binary": pa.large_binary(),
    "binary view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int8(), pa.binary()),
    "dictionary of views": pa.dictionary(pa.uint32(), pa.binary_view()),
    "dictionary of large": pa.dictionary(pa.int64(), pa.large_binary()),
}
TEXT_TYPES = {
    "string": pa.string(),
    "large string": pa.large_string(),
    "string view": pa.string_view(),
    "dictionary of strings": pa.dictionary(pa.int16(), pa.string()),
}
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS_TYPES = {
    "list": pa.list_(PAIR),
    "large list": pa.large_list(PAIR),
    "map": pa.map_(pa.string(), pa.binary()),
    "list with views": pa.list_(pa.struct([("k", pa.string_view()), ("v", pa.large_binary())])),
}


def array_of(data, kind):
    """Return an Arrow array; pyarrow can't create a dictionary of views from Python objects by itself."""
    if pa.types.is_dictionary(kind):
        found = sorted({value for value in data if value is not None})
        numbers = pa.array([None if value is None else found.index(value) for value in data], kind.index_type)
        return pa.DictionaryArray.from_arrays(numbers, pa.array(found, kind.value_type))
    return pa.array(data, kind)


# ------------------------------------------------------------------------------------------------- encoding


def encoded(rows):
    """Append the rows to a single batch, and return its bytes."""
    accumulator = OpensBatches(NoLoop())
    path = bound(accumulator)
    while path._append_rows(accumulator.topics["orders"], rows, None, False) == OTHERS_TURN:
        pass
    assert rows.is_complete
    assert rows.errors == {}
    return sealed(accumulator.tail)


CLOCK = -1
"""The timestamp of an expected record whose row has none."""


def assert_encoded(rows, expected):
    """Check that the rows are encoded as the oracle encodes them. A row without a timestamp has the append time."""
    before = now_ms()
    found = encoded(rows)
    after = now_ms()

    now = {row: rows.timestamp(row) for row, record in enumerate(expected) if record.timestamp == CLOCK}
    assert all(before <= at <= after for at in now.values())
    assert found == encode_batch(
        [record._replace(timestamp=now.get(row, record.timestamp)) for row, record in enumerate(expected)]
    )


some_bytes = st.none() | st.binary(max_size=30)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
some_headers = st.none() | st.lists(st.tuples(names, st.none() | st.binary(max_size=20)), max_size=3)
records = st.lists(
    st.tuples(some_bytes, some_bytes, some_headers, st.none() | st.integers(0, 2**62)),
    min_size=1,
    max_size=12,
)


@pytest.mark.promise("Public API", "`send_many`: columns become the bytes that the oracle writes")
@settings(max_examples=150, deadline=None)
@given(
    given=records,
    value_type=st.sampled_from(sorted(BYTES_TYPES)),
    key_type=st.sampled_from(sorted(BYTES_TYPES)),
    headers_type=st.sampled_from(sorted(HEADERS_TYPES)),
    before=st.integers(0, 9),
    cuts=st.lists(st.integers(0, 12), max_size=3),
)
def test_columns_become_the_bytes_that_the_oracle_writes(
    given, value_type, key_type, headers_type, before, cuts
):
    expected = [
        OracleRecord(CLOCK if timestamp is None else timestamp, key, value, tuple(headers or ()))
        for value, key, headers, timestamp in given
    ]
    columns = [list(column) for column in zip(*given, strict=True)]
    lists = Rows(columns[0], columns[1], columns[2], columns[3], None)
    types = [BYTES_TYPES[value_type], BYTES_TYPES[key_type], HEADERS_TYPES[headers_type], pa.int64()]

    assert_encoded(lists, expected)

    arrays = [
        # Slices may begin anywhere; data before them must not be read.
        array_of([column[0]] * before + column, kind).slice(before)
        for column, kind in zip(columns, types, strict=True)
    ]
    assert_encoded(Rows(*arrays, None), expected)

    edges = sorted({0, *(cut for cut in cuts if cut < len(given)), len(given)})
    chunked = [
        pa.chunked_array([array[a:b] for a, b in itertools.pairwise(edges)], array.type) for array in arrays
    ]
    assert_encoded(Rows(chunked[0], arrays[1], chunked[2], columns[3], None), expected)

    names = ["value", "key", "headers", "timestamp"]
    batch = pa.RecordBatch.from_arrays(arrays, names)
    assert_encoded(Rows(batch, None, None, None, None), expected)
    assert_encoded(Rows(pa.table(chunked, names), None, None, None, None), expected)
    struct = pa.StructArray.from_arrays(
        [pa.concat_arrays([array, array]) for array in arrays if not pa.types.is_dictionary(array.type)],
        [name for name, array in zip(names, arrays, strict=True) if not pa.types.is_dictionary(array.type)],
    ).slice(len(given))
    rest = {
        f"{name}s": array
        for name, array in zip(names, arrays, strict=True)
        if pa.types.is_dictionary(array.type)
    }
    if "values" not in rest:
        assert_encoded(Rows(struct, rest.get("keys"), None, None, None), expected)


@pytest.mark.promise("Public API", "`send_many`: columns become the bytes that the oracle writes")
@pytest.mark.parametrize("kind", sorted(TEXT_TYPES))
def test_text_is_sent_as_utf_8_bytes(kind):
    words = ["a", None, "größer als zwölf Bytes", "", "z"]
    expected = [OracleRecord(CLOCK, None, None if word is None else word.encode()) for word in words]

    assert_encoded(Rows(array_of(words, TEXT_TYPES[kind]), None, None, None, None), expected)


def test_other_columns_of_arrow():
    fixed = pa.array([b"abc", None, b"xyz"], pa.binary(3))
    nothing = pa.nulls(3)
    expected = [OracleRecord(CLOCK, None, b"abc"), OracleRecord(CLOCK), OracleRecord(CLOCK, None, b"xyz")]
    assert_encoded(Rows(fixed, nothing, nothing, nothing, nothing), expected)


@pytest.mark.promise("Public API", "`send_many`: columns become the bytes that the oracle writes")
def test_a_null_pair_outside_of_a_slice_is_ignored():
    pairs = pa.array([[None], [("a", b"1")], [None]], pa.list_(PAIR))
    batch = pa.StructArray.from_arrays([pa.array([b"0", b"1", b"2"]), pairs], ["value", "headers"])
    expected = [OracleRecord(CLOCK, None, b"1", (("a", b"1"),))]

    assert_encoded(Rows([b"1"], None, pairs.slice(1, 1), None, None), expected)
    assert_encoded(Rows(batch.slice(1, 1), None, None, None, None), expected)
    with pytest.raises(InvalidRecordError, match="the pairs of name and value must not be null"):
        Rows([b"1", b"2"], None, pairs.slice(1), None, None)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_become_milliseconds(unit):
    moments = [datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC), None]
    column = pa.array(moments, pa.timestamp(unit, "UTC"))
    expected = [OracleRecord(1357017300000, None, b"v"), OracleRecord(CLOCK, None, b"v")]

    assert_encoded(Rows([b"v"] * 2, None, None, column, None), expected)
    date = pa.array([datetime.date(2013, 1, 1), None], pa.date64())
    expected[0] = OracleRecord(1356998400000, None, b"v")
    assert_encoded(Rows([b"v"] * 2, None, None, date, None), expected)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
async def test_rows_are_sent_to_their_given_partitions(kind):
    asked = [2, 0, None, 1]
    async with producing(topics={"t": 3}) as (_, producer):
        for partitions in (asked, pa.array(asked, kind)):
            receipt = await producer.send_many(
                "t", [b"0", b"1", b"2", b"3"], keys=[None, None, b"key", None], partitions=partitions
            )
            await receipt
            by_key = (await producer.send_and_wait("t", b"", b"key")).partition
            assert [receipt.partition(row) for row in range(4)] == [2, 0, by_key, 1]
        one = await producer.send_many("t", [b"x", b"y"], keys=[b"a", b"b"], partitions=1)
        await one
        assert [one.partition(row) for row in range(2)] == [1, 1]


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64"])
async def test_a_negative_partition_or_timestamp_of_any_width_is_rejected(kind):
    below = pa.array([-1, 0], kind)
    async with producing(topics={"t": 300}) as (
        _,
        producer,
    ):  # partition 255 exists, so a -1 that is read as an unsigned byte would go unnoticed
        for columns in ({"partitions": below}, {"timestamps": below}):
            receipt = await producer.send_many("t", [b"0", b"1"], **columns)
            with pytest.raises(SendManyError, match="0 or more, not -1"):
                await receipt


@pytest.mark.parametrize("as_arrow", [False, True])
async def test_keys_have_the_same_partitions_as_with_send(as_arrow):
    keys = [b"k%d" % number for number in range(200)]
    async with producing(topics={"t": 7}) as (_, producer):
        single = [(await producer.send_and_wait("t", b"v", key)).partition for key in keys]
        receipt = await producer.send_many(
            "t", [b"v"] * 200, keys=pa.array(keys).dictionary_encode() if as_arrow else keys
        )
        await receipt

        assert [receipt.partition(row) for row in range(200)] == single
        assert [(await receipt.delivery(row)).partition for row in range(200)] == single


@pytest.mark.promise(
    "Public API",
    "rows of `send_many` share batches and the buffer with records of `send`, keep their order, and let "
    "other tasks run",
)
async def test_records_of_send_and_send_many_share_batches_and_keep_their_order():
    async with producing(linger_ms=20, topics={"t": 1}) as (cluster, producer):
        await producer.partitions_for("t")
        first = await producer.send("t", b"0")
        receipt = await producer.send_many("t", [b"1", b"2"])
        last = await producer.send("t", b"3")
        await receipt

        assert values(cluster) == [b"0", b"1", b"2", b"3"]
        assert [(await first).offset, (await last).offset] == [0, 3]
        assert receipt.offsets == {0: [range(1, 3)]}
        assert produce_count(cluster) == 1


async def test_records_without_a_key_fill_one_batch_after_another():
    async with producing(topics={"t": 4}, batch_size=2048, linger_ms=5) as (cluster, producer):
        receipt = await (await producer.send_many("t", [bytes(90)] * 400))

        assert sum(len(found) for ranges in receipt.offsets.values() for found in ranges) == 400
        assert produce_count(cluster) <= 25
        assert len(receipt.offsets) > 1


# --------------------------------------------------------------------------------------------------- receipt


async def test_the_receipt_has_the_position_of_each_row():
    async with producing(topics={"t": 3}) as (cluster, producer):
        rows = [b"%d" % number for number in range(3000)]
        receipt = await producer.send_many("t", rows, keys=rows)
        assert len(receipt) == 3000
        assert await receipt is receipt
        assert receipt.done()
        assert receipt.errors == {}
        assert repr(receipt) == "<Receipt t: 3000 rows, done>"

        log = {(r.partition, r.offset): r.value for r in all_records(cluster, "t", 3)}
        assert sum(len(found) for ranges in receipt.offsets.values() for found in ranges) == 3000
        for row in range(0, 3000, 7):
            metadata = await receipt.delivery(row)
            assert metadata.partition == receipt.partition(row)
            assert log[metadata.partition, metadata.offset] == rows[row]
        for row in (-1, 3000):
            with pytest.raises(IndexError):
                receipt.partition(row)


@pytest.mark.promise(
    "Public API",
    "a row of `send_many` that can't be sent does not prevent the others from being sent; the receipt "
    "reports each error",
)
@pytest.mark.parametrize("serializer", [None, bytes])
async def test_the_delivery_of_a_row_has_the_timestamp_of_its_record(serializer):
    async with producing(linger_ms=20, value_serializer=serializer) as (cluster, producer):
        await producer.send("t", b"0", timestamp_ms=7)
        named = await producer.send_many("t", [b"1", b"2", b"3"], timestamps=[1000, None, 3000])
        given = await producer.send_many("t", [b"4", b"5"], timestamps=pa.array([2000, 1], pa.timestamp("s")))
        now = await producer.send_many("t", [b"6", b"7"])
        found = [
            await receipt.delivery(row) for receipt in (named, given, now) for row in range(len(receipt))
        ]

        log = cluster.records("t")
        assert len(cluster.batches("t", 0)) == 1
        assert [metadata.timestamp for metadata in found] == [record.timestamp for record in log[1:]]
        assert [metadata.timestamp for metadata in found[3:5]] == [2_000_000, 1000]
        assert {metadata.timestamp_type for metadata in found} == {0}


def test_each_slice_of_a_call_has_its_own_timestamp():
    accumulator = OpensBatches(NoLoop(), limit=10_000)
    path = bound(accumulator)
    rows = Rows([bytes(9000)] * 3, None, None, None, None)
    accumulator.compressor.turn_is_full = True  # a slice ends with the record that opens a batch

    ends = []
    while path._append_rows(accumulator.topics["orders"], rows, None, False) == OTHERS_TURN:
        ends.append(now_ms())
        time.sleep(0.003)

    assert len(ends) >= 2
    assert rows.timestamp(0) <= ends[0] < rows.timestamp(1) <= ends[1] < rows.timestamp(2)


class _At:
    def __init__(self, partition, record):
        self.partition, self.offset, self.value = partition, record.offset, record.value


def all_records(cluster, topic, partitions):
    return [
        _At(partition, record)
        for partition in range(partitions)
        for record in cluster.records(topic, partition)
    ]


@pytest.mark.promise(
    "Public API",
    "a row of `send_many` that can't be sent does not prevent the others from being sent; the receipt "
    "reports each error",
)
@in_virtual_time
async def test_rows_that_cannot_be_sent_do_not_prevent_others_from_being_sent():
    async with producing(topics={"t": 2}, max_request_size=10_000, max_block_ms=50_000 * MS) as (
        cluster,
        producer,
    ):
        receipt = await producer.send_many(
            "t",
            [b"0", "1", b"2", bytes(20_000), b"4", b"5", b"6", b"7"],
            headers=[None, None, [("h", "text")], None, None, None, [], [("h", b"x")]],
            timestamps=[None, None, None, None, -1, None, 7, 8],
            partitions=[0, 0, 0, 0, 0, 9, 0, 0],
        )
        error = await error_of(receipt, 1)

        assert type(error) is SendManyError
        assert {row: type(found) for row, found in error.errors.items()} == {
            1: InvalidRecordError,
            2: InvalidRecordError,
            3: RecordTooLargeError,
            4: InvalidRecordError,
            5: UnknownPartitionError,
        }
        assert "5 of 8 rows for topic t failed; the first is row 1" in str(error)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert error.errors == receipt.errors
        assert values(cluster) == [b"0", b"6", b"7"]
        assert receipt.offsets == {0: [range(3)]}
        assert receipt.partition(3) is None
        with pytest.raises(RecordTooLargeError):
            receipt.delivery(3)
        assert (await receipt.delivery(6)).offset == 1


@in_virtual_time
async def test_arrow_rows_that_cannot_be_sent_have_errors():
    table = pa.table(
        {
            "value": ["0", "1", "2", "3"],
            "partition": pa.array([0, -1, 2**40, 0], pa.int64()),
            "timestamp": pa.array([0, 1, 2, -5], pa.int64()),
        }
    )
    async with producing(max_block_ms=50_000 * MS) as (cluster, producer):
        receipt = await producer.send_many("t", table)
        error = await error_of(receipt, 1)

        assert sorted(error.errors) == [1, 2, 3]
        assert {type(found) for found in error.errors.values()} == {InvalidRecordError}
        assert values(cluster) == [b"0"]
        overflow = pa.array([2**60], pa.timestamp("s"))
        refused = await producer.send_many("t", [b"v"], timestamps=overflow)
        assert type(refused.errors[0]) is InvalidRecordError
        bytes_pair = pa.struct([("key", pa.dictionary(pa.int8(), pa.binary())), ("value", pa.binary())])
        binary = pa.array([[("\xe9".encode(), b"x")], [(b"\xe9", b"x")]], pa.list_(bytes_pair))
        refused = await producer.send_many("t", [b"v", b"w"], headers=binary)
        assert {row: str(error) for row, error in refused.errors.items()} == {
            1: "the name of a header can't be encoded as UTF-8"
        }
        nameless = pa.array([[{"key": None, "value": b"x"}]], pa.list_(PAIR))
        refused = await producer.send_many("t", [b"v"], headers=nameless)
        assert "must be a str, not null" in str(refused.errors[0])


@pytest.mark.parametrize(
    ("arguments", "argument", "told"),
    [
        ({"values": b"bytes"}, "values", "must be a list, or Arrow data"),
        ({"values": None}, "values", "not NoneType"),
        ({"values": [b"1"], "keys": [b"1", b"2"]}, None, "the columns differ in length: 1 values, 2 keys"),
        (
            {"values": pa.array([1, 2])},
            "values",
            "format 'l' is not accepted; cast the array to binary or string",
        ),
        ({"values": pa.array([[b"x"]])}, "values", "cast the array"),
        ({"values": [b"1"], "headers": pa.array([b"x"])}, "headers", "list<struct"),
        ({"values": [b"1"], "headers": pa.array([[b"x"]])}, "headers", "list<struct"),
        ({"values": [b"1"], "timestamps": pa.array([1.5])}, "timestamps", "timestamp or integer (ms)"),
        ({"values": [b"1"], "timestamps": pa.array([1], pa.date32())}, "timestamps", "timestamp or integer"),
        ({"values": [b"1"], "partitions": pa.array(["0"])}, "partitions", "integer"),
        ({"values": [b"1"], "partitions": -1}, "partitions", "0 or more"),
        ({"values": [b"1"], "partitions": 2**40}, "partitions", "0 or more"),
        ({"values": pa.table({"val": [b"x"]})}, "values", "a column 'val'"),
        (
            {"values": pa.Table.from_arrays([pa.array([b"x"]), pa.array([b"y"])], ["value", "value"])},
            "values",
            "'value'; keep one",
        ),
        ({"values": pa.table({"partition": [0]})}, "values", "neither a column value nor a column key"),
        ({"values": pa.table({"value": [b"x"]}), "keys": [b"k"]}, None, None),
        (
            {"values": pa.table({"value": [b"x"], "key": [b"k"]}), "keys": [b"k"]},
            "keys",
            "is given twice: as an argument and as the column",
        ),
        (
            {"values": pa.array([{"value": b"x"}, None], pa.struct([("value", pa.binary())]))},
            "values",
            "the rows must not be null",
        ),
    ],
)
async def test_invalid_columns_are_rejected_before_anything_is_sent(arguments, argument, told):
    async with producing() as (cluster, producer):
        if told is None:
            await (await producer.send_many("t", **arguments))
            return
        error = await error_of(producer.send_many("t", **arguments), 1)

        assert type(error) is InvalidRecordError
        assert told in str(error)
        assert argument in (None, error.argument)
        assert produce_count(cluster) == 0


async def test_the_failure_of_a_stream_is_reported():
    def batches():
        yield pa.record_batch({"value": [b"x"]})
        raise RuntimeError("the disk is gone")

    stream = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.binary())]), batches())
    async with producing() as (cluster, producer):
        error = await error_of(producer.send_many("t", stream), 1)

        assert type(error) is InvalidRecordError
        assert "the disk is gone" in str(error)
        assert produce_count(cluster) == 0


async def test_without_rows_nothing_is_sent():
    async with producing() as (cluster, producer):
        for nothing in ([], pa.array([], pa.binary()), pa.chunked_array([], pa.binary())):
            receipt = await producer.send_many("t", nothing)
            assert await receipt is receipt
            assert (len(receipt), receipt.offsets, receipt.errors) == (0, {}, {})
        assert produce_count(cluster) == 0


async def test_an_invalid_topic_is_rejected():
    async with producing() as (_, producer):
        assert type(await error_of(producer.send_many("no topic!", [b"v"]), 1)) is InvalidTopicError
    assert type(await error_of(producer.send_many("t", [b"v"]), 1)) is ProducerClosed


async def test_the_memory_of_columns_is_released_once_they_are_in_the_buffer():
    pool = pa.system_memory_pool()
    before = pool.bytes_allocated()
    column = pa.array([bytes(100)] * 1000, memory_pool=pool)
    assert pool.bytes_allocated() > before
    async with producing() as (_, producer):
        receipt = await producer.send_many("t", pa.chunked_array([column, column]))
        del column
        gc.collect()
        assert pool.bytes_allocated() == before
        await receipt


# ---------------------------------------------------------------------------------------- room, time, turns


async def test_rows_wait_for_room_as_often_as_necessary():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        given = [b"%03d" % number + bytes(LARGE) for number in range(100)]
        receipt = await within(10, producer.send_many("t", given))
        await receipt

        assert values(cluster) == given


@in_virtual_time
async def test_rows_without_room_in_time_are_reported_and_the_first_ones_are_sent():
    async with producing(**FOUR_RECORDS_FILL_IT, max_block_ms=50_000 * MS) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        receipt = await within(2, producer.send_many("t", [bytes(LARGE)] * 6))
        assert sorted(receipt.errors) == [4, 5]
        assert {type(error) for error in receipt.errors.values()} == {BufferTimeoutError}
        assert type(await error_of(producer.send_many("t", [b"v" * LARGE]), 2)) is BufferTimeoutError
        cluster.thaw_broker(0)
        error = await error_of(receipt, 5)

        assert sorted(error.errors) == [4, 5]
        assert error.retriable
        assert len(values(cluster)) == 4


@pytest.mark.promise(
    "Public API",
    "rows of `send_many` share batches and the buffer with records of `send`, keep their order, and let "
    "other tasks run",
)
async def test_callers_that_wait_for_room_take_turns():
    """Other callers need not wait until a large call ends, and a new caller does not overtake its waiting row."""
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        many = asyncio.ensure_future(producer.send_many("t", [b"%d" % n + bytes(LARGE) for n in range(8)]))
        await until(lambda: producer.metrics().buffer_waiters == 1)
        single = asyncio.ensure_future(producer.send("t", b"8"))
        await asyncio.sleep(5 * MS)
        cluster.thaw_broker(0)
        await within(5, many)
        await (await within(5, single))
        await producer.flush()

        found = [int(value[:1]) for value in values(cluster)]
        assert [number for number in found if number != 8] == list(range(8))
        assert 4 < found.index(8) < 8


async def test_cancelling_the_call_leaves_its_first_rows_in_the_buffer():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        many = asyncio.ensure_future(producer.send_many("t", [b"%d" % n + bytes(LARGE) for n in range(8)]))
        await until(lambda: producer.metrics().buffer_waiters == 1)
        many.cancel()
        with pytest.raises(asyncio.CancelledError):
            await many
        cluster.thaw_broker(0)
        await producer.send_and_wait("t", b"last")

        assert [value[:1] for value in values(cluster)] == [b"0", b"1", b"2", b"3", b"l"]
        assert producer.metrics().buffer_waiters == 0


async def test_cancelling_a_wait_for_the_receipt_changes_nothing():
    async with producing() as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        receipt = await producer.send_many("t", [b"0", b"1"])
        waiting = asyncio.ensure_future(receipt.wait())
        await asyncio.sleep(MS)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not receipt.done()
        assert receipt.offsets == {}
        cluster.thaw_broker(0)
        await within(2, asyncio.gather(receipt.wait(), receipt.wait()))

        assert receipt.offsets == {0: [range(2)]}


@pytest.mark.promise(
    "Public API",
    "rows of `send_many` share batches and the buffer with records of `send`, keep their order, and let "
    "other tasks run",
)
async def test_other_tasks_run_between_the_slices_of_a_large_call():
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with producing(topics={"t": 1}) as (_, producer):
        await producer.partitions_for("t")
        counting = asyncio.ensure_future(count())
        await asyncio.sleep(0)
        turns = 0
        await producer.send_many("t", pa.array([bytes(100)] * 100_000))
        counting.cancel()
        assert turns >= 8


async def test_a_slice_ends_when_its_turn_has_compressed_enough():
    accumulator = OpensBatches(NoLoop(), limit=10_000)
    path = bound(accumulator)
    rows = Rows([bytes(1000)] * 100, None, None, None, None)
    accumulator.compressor.turn_is_full = True

    assert path._append_rows(accumulator.topics["orders"], rows, None, False) == OTHERS_TURN
    assert rows.next == 1, "only the row that opened the batch"


async def test_a_slice_ends_after_a_limited_amount_of_work():
    accumulator = OpensBatches(NoLoop())
    path = bound(accumulator)
    topic = accumulator.topics["orders"]
    rows = Rows([bytes(1000)] * 5000, None, None, None, None)

    assert path._append_rows(topic, rows, None, False) == OTHERS_TURN
    assert 1500 < rows.next < 2500
    accumulator.is_full = True
    topic.queues[0].tail = None
    before = rows.next
    assert path._append_rows(topic, rows, None, False) == NO_ROOM
    assert rows.next == before
    accumulator.is_full = False
    while path._append_rows(topic, rows, None, False) != ALL_APPENDED:
        pass
    assert rows.is_complete


@pytest.mark.parametrize("refused", ["its value", "by its partition"])
async def test_a_slice_of_rejected_rows_is_also_limited(refused):
    accumulator = OpensBatches(NoLoop())
    values_, refusals = (
        (["x"], None) if refused == "its value" else ([b"x"], [InvalidRecordError("not yours")])
    )
    rows = Rows(values_ * 5000, None, None, None, 0)

    paused = bound(accumulator)._append_rows(accumulator.topics["orders"], rows, refusals, False)

    assert paused == OTHERS_TURN
    assert 50 < rows.next < 500


@pytest.mark.promise(
    "Public API",
    "rows of `send_many` share batches and the buffer with records of `send`, keep their order, and let "
    "other tasks run",
)
@pytest.mark.parametrize("serializer", [None, lambda value: value])
async def test_other_tasks_run_between_rejected_rows(serializer):
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with producing(value_serializer=serializer) as (_, producer):
        await producer.partitions_for("t")
        counting = asyncio.ensure_future(count())
        await asyncio.sleep(0)
        turns = 0
        receipt = await producer.send_many("t", ["x"] * 2000)
        counting.cancel()
        assert len(receipt.errors) == 2000
        assert turns >= 8


async def test_closing_ends_waiting_rows():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        many = asyncio.ensure_future(producer.send_many("t", [bytes(LARGE)] * 6))
        await until(lambda: producer.metrics().buffer_waiters == 1)
        report = await producer.close(timeout=0)
        receipt = await within(1, many)

        assert {type(receipt.errors[row]) for row in (4, 5)} == {ProducerClosed}
        assert {receipt.errors[row].outcome for row in range(4)} <= {Outcome.UNKNOWN, Outcome.NOT_PERSISTED}
        assert sorted(receipt.errors) == list(range(6))
        assert report.failed + report.unknown == 4


# ----------------------------------------------------------------------------------------- rows that fail later


@in_virtual_time
async def test_rows_that_are_not_acknowledged_have_an_outcome():
    settings = {"request_timeout_ms": 40_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)
        receipt = await producer.send_many("t", [b"1", b"2"])
        error = await error_of(receipt, 2)

        assert {type(found) for found in receipt.errors.values()} == {DeliveryTimeoutError}
        assert sorted(receipt.errors) == [0, 1]
        assert error.outcome is Outcome.UNKNOWN
        assert error.retriable
        cluster.thaw_broker(0)


@pytest.mark.promise(
    "Public API",
    "a row of `send_many` that can't be sent does not prevent the others from being sent; the receipt "
    "reports each error",
)
async def test_rows_of_batches_that_are_split_keep_their_numbers():
    async with producing(topics={"t": 2}, linger_ms=20) as (cluster, producer):
        await producer.partitions_for("t")
        for partition in range(2):
            cluster.partition("t", partition).config = cluster.check_config({"max.message.bytes": "3000"})
        given = [b"%04d" % number + bytes(4000 if number == 30 else 90) for number in range(200)]
        receipt = await producer.send_many("t", given, keys=[b"%d" % (number % 7) for number in range(200)])
        error = await error_of(receipt, 5)

        assert list(error.errors) == [30]
        assert error.errors[30].outcome is Outcome.NOT_PERSISTED
        log = {(r.partition, r.offset): r.value for r in all_records(cluster, "t", 2)}
        assert len(log) == 199
        for row, value in enumerate(given):
            if row != 30:
                metadata = await receipt.delivery(row)
                assert log[metadata.partition, metadata.offset] == value
        found = {
            (partition, offset)
            for partition, ranges in receipt.offsets.items()
            for numbers in ranges
            for offset in numbers
        }
        assert found == set(log)


async def test_a_record_that_the_broker_rejects_fails_alone():
    """KIP-467: the broker names the invalid record."""
    async with producing(topics={}, linger_ms=20) as (cluster, producer):
        cluster.create_topic("t", 1, config={"cleanup.policy": "compact"})
        await producer.partitions_for("t")
        receipt = await producer.send_many(
            "t", [b"0", b"1", b"2", b"3"], keys=[b"a", None, b"c", b"d"], partitions=0
        )
        error = await error_of(receipt, 2)

        assert list(error.errors) == [1]
        assert values(cluster) == [b"0", b"2", b"3"]
        assert receipt.offsets == {0: [range(3)]}
        assert [(await receipt.delivery(row)).offset for row in (0, 2, 3)] == [0, 1, 2]


@pytest.mark.promise(
    "Public API",
    "a row of `send_many` that can't be sent does not prevent the others from being sent; the receipt "
    "reports each error",
)
async def test_an_unretrieved_failed_row_is_logged_and_reported(caplog):
    async with producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, count=2)
        receipt = await producer.send_many("t", [b"0", b"1", b"2"])
        del receipt
        await producer.flush()
        looked_at = await producer.send_many("t", [b"3"])
        await looked_at.wait()
        assert looked_at.errors.keys() == {0}
        del looked_at
        gc.collect()
        report = await producer.close()

        assert report.failed == 4
        assert sum(report.unretrieved.values()) == 3
    errors = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "3 records for topic t were not delivered, and no caller has looked" in errors[0].message


@pytest.mark.promise("Public API", "`close()` reports how many records were delivered, failed and unknown")
@pytest.mark.parametrize("looked_at", [[], [0, 2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("watched", [False, True])
async def test_an_unretrieved_record_that_the_broker_names_is_logged_and_reported(
    watched, at_once, looked_at, caplog
):
    """KIP-467: only the records that the broker names fail; the others are stored."""
    interceptors = [Stamps()] if watched else []
    async with producing(topics={}, linger_ms=20, interceptors=interceptors) as (cluster, producer):
        cluster.create_topic("t", 1, config={"cleanup.policy": "compact"})
        await producer.partitions_for("t")
        keys = [None, b"b", None]
        if at_once:
            receipt = await producer.send_many("t", [b"0"] * 3, keys=keys, partitions=0)
            deliveries = [receipt.delivery(row) for row in looked_at]
            del receipt
        else:
            sent = [await producer.send("t", b"0", key=key, partition=0) for key in keys]
            deliveries = [sent[row] for row in looked_at]
            del sent
        await asyncio.gather(*deliveries, return_exceptions=True)
        await producer.flush()
        deliveries.clear()
        gc.collect()
        report = await producer.close()

        unseen = len({0, 2} - set(looked_at))
        assert report.failed == 2
        assert report.unretrieved == ({("t", "DeliveryError"): unseen} if unseen else {})
    errors = log_lines(caplog, logging.ERROR)
    assert len(errors) == (unseen > 0)


async def test_a_record_that_the_broker_names_can_be_retrieved_through_the_receipt():
    async with producing(topics={}, linger_ms=20) as (cluster, producer):
        cluster.create_topic("t", 1, config={"cleanup.policy": "compact"})
        await producer.partitions_for("t")
        await producer.send("t", b"0", key=b"a", partition=0)
        receipt = await producer.send_many("t", [b"1", b"2"], keys=[None, b"c"], partitions=0)
        await receipt.wait()
        assert receipt.errors.keys() == {0}
        del receipt
        gc.collect()

        assert (await producer.close()).unretrieved == {}


async def test_an_unretrieved_row_that_was_not_sent_is_also_logged_and_reported(caplog):
    async with producing() as (_, producer):
        await producer.send_many("t", [b"0", "1", b"2", "3"])
        await producer.flush()
        gc.collect()
        report = await producer.close()

        assert report.unretrieved == {("t", "InvalidRecordError"): 2}
    errors = log_lines(caplog, logging.ERROR)
    assert len(errors) == 1
    assert "no caller has looked at the result: the value must be bytes" in errors[0]


def even(value):
    if int(value) % 2:
        raise ValueError("odd")
    return value


async def even_later(value):
    await asyncio.sleep(0)
    return even(value)


@pytest.mark.promise(
    "Public API",
    "an error does not keep frames alive: if it is never retrieved, it is reported when it is dropped, not "
    "when the garbage collector runs",
)
@pytest.mark.parametrize("serializer", [even, even_later])
async def test_rows_that_a_serializer_rejected_are_reported_without_the_garbage_collector(serializer):
    async with producing(value_serializer=serializer) as (_, producer):
        gc.disable()
        try:
            receipt = await producer.send_many("t", [b"0", b"1", b"2", b"3"])
            del receipt
            await producer.flush()

            assert producer._accumulator.unretrieved.counts == {("t", "SerializationError"): 2}
        finally:
            gc.enable()


@pytest.mark.promise(
    "Public API",
    "an error does not keep frames alive: if it is never retrieved, it is reported when it is dropped, not "
    "when the garbage collector runs",
)
@in_virtual_time
async def test_rows_without_room_are_reported_without_the_garbage_collector():
    async with producing(**FOUR_RECORDS_FILL_IT, max_block_ms=50_000 * MS) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        gc.disable()
        try:
            receipt = await within(2, producer.send_many("t", [bytes(LARGE)] * 6))
            del receipt
            cluster.thaw_broker(0)
            await producer.flush()

            assert producer._accumulator.unretrieved.counts == {("t", "BufferTimeoutError"): 2}
        finally:
            gc.enable()


@pytest.mark.promise(
    "Public API",
    "an error does not keep frames alive: if it is never retrieved, it is reported when it is dropped, not "
    "when the garbage collector runs",
)
async def test_an_exception_that_the_caller_handles_keeps_its_traceback():
    async with producing(value_serializer=even) as (_, producer):
        try:
            int("none")
        except ValueError as error:
            handled = error
            receipt = await producer.send_many("t", [b"1"])

        assert handled.__traceback__ is not None
        refused = receipt.errors[0]
        assert type(refused.__cause__) is ValueError
        assert str(refused.__cause__) == "odd"


# -------------------------------------------------------------------- user code for each record: the slow path


class Stamps(Interceptor):
    def __init__(self):
        self.acknowledged = 0

    def on_send(self, record):
        return record._replace(headers=[*(record.headers or ()), ("stamp", b"1")])

    def on_acknowledgement(self, result):
        self.acknowledged += 1


@pytest.mark.parametrize("as_arrow", [False, True])
async def test_interceptors_serializers_and_partitioners_see_each_row(as_arrow):
    stamps = Stamps()
    chosen = []

    def partitioner(key, every, available):
        chosen.append(key)
        return int(key) % len(every)

    columns = [[b"v0", b"v1", None], [b"0", b"1", b"2"], [[("h", b"x")], None, []], [5, 6, 7]]
    types = [pa.binary(), pa.string_view(), HEADERS_TYPES["map"], pa.timestamp("ms")]
    if as_arrow:
        columns[1] = ["0", "1", "2"]
        columns = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    async with producing(
        topics={"t": 2},
        interceptors=[stamps],
        value_serializer=lambda value: value.upper(),
        partitioner=partitioner,
    ) as (cluster, producer):
        values_, keys, headers, timestamps = columns
        receipt = await producer.send_many("t", values_, keys=keys, headers=headers, timestamps=timestamps)
        await receipt

        assert chosen == [b"0", b"1", b"2"]
        assert [record.value for record in cluster.records("t", 0)] == [b"V0", None]
        assert [record.timestamp for record in cluster.records("t", 0)] == [5, 7]
        assert cluster.records("t", 0)[0].headers == (("h", b"x"), ("stamp", b"1"))
        assert receipt.offsets == {0: [range(2)], 1: [range(1)]}
        assert [receipt.partition(row) for row in range(3)] == [0, 1, 0]
        await until(lambda: stamps.acknowledged == 3)


async def test_a_row_that_a_serializer_rejects_does_not_prevent_others_from_being_sent():
    async with producing(value_serializer=lambda text: text.encode()) as (cluster, producer):
        receipt = await producer.send_many("t", ["0", 1, "2"])
        error = await error_of(receipt, 1)

        assert {row: type(found) for row, found in error.errors.items()} == {1: SerializationError}
        assert values(cluster) == [b"0", b"2"]


@pytest.mark.promise(
    "Public API",
    "a row of `send_many` that can't be sent does not prevent the others from being sent; the receipt "
    "reports each error",
)
async def test_a_row_that_the_partitioner_rejects_does_not_prevent_others_from_being_sent():
    def by_first_byte(key, every, available):
        return every[key[0] % len(every)]

    async with producing(topics={"t": 3}, partitioner=by_first_byte) as (cluster, producer):
        receipt = await producer.send_many("t", [b"0", b"1", b"2"], keys=[b"a", None, b"d"])
        error = await error_of(receipt, 1)

        assert {row: type(found) for row, found in error.errors.items()} == {1: InvalidRecordError}
        assert values(cluster, "t", 1) == [b"0", b"2"]


@pytest.mark.promise(
    "Public API",
    "a row of `send_many` that can't be sent does not prevent the others from being sent; the receipt "
    "reports each error",
)
@in_virtual_time
async def test_rows_for_missing_partitions_wait_only_once_on_either_path():
    async with producing(value_serializer=bytes, max_block_ms=50_000 * MS) as (_, producer):
        began = asyncio.get_running_loop().time()
        receipt = await producer.send_many("t", [b"v"] * 20, partitions=[7, 0, 5, 9] * 5)
        took = asyncio.get_running_loop().time() - began

        assert {type(error) for error in receipt.errors.values()} == {UnknownPartitionError}
        assert len(receipt.errors) == 15
        assert {error.partition for error in receipt.errors.values()} == {5, 7, 9}
        assert took < 4 * 50 * MS


@in_virtual_time
async def test_interceptors_also_see_rows_after_one_whose_partition_is_missing():
    class Rerouting:
        def on_send(self, record):
            return record._replace(partition=0) if record.value == b"x" else record

    async with producing(interceptors=[Rerouting()], max_block_ms=50_000 * MS) as (cluster, producer):
        receipt = await producer.send_many("t", [b"y", b"x", b"y"], partitions=9)

        assert {row: type(error) for row, error in (await error_of(receipt, 1)).errors.items()} == {
            0: UnknownPartitionError,
            2: UnknownPartitionError,
        }
        assert values(cluster) == [b"x"]


@pytest.mark.parametrize("serializer", [None, bytes])
async def test_a_timestamp_out_of_range_is_rejected_on_either_path(serializer):
    times = pa.array([2**60, 7], pa.timestamp("s"))
    async with producing(value_serializer=serializer) as (cluster, producer):
        receipt = await producer.send_many("t", pa.array([b"0", b"1"]), timestamps=times)
        await receipt.wait()

        assert {row: type(found) for row, found in receipt.errors.items()} == {0: InvalidRecordError}
        assert [record.timestamp for record in cluster.records("t")] == [7000]


async def test_a_recording_producer_also_has_send_many():
    async with RecordingProducer() as producer:
        producer.set_partitions("t", 3)
        receipt = await producer.send_many("t", pa.array(["a", "b"]), keys=[b"1", b"2"], timestamps=[1, 2])
        await receipt

        assert [(sent.value, sent.key, sent.timestamp) for sent in producer.sent] == [
            (b"a", b"1", 1),
            (b"b", b"2", 2),
        ]
        assert sum(len(found) for ranges in receipt.offsets.values() for found in ranges) == 2


# ---------------------------------------------------------------------------------------------- transactions


@pytest.mark.promise(
    "Public API",
    "rows of `send_many` belong to the transaction in which it was called or to none, even if they wait "
    "while it ends",
)
@pytest.mark.parametrize("version", [1, 2])
async def test_rows_belong_to_the_transaction(version):
    async with producing(
        topics={"t": 3}, cluster={"transaction_version": version}, transactional_id="tx"
    ) as (cluster, producer):
        async with producer.transaction():
            committed = await producer.send_many("t", [b"%d" % number for number in range(50)])
        await producer.begin_transaction()
        aborted = await producer.send_many("t", [b"no"] * 50)
        await producer.abort_transaction()
        await committed
        await aborted.wait()

        # Rows that were already sent may be in the log, but read_committed consumers do not see them.
        assert {type(error) for error in aborted.errors.values()} <= {TransactionAbortedError}
        found = [r.value for p in range(3) for r in cluster.records("t", p, committed=True)]
        assert sorted(found, key=int) == [b"%d" % number for number in range(50)]


@pytest.mark.promise(
    "Public API",
    "rows of `send_many` belong to the transaction in which it was called or to none, even if they wait "
    "while it ends",
)
async def test_rows_that_wait_while_their_transaction_ends_are_not_part_of_the_next_one():
    async with producing(transactional_id="tx", **FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        await producer.begin_transaction()
        cluster.faults.add(PRODUCE, delay=50_000 * MS / 1000)
        many = asyncio.ensure_future(producer.send_many("t", [bytes(LARGE)] * 6))
        await until(lambda: producer.metrics().buffer_waiters == 1)
        await producer.abort_transaction()
        await producer.begin_transaction()
        receipt = await within(2, many)
        await producer.send("t", b"next")
        await producer.commit_transaction()

        assert {4, 5} <= receipt.errors.keys()
        assert [record.value for record in cluster.records("t", committed=True)] == [b"next"]


@pytest.mark.promise(
    "Public API",
    "rows of `send_many` belong to the transaction in which it was called or to none, even if they wait "
    "while it ends",
)
async def test_rows_that_wait_for_metadata_while_their_transaction_ends_are_not_part_of_the_next_one():
    topics = {"t": 1, "others": 1}
    async with producing(topics=topics, transactional_id="tx", **FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        await producer.begin_transaction()
        full = cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=1_000_000)
        await producer.send_many("others", [bytes(LARGE)] * 4)
        many = asyncio.ensure_future(producer.send_many("t", [bytes(LARGE)] * 12))
        await until(lambda: producer.metrics().buffer_waiters == 1)
        unknown = cluster.faults.add(
            METADATA, topic="t", error=ErrorCode.LEADER_NOT_AVAILABLE, count=1_000_000
        )
        producer._metadata.request_update()
        await until(lambda: producer._metadata.topic("t") is None)
        full.count = 0
        await until(lambda: "t" in producer._metadata._waiters)
        await producer.abort_transaction()
        await producer.begin_transaction()
        unknown.count = 0
        receipt = await within(2, many)
        await (await producer.send("t", b"next"))
        await producer.commit_transaction()

        assert receipt.errors.keys() == set(range(12))
        assert [record.value for record in cluster.records("t", committed=True)] == [b"next"]


async def test_a_participant_accepts_rows_for_its_own_partitions():
    async with (
        EmbeddedCluster(topics={"t": 4}) as cluster,
        Producer(cluster.bootstrap_servers, transactional_id="tx", **QUICK) as owner,
    ):
        await owner.begin_transaction()
        own = [TopicPartition("t", 1), TopicPartition("t", 2)]
        handle = await owner.export_transaction([TopicPartition("t", number) for number in range(4)])
        async with Producer.attach(
            handle, partitions=own, bootstrap_servers=cluster.bootstrap_servers, **QUICK
        ) as other:
            receipt = await other.send_many(
                "t", pa.array([b"0", b"1", b"2", b"3"]), partitions=pa.array([0, 1, 2, None])
            )
            error = await error_of(receipt, 2)
            assert sorted(error.errors) == [0, 3]
            assert "was not passed to Producer.attach" in str(error.errors[0])
            assert "requires partitions= or" in str(error.errors[3])
            assert receipt.offsets == {1: [range(1)], 2: [range(1)]}
        await owner.commit_transaction()
        found = [r.value for p in range(4) for r in cluster.records("t", p, committed=True)]
        assert found == [b"1", b"2"]


@pytest.mark.promise("Transactions", "other processes can write to the same transaction")
async def test_a_participant_whose_topic_grows_during_a_wait_writes_only_to_its_own_partitions():
    own = [TopicPartition("t", 0)]
    async with (
        EmbeddedCluster(topics={"t": 1}) as cluster,
        Producer(cluster.bootstrap_servers, transactional_id="tx", **QUICK) as owner,
    ):
        await owner.begin_transaction()
        handle = await owner.export_transaction(own)
        settings = {**QUICK, **FOUR_RECORDS_FILL_IT, "bootstrap_servers": cluster.bootstrap_servers}
        async with Producer.attach(handle, partitions=own, **settings) as other:
            await other.partitions_for("t")
            full = cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=1_000_000)
            keys = [b"%d" % number for number in range(2000)]
            many = asyncio.ensure_future(other.send_many("t", [bytes(LARGE)] * 2000, keys=keys))
            await until(lambda: other.metrics().buffer_waiters == 1)
            cluster.add_partitions("t", 400)
            other._metadata.request_update()
            await until(lambda: len(other._metadata.topic("t").partitions) == 400)
            full.count = 0
            receipt = await within(10, many)
            await receipt.wait()

            assert {type(error) for error in receipt.errors.values()} == {InvalidRecordError}
            assert receipt.offsets.keys() == {0}
            assert len(receipt.errors) + len(cluster.records("t", 0)) == 2000


def test_a_list_of_rejections_shorter_than_the_topic_is_not_read_beyond_its_end():
    accumulator = OpensBatches(NoLoop(), partitions=500)
    rows = Rows([b"v"], [b"k"], None, None, None)

    with pytest.raises(AssertionError):
        bound(accumulator)._append_rows(accumulator.topics["orders"], rows, [None], True)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_rows_are_delivered(codec):
    async with producing(topics={"t": 3}, compression_type=codec) as (cluster, producer):
        given = [b"%06d" % number * 20 for number in range(5000)]
        await (await producer.send_many("t", pa.array(given), keys=pa.array(given)))

        assert sorted(r.value for p in range(3) for r in cluster.records("t", p)) == given


async def test_without_acknowledgements_there_are_no_offsets():
    async with producing(acks=0, enable_idempotence=False) as (cluster, producer):
        receipt = await (await producer.send_many("t", [b"0", b"1"]))

        assert (receipt.offsets, receipt.errors) == ({}, {})
        await until(lambda: len(values(cluster)) == 2)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12, 100, 997, 1024, 10_000])
def test_the_remainder_equals_that_of_a_division(count):
    accumulator = OpensBatches(NoLoop(), partitions=count)
    path = bound(accumulator)
    keys = [b"%d" % number for number in range(2000)]
    rows = Rows(pa.array(keys), keys, None, None, None)
    assert path._append_rows(accumulator.topics["orders"], rows, None, False) == ALL_APPENDED

    assert [rows.place(row) for row in range(2000)] == [(murmur2(key) & 0x7FFFFFFF) % count for key in keys]


# -------------------------------------------------------------------------------------------- the time limit


def test_a_timeout_counts_from_the_start_of_the_call_and_none_means_no_limit():
    assert end_of(2.5, began=5.0) == 7.5
    assert end_of(0, began=5.0) == 5.0
    assert end_of(None, began=5.0) == math.inf
