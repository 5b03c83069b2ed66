"""Callers of `send` that wait a long time for room in the buffer."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

from aioproducer.observe.buffer_watch import LONG, BufferWatch
from aioproducer.observe.client_log import ClientLog
from tests.conftest import in_virtual_time


def new_watch(waiters: int = 1) -> BufferWatch:
    memory = SimpleNamespace(total=4096, waiters=waiters)
    return BufferWatch(asyncio.get_running_loop(), ClientLog("aioproducer.x", "orders"), memory)


@in_virtual_time
async def play_long_wait(seconds: float, waiters: int) -> None:
    watch = new_watch(waiters)
    watch.began("first")
    await asyncio.sleep(seconds)
    watch.ended("first")
    await asyncio.sleep(2 * LONG)
    assert watch._timer is None
    watch.close()


def test_a_wait_of_a_second_causes_a_warning_and_its_end_has_a_line(caplog):
    caplog.set_level(logging.INFO)
    play_long_wait(5.0, 1)
    first, last = caplog.records
    assert (first.levelname, last.levelname) == ("WARNING", "INFO")
    assert (
        "(4096 bytes, buffer_memory): send has been waiting for 1.0 s; 1 caller is waiting."
        in first.getMessage()
    )
    assert last.getMessage().startswith(
        "[producer orders] the buffer has room again: calls to send waited for up to "
    )


def test_a_long_wait_has_a_line_every_ten_seconds(caplog):
    play_long_wait(25.5, 17)
    assert [message.split("waiting for ")[1].split(".", 1)[0] for message in caplog.messages] == [
        "1",
        "11",
        "21",
    ]
    assert "17 callers are waiting." in caplog.messages[0]


def test_a_short_wait_has_no_line(caplog):
    caplog.set_level(logging.INFO)
    play_long_wait(0.5, 1)
    assert caplog.messages == []


def test_a_timer_on_time_is_not_set_again(caplog):
    began, looks = 1023.0845, []
    now = began + LONG
    assert now - began < LONG, "the sum was rounded down"
    loop = SimpleNamespace(time=lambda: began, call_later=lambda delay, look: looks.append(delay))
    loop.call_at = lambda when, look: looks.append(when - now)
    watch = BufferWatch(loop, ClientLog("aioproducer.x", "orders"), SimpleNamespace(total=4096, waiters=1))
    watch.began("first")

    loop.time = lambda: now
    watch._look()

    assert looks == [LONG, LONG]
    assert "send has been waiting for 1.0 s" in caplog.text


@in_virtual_time
async def play_steady_pressure() -> None:
    watch = new_watch()
    for number in range(100):
        watch.began(number)
        await asyncio.sleep(0.5)
        watch.began(number + 0.5)
        watch.ended(number)
        watch.ended(number + 0.5)
    watch.close()


def test_short_waits_one_after_the_other_have_no_line(caplog):
    play_steady_pressure()
    assert caplog.messages == []


@in_virtual_time
async def play_closed() -> None:
    watch = new_watch()
    watch.began("first")
    watch.close()
    watch.began("second")
    assert watch._timer is None
    await asyncio.sleep(5)


def test_a_closed_watch_has_no_timer_and_no_line(caplog):
    play_closed()
    assert caplog.messages == []
