"""Cases about the sizes, timestamps, keys and codecs that a topic's settings require (LogValidator, UnifiedLog)."""

from __future__ import annotations

from aioproducer.protocol.compression import Codec, compressor
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import read_records
from tests.support.conformance.client import Client, PartitionAnswer, appended, outcome, refused
from tests.support.conformance.crafted import (
    KAFKA_LIMIT,
    batch_of_payload,
    batch_of_size,
    crafted,
    flipped,
    keyed,
    record,
)
from tests.support.conformance.suite import case
from tests.support.oracle import OracleRecord, encode_batch, encode_records
from tests.support.raw_client import NOW, batch_of

FAR_AHEAD = 4_000_000_000_000
"""A timestamp in the year 2096, in ms."""
DAY = 86_400_000  # ms


def record_errors(answer: PartitionAnswer) -> list[int]:
    """The indexes of the invalid records (KIP-467)."""
    return [error.batch_index for error in answer.record_errors]


def at(*timestamps: int) -> bytes:
    """A batch of records with these timestamps."""
    return encode_batch([OracleRecord(timestamp, b"k", b"v") for timestamp in timestamps])


# Sizes


@case(max_message_bytes=200)
async def a_batch_may_be_as_large_as_the_topics_limit(client: Client) -> None:
    assert await client.outcomes(batch_of_size(200), batch_of_size(201)) == [
        appended(0),
        refused(ErrorCode.MESSAGE_TOO_LARGE),
    ]


@case()
async def a_batch_may_be_as_large_as_the_brokers_limit(client: Client) -> None:
    assert await client.outcomes(batch_of_size(KAFKA_LIMIT), batch_of_size(KAFKA_LIMIT + 1)) == [
        appended(0),
        refused(ErrorCode.MESSAGE_TOO_LARGE),
    ]


@case(max_message_bytes=2_000_000)
async def a_topic_may_have_a_higher_limit_than_the_broker(client: Client) -> None:
    assert await client.outcomes(batch_of_size(KAFKA_LIMIT + 1)) == [appended(0)]


@case(max_message_bytes=200)
async def the_size_is_checked_before_the_checksum(client: Client) -> None:
    assert await client.outcomes(flipped(batch_of_size(201))) == [refused(ErrorCode.MESSAGE_TOO_LARGE)]


@case(max_message_bytes=200)
async def the_base_offset_is_checked_before_the_size(client: Client) -> None:
    batch = crafted(batch_of_size(201), base_offset=1)
    assert await client.outcomes(batch) == [refused(ErrorCode.INVALID_RECORD, log_start=0)]


@case(max_message_bytes=300)
async def the_size_is_that_of_the_compressed_records(client: Client) -> None:
    packed = compressor(Codec.GZIP, None)(record(b"x" * 10_000))
    assert await client.outcomes(batch_of_payload(packed, attributes=Codec.GZIP)) == [appended(0)]


@case(max_message_bytes=100)
async def bytes_after_the_batch_do_not_count(client: Client) -> None:
    assert await client.outcomes(batch_of(b"x") + b"\0" * 11) == [appended(0)]


@case(max_message_bytes=3_000_000, segment_bytes=1_048_576)
async def a_batch_must_fit_a_segment(client: Client) -> None:
    assert await client.outcomes(batch_of_size(1_048_576), batch_of_size(1_048_577)) == [
        appended(0),
        refused(ErrorCode.RECORD_LIST_TOO_LARGE),
    ]


# Timestamps


@case(message_timestamp_after_max_ms=3_600_000)
async def a_timestamp_too_far_ahead_is_rejected_with_the_index_of_its_record(client: Client) -> None:
    answer = await client.produce(at(NOW, FAR_AHEAD, NOW, FAR_AHEAD))
    assert outcome(answer) == refused(ErrorCode.INVALID_TIMESTAMP, log_start=0)
    assert record_errors(answer) == [1, 3]
    assert all(error.batch_index_error_message for error in answer.record_errors)
    assert answer.error_message
    assert await client.end_offset() == 0


