"""Rows from CSV files, whose first row (the header line) contains the column names."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator

from aioproducer.cli.columns import Columns
from aioproducer.cli.rows import InputProblem, InputRecord, InputRows, rows_of
from aioproducer.cli.source import Source


def read_csv(
    source: Source, before: int, columns: Columns, *, delimiter: str = ",", null: str | None = None
) -> Iterator[InputRows]:
    """Yield the rows of a source; the header line is not counted as a row.

    Raises:
        InputProblem: the file is not CSV, or a row has too many or too few columns. The rows before the error have been
            yielded.
    """
    csv.field_size_limit(sys.maxsize)
    text = _Text(source)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    rows = _fields(reader)
    names = next(rows, None)
    if names is None:
        return
    _check_header(names, columns)
    records: list[InputRecord] = []
    numbers: list[int] = []
    problem = None
    try:
        for fields in rows:
            if fields:  # not a blank line
                records.append(_record(fields, names, columns, null))
                numbers.append(before + 1)
                before += 1
            if text.is_empty:
                yield rows_of(records, numbers, before, source.bytes_read)
                records, numbers = [], []
    except (csv.Error, ValueError, InputProblem) as error:
        place = f"line {text.number}: " if not isinstance(error, InputProblem) else ""
        problem = InputProblem(f"{place}{_said(error)}")
    if records:
        yield rows_of(records, numbers, before, source.bytes_read)
    if problem is not None:
        raise problem


def _fields(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the fields of each row. An error in a row is raised only when the caller asks for that row."""
    yield from reader


def _check_header(names: list[str], columns: Columns) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputProblem(f"the header contains the column {twice[0]!r} twice")
    try:
        columns.check(names)
    except ValueError as error:
        raise InputProblem(str(error)) from error


def _record(fields: list[str], names: list[str], columns: Columns, null: str | None) -> InputRecord:
    if len(fields) != len(names):
        raise ValueError(f"{len(fields)} columns, but the header has {len(names)}")
    if null is None:
        return columns.record(dict(zip(names, fields, strict=True)))
    return columns.record(
        {name: None if one == null else one for name, one in zip(names, fields, strict=True)}
    )


def _said(error: Exception) -> str:
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


class _Text:
    """The lines of a source as text. Each keeps its line ending, because a quoted field may contain line breaks."""

    def __init__(self, source: Source) -> None:
        self._blocks = source.lines()
        self._waiting: list[bytes] = []
        self.number = 0
        """The number of the last line that was read."""

    @property
    def is_empty(self) -> bool:
        """Whether the next line has to be read from the file, which may block."""
        return not self._waiting

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self._waiting:
            self._waiting = next(self._blocks)[::-1]
        line = self._waiting.pop()
        self.number += 1
        if self.number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # Excel's byte order mark
        return line.decode() + "\n"
