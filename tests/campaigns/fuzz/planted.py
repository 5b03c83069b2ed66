"""Bugs planted in decoders, to check that the fuzzer finds them. Each is a patch for the duration of a `with`
block.

They are the classic bugs of decoders of untrusted bytes: a bound that is not checked, memory allocated for a claimed
length, and a loop that the input can keep from ending."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock
from uuid import UUID

from aioproducer.errors import ProtocolError
from aioproducer.network import handshake
from aioproducer.protocol import codec, frame, primitives, recordbatch
from aioproducer.protocol.api import VersionRange
from tests.campaigns.fuzz.fuzzer import Finding, Fuzzer


@dataclass(frozen=True)
class PlantedBug:
    """A patch that plants a bug, and how soon the bug must be found."""

    name: str
    plant: Callable[[], AbstractContextManager[Any]]
    frames: int
    """The bug must be found within this many frames of any seed."""
    what: str
    """The beginning of the finding's text."""

    def convicted_by(self, seed: int) -> Finding | None:
        """Return the first frame that reveals the bug."""
        with self.plant():
            findings = Fuzzer(seed, most_findings=1).feed(0, self.frames).findings
        return findings[0] if findings else None


BUGS: list[PlantedBug] = []


def _bug(name: str, frames: int, what: str) -> Callable[[Callable[[], Iterator[None]]], None]:
    def register(plant: Callable[[], Iterator[None]]) -> None:
        BUGS.append(PlantedBug(name, contextmanager(plant), frames, what))

    return register


@_bug("the end of the frame is not checked", 4000, "IndexError")
def unbounded() -> Iterator[None]:
    def decode(message_type: Any, version: int, buf: Any, pos: int) -> Any:
        try:
            return codec._codec(message_type, version)[1](buf, pos)
        except codec.struct.error:
            raise ProtocolError("too short") from None

    with mock.patch.object(codec, "decode", decode):
        yield


@_bug("bytes are taken for UTF-8 without a check", 2000, "UnicodeDecodeError")
def undecodable() -> Iterator[None]:
    def text(buf: Any, pos: int, size: int) -> tuple[str, int]:
        if pos + size > len(buf):
            raise ProtocolError("too short")
        return str(buf[pos : pos + size], "utf-8"), pos + size

    with mock.patch.object(primitives, "_text", text):
        yield


@_bug("memory is allocated for a string before its length is checked", 20_000, "TooMuchMemory")
def trusting() -> Iterator[None]:
    original = primitives._text

    def text(buf: Any, pos: int, size: int) -> tuple[str, int]:
        room = bytearray(min(size, 1 << 24))  # limited, so that the machine survives the test
        read, pos = original(buf, pos, size)
        del room
        return read, pos

    with mock.patch.object(primitives, "_text", text):
        yield


@_bug("memory is allocated for the record count in the header", 200_000, "TooMuchMemory")
def prepared() -> Iterator[None]:
    original = recordbatch.read_header

    def read_header(buf: Any, at: int = 0) -> Any:
        header = original(buf, at)
        records = [None] * max(0, min(header.record_count, 1 << 20))
        del records
        return header

    with mock.patch.object(recordbatch, "read_header", read_header):
        yield


def _split(read_header: Callable[[Any, int], Any], records: Any) -> Iterator[memoryview]:
    view, at = memoryview(records), 0
    while at < len(view):
        size = read_header(view, at).size
        if size > len(view) - at:
            raise ProtocolError("too short")
        if size:
            yield view[at : at + size]
        at += size


@_bug("a batch of size 0 is followed by itself", 100_000, "no end")
def endless_batches() -> Iterator[None]:
    def read_header(buf: Any, at: int = 0) -> Any:
        if len(buf) - at < recordbatch.HEADER_SIZE:
            raise ProtocolError("too short")
        header = recordbatch.BatchHeader._make(recordbatch._HEADER.unpack_from(buf, at))
        if header.magic != recordbatch.MAGIC or header.length < -recordbatch.LOG_OVERHEAD:
            raise ProtocolError("no batch")
        return header

    with mock.patch("tests.campaigns.fuzz.targets.split_batches", partial(_split, read_header)):
        yield


@_bug("the rest of a truncated varint is waited for", 5000, "no end")
def endless_varint() -> Iterator[None]:
    original = primitives.read_uvarint

    def read_uvarint(buf: Any, pos: int) -> tuple[int, int]:
        while pos >= len(buf):
            pass
        return original(buf, pos)

    with mock.patch.object(primitives, "read_uvarint", read_uvarint):
        yield


@_bug("a frame may be as long as it says", 5000, "AssertionError")
def unlimited() -> Iterator[None]:
    def decode_size(prefix: bytes, limit: int) -> int:
        if len(prefix) != frame.PREFIX_SIZE:
            raise ProtocolError("too short")
        return int.from_bytes(prefix, "big")

    with mock.patch.object(frame, "decode_size", decode_size):
        yield


@_bug("a broker without a common version is asked anyway", 20_000, "AssertionError")
def negotiated() -> Iterator[None]:
    def negotiate(api_key: Any, ranges: Mapping[int, VersionRange], ceiling: int | None = None) -> int:
        return ranges[api_key].max if api_key in ranges else 0

    with mock.patch.object(handshake, "negotiate", negotiate):
        yield


@_bug("a topic id is read in the wrong order", 50_000, "SaysSomethingElse")
def reversed_ids() -> Iterator[None]:
    with mock.patch.object(primitives, "_uuid", lambda raw: UUID(bytes=raw[::-1])):
        yield