@case(message_timestamp_before_max_ms=DAY)
async def a_timestamp_too_old_is_rejected_with_the_index_of_its_record(client: Client) -> None:
    answer = await client.produce(at(NOW))
    assert outcome(answer) == refused(ErrorCode.INVALID_TIMESTAMP, log_start=0)
    assert record_errors(answer) == [0]


# Since Kafka 4.0, no record may be more than an hour ahead (KIP-1030).
AHEAD_BY_DEFAULT = {"3.9": appended(0), "4.3": refused(ErrorCode.INVALID_TIMESTAMP, log_start=0)}


@case()
async def the_default_limit_of_timestamps_in_the_future(client: Client) -> None:
    assert await client.outcomes(at(FAR_AHEAD)) == [client.expected(AHEAD_BY_DEFAULT)]


@case()
async def old_timestamps_are_accepted_by_default(client: Client) -> None:
    assert await client.outcomes(at(0), at(1)) == [appended(0), appended(1)]


@case(message_timestamp_before_max_ms=DAY)
async def a_record_may_have_no_timestamp(client: Client) -> None:
    assert await client.outcomes(at(-1)) == [appended(0)]


@case(message_timestamp_before_max_ms=DAY)
async def the_largest_timestamp_is_not_taken_from_the_header(client: Client) -> None:
    batch = crafted(at(-1, -1), max_timestamp=NOW)
    assert await client.outcomes(batch) == [appended(0)]
    (header,) = await client.headers()
    assert header.max_timestamp == -1


@case(message_timestamp_after_max_ms=3_600_000)
async def timestamps_of_compressed_records_are_also_checked(client: Client) -> None:
    records = [OracleRecord(NOW, None, b"x"), OracleRecord(FAR_AHEAD, None, b"y")]
    packed = compressor(Codec.ZSTD, None)(encode_records(records))
    answer = await client.produce(encode_batch(records, codec=Codec.ZSTD, payload=packed))
    assert outcome(answer) == refused(ErrorCode.INVALID_TIMESTAMP, log_start=0)
    assert record_errors(answer) == [1]


@case(message_timestamp_after_max_ms=3_600_000)
async def errors_of_records_are_returned_since_version_8(client: Client) -> None:
    for version in (7, 8):
        answer = await client.produce(at(FAR_AHEAD), version=version)
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert record_errors(answer) == ([0] if version >= 8 else [])
        assert (answer.error_message is None) is (version < 8)


@case()
async def the_flag_for_log_append_time_is_cleared(client: Client) -> None:
    assert await client.outcomes(encode_batch(keyed(b"a", b"b"), log_append_time=NOW + 50)) == [appended(0)]
    (header,) = await client.headers()
    assert (header.log_append_time, header.max_timestamp) == (False, NOW + 50)


@case(message_timestamp_type="LogAppendTime")
async def producers_may_not_set_the_flag_for_log_append_time_if_the_broker_does(client: Client) -> None:
    answer = await client.produce(encode_batch(keyed(b"a", b"b"), log_append_time=NOW))
    assert outcome(answer) == refused(ErrorCode.INVALID_TIMESTAMP, log_start=0)
    assert record_errors(answer) == [0, 1]


@case(message_timestamp_type="LogAppendTime")
async def the_broker_writes_log_append_time(client: Client) -> None:
    answer = await client.produce(at(NOW, FAR_AHEAD))
    assert answer.error_code == ErrorCode.NONE
    (header,) = await client.headers()
    assert NOW < header.max_timestamp == answer.log_append_time_ms < FAR_AHEAD
    assert (header.log_append_time, header.base_timestamp) == (True, NOW)


@case(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=DAY)
async def with_log_append_time_any_timestamp_is_accepted(client: Client) -> None:
    assert [found.error_code for found in await client.outcomes(at(NOW), at(FAR_AHEAD))] == [0, 0]


# Keys


@case(cleanup_policy="compact")
async def records_without_a_key_are_rejected_by_a_compacted_topic(client: Client) -> None:
    answer = await client.produce(encode_batch(keyed(None, b"k", None)))
    assert outcome(answer) == refused(ErrorCode.INVALID_RECORD, log_start=0)
    assert record_errors(answer) == [0, 2]
    assert await client.end_offset() == 0


