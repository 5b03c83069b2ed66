"""Rows from Parquet files, and from Arrow files or streams, as Arrow columns. Python objects are created only for JSON
and headers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from aioproducer.cli.columns import Columns, to_bytes, to_json
from aioproducer.cli.exits import UsageError
from aioproducer.cli.rows import InputProblem, InputRows
from aioproducer.cli.source import Source

ROWS_AT_ONCE = 10_000
MAGIC = b"ARROW1"
"""The first bytes of an Arrow file; a stream does not begin with them."""
OWN_COLUMNS = {"key", "value", "headers", "timestamp", "partition"}
"""The column names that match arguments to send_many. A table that has a value column, and no columns other than these,
is sent as is unless column options are given."""


def check_pyarrow() -> None:
    """Raise UsageError if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError("Parquet and Arrow files require pyarrow; run pip install pyarrow") from error


def read_parquet(source: Source, before: int, columns: Columns) -> Iterator[InputRows]:
    """Yield the rows of a Parquet file.

    Raises:
        InputProblem: the file is not a Parquet file or is damaged, or a column is missing or has an unsuitable type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if source.size is None:
        raise InputProblem("Parquet must be read from a regular file, because its index is at the end")
    try:
        with os.fdopen(os.dup(source.descriptor), "rb") as file:
            batches = pq.ParquetFile(file).iter_batches(batch_size=ROWS_AT_ONCE)
            yield from _read(batches, source, before, columns)
    except (pa.ArrowException, OSError) as error:
        raise InputProblem(str(error)) from error


def read_arrow(source: Source, before: int, columns: Columns) -> Iterator[InputRows]:
    """Yield the rows of an Arrow file (also Feather version 2) or an Arrow stream.

    Raises:
        InputProblem: as in `read_parquet`.
    """
    import pyarrow as pa

    try:
        with os.fdopen(os.dup(source.descriptor), "rb") as file:
            is_stream = source.size is None or file.peek(len(MAGIC))[: len(MAGIC)] != MAGIC
            batches = pa.ipc.open_stream(file) if is_stream else _batches(pa.ipc.open_file(file))
            yield from _read(batches, source, before, columns)
    except (pa.ArrowException, OSError) as error:
        raise InputProblem(str(error)) from error


def _batches(reader: Any) -> Iterator[Any]:
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _read(batches: Iterable[Any], source: Source, before: int, columns: Columns) -> Iterator[InputRows]:
    for large in batches:
        for start in range(0, large.num_rows, ROWS_AT_ONCE):
            batch = large.slice(start, ROWS_AT_ONCE)
            numbers = range(before + 1, before + 1 + batch.num_rows)
            before += batch.num_rows
            source.bytes_read += batch.nbytes
            try:
                yield _rows(batch, columns, numbers, source.bytes_read)
            except ValueError as error:
                raise InputProblem(f"rows {numbers[0]} to {numbers[-1]}: {error}") from error


def _rows(batch: Any, columns: Columns, numbers: range, bytes_read: int) -> InputRows:
    names: list[str] = batch.schema.names
    own = not columns.named and not columns.keep and "value" in names and set(names) <= OWN_COLUMNS
    if own:
        column = {name: batch.column(name) if name in names else None for name in OWN_COLUMNS}
        return InputRows(
            numbers,
            numbers[-1],
            column["value"],
            column["key"],
            column["headers"],
            column["timestamp"],
            column["partition"],
            bytes_read,
        )
    columns.check(names)
    if columns.value is not None:
        values = _as_bytes(batch.column(columns.value))
    else:
        values = [to_json(row) for row in batch.select(columns.rest(names)).to_pylist()]
    return InputRows(
        numbers,
        numbers[-1],
        values,
        None if columns.key is None else _as_bytes(batch.column(columns.key)),
        _headers(batch, columns.headers),
        None if columns.timestamp is None else batch.column(columns.timestamp),
        None if columns.partition is None else batch.column(columns.partition),
        bytes_read,
    )


def _as_bytes(column: Any) -> Any:
    """Return text and binary columns as they are, and others as JSON."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    as_they_are = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    if any(is_kind(kind) for is_kind in as_they_are):
        return column
    return [to_bytes(value) for value in column.to_pylist()]


def _headers(batch: Any, names: tuple[str, ...]) -> list[Any] | None:
    if not names:
        return None
    columns = [[to_bytes(value) for value in batch.column(name).to_pylist()] for name in names]
    return [list(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
