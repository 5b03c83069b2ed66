"""Kafka's primitive types on the wire, from which the compiled message codecs are built.

A read function takes the frame and a position, and returns the value and the position after it. Each length is
checked against the remaining bytes before anything is sliced or allocated, so a peer can't make us reserve memory for
data that it did not send. Write functions append small values to one bytearray, and insert record batches without
copying them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import TypeAlias
from uuid import UUID

from aioproducer.errors import ProtocolError

Buffer: TypeAlias = bytes | memoryview
"""A frame, or a part of one. Positions are relative to its start."""

Records: TypeAlias = bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview] | None
"""Record batches: one buffer, or several consecutive ones. A decoder returns a memoryview or None."""

NIL_UUID = UUID(int=0)
"""Kafka's null value for UUIDs, such as topic ids."""

_INT16 = Struct(">h")
_INT32 = Struct(">i")

MAX_STRING = 32767
"""The maximum size of a string in bytes, which is the limit of the int16 length in non-flexible versions. Kafka also
rejects longer strings in flexible versions. This package does the same, since a decoded string may need 7 times as
much memory."""


class Writer:
    """Collects one encoded message: small fields in `out`, and the positions of spliced buffers in `splices`."""

    __slots__ = ("out", "spliced", "splices")

    def __init__(self) -> None:
        self.out = bytearray()
        self.splices: list[tuple[int, Sequence[bytes | bytearray | memoryview]]] = []
        self.spliced = 0
        """The total size of all spliced buffers, in bytes."""

    def __len__(self) -> int:
        return len(self.out) + self.spliced

    def splice(self, buffers: Sequence[bytes | bytearray | memoryview], size: int) -> None:
        """Insert `buffers`, with a total of `size` bytes, at the current end of the message, without copying them."""
        self.splices.append((len(self.out), buffers))
        self.spliced += size

    def segments(self) -> list[bytes | memoryview]:
        """Return the message as a list of buffers; spliced buffers are passed on without a copy."""
        if not self.splices:
            return [bytes(self.out)]
        segments: list[bytes | memoryview] = []
        written = 0
        for place, buffers in self.splices:
            if place > written:
                segments.append(bytes(self.out[written:place]))
                written = place
            for buffer in buffers:
                segments.append(buffer if isinstance(buffer, bytes | memoryview) else memoryview(buffer))
        if written < len(self.out):
            segments.append(bytes(self.out[written:]))
        return segments


# Writers


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_string(out: bytearray, value: str) -> None:
    encoded = value.encode()
    if len(encoded) > MAX_STRING:
        raise ValueError(f"a string of {len(encoded)} bytes exceeds {MAX_STRING} bytes")
    out += _INT16.pack(len(encoded))
    out += encoded


def write_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
    else:
        write_string(out, value)


def write_compact_string(out: bytearray, value: str) -> None:
    encoded = value.encode()
    if len(encoded) > MAX_STRING:
        raise ValueError(f"a string of {len(encoded)} bytes exceeds {MAX_STRING} bytes")
    write_uvarint(out, len(encoded) + 1)
    out += encoded


def write_compact_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_string(out, value)


def write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


def write_bytes(out: bytearray, value: bytes) -> None:
    out += _INT32.pack(len(value))
    out += value


def write_compact_bytes(out: bytearray, value: bytes) -> None:
    write_uvarint(out, len(value) + 1)
    out += value


def write_records(writer: Writer, value: Records) -> None:
    if value is None:
        writer.out += b"\xff\xff\xff\xff"
        return
    buffers, size = _buffers(value)
    writer.out += _INT32.pack(size)
    writer.splice(buffers, size)


def write_compact_records(writer: Writer, value: Records) -> None:
    if value is None:
        writer.out.append(0)
        return
    buffers, size = _buffers(value)
    write_uvarint(writer.out, size + 1)
    writer.splice(buffers, size)


def _buffers(
    value: bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview],
) -> tuple[Sequence[bytes | bytearray | memoryview], int]:
    if isinstance(value, bytes | bytearray):
        return [value], len(value)
    buffers = [value] if isinstance(value, memoryview) else value
    size = 0
    for buffer in buffers:
        # len() of a memoryview counts its elements, which need not be bytes.
        size += buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
    return buffers, size


def write_tags(out: bytearray, tags: Sequence[tuple[int, Writer]]) -> None:
    """Write a section of tagged fields (KIP-482); `tags` must be in ascending order."""
    write_uvarint(out, len(tags))
    for tag, value in tags:
        write_uvarint(out, tag)
        write_uvarint(out, len(value.out))
        out += value.out


# Readers


def out_of_bounds(what: str, count: int, at: int, end: int) -> ProtocolError:
    """Return the error for a length or a count that exceeds the rest of the frame."""
    return ProtocolError(f"{what} {count} at byte {at} exceeds the {max(0, end - at)} bytes left")


def too_many(field: str, count: int, most: int) -> ProtocolError:
    """Return the error for an array with more elements than a broker ever sends."""
    return ProtocolError(f"{field} has {count} elements; the limit is {most}")


