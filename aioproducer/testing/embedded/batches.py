"""Record batches that brokers write themselves: transaction markers, and the records of internal topics.

These batches are small and uncompressed. This module does not encode client batches. For the layout of batches, see
aioproducer.protocol.recordbatch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from aioproducer.protocol.primitives import write_uvarint
from aioproducer.protocol.recordbatch import (
    CONTROL,
    CRC_AT,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    Record,
)

# Base offset, length, leader epoch, magic | CRC | attributes, last offset delta, base and max timestamp, producer
# id, producer epoch, base sequence, record count.
_BEFORE_CRC = struct.Struct(">qiib")
_CRC = struct.Struct(">I")
_AFTER_CRC = struct.Struct(">hiqqqhii")
assert _BEFORE_CRC.size == CRC_AT

_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")
_CONTROL_VERSION = 0
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """A marker that ends a transaction in a partition's log (Kafka's EndTransactionMarker)."""

    commit: bool
    coordinator_epoch: int

    def key(self) -> bytes:
        """Return the key of the control record."""
        return _CONTROL_KEY.pack(_CONTROL_VERSION, _COMMIT if self.commit else _ABORT)

    def value(self) -> bytes:
        """Return the value of the control record."""
        return _CONTROL_VALUE.pack(_CONTROL_VERSION, self.coordinator_epoch)


def read_marker(record: Record) -> Marker:
    """Decode the marker in a control record."""
    assert record.key is not None
    assert record.value is not None
    _, kind = _CONTROL_KEY.unpack_from(record.key)
    _, coordinator_epoch = _CONTROL_VALUE.unpack_from(record.value)
    return Marker(kind == _COMMIT, coordinator_epoch)


def marker_batch(producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> bytes:
    """Return the control batch that ends a transaction in a log."""
    return encode_batch(
        [(marker.key(), marker.value())],
        now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


def encode_batch(
    records: Sequence[tuple[bytes, bytes | None]],
    timestamp_ms: int,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
) -> bytes:
    """Encode a batch of keys and values, all with the same timestamp."""
    payload = bytearray()
    for index, (key, value) in enumerate(records):
        record = bytearray(b"\x00\x00")  # attributes, timestamp delta
        write_varint(record, index)
        for part in (key, value):
            write_varint(record, -1 if part is None else len(part))
            record += part or b""
        record.append(0)  # headers
        write_varint(payload, len(record))
        payload += record
    checked = _AFTER_CRC.pack(
        attributes,
        len(records) - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    checked += payload
    length = _BEFORE_CRC.size - LOG_OVERHEAD + _CRC.size + len(checked)
    return _BEFORE_CRC.pack(0, length, 0, MAGIC) + _CRC.pack(crc32c(checked)) + checked


def write_varint(out: bytearray, value: int) -> None:
    """Append a number as a zigzag varint; numbers close to 0 take few bytes, even if they are negative."""
    write_uvarint(out, (value << 1) ^ (value >> 63))
