"""The frame around every request and response: a signed, big-endian length of four bytes, then the content.

A length above the limit is rejected. If the first bytes belong to another known protocol, the error names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from aioproducer.errors import NotKafkaError, ProtocolError

PREFIX_SIZE = 4
"""The size of the length field, in bytes."""

MAX_FRAME_BEFORE_AUTHENTICATION = 64 * 1024
"""The frame limit, in bytes, until the peer is authenticated. Until then, no valid response is larger than 1 KiB."""

MAX_FRAME = 64 * 1024 * 1024
"""The frame limit, in bytes; large enough for the metadata of a million partitions."""

_LENGTH = Struct(">i")
_HIGHEST_FIRST_BYTE = MAX_FRAME >> 24

# The content type, which is the first byte of a TLS record. The second byte is the major version, 3.
_TLS = {0x15: "a TLS alert", 0x16: "a TLS handshake"}


def is_tls(prefix: bytes) -> bool:
    """Return whether `prefix` is the start of a TLS record."""
    return prefix[0] in _TLS and prefix[1] == 0x03


def decode_size(prefix: bytes, limit: int) -> int:
    """Return the number of bytes that follow `prefix`.

    Raises:
        ProtocolError: the peer does not speak Kafka's protocol, or the size is negative or exceeds `limit` bytes.
    """
    size: int
    if len(prefix) == PREFIX_SIZE and prefix[0] <= _HIGHEST_FIRST_BYTE:
        size = int.from_bytes(prefix)
        if size <= limit:
            return size  # a prefix with this first byte matches none of the cases below
    if len(prefix) != PREFIX_SIZE:
        raise ProtocolError(f"a frame starts with a length of {PREFIX_SIZE} bytes, not {len(prefix)}")
    if prefix == b"HTTP":
        raise NotKafkaError(
            "the peer answers in HTTP: this is the port of a web server, not of a Kafka broker", peer="HTTP"
        )
    if is_tls(prefix):
        what = _TLS[prefix[0]]
        raise NotKafkaError(
            f"the peer answers with {what}: this port requires TLS; set security_protocol to SSL or SASL_SSL",
            peer="TLS",
        )
    if all(0x20 <= byte < 0x7F for byte in prefix):
        raise NotKafkaError(
            f"the data from the peer begins with {prefix.decode()!r}: this is not the port of a Kafka broker"
        )
    size = _LENGTH.unpack(prefix)[0]
    if size < 0:
        raise ProtocolError(f"the peer announced a frame of {size} bytes")
    if size > limit:
        raise ProtocolError(f"the peer announced a frame of {size} bytes; the limit is {limit} bytes")
    return size


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._needed = PREFIX_SIZE
        """The size of `_rest` at which its frame, or at least the length field, is complete."""

    @property
    def is_cut_off(self) -> bool:
        """True if only a part of a frame has been received."""
        return bool(self._rest)

    def feed(self, data: bytes, limit: int) -> Iterator[bytes]:
        """Yield the frames that `data` completes. Exhaust the iterator before the next call.

        Raises:
            ProtocolError: the peer does not speak Kafka's protocol, or a frame would exceed `limit` bytes. The
                complete frames before the error are yielded first.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        start, end = 0, len(data)
        self._needed = PREFIX_SIZE
        while end - start >= PREFIX_SIZE:
            body = start + PREFIX_SIZE
            stop = body + decode_size(data[start:body], limit)
            if stop > end:
                self._needed = stop - start
                break
            start = stop
            yield data[body:stop]
        if start < end:
            self._rest += data[start:]
