"""Frames that weigh as much as they can: one array filled to the brim with the smallest elements there are.

What a frame makes us allocate is bounded by its own bytes, since no count is believed beyond them; these frames
show how much that is at most. More than a few times the frame it is where elements are small: a topic of 3 bytes, with
neither name nor partitions, is an object with a list, 120 bytes that no Python program can have for 12."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aioproducer.protocol.api import encode_response
from aioproducer.protocol.messages import (
    AddPartitionsToTxnResponse,
    ApiVersionsResponse,
    CreateTopicsResponse,
    FetchResponse,
    FindCoordinatorResponse,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetFetchResponse,
    ProduceResponse,
    SaslHandshakeResponse,
    TxnOffsetCommitResponse,
)
from aioproducer.protocol.schema import Field, Message, Struct, structs_of
from tests.fuzz.corpus import CORRELATION_ID, RESPONSES

# None of them is a number that Python keeps only once.
_GREATEST = {"int8": 127, "int16": 32767, "int32": 2**31 - 1, "int64": 2**63 - 1, "boolean": True}

TIMES_THE_FRAME = 4
"""What may be allocated for a response, in sizes of its frame, unless it is in HEAVIER."""
HEAVIER: dict[type[Message], int] = {
    ProduceResponse: 40,
    FetchResponse: 40,
    OffsetFetchResponse: 38,
    ListOffsetsResponse: 38,
    AddPartitionsToTxnResponse: 38,
    TxnOffsetCommitResponse: 38,
    CreateTopicsResponse: 33,
    ApiVersionsResponse: 28,
    MetadataResponse: 23,
    FindCoordinatorResponse: 14,
    SaslHandshakeResponse: 5,
}
"""Those with arrays; test_fuzz.py measures them."""


def times(message: type[Message]) -> int:
    """What may be allocated for a response with its objects, in sizes of its frame."""
    return HEAVIER.get(message, TIMES_THE_FRAME)


Path = tuple[Field, ...]
"""Arrays, each in an element of the one before; the last one is filled."""


def heaviest(size: int) -> Iterator[tuple[type[Message], int, str, bytes]]:
    """For each response, version and array: a valid frame of about `size` bytes, and the array's name."""
    for message, version in RESPONSES:
        for path in _arrays(message, message, version):
            few, more = (_frame(message, version, path, count) for count in (100, 200))
            count = 100 * (size - len(few)) // (len(more) - len(few)) + 100
            name = ".".join(field.name for field in path)
            yield message, version, name, _frame(message, version, path, count)


def _arrays(message: type[Message], part: type[Struct], version: int) -> Iterator[Path]:
    structs = structs_of(message)
    for field in part.FIELDS:
        if field.kind == "array" and field.is_in(version):
            yield (field,)
            if field.of in structs:
                for path in _arrays(message, structs[field.of], version):
                    yield (field, *path)


def _frame(message: type[Message], version: int, path: Path, count: int) -> bytes:
    answer = _filled(message, message, version, path, count)
    return b"".join(encode_response(answer, version, CORRELATION_ID))[4:]


def _filled(message: type[Message], part: type[Struct], version: int, path: Path, count: int) -> Any:
    values: dict[str, Any] = {
        field.name: _GREATEST[field.kind]
        for field in part.FIELDS
        if field.kind in _GREATEST and field.is_in(version) and field.tag is None
    }
    if part is message and "error_code" in values:
        values["error_code"] = 0  # no refusal of its own shape
    if path:
        field, rest = path[0], path[1:]
        values[field.name] = _elements(message, field, version, rest, count)
    return part(**values)


def _elements(message: type[Message], field: Field, version: int, rest: Path, count: int) -> list[Any]:
    structs = structs_of(message)
    if rest:
        return [_filled(message, structs[field.of], version, rest, count)]
    if field.of in structs:
        return [_filled(message, structs[field.of], version, (), 0) for _ in range(count)]
    return [_GREATEST.get(field.of, "")] * count
