"""The feed: rows of several files, skipped rows, problems, and stopping."""

from __future__ import annotations

import asyncio
import os

import pytest

from aioproducer.cli.feed import PIECES_AHEAD, Feed
from aioproducer.cli.lines import LineFormat, read_lines
from aioproducer.cli.rows import InputProblem, InputRows
from aioproducer.cli.source import Source
from tests.cli.sources import source_of


def reader(source, before):
    return read_lines(source, before, LineFormat())


async def all_rows(feed: Feed) -> list[tuple[int, bytes]]:
    feed.start()
    found = []
    while (rows := await asyncio.wait_for(feed.next(), 30)) is not None:
        found += zip(rows.numbers, rows.values, strict=True)
    return found


async def test_rows_are_numbered_across_all_files_and_skipped_ones_are_left_out(tmp_path):
    sources = [source_of(b"a\nb\n", tmp_path, "1"), source_of(b"c\nd\n", tmp_path, "2")]
    feed = Feed(sources, lambda source: reader, skip=1)

    assert await all_rows(feed) == [(2, b"b"), (3, b"c"), (4, b"d")]
    assert (feed.rows_read, feed.size, feed.bytes_read, feed.problem) == (4, 8, 8, "")


@pytest.mark.parametrize("error", [InputProblem("line 3: bad"), OSError(5, "Input/output error")])
async def test_a_problem_ends_the_input_and_names_the_file(tmp_path, error):
    def breaking(source, before):
        yield InputRows([1, 2], 2, [b"a", b"b"])
        raise error

    feed = Feed([source_of(b"", tmp_path, "x")], lambda source: breaking)

    assert await all_rows(feed) == [(1, b"a"), (2, b"b")]
    said = "line 3: bad" if isinstance(error, InputProblem) else "Input/output error"
    assert feed.problem == f"{tmp_path / 'x'}: {said}"


async def test_a_stopped_feed_yields_nothing_more_and_does_not_wait(tmp_path):
    reading, writing = os.pipe()
    feed = Feed([Source("pipe", reading, None)], lambda source: reader)
    feed.start()
    waiting = asyncio.ensure_future(feed.next())
    await asyncio.sleep(0)

    feed.stop()

    assert await asyncio.wait_for(waiting, 30) is None
    await asyncio.wait_for(feed.pause(1000), 30)
    os.close(writing)


async def test_a_wait_for_rows_can_be_limited():
    reading, writing = os.pipe()
    feed = Feed([Source("pipe", reading, None)], lambda source: reader)
    feed.start()

    with pytest.raises(TimeoutError):
        await feed.next(0.01)
    os.close(writing)


async def test_only_a_few_pieces_are_read_ahead(tmp_path):
    made = []
    full = asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless(source, before):
        while True:
            made.append(len(made))
            if len(made) == PIECES_AHEAD + 1:
                loop.call_soon_threadsafe(full.set)
            yield InputRows([len(made)], len(made), [b"x"])

    feed = Feed([source_of(b"", tmp_path)], lambda source: endless)
    feed.start()
    await asyncio.wait_for(full.wait(), 30)

    assert len(made) == PIECES_AHEAD + 1
    feed.stop()
