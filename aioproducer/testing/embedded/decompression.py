"""Decompression of a batch's records, for the embedded broker and for tests.

`decompress` accepts only the format that a producer should write; `decompress_as_broker` is as lenient as
Kafka's own readers. Every length in the data is checked against the limit before memory is allocated for it. Both
functions reject lz4 frames whose blocks depend on each other, as Kafka does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TypeAlias

import cramjam

from aioproducer.errors import ProtocolError
from aioproducer.protocol.compression import (
    LZ4_BLOCK_CHECKSUM,
    XERIAL_HEADER,
    Bytes,
    Codec,
    lz4_blocks_at,
    zstd,
)

MAX_SIZE = 128 * 1024 * 1024
"""The default limit for the uncompressed size of one batch, in bytes."""

_XERIAL_MAGIC = XERIAL_HEADER[:8]
_GZIP_CONTAINER = 31
_GZIP_MAGIC = b"\x1f\x8b"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
# Frame flags
_LZ4_BLOCK_INDEPENDENCE = 0x20
_LZ4_CONTENT_CHECKSUM = 0x04
_LZ4_STORED = 1 << 31
_LZ4_MOST = 255
"""The maximum number of bytes that one compressed byte can unpack to."""

_Unpack: TypeAlias = Callable[[memoryview, int], bytes]

_MALFORMED = (zlib.error, cramjam.DecompressionError)


def decompress(codec: Codec, payload: Bytes, max_size: int = MAX_SIZE) -> bytes:
    """Unpack `payload`, the bytes of a batch after its header.

    Args:
        codec: the batch's codec.
        payload: the compressed records.
        max_size: the maximum size of the result, in bytes.

    Raises:
        ProtocolError: the payload is malformed or cut off, there are bytes after its end, or the result exceeds
            `max_size`.
    """
    return _unpacked(_UNPACK[codec], codec, payload, max_size)


def decompress_as_broker(codec: Codec, payload: Bytes, max_size: int = MAX_SIZE) -> bytes:
    """Unpack a payload as a broker does: like `decompress`, but tolerate certain bytes after its end.

    Kafka's gzip, snappy and zstd readers go on to read further members or frames. The gzip and lz4 readers ignore any
    other bytes after the end, and the snappy reader ignores up to three.

    Raises:
        ProtocolError: the payload is malformed or cut off, or the result exceeds `max_size`.
    """
    return _unpacked(_READ[codec], codec, payload, max_size)


def _unpacked(unpack: _Unpack, codec: Codec, payload: Bytes, max_size: int) -> bytes:
    try:
        return unpack(memoryview(payload).cast("B"), max_size)
    except ProtocolError as error:
        raise ProtocolError(f"{codec.name.lower()}: {error}") from None
    except _MALFORMED as error:
        raise ProtocolError(f"{codec.name.lower()}: malformed ({error})") from None


def _none(payload: memoryview, max_size: int) -> bytes:
    return bytes(_fitting(payload, max_size))


def _gzip(payload: memoryview, max_size: int) -> bytes:
    member = zlib.decompressobj(_GZIP_CONTAINER)
    unpacked = member.decompress(payload, max_size + 1)
    _fitting(unpacked, max_size)
    return _whole(unpacked, member.eof, len(member.unused_data))


def _snappy(payload: memoryview, max_size: int) -> bytes:
    if payload[:8] != _XERIAL_MAGIC:
        # librdkafka writes snappy without xerial framing; the Java reader accepts both formats.
        return _snappy_block(payload, max_size)
    if len(payload) < len(XERIAL_HEADER):
        raise ProtocolError("cut off in the xerial header")
    oldest_reader = int.from_bytes(payload[12:16], "big", signed=True)
    if oldest_reader > 1:
        raise ProtocolError(
            f"unsupported xerial framing: it requires a reader of version {oldest_reader}, "
            "and only version 1 is supported"
        )
    blocks = []
    size = 0
    at = len(XERIAL_HEADER)
    while at < len(payload):
        length = int.from_bytes(payload[at : at + 4], "big", signed=True)
        at += 4
        if not 0 <= length <= len(payload) - at:
            raise ProtocolError(f"a block of {length} bytes with {len(payload) - at} left")
        blocks.append(_snappy_block(payload[at : at + length], max_size - size))
        size += len(blocks[-1])
        at += length
    return b"".join(blocks)


def _snappy_block(block: memoryview, max_size: int) -> bytes:
    claimed = cramjam.snappy.decompress_raw_len(block)
    if claimed > max_size:
        raise ProtocolError(f"unpacks to {claimed} bytes, more than the {max_size} allowed")
    return bytes(cramjam.snappy.decompress_raw(block))


def _lz4(payload: memoryview, max_size: int) -> bytes:
    unpacked, behind = _lz4_frame(payload, max_size)
    return _whole(unpacked, True, behind)


def _lz4_frame(payload: memoryview, max_size: int) -> tuple[bytes, int]:
    """Unpack the first frame; return its data and the number of bytes after it."""
    if len(payload) < 7 or payload[:4] != _LZ4_MAGIC:
        raise ProtocolError("not an lz4 frame")
    if not payload[4] & _LZ4_BLOCK_INDEPENDENCE:
        raise ProtocolError("blocks that depend on each other, which Kafka rejects")
    end, most = _lz4_extent(payload)
    unpacked = bytearray(min(most, max_size))
    try:
        size = cramjam.lz4.decompress_into(payload[:end], unpacked)
    except cramjam.DecompressionError:
        if most > max_size:
            raise ProtocolError(
                f"unpacks to more than the {max_size} bytes allowed, or is malformed"
            ) from None
        raise
    return bytes(memoryview(unpacked)[:size]), len(payload) - end


def _lz4_extent(payload: memoryview) -> tuple[int, int]:
    """Return the length of the first frame and the maximum size of its content."""
    flags = payload[4]
    most_in_block = 1 << (8 + 2 * (payload[5] >> 4 & 7))
    behind_block = 4 if flags & LZ4_BLOCK_CHECKSUM else 0
    at = lz4_blocks_at(payload)
    most = 0
    while length := int.from_bytes(payload[at : at + 4], "little") & ~_LZ4_STORED:
        at += 4 + length + behind_block
        most += min(most_in_block, length * _LZ4_MOST)
    at += 4 + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)
    if at > len(payload):
        raise ProtocolError("cut off")
    return at, most


def _zstd(payload: memoryview, max_size: int) -> bytes:
    unpacked, behind = _zstd_frame(payload, max_size)
    return _whole(unpacked, True, len(behind))


def _zstd_frame(payload: Bytes, max_size: int) -> tuple[bytes, bytes]:
    """Unpack the first frame; return its data and the bytes after it."""
    if zstd is None:
        raise ProtocolError(
            "this Python was built without libzstd, which the embedded broker needs to read zstd"
        )
    try:
        claimed = zstd.get_frame_info(payload).decompressed_size  # None in Java's frames
        if claimed is not None and claimed > max_size:
            raise ProtocolError(f"unpacks to {claimed} bytes, more than the {max_size} allowed")
        frame = zstd.ZstdDecompressor()
        unpacked = frame.decompress(payload, max_size + 1)
    except zstd.ZstdError as error:
        raise ProtocolError(f"malformed ({error})") from None
    _fitting(unpacked, max_size)
    return _whole(unpacked, frame.eof, 0), frame.unused_data


def _fitting(unpacked: bytes | memoryview, max_size: int) -> bytes | memoryview:
    if len(unpacked) > max_size:
        raise ProtocolError(f"unpacks to more than the {max_size} bytes allowed")
    return unpacked


def _whole(unpacked: bytes, at_end: bool, behind: int) -> bytes:
    if not at_end:
        raise ProtocolError("cut off")
    if behind:
        raise ProtocolError(f"{behind} bytes after the end")
    return unpacked


# Decompression as in a broker


def _gzip_members(payload: memoryview, max_size: int) -> bytes:
    members: list[bytes] = []
    left = max_size
    rest: Bytes = payload
    while not members or rest[:2] == _GZIP_MAGIC:
        member = zlib.decompressobj(_GZIP_CONTAINER)
        members.append(bytes(_fitting(member.decompress(rest, left + 1), left)))
        left -= len(members[-1])
        _whole(b"", member.eof, 0)
        rest = member.unused_data
    return b"".join(members)


def _snappy_streams(payload: memoryview, max_size: int) -> bytes:
    if payload[:8] != _XERIAL_MAGIC:
        return _snappy(payload, max_size)
    blocks = []
    left = max_size
    at = 0
    while at + 4 <= len(payload):
        if payload[at : at + 8] == _XERIAL_MAGIC:
            at += len(XERIAL_HEADER)
            continue
        length = int.from_bytes(payload[at : at + 4], "big", signed=True)
        at += 4
        if not 0 <= length <= len(payload) - at:
            raise ProtocolError(f"a block of {length} bytes with {len(payload) - at} left")
        blocks.append(_snappy_block(payload[at : at + length], left))
        left -= len(blocks[-1])
        at += length
    if not blocks:
        raise ProtocolError("cut off")
    return b"".join(blocks)


def _first_lz4_frame(payload: memoryview, max_size: int) -> bytes:
    return _lz4_frame(payload, max_size)[0]


def _zstd_frames(payload: memoryview, max_size: int) -> bytes:
    frames: list[bytes] = []
    left = max_size
    rest: Bytes = payload
    while rest:
        unpacked, rest = _zstd_frame(rest, left)
        frames.append(unpacked)
        left -= len(unpacked)
    return b"".join(frames)


_UNPACK: dict[Codec, _Unpack] = {
    Codec.NONE: _none,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}

_READ: dict[Codec, _Unpack] = {
    Codec.NONE: _none,
    Codec.GZIP: _gzip_members,
    Codec.SNAPPY: _snappy_streams,
    Codec.LZ4: _first_lz4_frame,
    Codec.ZSTD: _zstd_frames,
}
