"""Lets tasks wait for the next change to shared state."""

from __future__ import annotations

import asyncio


class Changes:
    """Wakes all tasks that are waiting for the next change. If no task is waiting, the change is forgotten."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def announce(self) -> None:
        """Wake all waiting tasks."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def next(self, until: float) -> None:
        """Wait for the next change, but not beyond the loop time `until`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(until):
                await waiter
        except TimeoutError:
            pass
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
