"""The embedded leader's checks on a batch. The conformance cases run the same checks on a real Kafka."""

from __future__ import annotations

import struct

import crc32c
import pytest

from aioproducer.protocol.compression import Codec
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import ATTRIBUTES_AT, CRC_AT, check_crc, read_header
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.log import AppendError
from aioproducer.testing.embedded.log_config import HOUR_MS, LogConfig
from aioproducer.testing.embedded.validation import RequestError, ValidBatch, only_batch, validate
from tests.support.conformance.crafted import crafted
from tests.support.oracle import OracleRecord, encode_batch
from tests.support.raw_client import NOW, RawClient, address, batch_of, produce_request

CONFIG = LogConfig()
PACKED = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


def validated(batch: bytes, config: LogConfig = CONFIG, now_ms: int = NOW) -> ValidBatch:
    return validate(only_batch(memoryview(batch), 12), config, now_ms)


def refusal(batch: bytes | None, config: LogConfig = CONFIG) -> AppendError:
    with pytest.raises(AppendError) as caught:
        validate(only_batch(None if batch is None else memoryview(batch), 12), config, NOW)
    return caught.value


def test_a_batch_that_needs_no_change_is_not_copied():
    batch = batch_of(b"a", b"b")

    valid = validated(batch)

    assert isinstance(valid.data, memoryview)
    assert valid.data.obj is batch
    assert valid.header == read_header(batch)


def test_bytes_after_the_batch_are_left_out():
    batch = batch_of(b"a")

    assert validated(batch + batch[:50]).data == batch


def test_a_missing_batch_is_rejected():
    for nothing in (None, b"", batch_of(b"x")[:-1]):
        assert refusal(nothing).code is ErrorCode.INVALID_RECORD


def changed(format: str, at: int, value: int, batch: bytes | None = None) -> bytes:
    """A batch with one number in its header changed, and a correct checksum."""
    data = bytearray(batch_of(b"a", b"b") if batch is None else batch)
    struct.pack_into(format, data, at, value)
    struct.pack_into(">I", data, CRC_AT, crc32c.crc32c(bytes(data[ATTRIBUTES_AT:])))
    return bytes(data)


REPACKED = LogConfig(compression_type="gzip")
REPACKED_LATER = LogConfig(compression_type="gzip", message_timestamp_type="LogAppendTime")


@pytest.mark.parametrize("config", [REPACKED, REPACKED_LATER])
@pytest.mark.parametrize(
    "batch",
    [
        changed(">q", 27, -5),
        batch_of(b"a", timestamp=-2),
        changed(">q", 43, -2),
        changed(">h", 51, 0, changed(">q", 43, -2)),
        changed(">i", 53, 0, changed(">q", 43, -2)),
    ],
    ids=["base time", "time", "producer id", "producer id, epoch 0", "producer id, sequence 0"],
)
def test_kafka_can_not_recompress_negative_times_and_incomplete_producer_ids(batch, config):
    assert refusal(batch, config).code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert validated(batch).header.base_timestamp == read_header(batch).base_timestamp, (
        "the batch was changed"
    )


def test_a_negative_producer_id_with_epoch_and_sequence_is_recompressed():
    batch = changed(">i", 53, 0, changed(">h", 51, 0, changed(">q", 43, -2)))

    assert validated(batch, REPACKED).header.producer_id == -2


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_below_version_7_fails_the_request(codec):
    batch = changed(">h", ATTRIBUTES_AT, codec)

    with pytest.raises(RequestError, match=f"no codec {codec}"):
        only_batch(memoryview(batch), 6)
    assert only_batch(memoryview(batch), 7) == batch
    assert refusal(batch).code is ErrorCode.UNKNOWN_SERVER_ERROR


def short(length: int) -> bytes:
    """A batch that is shorter than a header, with a correct length field."""
    data = bytearray(batch_of(b"a")[: 12 + length])
    struct.pack_into(">i", data, 8, length)
    return bytes(data)


@pytest.mark.parametrize("length", [14, 17, 38])
@pytest.mark.parametrize("version", [3, 9])
async def test_a_batch_without_a_whole_producer_id_fails_the_request(length, version):
    async with EmbeddedCluster(topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        request = produce_request({("t", 0): short(length), ("t", 1): batch_of(b"a")})
        response = await client.ask(request, version)

        parts = response.responses[0].partition_responses
        assert [(part.index, part.error_code, part.base_offset, part.log_start_offset) for part in parts] == [
            (0, -1, -1, -1),
            (1, -1, -1, -1),
        ]
        assert cluster.records("t") == []


async def test_a_batch_with_a_producer_id_and_an_incomplete_header_affects_only_its_partition():
    async with EmbeddedCluster(topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        request = produce_request({("t", 0): short(39), ("t", 1): batch_of(b"a")})
        response = await client.ask(request, 9)

        parts = response.responses[0].partition_responses
        assert [part.error_code for part in parts] == [ErrorCode.CORRUPT_MESSAGE, 0]


def test_log_append_time_is_written_with_a_new_checksum():
    valid = validated(batch_of(b"a", b"b"), LogConfig(message_timestamp_type="LogAppendTime"), NOW + 1000)

    check_crc(valid.data)
    assert read_header(valid.data) == valid.header
    assert (valid.header.log_append_time, valid.header.max_timestamp) == (True, NOW + 1000)


@pytest.mark.promise(
    "Test clusters", "the embedded cluster checks batches and their records in Kafka's order"
)
@pytest.mark.parametrize("codec", PACKED)
def test_records_are_recompressed_with_the_codec_of_the_topic(codec: Codec):
    records = [OracleRecord(NOW, b"k", b"v" * 100), OracleRecord(NOW - 5, None, None, (("h", b"1"),))]
    batch = encode_batch(records, producer_id=7, producer_epoch=1, base_sequence=3)

    valid = validated(batch, LogConfig(compression_type=codec.name.lower()))
    back = validated(bytes(valid.data), LogConfig(compression_type="uncompressed"))

    check_crc(valid.data)
    assert read_header(valid.data) == valid.header
    assert valid.header.codec is codec
    assert bytes(back.data) == crafted(batch)


@pytest.mark.promise(
    "Test clusters", "the embedded cluster checks batches and their records in Kafka's order"
)
def test_all_invalid_records_are_named():
    config = LogConfig(cleanup_policy="compact", message_timestamp_after_max_ms=HOUR_MS)
    good, keyless = OracleRecord(NOW, b"k"), OracleRecord(NOW)
    early = OracleRecord(NOW + HOUR_MS + 1, b"k")

    error = refusal(encode_batch([good, keyless, early, keyless]), config)

    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert list(error.record_errors) == [1, 2, 3]
    assert error.is_told
    assert refusal(encode_batch([good, keyless]), config).code is ErrorCode.INVALID_RECORD


def test_timestamps_are_accepted_up_to_the_limits_of_the_topic():
    config = LogConfig(message_timestamp_after_max_ms=10, message_timestamp_before_max_ms=20)

    for allowed in (NOW + 10, NOW - 20, -1):
        validated(encode_batch([OracleRecord(allowed)]), config)
    for refused in (NOW + 11, NOW - 21, -2):
        assert refusal(encode_batch([OracleRecord(refused)]), config).code is ErrorCode.INVALID_TIMESTAMP
