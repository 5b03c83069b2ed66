"""The format of a file, and the options that each format accepts."""

from __future__ import annotations

import pytest

from aioproducer.cli.columns import Columns
from aioproducer.cli.exits import UsageError
from aioproducer.cli.formats import Format, Shape, format_of
from aioproducer.cli.lines import LineFormat
from tests.cli.sources import source_of


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.CSV", "csv"),
        ("a.tsv", "csv"),
        ("x/a.ndjson", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.log", "lines"),
        ("-", "lines"),
    ],
)
def test_the_extension_of_a_file_determines_its_format(name, form):
    assert format_of(name) == form


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (
            Shape(Format.CSV, LineFormat(key_delimiter=b":"), Columns(), None),
            "-K cannot be used with the csv format",
        ),
        (
            Shape(None, LineFormat(), Columns(key="a"), None),
            "column options cannot be used with the lines format",
        ),
        (
            Shape(Format.JSONL, LineFormat(), Columns(), ";"),
            "--delimiter cannot be used with the jsonl format",
        ),
        (
            Shape(Format.RECORDS, LineFormat(null=b"x"), Columns(), None),
            "--null cannot be used with the records format",
        ),
    ],
)
def test_options_that_a_format_does_not_have_are_refused(tmp_path, shape, problem):
    with pytest.raises(UsageError, match=problem):
        shape.check([source_of(b"", tmp_path)])


def test_tabs_separate_the_columns_of_tsv(tmp_path):
    source = source_of(b"a\tb\n1\t2\n", tmp_path, "x.tsv")

    [rows] = Shape(None, LineFormat(), Columns(), None).reader(source)(source, 0)

    assert rows.values == [b'{"a":"1","b":"2"}']
