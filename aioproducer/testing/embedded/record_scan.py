"""A leader's single pass over the records in a batch: it checks their format and collects their properties.

Keys, values and headers are skipped, not read. This pass is most of the work that the embedded cluster does for each
record, so it is written as one loop.
"""

from __future__ import annotations

from typing import NamedTuple

from aioproducer.errors import ProtocolError
from aioproducer.protocol.compression import Bytes
from aioproducer.protocol.recordbatch import BatchHeader

_VARINT_BYTES = 5
_VARLONG_BYTES = 10


class UnreadableLengthError(ProtocolError):
    """A record's length is encoded in too many bytes. Kafka has no error code for this case."""


class ScannedRecords(NamedTuple):
    """The properties of a batch's records; `timestamps` and `bodies` have an entry for each record."""

    payload: bytes
    """The decompressed bytes of all records."""
    timestamps: list[int]
    """The timestamps in ms since 1970."""
    keyless: list[int]
    """The indexes of the records without a key."""
    bodies: list[tuple[int, int]]
    """The position of the key's length in the payload, and the end of the record."""
    are_numbered: bool
    """True if the offset deltas of the records are 0, 1, 2 and so on."""


def scan_records(payload: Bytes, header: BatchHeader) -> ScannedRecords:
    """Step through the records in a batch.

    Args:
        payload: All bytes after the header, decompressed.
        header: The header of the batch; its record count is at least 1.

    Raises:
        UnreadableLengthError: a record's length can't be read.
        ProtocolError: a record is malformed, or the number of records differs from the header's count.
    """
    data = bytes(payload)
    timestamps: list[int] = []
    keyless: list[int] = []
    bodies: list[tuple[int, int]] = []
    are_numbered = True
    at = 0
    for index in range(header.record_count):
        try:
            length, at = _varint(data, at, UnreadableLengthError)
            end = at + length
            if length < 0 or end > len(data):
                raise ProtocolError(f"length {length} with {len(data) - at} bytes left")
            at += 1  # attributes, which are unused
            timestamp_delta, at = _varint(data, at, ProtocolError, _VARLONG_BYTES)
            offset_delta, at = _varint(data, at)
            bodies.append((at, end))
            key, at = _varint(data, at)
            if key < 0:
                keyless.append(index)
            else:
                at += key
            at = _skipped(data, at)
            at = _skip_headers(data, at, end) if data[at] else at + 1
        except IndexError:
            raise ProtocolError(f"record {index} of {header.record_count}: cut off") from None
        if at != end:
            raise ProtocolError(
                f"record {index} of {header.record_count}: its length does not match its fields"
            )
        timestamps.append(timestamp_delta)
        if offset_delta != index:
            are_numbered = False
    if at != len(data):
        raise ProtocolError(f"{len(data) - at} bytes after the last of {header.record_count} records")
    if header.log_append_time:
        timestamps = [header.max_timestamp] * len(timestamps)
    else:
        base = header.base_timestamp
        timestamps = [base + delta for delta in timestamps]
    return ScannedRecords(data, timestamps, keyless, bodies, are_numbered)


def _skip_headers(data: bytes, at: int, end: int) -> int:
    count, at = _varint(data, at)
    if not 0 <= count <= end - at:
        raise ProtocolError(f"{count} headers with {end - at} bytes left")
    for _ in range(count):
        name, at = _varint(data, at)
        if name < 0:
            raise ProtocolError("a header without a name")
        at = _skipped(data, at + name)
    return at


def _skipped(data: bytes, at: int) -> int:
    """Return the end of the bytes whose length is at `at`; any negative length means null."""
    length, at = _varint(data, at)
    return at + length if length > 0 else at


def _varint(
    data: bytes, at: int, error: type[ProtocolError] = ProtocolError, most: int = _VARINT_BYTES
) -> tuple[int, int]:
    """Decode a zigzag varint of at most `most` bytes; return its value and the position after it."""
    raw = data[at]
    if raw < 0x80:  # most varints are one byte long
        return (raw >> 1) ^ -(raw & 1), at + 1
    raw &= 0x7F
    for step in range(1, most):
        byte = data[at + step]
        raw |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at + step + 1
    raise error(f"a number longer than {most} bytes")
