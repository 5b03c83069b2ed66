"""The frames that take the most memory: full of the smallest possible elements.

The memory allocated for a frame is bounded by its own bytes, since no count beyond them is accepted; these frames
show the maximum. A topic of 3 bytes, with neither name nor partitions, becomes an object with a list, which takes 120
bytes; no Python program can store it in 12. So the elements of a long array are decoded only on access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aioproducer.protocol.api import encode_response
from aioproducer.protocol.schema import Field, Message, Struct, structs_of
from tests.campaigns.fuzz.corpus import CORRELATION_ID, RESPONSES

# Numbers that Python does not share between objects.
_GREATEST = {"int8": 127, "int16": 32767, "int32": 2**31 - 1, "int64": 2**63 - 1, "boolean": True}

TIMES_THE_FRAME = 4
"""The memory that may be allocated for a response, in multiples of its frame."""
ALWAYS = 8 * 1024
"""Bytes that may be allocated in addition, whatever the size of the frame: for short arrays near its start, whose
elements are decoded at once, or for an error with its text and its traceback."""

Heavy = tuple[type[Message], int, str, bytes]
"""A response, its version, its content, and the frame."""
Path = tuple[Field, ...]
"""Nested arrays, from the outermost to the innermost, which is filled."""


def heaviest(size: int) -> Iterator[Heavy]:
    """Yield, for each response, version and array, a valid frame of about `size` bytes in which that array is as long
    as the decoder accepts."""
    for message, version in RESPONSES:
        for path in _arrays(message, message, version):
            few, more = (_frame(message, version, path, count) for count in (100, 200))
            count = 100 * (size - len(few)) // (len(more) - len(few)) + 100
            name = ".".join(field.name for field in path)
            count = min(count, path[-1].most or count)  # more are rejected
            yield message, version, name, _frame(message, version, path, max(count, 1))


def bushy() -> Iterator[Heavy]:
    """Yield, for each response and version, frames in which all arrays have some elements, including nested
    arrays."""
    for message, version in RESPONSES:
        for count in (1, 2, 3, 4, 7, 16):
            answer = _bush(message, message, version, count)
            frame = b"".join(encode_response(answer, version, CORRELATION_ID))[4:]
            yield message, version, f"{count} of each", frame


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
    values = _numbers(message, part, version)
    if path:
        field, rest = path[0], path[1:]
        values[field.name] = _elements(message, field, version, rest, count)
    return part(**values)


def _numbers(message: type[Message], part: type[Struct], version: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        field.name: _GREATEST[field.kind]
        for field in part.FIELDS
        if field.kind in _GREATEST and field.is_in(version) and field.tag is None
    }
    if part is message and "error_code" in values:
        values["error_code"] = 0  # an error response would have another form
    return values


def _elements(message: type[Message], field: Field, version: int, rest: Path, count: int) -> list[Any]:
    structs = structs_of(message)
    if rest:
        return [_filled(message, structs[field.of], version, rest, count)]
    if field.of in structs:
        return [_filled(message, structs[field.of], version, (), 0) for _ in range(count)]
    return [_GREATEST.get(field.of, "")] * count


def _bush(message: type[Message], part: type[Struct], version: int, count: int) -> Any:
    structs = structs_of(message)
    values = _numbers(message, part, version)
    for field in part.FIELDS:
        if field.kind != "array" or not field.is_in(version):
            continue
        if field.of in structs:
            values[field.name] = [_bush(message, structs[field.of], version, count)] * count
        else:
            values[field.name] = [_GREATEST.get(field.of, "")] * count
    return part(**values)
