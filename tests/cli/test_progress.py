"""The progress bar; test_produce.py shows it on a terminal."""

from __future__ import annotations

import asyncio

from aioproducer.cli.feed import Feed
from aioproducer.cli.ledger import Ledger
from aioproducer.cli.progress import shown_progress
from aioproducer.cli.screen import Screen
from tests.cli.sources import source_of


async def test_nothing_is_drawn_without_a_terminal(tmp_path, capsys):
    feed = Feed([source_of(b"abc", tmp_path)], lambda source: lambda source, before: iter(()))

    async with shown_progress(Screen(), feed, Ledger()):
        await asyncio.sleep(0)

    assert capsys.readouterr() == ("", "")
