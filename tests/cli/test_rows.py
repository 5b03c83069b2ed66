"""Rows: slices, skipped rows and single records."""

from __future__ import annotations

import pyarrow as pa

from aioproducer.cli.rows import InputRecord, InputRows, rows_of


def test_a_slice_keeps_the_numbers_and_the_last_row_before_the_next_record():
    rows = InputRows([3, 5, 9], 11, [b"a", b"b", b"c"], keys=pa.array(["x", "y", "z"]), partitions=4)

    part = rows.part(1, 2)

    assert (list(part.numbers), part.last, part.values, part.partitions) == ([5], 8, [b"b"], 4)
    assert part.keys.to_pylist() == ["y"]
    assert rows.part(1, 99).last == 11
    assert rows.part(0, 3) is rows


def test_skipped_rows_are_left_out():
    rows = InputRows([3, 5, 9], 11, [b"a", b"b", b"c"])

    assert rows.without(4).values == [b"b", b"c"]
    assert rows.without(9).values == []
    assert rows.without(9).last == 11


def test_a_record_has_python_objects():
    rows = InputRows(range(1, 3), 2, pa.array([b"a", None]), headers=[None, [("h", b"v")]], partitions=7)

    assert rows.record(0) == InputRecord(b"a", None, None, None, 7)
    assert rows.record(1) == InputRecord(None, None, [("h", b"v")], None, 7)


def test_records_become_columns_and_absent_parts_none():
    rows = rows_of([InputRecord(b"a", b"k"), InputRecord(b"b")], [1, 2], 2, 10)

    assert (rows.values, rows.keys, rows.headers, rows.partitions) == ([b"a", b"b"], [b"k", None], None, None)
    assert len(rows_of([], [], 5, 10)) == 0
