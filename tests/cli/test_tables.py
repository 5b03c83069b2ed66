"""Rows from Parquet and Arrow."""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioproducer.cli import tables
from aioproducer.cli.columns import Columns
from aioproducer.cli.exits import UsageError
from aioproducer.cli.rows import InputProblem, InputRows
from aioproducer.cli.tables import check_pyarrow, read_arrow, read_parquet
from tests.cli.sources import source_of


def rows_of(table: pa.Table, tmp_path, columns: Columns = Columns()) -> list[InputRows]:  # noqa: B008  # frozen
    path = tmp_path / "t.parquet"
    pq.write_table(table, path)
    return list(read_parquet(source_of(path.read_bytes(), tmp_path, "copy.parquet"), 0, columns))


def test_columns_of_text_stay_arrow_and_others_become_json(tmp_path):
    table = pa.table({"k": ["a"], "n": [7], "at": pa.array([5], pa.timestamp("ms")), "p": [0]})

    [rows] = rows_of(table, tmp_path, Columns(key="k", headers=("n",), timestamp="at", partition="p"))
    [by_number] = rows_of(table, tmp_path, Columns(key="n", value="k"))

    assert isinstance(rows.keys, pa.Array)
    assert (rows.headers, rows.values) == ([[("n", b"7")]], [b"{}"])
    assert by_number.keys == [b"7"]
    assert by_number.values.to_pylist() == ["a"]


def test_a_table_with_the_column_names_of_send_many_is_sent_unchanged(tmp_path):
    [rows] = rows_of(pa.table({"value": ["v"], "key": ["k"]}), tmp_path)

    assert (rows.values.to_pylist(), rows.keys.to_pylist(), rows.timestamps) == (["v"], ["k"], None)


def test_large_tables_come_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 2)
    table = pa.table({"value": ["a", "b", "c"]})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)

    pieces = list(read_arrow(source_of(stream.getvalue().to_pybytes(), tmp_path), 5, Columns()))

    assert [list(rows.numbers) for rows in pieces] == [[6, 7], [8]]


@pytest.mark.parametrize("read", [read_parquet, read_arrow])
def test_a_damaged_file_is_a_problem(tmp_path, read):
    with pytest.raises(InputProblem):
        list(read(source_of(b"this is not a table at all", tmp_path), 0, Columns()))


def test_a_missing_column_and_a_value_that_json_cannot_represent_are_problems(tmp_path):
    with pytest.raises(InputProblem, match="rows 1 to 1: there is no column x; the columns are a"):
        rows_of(pa.table({"a": [1]}), tmp_path, Columns(key="x"))


def test_without_pyarrow_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(UsageError, match="pip install pyarrow"):
        check_pyarrow()
