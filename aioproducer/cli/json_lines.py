"""Rows from JSON lines (one JSON value per line), and the format of the --failed file."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from typing import Any

from aioproducer.cli.columns import Columns, to_json
from aioproducer.cli.rows import InputProblem, InputRecord, InputRows, rows_of
from aioproducer.cli.source import Source


def read_json_lines(source: Source, before: int, columns: Columns) -> Iterator[InputRows]:
    """Yield the rows of a source. Blank lines count as rows, but have no record. If no columns are named, each line
    itself is the value.

    Raises:
        InputProblem: a line is not valid JSON, or lacks a named column. The rows before it have been yielded.
    """

    def record(line: bytes, value: Any) -> InputRecord:
        if not columns.named:
            return InputRecord(line.strip())
        if not isinstance(value, dict):
            raise ValueError("not a JSON object, which the column options require")
        columns.check(value)
        return columns.record(value)

    return _read(source, before, record)


def read_records(source: Source, before: int) -> Iterator[InputRows]:
    """Yield the rows of a file that `--failed` wrote: objects with value, key, headers, timestamp and partition.

    Raises:
        InputProblem: as in `read_json_lines`.
    """

    def record(_: bytes, row: Any) -> InputRecord:
        if not isinstance(row, dict) or "value" not in row:
            raise ValueError('not an object with a "value" field, as written by --failed')
        headers = row.get("headers")
        return InputRecord(
            _decoded(row["value"]),
            _decoded(row.get("key")),
            None if headers is None else [(name, _decoded(value)) for name, value in headers],
            row.get("timestamp"),
            row.get("partition"),
        )

    return _read(source, before, record)


def record_line(record: InputRecord, **facts: Any) -> bytes:
    """Return one record as a line that `read_records` can read, with additional fields."""
    row: dict[str, Any] = {"value": _encoded(record.value)}
    if record.key is not None:
        row["key"] = _encoded(record.key)
    if record.headers is not None:
        row["headers"] = [[name, _encoded(value)] for name, value in record.headers]
    for name in ("timestamp", "partition"):
        if getattr(record, name) is not None:
            row[name] = getattr(record, name)
    return to_json(row | facts) + b"\n"


def _encoded(data: bytes | str | None) -> Any:
    """Return text as it is and other bytes in base64."""
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _decoded(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and isinstance(text := value.get("base64"), str):
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"malformed base64: {error}") from error
    raise ValueError('keys and values must be text, null or {"base64": "..."}')


def _read(source: Source, before: int, record_of: Callable[[bytes, Any], InputRecord]) -> Iterator[InputRows]:
    others = before
    for lines in source.lines():
        records: list[InputRecord] = []
        numbers: list[int] = []
        problem = None
        for number, line in enumerate(lines, before + 1):
            if not line.strip():
                continue
            try:
                records.append(record_of(line, json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                problem = InputProblem(f"line {number - others}: {_said(error)}")
                before = number - 1
                break
            numbers.append(number)
        else:
            before += len(lines)
        if records or problem is None:
            yield rows_of(records, numbers, before, source.bytes_read)
        if problem is not None:
            raise problem


def _said(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error.msg} (column {error.colno})"
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