def null_error(field: str) -> ProtocolError:
    return ProtocolError(f"{field} is null, which this version does not allow")


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 5 bytes and 32 bits."""
    value = shift = 0
    while True:
        if pos >= len(buf):
            raise ProtocolError(f"a varint is cut off at byte {pos}")
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise ProtocolError(f"a varint before byte {pos} is longer than 5 bytes")
    if value > 0xFFFFFFFF:
        raise ProtocolError(f"a varint before byte {pos} exceeds 32 bits")
    return value, pos


def read_compact_size(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read a compact length or count; null is -1."""
    size, pos = read_uvarint(buf, pos)
    return size - 1, pos


def _read_int16_size(buf: Buffer, pos: int) -> tuple[int, int]:
    if pos + 2 > len(buf):
        raise ProtocolError(f"a length is cut off at byte {pos}")
    size: int = _INT16.unpack_from(buf, pos)[0]
    if size < -1:
        raise ProtocolError(f"negative length {size} at byte {pos}")
    return size, pos + 2


def read_int32_size(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read a length or count in non-flexible versions; null is -1."""
    if pos + 4 > len(buf):
        raise ProtocolError(f"a length is cut off at byte {pos}")
    size: int = _INT32.unpack_from(buf, pos)[0]
    if size < -1:
        raise ProtocolError(f"negative length {size} at byte {pos}")
    return size, pos + 4


def _text(buf: Buffer, pos: int, size: int) -> tuple[str, int]:
    stop = pos + size
    if stop > len(buf):
        raise out_of_bounds("a string of length", size, pos, len(buf))
    if size > MAX_STRING:
        raise ProtocolError(f"the string of {size} bytes at byte {pos} exceeds {MAX_STRING} bytes")
    try:
        return str(buf[pos:stop], "utf-8"), stop
    except UnicodeDecodeError:
        raise ProtocolError(f"the string at byte {pos} is not UTF-8") from None


def read_string(buf: Buffer, pos: int) -> tuple[str, int]:
    size, pos = _read_int16_size(buf, pos)
    if size < 0:
        raise null_error(f"the string before byte {pos}")
    return _text(buf, pos, size)


def read_nullable_string(buf: Buffer, pos: int) -> tuple[str | None, int]:
    size, pos = _read_int16_size(buf, pos)
    return (None, pos) if size < 0 else _text(buf, pos, size)


def read_compact_string(buf: Buffer, pos: int) -> tuple[str, int]:
    size, pos = read_compact_size(buf, pos)
    if size < 0:
        raise null_error(f"the string before byte {pos}")
    return _text(buf, pos, size)


def read_compact_nullable_string(buf: Buffer, pos: int) -> tuple[str | None, int]:
    size, pos = read_compact_size(buf, pos)
    return (None, pos) if size < 0 else _text(buf, pos, size)


def read_uuid(buf: Buffer, pos: int) -> tuple[UUID, int]:
    stop = pos + 16
    if stop > len(buf):
        raise out_of_bounds("a UUID of length", 16, pos, len(buf))
    return _uuid(bytes(buf[pos:stop])), stop


def skip_uuid(buf: Buffer, pos: int) -> int:
    if pos + 16 > len(buf):
        raise out_of_bounds("a UUID of length", 16, pos, len(buf))
    return pos + 16


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID:
    # The same topics occur in every response; sharing one object for each id also makes comparisons cheap.
    return UUID(bytes=raw) if any(raw) else NIL_UUID


def _view(buf: Buffer, pos: int, size: int) -> tuple[memoryview, int]:
    stop = pos + size
    if stop > len(buf):
        raise out_of_bounds("a byte string of length", size, pos, len(buf))
    return memoryview(buf)[pos:stop], stop


def read_bytes(buf: Buffer, pos: int) -> tuple[bytes, int]:
    size, pos = read_int32_size(buf, pos)
    if size < 0:
        raise null_error(f"the byte string before byte {pos}")
    view, pos = _view(buf, pos, size)
    return bytes(view), pos


def read_compact_bytes(buf: Buffer, pos: int) -> tuple[bytes, int]:
    size, pos = read_compact_size(buf, pos)
    if size < 0:
        raise null_error(f"the byte string before byte {pos}")
    view, pos = _view(buf, pos, size)
    return bytes(view), pos


def read_records(buf: Buffer, pos: int) -> tuple[memoryview | None, int]:
    size, pos = read_int32_size(buf, pos)
    return (None, pos) if size < 0 else _view(buf, pos, size)


def read_compact_records(buf: Buffer, pos: int) -> tuple[memoryview | None, int]:
    size, pos = read_compact_size(buf, pos)
    return (None, pos) if size < 0 else _view(buf, pos, size)


def read_tag(buf: Buffer, pos: int, seen: set[int]) -> tuple[int, int, int]:
    """Read the start of a tagged field. Return its tag and the positions at which its value starts and ends."""
    tag, pos = read_uvarint(buf, pos)
    if tag in seen:
        raise ProtocolError(f"tag {tag} before byte {pos} occurs twice")
    seen.add(tag)
    size, pos = read_uvarint(buf, pos)
    if size > len(buf) - pos:
        raise out_of_bounds("a tagged field of length", size, pos, len(buf))
    return tag, pos, pos + size


def skip_tags(buf: Buffer, pos: int) -> int:
    """Skip a section of tagged fields, none of which is declared."""
    count, pos = read_uvarint(buf, pos)
    if count * 2 > len(buf) - pos:
        raise out_of_bounds("a tagged field count of", count, pos, len(buf))
    seen: set[int] = set()
    for _ in range(count):
        _, _, pos = read_tag(buf, pos, seen)
    return pos
