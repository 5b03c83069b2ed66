from __future__ import annotations

import crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError
from aioproducer.protocol import recordbatch
from aioproducer.protocol.compression import Codec, compressor
from aioproducer.protocol.recordbatch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    check_crc,
    read_header,
    read_records,
)
from aioproducer.testing.embedded.decompression import decompress
from tests.support import oracle
from tests.support.oracle import OracleRecord, encode_batch, encode_record, encode_records, varint
from tests.support.record_batches import split_batches

RECORDS = [
    OracleRecord(
        1_700_000_000_000, b"key", b"value", (("trace", b"\x01\x02"), ("trace", None), ("größe", b""))
    ),
    OracleRecord(1_699_999_999_000, None, b""),
    OracleRecord(1_700_000_000_500, b"", None),
    OracleRecord(1_700_000_001_000, b"k" * 100, b"v" * 20_000),
]

small_bytes = st.none() | st.binary(max_size=200)
oracle_records = st.lists(
    st.builds(
        OracleRecord,
        timestamp=st.integers(0, 2**42),
        key=small_bytes,
        value=small_bytes,
        headers=st.lists(st.tuples(st.text(max_size=20), small_bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def header_of(count: int, **fields) -> BatchHeader:
    return read_header(encode_batch([OracleRecord(1000)] * count))._replace(**fields)


@pytest.mark.promise("Records", "CRC-32C, attributes and sequence numbers are in the batch header")
def test_header_fields_are_at_their_offsets():
    batch = encode_batch(
        RECORDS,
        base_offset=11,
        partition_leader_epoch=12,
        producer_id=13,
        producer_epoch=14,
        base_sequence=15,
        transactional=True,
    )

    header = read_header(batch)

    assert header == BatchHeader(
        base_offset=11,
        length=len(batch) - 12,
        partition_leader_epoch=12,
        magic=2,
        crc=oracle.crc32c(batch[21:]),
        attributes=0x10,
        last_offset_delta=3,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_001_000,
        producer_id=13,
        producer_epoch=14,
        base_sequence=15,
        record_count=4,
    )
    assert header.size == len(batch)
    assert header.last_offset == 14


def test_named_offsets_add_up():
    assert HEADER_SIZE == 61
    assert recordbatch.LENGTH_AT == 8
    assert recordbatch.PARTITION_LEADER_EPOCH_AT == recordbatch.LOG_OVERHEAD == 12
    assert recordbatch.MAGIC_AT == 16
    assert recordbatch.CRC_AT == 17
    assert recordbatch.ATTRIBUTES_AT == 21
    assert recordbatch.LAST_OFFSET_DELTA_AT == 23
    assert recordbatch.BASE_TIMESTAMP_AT == 27
    assert recordbatch.MAX_TIMESTAMP_AT == 35
    assert recordbatch.PRODUCER_ID_AT == 43
    assert recordbatch.PRODUCER_EPOCH_AT == 51
    assert recordbatch.BASE_SEQUENCE_AT == 53
    assert recordbatch.RECORD_COUNT_AT == 57


@pytest.mark.promise("Records", "CRC-32C, attributes and sequence numbers are in the batch header")
@pytest.mark.parametrize("codec", Codec)
def test_attributes_contain_the_codec(codec):
    assert read_header(encode_batch(RECORDS, codec=codec)).codec is codec


def test_attributes_contain_transactional_control_and_log_append_time():
    plain = read_header(encode_batch(RECORDS))
    marked = read_header(encode_batch(RECORDS, transactional=True, control=True, log_append_time=5))

    assert (plain.is_transactional, plain.is_control, plain.log_append_time) == (False, False, False)
    assert (marked.is_transactional, marked.is_control, marked.log_append_time) == (True, True, True)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_a_protocol_error(codec):
    header = read_header(encode_batch(RECORDS, codec=codec))

    with pytest.raises(ProtocolError, match=f"unknown codec {codec}"):
        _ = header.codec


@given(records=oracle_records, base_offset=st.integers(0, 2**60))
@settings(max_examples=60, deadline=None)
def test_records_of_any_batch_are_read_back(records, base_offset):
    batch = encode_batch(records, base_offset=base_offset)
    check_crc(batch)
    header = read_header(batch)

    found = list(read_records(memoryview(batch)[HEADER_SIZE:], header))

    assert found == [
        Record(base_offset + number, record.timestamp, record.key, record.value, tuple(record.headers))
        for number, record in enumerate(records)
    ]


@given(records=oracle_records)
@settings(max_examples=60, deadline=None)
def test_aiokafka_reads_batches_of_the_oracle(records):
    batch = encode_batch(records, base_offset=3, producer_id=4, producer_epoch=5, base_sequence=6)

    reader = AiokafkaBatch(bytearray(batch))

    assert reader.validate_crc()
    assert (reader.producer_id, reader.producer_epoch, reader.base_sequence) == (4, 5, 6)
    assert [(record.timestamp, record.key, record.value, tuple(record.headers)) for record in reader] == [
        (record.timestamp, record.key, record.value, tuple(record.headers)) for record in records
    ]


@pytest.mark.promise(
    "Records",
    "the compiled writer of batch v2 writes keys, values, headers and timestamps as the oracle does",
)
@given(records=oracle_records)
@settings(max_examples=60, deadline=None)
def test_the_oracle_writes_the_same_bytes_as_aiokafka(records):
    builder = AiokafkaBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=4,
        producer_epoch=5,
        base_sequence=6,
        batch_size=1 << 20,
    )
    for number, record in enumerate(records):
        builder.append(number, record.timestamp, record.key, record.value, list(record.headers))

    theirs = bytes(builder.build())
    ours = encode_batch(records, producer_id=4, producer_epoch=5, base_sequence=6)

    assert ours == theirs


@pytest.mark.promise("Records", "CRC-32C, attributes and sequence numbers are in the batch header")
def test_the_oracles_crc_is_crc_32c():
    assert oracle.crc32c(b"123456789") == 0xE3069283
    assert oracle.crc32c(bytes(range(256)) * 3) == crc32c.crc32c(bytes(range(256)) * 3)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_a_varint_has_the_bytes_of_kafkas_byte_utils(value, encoded):
    assert varint(value).hex() == encoded
    assert recordbatch._varlong(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)
    if len(encoded) <= 10:
        assert recordbatch._varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@pytest.mark.parametrize(
    ("read", "encoded"),
    [
        (recordbatch._varint, "8080808080"),
        (recordbatch._varint, "808080808001"),
        (recordbatch._varint, "8080808010"),
        (recordbatch._varlong, "80808080808080808080"),
        (recordbatch._varlong, "80808080808080808002"),
    ],
)
def test_varint_with_too_many_bits_is_refused(read, encoded):
    with pytest.raises(ProtocolError, match="varint"):
        read(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("codec", Codec)
def test_compressed_batch_is_read_back(codec):
    packed = compressor(codec)(encode_records(RECORDS))
    batch = encode_batch(RECORDS, codec=codec, payload=packed, base_offset=100)
    check_crc(batch)
    header = read_header(batch)

    records = list(read_records(decompress(header.codec, batch[HEADER_SIZE:]), header))

    assert [(r.key, r.value, r.headers) for r in records] == [
        (r.key, r.value, tuple(r.headers)) for r in RECORDS
    ]
    theirs = AiokafkaBatch(bytearray(batch))
    assert [(r.key, r.value) for r in theirs] == [(r.key, r.value) for r in RECORDS]


def test_log_append_time_overrides_the_records_timestamps():
    batch = encode_batch(RECORDS, log_append_time=42)

    timestamps = [record.timestamp for record in read_records(batch[HEADER_SIZE:], read_header(batch))]

    assert timestamps == [42] * len(RECORDS)


def test_header_is_read_in_the_middle_of_a_buffer():
    batch = encode_batch(RECORDS, base_offset=9)

    assert (
        read_header(b"before" + batch, 6) == read_header(memoryview(batch)) == read_header(bytearray(batch))
    )


@pytest.mark.parametrize("size", [0, 1, 16, 17, HEADER_SIZE - 1])
def test_too_few_bytes_for_a_header_are_refused(size):
    with pytest.raises(ProtocolError, match="too few"):
        read_header(encode_batch(RECORDS)[:size])


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_another_format_is_refused_even_if_shorter_than_a_header(magic):
    batch = bytearray(encode_batch(RECORDS))
    batch[16] = magic

    with pytest.raises(ProtocolError, match=f"format v{magic} "):
        read_header(batch)
    with pytest.raises(ProtocolError, match=f"format v{magic} "):
        read_header(batch[:26])


@pytest.mark.parametrize("length", [48, 0, -1, -(2**31)])
def test_length_that_leaves_no_room_for_the_header_is_refused(length):
    batch = bytearray(encode_batch(RECORDS))
    batch[8:12] = length.to_bytes(4, "big", signed=True)

    with pytest.raises(ProtocolError, match="no room"):
        read_header(batch)
    with pytest.raises(ProtocolError, match="no room"):
        list(split_batches(batch))


def test_every_damaged_byte_that_the_crc_covers_is_noticed():
    batch = encode_batch(RECORDS[:3])

    for at in range(16, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        with pytest.raises(ProtocolError):
            check_crc(damaged)


def test_the_crc_does_not_cover_the_fields_that_the_broker_assigns():
    batch = bytearray(encode_batch(RECORDS))

    batch[0:8] = (77).to_bytes(8, "big")
    batch[12:16] = (3).to_bytes(4, "big")

    check_crc(batch)


def test_crc_of_a_batch_with_missing_or_extra_bytes_is_refused():
    batch = encode_batch(RECORDS)

    with pytest.raises(ProtocolError, match="instead of"):
        check_crc(batch[:-1])
    with pytest.raises(ProtocolError, match="instead of"):
        check_crc(batch + b"\x00")


def test_batches_are_split_without_copying():
    first, second = encode_batch(RECORDS), encode_batch(RECORDS[:1], base_offset=4)
    buffer = bytearray(first + second)

    batches = list(split_batches(buffer))
    buffer[0:8] = (99).to_bytes(8, "big")

    assert [len(batch) for batch in batches] == [len(first), len(second)]
    assert read_header(batches[0]).base_offset == 99
    assert batches[1] == second


def test_no_bytes_contain_no_batches():
    assert list(split_batches(b"")) == []


def test_cut_off_batch_is_refused_after_the_whole_ones():
    batch = encode_batch(RECORDS)
    batches = split_batches(batch + batch[:-5])

    assert next(batches) == batch
    with pytest.raises(ProtocolError, match="are present"):
        next(batches)


@pytest.mark.parametrize("count", [-1, 5, 2**31 - 1])
def test_record_count_that_cannot_fit_is_refused_before_reading(count):
    header = header_of(1, record_count=count)

    with pytest.raises(ProtocolError, match="do not fit"):
        next(read_records(encode_records([OracleRecord(1000)]), header))


def test_fewer_records_than_counted_are_refused():
    payload = encode_records([OracleRecord(1000, None, b"v" * 50)])
    records = read_records(payload, header_of(2))

    next(records)
    with pytest.raises(ProtocolError, match="record 1 of 2"):
        next(records)


def test_more_bytes_than_counted_records_are_refused():
    payload = encode_records([OracleRecord(1000)] * 2)
    records = read_records(payload, header_of(1))

    next(records)
    with pytest.raises(ProtocolError, match="after the last"):
        next(records)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\x00\x00\x00" + varint(50) + b"key" + b"\x01\x00", "a field of 50 bytes"),
        (b"\x00\x00\x00\x01" + varint(2**31 - 1) + b"value\x00", "a field of 2147483647 bytes"),
        (b"\x00\x00\x00\x01\x01" + varint(-1), "-1 headers"),
        (b"\x00\x00\x00\x01\x01" + varint(1_000_000), "1000000 headers"),
        (b"\x00\x00\x00\x01\x01" + varint(1) + varint(-1) + varint(-1), "without a name"),
        (b"\x00\x00\x00\x01\x01" + varint(1) + varint(1) + b"\xff" + varint(-1), "not UTF-8"),
        (b"\x00\x00\x00\x01\x01\x00extra", "does not match"),
        (b"\x00" + b"\x80" * 10, "varint"),
    ],
)
def test_malformed_record_is_refused(body, problem):
    payload = varint(len(body)) + body

    with pytest.raises(ProtocolError, match=problem):
        list(read_records(payload, header_of(1)))


@pytest.mark.parametrize("length", [-1, 100, 2**31 - 1])
def test_record_length_beyond_the_payload_is_refused(length):
    with pytest.raises(ProtocolError, match=f"length {length} with"):
        list(read_records(varint(length) + b"\x00\x00\x00\x01\x01\x00", header_of(1)))


def test_field_that_reaches_into_the_next_record_is_refused():
    first = b"\x00\x00\x00\x01" + varint(8) + b"v\x00"
    payload = varint(len(first)) + first + encode_record(OracleRecord(1000, b"k", b"v"), 1, 0)

    with pytest.raises(ProtocolError, match="a field of 8 bytes"):
        list(read_records(payload, header_of(2)))


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_records_raise_nothing_but_protocol_errors(data):
    payload = bytearray(encode_records(RECORDS[:3]))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]

    try:
        records = list(read_records(payload, header_of(3)))
    except ProtocolError:
        return
    assert len(records) == 3
