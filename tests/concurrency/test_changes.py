"""Changes wake every task that waits for the next one."""

from __future__ import annotations

import asyncio

from aioproducer.concurrency.changes import Changes
from tests.conftest import MS

LONG = 60


async def test_a_change_wakes_all_current_waiters_and_no_later_ones():
    loop = asyncio.get_running_loop()
    changes = Changes()
    waiting = [asyncio.create_task(changes.next(loop.time() + LONG)) for _ in range(3)]
    await asyncio.sleep(0)
    changes.announce()
    await asyncio.gather(*waiting)
    late = asyncio.create_task(changes.next(loop.time() + LONG))
    await asyncio.sleep(0)
    assert not late.done(), "the change preceded this wait"
    changes.announce()
    await late


async def test_without_a_change_the_wait_ends_at_its_deadline():
    loop = asyncio.get_running_loop()
    changes = Changes()
    began = loop.time()
    await changes.next(began + 20 * MS)
    assert loop.time() - began >= 19 * MS
    assert changes._waiters == []


async def test_a_cancelled_wait_leaves_nothing_behind_and_affects_no_other():
    loop = asyncio.get_running_loop()
    changes = Changes()
    cancelled, other = (asyncio.create_task(changes.next(loop.time() + LONG)) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    changes.announce()
    await other
    assert (await asyncio.gather(cancelled, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    assert changes._waiters == []
