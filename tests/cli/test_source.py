"""Sources: lines of a file or pipe, read as a whole or in pieces."""

from __future__ import annotations

import os

import pytest

from aioproducer.cli import source as module
from aioproducer.cli.exits import UsageError
from aioproducer.cli.rows import InputProblem
from aioproducer.cli.source import Source, open_sources
from tests.cli.sources import source_of


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_lines_are_the_same_however_they_are_read(tmp_path, monkeypatch, size):
    monkeypatch.setattr(module, "READ_SIZE", size)
    source = source_of(b"a\n\nlong line\r\nend", tmp_path)

    assert [line for lines in source.lines() for line in lines] == [b"a", b"", b"long line\r", b"end"]
    assert source.bytes_read == 17


def test_a_line_is_yielded_before_more_data_arrives_in_the_pipe():
    reading, writing = os.pipe()
    source = Source("pipe", reading, None)
    lines = source.lines()

    os.write(writing, b"one\ntw")
    assert next(lines) == [b"one"]
    os.write(writing, b"o\n")
    assert next(lines) == [b"two"]
    os.close(writing)
    assert list(lines) == []
    os.close(reading)


def test_a_line_that_never_ends_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 10)

    with pytest.raises(InputProblem, match="a line is longer than"):
        list(source_of(b"x" * 20, tmp_path).lines())


def test_files_are_opened_before_anything_is_sent(tmp_path):
    [source] = open_sources([str(source_of(b"abc", tmp_path).name)])

    assert source.size == 3
    with pytest.raises(UsageError, match="no-such-file cannot be read: No such file or directory"):
        open_sources(["no-such-file"])
