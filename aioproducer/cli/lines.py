"""Rows from lines of text: each line is a value, or a key and a value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aioproducer.cli.rows import InputRows
from aioproducer.cli.source import Source
from aioproducer.records._record_path import split_lines


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line becomes a record."""

    key_delimiter: bytes | None = None
    """The text between key and value, as with kcat's -K. A line without it has no key."""
    null: bytes | None = None
    """The text that stands for a null key or value."""


def read_lines(source: Source, before: int, form: LineFormat) -> Iterator[InputRows]:
    """Yield the rows of a source.

    Args:
        before: the number of rows in the files before this one.
    """
    for block in source.blocks():
        keys, values = split_lines(block, form.key_delimiter, form.null)
        numbers = range(before + 1, before + 1 + len(values))
        before += len(values)
        yield InputRows(numbers, before, values, keys, bytes_read=source.bytes_read)
