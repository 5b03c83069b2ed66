"""Record batch v2 (KIP-98), Kafka's only format since 4.0: the layout of its header, and a reader.

    offset  size  field
         0     8  base offset              assigned by the broker
         8     4  batch length             bytes after this field
        12     4  partition leader epoch   assigned by the broker
        16     1  magic                    2
        17     4  CRC-32C                  of all bytes from the attributes to the end
        21     2  attributes               bits 0-2 codec, 3 log append time, 4 transactional, 5 control
        23     4  last offset delta
        27     8  base timestamp           ms since 1970
        35     8  max timestamp            ms since 1970
        43     8  producer id              -1: not idempotent
        51     2  producer epoch
        53     4  base sequence
        57     4  record count
        61        records                  compressed as one block if a codec is set

    record = length varint (bytes after it), attributes int8, timestamp delta varlong, offset delta varint,
             key length varint (-1: null), key, value length varint (-1: null), value,
             header count varint, headers
    header = name length varint, name (UTF-8), value length varint (-1: null), value

The compiled record path writes the records. This module does not decompress."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from aioproducer.errors import ProtocolError
from aioproducer.protocol.compression import Bytes, Codec

BASE_OFFSET_AT = 0
LENGTH_AT = BASE_OFFSET_AT + 8
PARTITION_LEADER_EPOCH_AT = LENGTH_AT + 4
MAGIC_AT = PARTITION_LEADER_EPOCH_AT + 4
CRC_AT = MAGIC_AT + 1
ATTRIBUTES_AT = CRC_AT + 4
LAST_OFFSET_DELTA_AT = ATTRIBUTES_AT + 2
BASE_TIMESTAMP_AT = LAST_OFFSET_DELTA_AT + 4
MAX_TIMESTAMP_AT = BASE_TIMESTAMP_AT + 8
PRODUCER_ID_AT = MAX_TIMESTAMP_AT + 8
PRODUCER_EPOCH_AT = PRODUCER_ID_AT + 8
BASE_SEQUENCE_AT = PRODUCER_EPOCH_AT + 2
RECORD_COUNT_AT = BASE_SEQUENCE_AT + 4
HEADER_SIZE = RECORD_COUNT_AT + 4

MAGIC = 2
LOG_OVERHEAD = PARTITION_LEADER_EPOCH_AT
"""The size of the base offset and the batch length field, which the batch length does not include."""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
assert _HEADER.size == HEADER_SIZE == 61

_SMALLEST_RECORD = 7
"""The minimum size of a record in bytes: one byte each for the length, the attributes, two deltas, a null key, a null
value and a header count of 0."""


class BatchHeader(NamedTuple):
    """The fixed 61 bytes that precede the records of a batch; timestamps are in ms since 1970."""

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes, including the header."""
        return LOG_OVERHEAD + self.length

    @property
    def codec(self) -> Codec:
        """The codec of the records.

        Raises:
            ProtocolError: no codec has this id.
        """
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError:
            raise ProtocolError(f"record batch: unknown codec {self.attributes & CODEC_MASK}") from None

    @property
    def log_append_time(self) -> bool:
        """True if the timestamp of all records is `max_timestamp`, which the broker has set."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if the batch is a transaction marker instead of user data."""
        return bool(self.attributes & CONTROL)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


