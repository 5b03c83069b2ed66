"""Rows: part of the input in columnar form, with the input row number of each record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class InputProblem(Exception):
    """The input cannot be read beyond a certain row. The feed adds the name of the file to the text."""


class InputRecord(NamedTuple):
    """The parts of one record, as `send` accepts them."""

    value: Any = None
    key: Any = None
    headers: Any = None
    timestamp: Any = None
    partition: Any = None


@dataclass(frozen=True, slots=True)
class InputRows:
    """Columns for `send_many`: lists, Slices or Arrow data, all of the same length. An absent column is None."""

    numbers: Sequence[int]
    """The input row number of each record, ascending. Rows are counted from 1 across all files."""
    last: int
    """The number of the last input row that was read, even if that row is a blank line and has no record."""
    values: Any
    keys: Any = None
    headers: Any = None
    timestamps: Any = None
    partitions: Any = None
    bytes_read: int = 0
    """The number of input bytes up to the end of these rows."""

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, start: int, stop: int) -> InputRows:
        """Return the records from index `start` up to, but not including, `stop`."""
        stop = min(stop, len(self))
        if start == 0 and stop == len(self):
            return self
        return replace(
            self,
            numbers=self.numbers[start:stop],
            last=self.last if stop == len(self) else self.numbers[stop] - 1,
            **{name: _sliced(getattr(self, name), start, stop) for name in _COLUMNS},
        )

    def without(self, skip: int) -> InputRows:
        """Return the records after input row number `skip`."""
        start = next((index for index, number in enumerate(self.numbers) if number > skip), len(self))
        return self.part(start, len(self)) if start < len(self) else _empty(self)

    def record(self, index: int) -> InputRecord:
        """Return the parts of one record as Python objects."""
        return InputRecord(*(_item(getattr(self, name), index) for name in _COLUMNS))


_COLUMNS = ("values", "keys", "headers", "timestamps", "partitions")


def _sliced(column: Any, start: int, stop: int) -> Any:
    if column is None or isinstance(column, int):
        return column
    return column[start:stop] if isinstance(column, list) else column.slice(start, stop - start)


def _item(column: Any, index: int) -> Any:
    if column is None or isinstance(column, int):
        return column
    item = column[index]
    return item.as_py() if hasattr(item, "as_py") else item


def _empty(rows: InputRows) -> InputRows:
    return InputRows((), rows.last, [], bytes_read=rows.bytes_read)


def rows_of(records: Sequence[InputRecord], numbers: Sequence[int], last: int, bytes_read: int) -> InputRows:
    """Return records as columns; a part that no record has becomes None."""
    columns = [list(column) for column in zip(*records, strict=True)] or [[], [], [], [], []]
    keys, headers, timestamps, partitions = (
        None if all(item is None for item in column) else column for column in columns[1:]
    )
    return InputRows(numbers, last, columns[0], keys, headers, timestamps, partitions, bytes_read)
