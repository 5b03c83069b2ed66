"""An encoder of record batches v2 that is slow and obvious. The compiled record path must write the same bytes.

The encoder shares no code or constants with the package. Even the CRC is computed from its definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class OracleRecord(NamedTuple):
    """A record to encode; `timestamp` is in ms since 1970."""

    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


def encode_batch(
    records: Sequence[OracleRecord],
    *,
    codec: int = 0,
    payload: bytes | None = None,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    base_timestamp: int | None = None,
) -> bytes:
    """Encode a whole batch with its CRC. `payload` replaces the records if they are compressed.

    `base_timestamp` is that of the first record, unless the batch used to start with other records.
    """
    if base_timestamp is None:
        base_timestamp = records[0].timestamp
    max_timestamp = max(record.timestamp for record in records)
    if log_append_time is not None:
        max_timestamp = log_append_time
    attributes = codec
    attributes |= 0x08 if log_append_time is not None else 0
    attributes |= 0x10 if transactional else 0
    attributes |= 0x20 if control else 0
    checked = (
        _int(attributes, 2)
        + _int(len(records) - 1, 4)
        + _int(base_timestamp, 8)
        + _int(max_timestamp, 8)
        + _int(producer_id, 8)
        + _int(producer_epoch, 2)
        + _int(base_sequence, 4)
        + _int(len(records), 4)
        + (encode_records(records, base_timestamp) if payload is None else payload)
    )
    after_length = _int(partition_leader_epoch, 4) + _int(2, 1) + crc32c(checked).to_bytes(4, "big") + checked
    return _int(base_offset, 8) + _int(len(after_length), 4) + after_length


def encode_records(records: Sequence[OracleRecord], base_timestamp: int | None = None) -> bytes:
    """Encode only the records, which is the part that is compressed."""
    if base_timestamp is None:
        base_timestamp = records[0].timestamp
    return b"".join(
        encode_record(record, offset_delta, record.timestamp - base_timestamp)
        for offset_delta, record in enumerate(records)
    )


def encode_record(record: OracleRecord, offset_delta: int, timestamp_delta: int) -> bytes:
    body = b"\x00"
    body += varint(timestamp_delta)
    body += varint(offset_delta)
    body += _nullable(record.key)
    body += _nullable(record.value)
    body += varint(len(record.headers))
    for name, value in record.headers:
        body += _nullable(name.encode())
        body += _nullable(value)
    return varint(len(body)) + body


def varint(value: int) -> bytes:
    """Zigzag encoding in groups of seven bits, lowest first; the eighth bit of a byte says that more bytes follow."""
    left = 2 * value if value >= 0 else -2 * value - 1
    encoded = b""
    while left > 127:
        encoded += bytes([128 + left % 128])
        left //= 128
    return encoded + bytes([left])


def crc32c(data: bytes) -> int:
    """Castagnoli's CRC, reflected, one byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ 0x82F63B78 if byte & 1 else byte >> 1
    return byte


_CRC_TABLE = [_crc_of_byte(byte) for byte in range(256)]


def _int(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def _nullable(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value
