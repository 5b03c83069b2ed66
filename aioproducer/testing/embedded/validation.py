"""A leader's checks on a batch before it is appended: first the batch as a whole, then its records.

The checks are in Kafka's order, because a batch with two errors is rejected for the first one found: ProduceRequest
(`only_batch`), then UnifiedLog and LogValidator (`validate`). The log itself checks a producer's sequences later.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import crc32c

from aioproducer.errors import ProtocolError
from aioproducer.protocol.compression import Bytes, Codec, compressor
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    HEADER_SIZE,
    LENGTH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    check_crc,
    read_header,
)
from aioproducer.testing.embedded.batches import write_varint
from aioproducer.testing.embedded.decompression import decompress_as_broker
from aioproducer.testing.embedded.log import NO_TIMESTAMP, AppendError
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.record_scan import ScannedRecords, UnreadableLengthError, scan_records

_KNOWN_CODECS = frozenset(Codec)

_PRODUCER_ID_END = 51
"""The position after the producer id. Kafka reads each batch up to here before it checks the header's length."""

_SMALLEST_BATCH = 14
"""The minimum value of a batch's length field, from message format v0 (LegacyRecord.RECORD_OVERHEAD_V0)."""

_ZSTD_SINCE = 7
"""The first Produce version in which zstd is allowed (KIP-110)."""

_MAX_UNCOMPRESSED = 1 << 30  # bytes
_JAVA_INT_MAX = 2**31 - 1

_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_CRC = struct.Struct(">I")
_HEADER = struct.Struct(">qiibIhiqqqhii")

_KEPT_ATTRIBUTES = CODEC_MASK | TRANSACTIONAL | CONTROL
"""The attributes that are preserved when the broker changes the timestamps of a batch."""


class ValidBatch(NamedTuple):
    """A batch that can be appended; its base offset and leader epoch are not set yet."""

    header: BatchHeader
    data: Bytes


class RequestError(Exception):
    """An error in a batch that makes Kafka fail the whole request with UNKNOWN_SERVER_ERROR."""


def check_can_be_read(batches: Iterable[memoryview]) -> None:
    """Read the part of each batch that Kafka's ReplicaManager reads before it appends the first one.

    Raises:
        RequestError: a batch is too short to contain its producer id.
    """
    for batch in batches:
        if len(batch) < _PRODUCER_ID_END:
            raise RequestError(f"a record batch has only {len(batch)} bytes")


def only_batch(records: memoryview | None, version: int) -> memoryview:
    """Return the only batch for a partition in a Produce request, without any incomplete batch after it.

    Args:
        records: The partition's `records` field.
        version: The version of the request.

    Raises:
        AppendError: there is no whole batch, or more than one, or one that is not allowed in this version.
        RequestError: the codec does not exist. As in Kafka, this is checked only in Produce versions without zstd.
    """
    view = memoryview(records or b"")
    end = _end_of_batch(view, 0)
    if end is None:
        raise AppendError(ErrorCode.INVALID_RECORD, "no complete record batch")
    if view[MAGIC_AT] != MAGIC:
        raise AppendError(ErrorCode.INVALID_RECORD, f"message format v{view[MAGIC_AT]}, not v{MAGIC}")
    if version < _ZSTD_SINCE and end > ATTRIBUTES_AT + 1:
        codec = _INT16.unpack_from(view, ATTRIBUTES_AT)[0] & CODEC_MASK
        if codec not in _KNOWN_CODECS:
            raise RequestError(f"there is no codec {codec}")
        if codec == Codec.ZSTD:
            raise AppendError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd requires Produce version 7")
    if _end_of_batch(view, end) is not None:
        raise AppendError(ErrorCode.INVALID_RECORD, "more than one record batch")
    return view[:end]


