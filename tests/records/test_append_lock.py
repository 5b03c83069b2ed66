"""The accumulator's lock: the order of appends while the memory is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.errors import BufferTimeoutError, ProducerClosed
from aioproducer.metrics import Histogram
from aioproducer.observe.client_log import ClientLog
from aioproducer.records._record_path import BufferMemory
from aioproducer.records.append_lock import AppendLock
from tests.conftest import MS
from tests.support.accumulator_bench import LONG, turns


class Buffer:
    """A full buffer of 10 bytes, and its lock."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.memory = BufferMemory(10)
        self.memory.take(10)
        self.wake = WakeUp(self.loop)
        self.waits = Histogram()
        self.lock = AppendLock(
            self.loop, self.memory, self.wake, ClientLog("aioproducer.records", "orders"), self.waits
        )
        self.appended: list[str] = []

    def append(self, name: str) -> Callable[[], str | None]:
        """Return a function that appends 4 bytes if there is room."""

        def attempt() -> str | None:
            if not self.memory.take(4):
                return None
            self.appended.append(name)
            return name

        return attempt

    async def waiting(self, *names: str, seconds: float = LONG) -> list[asyncio.Task[str]]:
        """Return tasks that wait to append, in this order."""
        deadline = self.loop.time() + seconds
        tasks = [asyncio.create_task(self.lock.append(self.append(name), deadline)) for name in names]
        await turns()
        return tasks

    def give(self, size: int) -> None:
        self.memory.give(size)
        self.lock.release()


async def test_lock_is_locked_while_callers_wait():
    buffer = Buffer()
    assert not buffer.lock.locked()

    tasks = await buffer.waiting("a", "b")
    assert buffer.lock.locked()
    assert buffer.memory.waiters == 2
    assert buffer.wake.is_set(), "the sender is woken, because everything in the buffer is due"

    buffer.give(8)
    assert not buffer.lock.locked()
    assert buffer.memory.waiters == 0
    assert await asyncio.gather(*tasks) == ["a", "b"]


async def test_returned_memory_serves_as_many_callers_as_possible_in_order():
    buffer = Buffer()
    tasks = await buffer.waiting("a", "b", "c")

    buffer.give(9)

    assert buffer.appended == ["a", "b"], "both are served in this turn of the loop"
    assert buffer.lock.locked()
    buffer.give(1)
    buffer.give(2)
    assert buffer.appended == ["a", "b", "c"]
    assert await asyncio.gather(*tasks) == ["a", "b", "c"]


async def test_a_cancelled_caller_leaves_the_queue():
    buffer = Buffer()
    tasks = await buffer.waiting("a", "b")
    tasks[0].cancel()
    await turns()

    buffer.give(4)

    assert buffer.appended == ["b"]
    assert await tasks[1] == "b"


async def test_caller_waits_until_its_deadline():
    buffer = Buffer()
    [task] = await buffer.waiting("a", seconds=5 * MS)

    with pytest.raises(
        BufferTimeoutError, match=r"buffer of 10 bytes \(buffer_memory\) stayed full .* \(max_block_ms\)"
    ):
        await task

    assert not buffer.lock.locked()


async def test_the_error_of_an_append_is_raised_only_in_its_caller():
    buffer = Buffer()

    def fail() -> None:
        raise ValueError("no")

    [waiting] = await buffer.waiting("a")
    failing = asyncio.create_task(buffer.lock.append(fail, buffer.loop.time() + LONG))
    await turns()
    buffer.give(4)

    with pytest.raises(ValueError, match="no"):
        await failing
    assert await waiting == "a"


async def test_a_closed_lock_fails_waiting_and_later_callers():
    buffer = Buffer()
    [waiting] = await buffer.waiting("a")

    buffer.lock.close()
    [late] = await buffer.waiting("b")

    for task in (waiting, late):
        with pytest.raises(ProducerClosed):
            await task
    assert buffer.memory.waiters == 0