class Record(NamedTuple):
    """One record as stored in the log; `timestamp` is in ms since 1970."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_header(buf: Bytes, at: int = 0) -> BatchHeader:
    """Read the header of the batch that starts at `at`. Neither the records nor the CRC is checked.

    Raises:
        ProtocolError: too few bytes for a header, a format other than v2, or a length smaller than the header.
    """
    left = len(buf) - at
    # Formats v0 and v1 are shorter, with the magic at the same offset, so the magic is checked before the size.
    if left > MAGIC_AT and buf[at + MAGIC_AT] != MAGIC:
        raise ProtocolError(f"record batch: format v{buf[at + MAGIC_AT]} instead of v{MAGIC}")
    if left < HEADER_SIZE:
        raise ProtocolError(f"record batch: {left} bytes are too few for a header of {HEADER_SIZE}")
    header = BatchHeader._make(_HEADER.unpack_from(buf, at))
    if header.size < HEADER_SIZE:
        raise ProtocolError(f"record batch: length {header.length} leaves no room for the header")
    return header


def check_crc(buf: Bytes) -> None:
    """Check that `buf` is exactly one batch with a correct CRC.

    Raises:
        ProtocolError: the header is malformed, bytes are missing or left over, or the CRC differs.
    """
    header = read_header(buf)
    if header.size != len(buf):
        raise ProtocolError(f"record batch: {len(buf)} bytes instead of {header.size}")
    found = crc32c(memoryview(buf)[ATTRIBUTES_AT:])
    if found != header.crc:
        raise ProtocolError(
            f"record batch: CRC is {header.crc:#010x} in the header, {found:#010x} for the bytes"
        )


def read_records(payload: Bytes, header: BatchHeader) -> Iterator[Record]:
    """Yield the records of a batch. `payload` is everything after its header, uncompressed.

    Raises:
        ProtocolError: a record is malformed, or the number of records differs from the count in the header. The
            records before the error are yielded first.
    """
    data = bytes(payload)
    count = header.record_count
    if not 0 <= count <= len(data) // _SMALLEST_RECORD:
        raise ProtocolError(f"record batch: {count} records do not fit into {len(data)} bytes")
    at = 0
    for index in range(count):
        try:
            record, at = _read_record(data, at, header)
        except IndexError:
            raise ProtocolError(f"record {index} of {count}: cut off") from None
        except UnicodeDecodeError:
            raise ProtocolError(f"record {index} of {count}: a header's name is not UTF-8") from None
        except ProtocolError as error:
            raise ProtocolError(f"record {index} of {count}: {error}") from None
        yield record
    if at != len(data):
        raise ProtocolError(f"record batch: {len(data) - at} bytes after the last of {count} records")


def _read_record(data: bytes, at: int, header: BatchHeader) -> tuple[Record, int]:
    """Return the record that starts at `at`, and the position after it. Raises IndexError if bytes are missing."""
    length, at = _varint(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise ProtocolError(f"length {length} with {len(data) - at} bytes left")
    at += 1  # skip the attributes: all bits are unused
    timestamp_delta, at = _varlong(data, at)
    offset_delta, at = _varint(data, at)
    key, at = _nullable(data, at, end)
    value, at = _nullable(data, at, end)
    count, at = _varint(data, at)
    # Each header has at least two length bytes.
    if not 0 <= count <= (end - at) // 2:
        raise ProtocolError(f"{count} headers with {end - at} bytes left")
    headers = []
    for _ in range(count):
        name, at = _nullable(data, at, end)
        if name is None:
            raise ProtocolError("a header without a name")
        header_value, at = _nullable(data, at, end)
        headers.append((name.decode(), header_value))
    if at != end:
        raise ProtocolError(f"length {length} does not match its fields")
    timestamp = header.max_timestamp if header.log_append_time else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), end


def _nullable(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Read a length and that many bytes. Null is encoded as -1; as in Java, any negative length is read as null."""
    length, at = _varint(data, at)
    if length < 0:
        return None, at
    stop = at + length
    if stop > end:
        raise ProtocolError(f"a field of {length} bytes with {end - at} left")
    return data[at:stop], stop


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 32 bits; return its value and the position after it."""
    raw = data[at]
    if raw < 0x80:  # most are one byte long
        return (raw >> 1) ^ -(raw & 1), at + 1
    return _long_varint(data, at, 32)


def _varlong(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits; return its value and the position after it."""
    raw = data[at]
    if raw < 0x80:
        return (raw >> 1) ^ -(raw & 1), at + 1
    return _long_varint(data, at, 64)


def _long_varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    while shift < bits:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> bits:
                break
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    raise ProtocolError(f"a varint of more than {bits} bits")