def _end_of_batch(view: memoryview, at: int) -> int | None:
    """Return the end of the batch at `at`; None if the batch is incomplete (Kafka's ByteBufferLogInputStream)."""
    left = len(view) - at
    if left < LOG_OVERHEAD:
        return None
    length: int = _INT32.unpack_from(view, at + LENGTH_AT)[0]
    if length < _SMALLEST_BATCH:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, f"a record batch of length {length}")
    if left <= MAGIC_AT:
        return None
    if view[at + MAGIC_AT] > MAGIC:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, f"message format v{view[at + MAGIC_AT]}")
    if length > _JAVA_INT_MAX - LOG_OVERHEAD:
        # In Java, this sum overflows to a negative number, which passes the check.
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a record batch of length {length}")
    return at + LOG_OVERHEAD + length if left >= LOG_OVERHEAD + length else None


def validate(batch: memoryview, config: LogConfig, now_ms: int) -> ValidBatch:
    """Check a batch, and return it in the form in which a log with these settings stores it.

    Args:
        batch: The result of `only_batch`.
        config: The settings of the topic.
        now_ms: The broker's wall clock, in milliseconds.

    Raises:
        AppendError: Kafka would reject the batch, whatever the log contains.
    """
    header = _whole_batch(batch, config)
    _check_header(header)
    records = _read_records(batch, header)
    _check_records(records, header, config, now_ms)
    max_timestamp = now_ms if config.uses_log_append_time else max(records.timestamps)
    codec = header.codec if config.codec is None else config.codec
    if codec is not header.codec:
        valid = _packed_anew(records, header, codec, max_timestamp, config.uses_log_append_time)
        _check_size(valid.header.size, config)
    elif codec is Codec.NONE or records.are_numbered:
        valid = _stamped(batch, header, max_timestamp, config.uses_log_append_time)
    else:
        # Kafka tries to renumber the records and fails, because it has skipped their keys and values.
        raise _server_error("compressed records whose offset deltas are not 0, 1, 2 and so on")
    if valid.header.size > config.segment_bytes:
        raise AppendError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {valid.header.size} bytes, but segment.bytes is {config.segment_bytes}",
        )
    return valid


# The batch


def _whole_batch(batch: memoryview, config: LogConfig) -> BatchHeader:
    """Check the batch as a whole and return its header (UnifiedLog.analyzeAndValidateRecords)."""
    (base_offset,) = _INT64.unpack_from(batch)
    if base_offset != 0:
        raise _invalid(f"the base offset should be 0, not {base_offset}")
    _check_size(len(batch), config)
    try:
        header = read_header(batch)
        check_crc(batch)
    except ProtocolError as error:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    try:
        _ = header.codec
    except ProtocolError as error:
        raise _server_error(str(error)) from error
    return header


def _check_header(header: BatchHeader) -> None:
    """Check the fields of the header (LogValidator.validateBatch)."""
    if header.record_count < 1:
        raise _invalid(f"the record count is {header.record_count}")
    if header.record_count != header.last_offset_delta + 1:
        raise _invalid(
            f"the record count is {header.record_count}, but the last offset delta is {header.last_offset_delta}"
        )
    if header.is_control:
        raise _invalid("clients may not write control records")
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise _invalid(f"producer {header.producer_id} uses sequence {header.base_sequence}")


def _check_size(size: int, config: LogConfig) -> None:
    if size > config.max_message_bytes:
        raise AppendError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, but max.message.bytes is {config.max_message_bytes}",
        )


# Its records


def _read_records(batch: memoryview, header: BatchHeader) -> ScannedRecords:
    payload: Bytes = batch[HEADER_SIZE:]
    if header.codec is not Codec.NONE:
        try:
            payload = decompress_as_broker(header.codec, payload, _MAX_UNCOMPRESSED)
        except ProtocolError as error:
            raise _server_error(str(error)) from error
    try:
        return scan_records(payload, header)
    except UnreadableLengthError as error:
        raise _server_error(str(error)) from error
    except ProtocolError as error:
        raise _invalid(str(error)) from error


