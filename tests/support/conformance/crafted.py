"""Batches that no producer writes: with any changes to the header, and any bytes instead of records."""

from __future__ import annotations

import struct

from crc32c import crc32c

from tests.support.oracle import OracleRecord, varint
from tests.support.raw_client import NOW, batch_of

_NAMES = (
    "base_offset length leader_epoch magic crc attributes last_offset_delta base_timestamp max_timestamp "
    "producer_id producer_epoch base_sequence record_count"
).split()
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_CHECKED = 21

KAFKA_LIMIT = 1_048_588
"""The default of message.max.bytes."""


def crafted(batch: bytes, *, payload: bytes | None = None, **fields: int) -> bytes:
    """A batch with other records or other fields. Length and checksum are correct unless they are given."""
    values = dict(zip(_NAMES, _HEADER.unpack_from(batch), strict=True))
    if payload is None:
        payload = batch[_HEADER.size :]
    values["length"] = _HEADER.size - 12 + len(payload)
    values.update(fields)
    if "crc" not in fields:
        values["crc"] = crc32c((_HEADER.pack(*values.values()) + payload)[_BEFORE_CHECKED:])
    return _HEADER.pack(*values.values()) + payload


def flipped(batch: bytes, at: int = -3) -> bytes:
    """A batch with one bit changed."""
    changed = bytearray(batch)
    changed[at] ^= 1
    return bytes(changed)


def batch_of_size(size: int, value: bytes = b"x") -> bytes:
    """A batch of exactly `size` bytes with one record."""
    for length in range(size - 61 - 20, size - 61):
        batch = batch_of_payload(record(value * length))
        if len(batch) == size:
            return batch
    raise AssertionError(f"no record fits {size} bytes")


def batch_of_payload(payload: bytes, count: int = 1, **fields: int) -> bytes:
    """A batch with this payload whose header says that it has `count` records."""
    return crafted(
        batch_of(b""), payload=payload, **{"record_count": count, "last_offset_delta": count - 1, **fields}
    )


def record(
    value: bytes | None = b"x",
    *,
    key: bytes | None = None,
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    attributes: int = 0,
    headers: bytes = b"\x00",
    length: int | None = None,
) -> bytes:
    """Encode one record. `headers` are the bytes of the count and of the headers."""
    body = bytes([attributes]) + varint(timestamp_delta) + varint(offset_delta)
    body += nullable(key) + nullable(value) + headers
    return varint(len(body) if length is None else length) + body


def nullable(value: bytes | None) -> bytes:
    """Encode nullable bytes: their length, then the bytes."""
    return varint(-1) if value is None else varint(len(value)) + value


def keyed(*keys: bytes | None, timestamp: int = NOW) -> list[OracleRecord]:
    """One record for each key."""
    return [OracleRecord(timestamp, key, b"value") for key in keys]
