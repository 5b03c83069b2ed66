"""Kafka's compression codecs: their names, wire ids and levels, and a compress function for each.

A compress function accepts the records in a batch as one buffer and returns bytes. Such a function is thread-safe,
and releases the GIL while it works. This module does not decompress: a producer never reads its own records.
"""

from __future__ import annotations

import difflib
import math
import sys
import threading
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

import cramjam

from aioproducer.errors import ConfigError

try:
    from isal import isal_zlib
except ImportError:  # isal has no wheels for Windows on ARM
    isal_zlib = None  # type: ignore[assignment]  # a module until here
if sys.version_info >= (3, 14):
    try:
        from compression import zstd as zstd
    except ImportError:  # Python was built without libzstd
        zstd = None
else:
    from backports import zstd as zstd  # the embedded broker imports it from here

Bytes: TypeAlias = bytes | bytearray | memoryview
Compress: TypeAlias = Callable[[Bytes], bytes]


class Codec(IntEnum):
    """A codec; the value is its wire id, the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# KIP-390's ranges. Snappy has no levels.
LEVELS: dict[Codec, tuple[int, int]] = {
    Codec.GZIP: (1, 9),
    Codec.LZ4: (1, 17),
    Codec.ZSTD: (-131072, 22),
}
_ZLIB_DEFAULT = -1
"""Java's Deflater.DEFAULT_COMPRESSION, which KIP-390 allows in addition to the levels 1 to 9."""
_ZSTD_DEFAULT = 3

_CODECS = {codec.name.lower(): codec for codec in Codec}

# The throughput of one processor core, as (highest level, KiB per millisecond) pairs, for JSON records in batches of
# 64 KiB.
_PACES: dict[Codec, tuple[tuple[float, int], ...]] = {
    Codec.GZIP: ((3, 512), (6, 24), (math.inf, 8)),
    Codec.SNAPPY: ((math.inf, 512),),
    Codec.LZ4: ((2, 512), (9, 40), (math.inf, 12)),
    Codec.ZSTD: ((3, 256), (5, 120), (9, 40), (math.inf, 5)),
}


def codec_named(name: str | None) -> Codec:
    """Return the codec for a `compression_type`; None and "none" mean no compression.

    Raises:
        ConfigError: Kafka has no codec with this name.
    """
    if name is None:
        return Codec.NONE
    codec = _CODECS.get(name) if isinstance(name, str) else None
    if codec is not None:
        return codec
    near = difflib.get_close_matches(str(name).lower(), _CODECS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(
        f"compression_type={name!r} is not one of {', '.join(_CODECS)}{hint}",
        setting="compression_type",
        value=name,
    )


def check_level(codec: Codec, level: int | None) -> None:
    """Check that `codec` supports this `compression_level`. None, the codec's default, is always valid.

    Raises:
        ConfigError: the level is out of range, or the codec has no levels.
    """
    if level is None:
        return
    name = codec.name.lower()
    if codec not in LEVELS:
        problem = f"compression_type={name!r} has no levels; leave compression_level out"
    else:
        lowest, highest = LEVELS[codec]
        extra = " or -1" if codec is Codec.GZIP else ""
        problem = f"{name} supports levels {lowest} to {highest}{extra}"
        if isinstance(level, int) and not isinstance(level, bool):
            if lowest <= level <= highest or (codec is Codec.GZIP and level == _ZLIB_DEFAULT):
                return
    raise ConfigError(f"compression_level={level!r}: {problem}", setting="compression_level", value=level)


def compressor(codec: Codec, level: int | None = None) -> Compress:
    """Return the function that compresses with `codec` at `level` (None: the codec's default).

    Returns:
        A thread-safe function that takes one contiguous buffer.

    Raises:
        ConfigError: the codec does not have this level.
    """
    check_level(codec, level)
    if codec is Codec.GZIP:
        return _gzip(level)
    if codec is Codec.SNAPPY:
        return _snappy
    if codec is Codec.LZ4:
        return _lz4(level)
    if codec is Codec.ZSTD:
        return _zstd(level)
    return bytes


def bytes_per_millisecond(codec: Codec, level: int | None = None) -> int:
    """Return the approximate number of bytes of records that `compressor(codec, level)` compresses per millisecond.

    The result comes from a table, not from a measurement, so decisions based on it are the same in every run.
    """
    if codec is Codec.NONE:
        return 1 << 30
    if level is None or (codec is Codec.GZIP and level == _ZLIB_DEFAULT):
        level = {Codec.GZIP: _ISAL_DEFAULT, Codec.ZSTD: _ZSTD_DEFAULT}.get(codec, 0)
    return next(pace for highest, pace in _PACES[codec] if level <= highest) * 1024


_GZIP_CONTAINER = 31
"""zlib's `wbits` for a 32 KiB window and the gzip format (instead of the zlib format)."""
_ISAL_HIGHEST = 3
_ISAL_DEFAULT = 1


def _gzip(level: int | None) -> Compress:
    # For 1 MB of JSON, isal at level 1 takes 1.5 ms. zlib at level 6 (Java's default) takes 16 ms, and its output is a
    # fifth smaller; compression_level=6 selects it. cramjam's gzip takes 3.5 times as long as isal at level 1, and its
    # output is larger.
    gzip_level = _ISAL_DEFAULT if level in (None, _ZLIB_DEFAULT) else level
    assert gzip_level is not None
    library = isal_zlib if isal_zlib is not None and gzip_level <= _ISAL_HIGHEST else zlib
    return lambda data: library.compress(data, gzip_level, _GZIP_CONTAINER)


# xerial's framing, which Kafka uses for snappy: 8 bytes of magic, version 1, lowest compatible version 1; then blocks,
# each preceded by its compressed length. All numbers are big-endian int32.
XERIAL_HEADER = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
# xerial itself writes blocks of 32 KiB, but its reader accepts blocks of any length. Between blocks, the thread needs
# the GIL and waits up to a switch interval (5 ms) for it while the loop is busy: 1 MB takes 165 ms in blocks of 32 KiB
# and 8 ms in a single block.
_XERIAL_BLOCK = 1 << 20


def _snappy(data: Bytes) -> bytes:
    view = memoryview(data).cast("B")
    parts: list[bytes | cramjam.Buffer] = [XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK])
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


