"""The progress bar of a run. It is shown only on a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from aioproducer.cli.feed import Feed
from aioproducer.cli.ledger import Ledger
from aioproducer.cli.screen import Screen

PERIOD = 0.1
"""Seconds between updates of the progress bar."""


@asynccontextmanager
async def shown_progress(screen: Screen, feed: Feed, ledger: Ledger) -> AsyncIterator[None]:
    """During the block, show how much of the input has been read and how many records have been delivered."""
    if not screen.err.is_terminal or screen.err.is_dumb_terminal:
        yield
        return
    columns = [SpinnerColumn(), TextColumn("{task.fields[records]}")]
    if feed.size:
        columns += [BarColumn(), DownloadColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=screen.err, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=feed.size or None, records="")
        drawing = asyncio.create_task(_draw(progress, task, feed, ledger), name="aioproducer progress")
        try:
            yield
        finally:
            drawing.cancel()


async def _draw(progress: Progress, task: object, feed: Feed, ledger: Ledger) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        seconds = max(loop.time() - began, PERIOD)
        text = f"{ledger.delivered:,} delivered, {ledger.delivered / seconds:,.0f}/s"
        if lost := ledger.failed + ledger.unknown:
            text += f", {lost:,} failed or unknown"
        progress.update(task, completed=feed.bytes_read, records=text)  # type: ignore[arg-type]  # an opaque id
        progress.refresh()
        await asyncio.sleep(PERIOD)
