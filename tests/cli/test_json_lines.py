"""Rows from JSON lines, and the lines written for failed records."""

from __future__ import annotations

import json

import pytest

from aioproducer.cli.columns import Columns
from aioproducer.cli.json_lines import read_json_lines, read_records, record_line
from aioproducer.cli.rows import InputProblem, InputRecord
from tests.cli.sources import source_of


def test_a_line_is_the_value_as_it_is_and_blank_lines_count(tmp_path):
    [rows] = read_json_lines(source_of(b'{"a":  1}\n\n [2] \n', tmp_path), 0, Columns())

    assert (list(rows.numbers), rows.last, rows.values) == ([1, 3], 3, [b'{"a":  1}', b"[2]"])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "line 2: not valid JSON: Expecting property name enclosed in double quotes (column 2)"),
        (b'"\xff"', "line 2: not UTF-8"),
        (b"[1]", "line 2: not a JSON object, which the column options require"),
        (b'{"b": 1}', "line 2: there is no column a; the columns are b"),
        (b'{"a": ' + b"[" * 100_000, "line 2: "),
    ],
)
def test_rows_before_a_bad_line_are_yielded_and_its_number_is_named(tmp_path, line, problem):
    reading = read_json_lines(source_of(b'{"a": 1}\n' + line + b"\n", tmp_path), 70, Columns(key="a"))

    assert next(reading).keys == [b"1"]
    with pytest.raises(InputProblem) as raised:
        next(reading)
    assert str(raised.value).startswith(problem)


@pytest.mark.parametrize(
    "record",
    [
        InputRecord(b"text", b"key", [("h", b"v"), ("n", None), ("b", b"\xff")], 5, 3),
        InputRecord(b"\xff\x00", b"\xfe"),
        InputRecord(None),
    ],
)
def test_a_failed_record_can_be_read_again(tmp_path, record):
    line = record_line(record, row=7, error="no", outcome="unknown")

    [rows] = read_records(source_of(line, tmp_path), 0)

    assert rows.record(0) == record
    assert json.loads(line)["error"] == "no"


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b'{"value": 7}', b'{"value": {"base64": "?"}}', b'{"value": "a", "headers": 5}']
)
def test_a_line_that_failed_did_not_write_is_a_problem(tmp_path, line):
    with pytest.raises(InputProblem, match=r"^line 1: "):
        list(read_records(source_of(line, tmp_path), 0))