# lz4 frames whose blocks do not depend on each other, without checksums: Kafka rejects linked blocks
# (Lz4BlockOutputStream.FLG), and the batch has its own checksum. Each header consists of the magic number, the
# flags, the maximum block size and the header's checksum. The block size is the smallest for which one block is
# enough, or else the largest: the thread needs the GIL between blocks, as with snappy.
_LZ4_HEADERS = {
    1 << 16: bytes.fromhex("04224d18604082"),
    1 << 18: bytes.fromhex("04224d186050fb"),
    1 << 20: bytes.fromhex("04224d18606051"),
    1 << 22: bytes.fromhex("04224d18607073"),
}
_LZ4_END = bytes(4)
_LZ4_STORED = 1 << 31
"""The bit in a block's length that marks an uncompressed block."""
LZ4_BLOCK_CHECKSUM = 0x10
"""The flag of a frame in which a checksum follows each block."""
_LZ4_HIGH = 3
"""The lowest level of the high-compression mode. The default is lz4's fast compressor, as in Java."""
_LZ4_HIGH_BLOCK = 1 << 16


def _lz4(level: int | None) -> Compress:
    if level is None or level < _LZ4_HIGH:
        return _lz4_fast
    return lambda data: _lz4_high(data, level)


def _lz4_fast(data: Bytes) -> bytes:
    view = memoryview(data).cast("B")
    limit = next((limit for limit in _LZ4_HEADERS if len(view) <= limit), max(_LZ4_HEADERS))
    parts: list[bytes | memoryview | cramjam.Buffer] = [_LZ4_HEADERS[limit]]
    for start in range(0, len(view), limit):
        block = view[start : start + limit]
        packed = cramjam.lz4.compress_block(block, store_size=False)
        if len(packed) < len(block):
            parts += (len(packed).to_bytes(4, "little"), packed)
        else:
            parts += ((len(block) | _LZ4_STORED).to_bytes(4, "little"), block)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _lz4_high(data: Bytes, level: int) -> bytes:
    # cramjam's compress_block() ignores the level, and its Compressor class holds the GIL. Its compress() does neither,
    # but links blocks. Therefore each block is taken from a separate frame.
    view = memoryview(data).cast("B")
    parts: list[bytes | memoryview] = [_LZ4_HEADERS[_LZ4_HIGH_BLOCK]]
    for start in range(0, len(view), _LZ4_HIGH_BLOCK):
        frame = memoryview(cramjam.lz4.compress(view[start : start + _LZ4_HIGH_BLOCK], level=level))
        at = lz4_blocks_at(frame)
        end = at + 4 + (int.from_bytes(frame[at : at + 4], "little") & ~_LZ4_STORED)
        checksum = 4 if frame[4] & LZ4_BLOCK_CHECKSUM else 0
        if frame[end + checksum : end + checksum + 4] != _LZ4_END:
            # cramjam before 2.14 wrote several linked blocks of 8 KiB. Use its Compressor, which holds the GIL.
            packer = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            packer.compress(bytes(view))
            return bytes(packer.finish())
        parts.append(frame[at:end])
    parts.append(_LZ4_END)
    return b"".join(parts)


def lz4_blocks_at(frame: memoryview) -> int:
    """Return the length of an lz4 frame's header, which may contain the size of the content and a dictionary's id."""
    return 7 + (8 if frame[4] & 0x08 else 0) + (4 if frame[4] & 0x01 else 0)


def _zstd(level: int | None) -> Compress:
    zstd_level = _ZSTD_DEFAULT if level is None else level
    if zstd is None:
        # The same library, but each call creates a compressor (about 17 us), so 256 bytes take 5 times as long.
        return lambda data: bytes(cramjam.zstd.compress(data, level=zstd_level))
    # A compressor serves one thread at a time, and creating one per batch doubles the time for 4 KiB.
    own = threading.local()

    def compress(data: Bytes) -> bytes:
        try:
            packer: zstd.ZstdCompressor = own.packer
        except AttributeError:
            packer = own.packer = zstd.ZstdCompressor(level=zstd_level)
        return packer.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)

    return compress
