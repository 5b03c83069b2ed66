"""Ctrl-C: the first, the second, and one before a command has anything to report."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from aioproducer.cli.exits import Interrupted
from aioproducer.cli.stop import Stop


async def interrupt() -> None:
    """Send SIGINT, and let the loop handle it."""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.01)


async def test_each_signal_calls_the_next_function_and_later_ones_the_last():
    stop = Stop()
    seen: list[str] = []
    with stop.handled(), stop.calling(lambda: seen.append("soon"), lambda: seen.append("now")):
        for _ in range(3):
            await interrupt()

        assert seen == ["soon", "now", "now"]
        assert stop.count == 3


async def test_work_is_cancelled_by_a_signal():
    stop = Stop()
    with stop.handled():
        work = asyncio.ensure_future(stop.unless_stopped(asyncio.sleep(1000)))
        await asyncio.sleep(0)
        await interrupt()

        with pytest.raises(Interrupted):
            await work


async def test_work_that_is_not_interrupted_returns_its_result():
    stop = Stop()
    with stop.handled():
        assert await stop.unless_stopped(asyncio.sleep(0, "result")) == "result"
