"""The event that the sender sleeps on."""

from __future__ import annotations

import asyncio

from aioproducer.concurrency.wakeup import CLOCK_SLACK, WakeUp
from tests.conftest import MS

LONG = 5000 * MS


async def asleep(wake: WakeUp, until: float | None = None) -> asyncio.Task[None]:
    task = asyncio.create_task(wake.sleep(until))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_set_wakes_the_sleeper():
    wake = WakeUp(asyncio.get_running_loop())
    task = await asleep(wake)

    wake.set()

    await asyncio.wait_for(task, LONG)
    assert wake.is_set()


async def test_sleeping_on_a_set_event_yields_to_the_loop_once():
    wake = WakeUp(asyncio.get_running_loop())
    ran = []
    wake.set()
    asyncio.get_running_loop().call_soon(ran.append, 1)

    await asyncio.wait_for(wake.sleep(), LONG)

    assert ran == [1]


async def test_the_timer_sets_the_event_at_its_time_and_not_earlier():
    loop = asyncio.get_running_loop()
    wake = WakeUp(loop)
    until = loop.time() + 20 * MS

    await asyncio.wait_for(wake.sleep(until), LONG)

    assert wake.is_set()
    assert loop.time() >= until - CLOCK_SLACK
    wake.close()


async def test_an_earlier_time_replaces_a_later_one():
    loop = asyncio.get_running_loop()
    wake = WakeUp(loop)
    task = await asleep(wake, loop.time() + 1000 * LONG)
    wake.set()
    await task
    wake.clear()

    await asyncio.wait_for(wake.sleep(loop.time() + 5 * MS), LONG)

    assert wake.is_set()
    wake.close()


async def test_a_timer_that_is_early_enough_is_kept():
    loop = asyncio.get_running_loop()
    wake = WakeUp(loop)
    task = await asleep(wake, loop.time() + 1000 * LONG)
    wake.set()
    await task
    wake.clear()
    timer = wake._timer

    task = await asleep(wake, loop.time() + 2000 * LONG)

    assert wake._timer is timer
    wake.set()
    await task
    wake.close()


async def test_a_sleeper_that_is_cancelled_does_not_disturb_the_next():
    wake = WakeUp(asyncio.get_running_loop())
    task = await asleep(wake)
    task.cancel()
    await asyncio.wait([task])

    wake.set()
    wake.clear()
    task = await asleep(wake)
    wake.set()

    await asyncio.wait_for(task, LONG)


async def test_a_sleeper_whose_event_is_cleared_before_it_runs_sleeps_on():
    wake = WakeUp(asyncio.get_running_loop())
    task = await asleep(wake)

    wake.set()
    wake.clear()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert not task.done()
    wake.set()
    await asyncio.wait_for(task, LONG)


async def test_a_time_can_be_added_while_the_sender_sleeps():
    loop = asyncio.get_running_loop()
    wake = WakeUp(loop)
    task = await asleep(wake, loop.time() + 1000 * LONG)

    wake.set_at(None)
    wake.set_at(loop.time() + 2000 * LONG)
    assert wake._timer_at < loop.time() + 1001 * LONG
    wake.set_at(loop.time() + 5 * MS)

    await asyncio.wait_for(task, LONG)
    assert wake.is_set()
    wake.close()


async def test_close_stops_the_timer():
    loop = asyncio.get_running_loop()
    wake = WakeUp(loop)
    task = await asleep(wake, loop.time() + 1000 * LONG)
    timer = wake._timer
    assert timer is not None

    wake.close()

    assert timer.cancelled()
    wake.set()
    await task
