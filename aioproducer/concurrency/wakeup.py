"""What the sender sleeps on: set by whoever has work for it, and by time."""

from __future__ import annotations

import asyncio

CLOCK_SLACK = 0.001
"""Seconds; how much too early an event loop may call (uvloop's timers count milliseconds)."""


class WakeUp:
    """An asyncio.Event for one task that sleeps, which may also say until when.

    Its timer stays where it is as long as it is early enough: to set one for each sleep costs more than to wake up in
    vain once.
    """

    __slots__ = ("_is_set", "_loop", "_timer", "_timer_at", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def sleep(self, until: float | None = None) -> None:
        """Wait until it is set, at the latest by the loop's time `until`; it is set then, too."""
        if self._is_set:
            # To wait for what is there already does not give way, and others must run between two passes.
            await asyncio.sleep(0)
            return
        if until is not None and (self._timer is None or self._timer_at > until + CLOCK_SLACK):
            self._set_timer(until)
        self._waiter = waiter = self._loop.create_future()
        await waiter

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Not sooner than the clock of every loop can tell.
        self._timer_at = max(when, self._loop.time() + CLOCK_SLACK)
        self._timer = self._loop.call_at(self._timer_at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.set()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
