"""Rows from CSV."""

from __future__ import annotations

import pytest

from aioproducer.cli.columns import Columns
from aioproducer.cli.csv_rows import read_csv
from aioproducer.cli.rows import InputProblem
from tests.cli.sources import source_of


def test_the_header_names_the_columns_and_does_not_count(tmp_path):
    text = '\ufeffid,note\r\n1,"two\r\nlines"\r\n\r\n2,"a ""b"""\r\n'

    [rows] = read_csv(source_of(text.encode(), tmp_path), 0, Columns(key="id"))

    assert (list(rows.numbers), rows.keys) == ([1, 2], [b"1", b"2"])
    assert rows.values == [b'{"note":"two\\r\\nlines"}', b'{"note":"a \\"b\\""}']


def test_another_delimiter_and_a_text_for_null(tmp_path):
    [rows] = read_csv(source_of(b"a\tb\nNA\t1\n", tmp_path), 0, Columns(), delimiter="\t", null="NA")

    assert rows.values == [b'{"a":null,"b":"1"}']


def test_an_empty_file_has_no_rows(tmp_path):
    assert list(read_csv(source_of(b"", tmp_path), 0, Columns(key="id"))) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"a,b\n1,2\n3\n", "line 3: 1 columns, but the header has 2"),
        (b'a\n1\n"x" y\n', "line 3: ',' expected after '\"'"),
        (b"a\n1\n\xff\n", "line 3: not UTF-8"),
        (b"a,a\n1,2\n", "the header contains the column 'a' twice"),
    ],
)
def test_a_bad_row_is_named(tmp_path, text, problem):
    with pytest.raises(InputProblem) as raised:
        list(read_csv(source_of(text, tmp_path), 0, Columns()))

    assert str(raised.value) == problem