@case(cleanup_policy="compact")
async def a_compacted_topic_accepts_an_empty_key(client: Client) -> None:
    assert await client.outcomes(encode_batch(keyed(b"", b"k"))) == [appended(0)]


@case(cleanup_policy="compact,delete")
async def a_topic_that_is_compacted_and_deleted_also_requires_keys(client: Client) -> None:
    answer = await client.produce(encode_batch(keyed(None)))
    assert outcome(answer) == refused(ErrorCode.INVALID_RECORD, log_start=0)


@case(cleanup_policy="compact")
async def keys_of_compressed_records_are_also_checked(client: Client) -> None:
    records = keyed(b"k", None)
    packed = compressor(Codec.LZ4, None)(encode_records(records))
    answer = await client.produce(encode_batch(records, codec=Codec.LZ4, payload=packed))
    assert outcome(answer) == refused(ErrorCode.INVALID_RECORD, log_start=0)
    assert record_errors(answer) == [1]


@case(cleanup_policy="compact", message_timestamp_after_max_ms=3_600_000)
async def one_invalid_timestamp_decides_the_error_code_of_the_batch(client: Client) -> None:
    records = [*keyed(None), OracleRecord(FAR_AHEAD, b"k", b"v"), *keyed(b"k"), OracleRecord(FAR_AHEAD, None)]
    answer = await client.produce(encode_batch(records))
    assert outcome(answer) == refused(ErrorCode.INVALID_TIMESTAMP, log_start=0)
    assert record_errors(answer) == [0, 1, 3]


@case(cleanup_policy="compact")
async def a_tombstone_is_accepted(client: Client) -> None:
    assert await client.outcomes(encode_batch([OracleRecord(NOW, b"k", None)])) == [appended(0)]


# Codecs


@case(compression_type="gzip")
async def the_broker_compresses_with_the_codec_of_the_topic(client: Client) -> None:
    batch = batch_of(b"a" * 500, b"b" * 500, sequence=4)
    assert await client.outcomes(batch) == [appended(0)]
    (header,) = await client.headers()
    assert header.codec is Codec.GZIP
    assert header.size < len(batch)
    assert (header.record_count, header.base_sequence, header.producer_id) == (2, 4, 7)


@case(compression_type="uncompressed")
async def the_broker_decompresses_for_an_uncompressed_topic(client: Client) -> None:
    payload = record(b"a" * 500) + record(b"b", offset_delta=1)
    packed = compressor(Codec.ZSTD, None)(payload)
    assert await client.outcomes(batch_of_payload(packed, 2, attributes=Codec.ZSTD)) == [appended(0)]
    (batch,) = await client.batches()
    (header,) = await client.headers()
    assert header.codec is Codec.NONE
    assert [found.value for found in read_records(batch[61:], header)] == [b"a" * 500, b"b"]


@case(compression_type="zstd")
async def a_batch_with_the_topics_codec_is_not_compressed_again(client: Client) -> None:
    batch = batch_of_payload(compressor(Codec.ZSTD, None)(record(b"a" * 500)), attributes=Codec.ZSTD)
    assert await client.outcomes(batch) == [appended(0)]
    (stored,) = await client.batches()
    assert stored[16:] == batch[16:]


@case(compression_type="lz4")
async def a_batch_that_the_broker_compresses_gets_new_offset_deltas_and_a_new_max_timestamp(
    client: Client,
) -> None:
    payload = record(b"a", offset_delta=9) + record(b"b", offset_delta=2, timestamp_delta=5)
    assert await client.outcomes(batch_of_payload(payload, 2, max_timestamp=0)) == [appended(0)]
    (header,) = await client.headers()
    assert (header.codec, header.max_timestamp, header.last_offset_delta) == (Codec.LZ4, NOW + 5, 1)


@case(compression_type="uncompressed", max_message_bytes=500)
async def a_batch_that_grows_when_it_is_decompressed_must_not_exceed_the_limit(client: Client) -> None:
    packed = compressor(Codec.GZIP, None)(record(b"x" * 1000))
    assert await client.outcomes(batch_of_payload(packed, attributes=Codec.GZIP)) == [
        refused(ErrorCode.MESSAGE_TOO_LARGE)
    ]
