"""Warnings about a loop that was blocked while records were due."""

from __future__ import annotations

import asyncio
import time

from aioproducer.observe.client_log import ClientLog
from aioproducer.observe.loop_watch import BEAT, PERIOD, LoopWatch
from tests.conftest import in_virtual_time


class Blocked:
    """A watched loop that can act as if it had been blocked."""

    def __init__(self, *, records_wait: bool = True) -> None:
        self._loop = asyncio.get_running_loop()
        self.records_wait = records_wait
        self.watch = LoopWatch(self._loop, ClientLog("aioproducer.x", "orders"), lambda: self.records_wait)

    async def block(self, seconds: float) -> None:
        """Let time pass without a beat, so that the timer is late by `seconds`."""
        timer = self.watch._timer
        assert timer is not None
        timer.cancel()
        began = self._loop.time()
        await asyncio.sleep(BEAT + seconds)
        self.watch._beat(began)


@in_virtual_time
async def play_block(caplog, seconds: float, lines: int) -> None:
    blocked = Blocked()
    blocked.watch.start()
    await blocked.block(seconds)
    blocked.watch.close()
    assert len(caplog.messages) == lines


def test_a_block_of_more_than_a_second_is_logged(caplog):
    play_block(caplog, 1.1, 1)
    assert caplog.messages[0].startswith("[producer orders] the event loop was blocked for 1.2 s ")


def test_a_shorter_block_is_not_logged(caplog):
    play_block(caplog, 0.5, 0)


@in_virtual_time
async def play_undisturbed() -> None:
    blocked = Blocked()
    blocked.watch.start()
    await asyncio.sleep(10)
    blocked.watch.close()


def test_a_loop_that_turns_is_not_logged(caplog):
    play_undisturbed()
    assert caplog.messages == []


@in_virtual_time
async def play_often(caplog) -> None:
    blocked = Blocked()
    blocked.watch.start()
    for _ in range(5):
        await blocked.block(2.0)
    assert len(caplog.messages) == 1
    await asyncio.sleep(PERIOD)
    await blocked.block(2.0)
    blocked.watch.close()
    assert len(caplog.messages) == 2


def test_a_line_is_written_once_a_minute(caplog):
    play_often(caplog)


@in_virtual_time
async def play_idle() -> None:
    blocked = Blocked()
    blocked.watch.start()
    blocked.records_wait = False
    await asyncio.sleep(3 * BEAT)
    assert blocked.watch._timer is None
    blocked.watch.start()
    assert blocked.watch._timer is not None
    blocked.watch.close()
    assert blocked.watch._timer is None


def test_an_idle_producer_has_no_timer():
    play_idle()


async def test_a_real_block_is_noticed(caplog):
    blocked = Blocked()
    blocked.watch.start()
    time.sleep(1.3)  # noqa: ASYNC251  # what blocking code does
    await asyncio.sleep(0.01)
    blocked.watch.close()

    assert "the event loop was blocked" in caplog.text