def _check_records(records: ScannedRecords, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Check all records and report each one that has an error (LogValidator.validateRecord, KIP-467)."""
    errors: dict[int, str] = {}
    if config.is_compacted:
        errors.update((index, "a compacted topic requires a key") for index in records.keyless)
    oldest = now_ms - config.message_timestamp_before_max_ms
    newest = now_ms + config.message_timestamp_after_max_ms
    code = ErrorCode.INVALID_RECORD
    for index, timestamp in enumerate(records.timestamps):
        has_time = not config.uses_log_append_time and timestamp != NO_TIMESTAMP
        is_wrong = not oldest <= timestamp <= newest if has_time else header.log_append_time
        if is_wrong and index not in errors:
            code = ErrorCode.INVALID_TIMESTAMP
            errors[index] = f"timestamp {timestamp} is not between {oldest} and {newest}"
            if not has_time:
                errors[index] = "only brokers may write LogAppendTime"
    if errors:
        raise AppendError(
            code,
            f"{len(errors)} of {len(records.timestamps)} records are rejected",
            tells_log_start=True,
            is_told=True,
            record_errors=dict(sorted(errors.items())),
        )


def _stamped(batch: memoryview, header: BatchHeader, max_timestamp: int, log_append_time: bool) -> ValidBatch:
    """Return the batch with this maximum timestamp and timestamp type (DefaultRecordBatch.setMaxTimestamp)."""
    if header.max_timestamp == max_timestamp and header.log_append_time is log_append_time:
        return ValidBatch(header, batch)
    attributes = header.attributes & _KEPT_ATTRIBUTES | (LOG_APPEND_TIME if log_append_time else 0)
    return _sealed(header._replace(attributes=attributes, max_timestamp=max_timestamp), batch[HEADER_SIZE:])


def _packed_anew(
    records: ScannedRecords, header: BatchHeader, codec: Codec, max_timestamp: int, log_append_time: bool
) -> ValidBatch:
    """Rebuild the batch with another codec and without gaps in its offset deltas (MemoryRecordsBuilder).

    Raises:
        AppendError: Kafka's builder rejects a timestamp or the producer's state.
    """
    if any(timestamp < 0 and timestamp != NO_TIMESTAMP for timestamp in records.timestamps):
        raise _server_error("a negative timestamp")
    if header.producer_id != NO_PRODUCER_ID:
        if header.producer_epoch == NO_PRODUCER_EPOCH or header.base_sequence < 0:
            raise _server_error(
                f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}"
            )
    payload = _encoded(records)
    if codec is not Codec.NONE:
        payload = compressor(codec, None)(payload)
    attributes = codec | header.attributes & TRANSACTIONAL | (LOG_APPEND_TIME if log_append_time else 0)
    return _sealed(
        header._replace(
            length=HEADER_SIZE - LOG_OVERHEAD + len(payload),
            attributes=attributes,
            base_timestamp=records.timestamps[0],
            max_timestamp=max_timestamp,
        ),
        payload,
    )


def _encoded(records: ScannedRecords) -> bytes:
    """Encode the records one after another, with new deltas."""
    payload = bytearray()
    base_timestamp = records.timestamps[0]
    for index, (timestamp, (start, end)) in enumerate(zip(records.timestamps, records.bodies, strict=True)):
        record = bytearray(1)  # attributes
        write_varint(record, timestamp - base_timestamp)
        write_varint(record, index)
        record += memoryview(records.payload)[start:end]
        write_varint(payload, len(record))
        payload += record
    return bytes(payload)


def _sealed(header: BatchHeader, payload: Bytes) -> ValidBatch:
    """Join header and payload, with a new checksum."""
    data = bytearray(_HEADER.pack(*header))
    data += payload
    crc = crc32c.crc32c(memoryview(data)[ATTRIBUTES_AT:])
    _CRC.pack_into(data, CRC_AT, crc)
    return ValidBatch(header._replace(crc=crc), data)


# Errors. For unusual errors, Kafka's response contains the log start offset.


def _invalid(message: str) -> AppendError:
    return AppendError(ErrorCode.INVALID_RECORD, message, tells_log_start=True)


def _server_error(message: str) -> AppendError:
    """Return an error that Kafka's reader raises and that has no error code of its own."""
    return AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, message, tells_log_start=True)
