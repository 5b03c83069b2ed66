"""Rows from lines of text: each line is a value, or a key and a value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aioproducer.cli.rows import Rows
from aioproducer.cli.source import Source


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line becomes a record."""

    key_delimiter: bytes | None = None
    """The text between key and value, as with kcat's -K. A line without it has no key."""
    null: bytes | None = None
    """The text that stands for a null key or value."""


def read_lines(source: Source, before: int, form: LineFormat) -> Iterator[Rows]:
    """Yield the rows of a source.

    Args:
        before: the number of rows in the files before this one.
    """
    for lines in source.lines():
        numbers = range(before + 1, before + 1 + len(lines))
        before += len(lines)
        keys: list[bytes | None] | None = None
        values: list[bytes | None] = list(lines)
        if (delimiter := form.key_delimiter) is not None:
            parts = [line.partition(delimiter) for line in lines]
            keys = [key if found else None for key, found, _ in parts]
            values = [value if found else key for key, found, value in parts]
        if form.null is not None:
            values = [None if value == form.null else value for value in values]
            keys = keys and [None if key == form.null else key for key in keys]
        yield Rows(numbers, before, values, keys, bytes_read=source.bytes_read)
