"""Rows from lines: keys, nulls and row numbers."""

from __future__ import annotations

from aioproducer.cli.lines import LineFormat, read_lines
from tests.cli.sources import source_of


def test_lines_are_values_and_are_numbered_after_other_files(tmp_path):
    [rows, last] = read_lines(source_of(b"a\nb\nc", tmp_path), 10, LineFormat())

    assert (list(rows.numbers), rows.last, list(rows.values), rows.keys) == ([11, 12], 12, [b"a", b"b"], None)
    assert (list(last.numbers), last.last, list(last.values)) == ([13], 13, [b"c"])


def test_a_line_with_the_delimiter_has_a_key(tmp_path):
    form = LineFormat(key_delimiter=b"::", null=b"-")

    [rows] = read_lines(source_of(b"k::v::w\nno key\n::empty key\n-::-\n", tmp_path), 0, form)

    assert list(rows.keys) == [b"k", None, b"", None]
    assert list(rows.values) == [b"v::w", b"no key", b"empty key", None]
