"""Defines the event that the sender waits for; it is set when the sender has work to do, or by a timer."""

from __future__ import annotations

import asyncio

CLOCK_SLACK = 0.001
"""An event loop may run a timer up to this many seconds too early (uvloop's timers count milliseconds)."""


class WakeUp:
    """An event like asyncio.Event, but for a single waiting task, which can also set a deadline.

    An existing timer is kept if it is early enough: a new timer for each sleep would cost more than an occasional
    unnecessary wake-up.
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
        """Wait until the event is set. If nothing sets it earlier, a timer sets it at the loop time `until`."""
        if self._is_set:
            # Waiting for a completed future would not yield to the loop, but other tasks must run during each call.
            await asyncio.sleep(0)
            return
        self.set_at(until)
        while not self._is_set:  # the event may be cleared before the waiting task runs
            self._waiter = waiter = self._loop.create_future()
            await waiter

    def set_at(self, when: float | None) -> None:
        """Set the event at the loop time `when`, unless that is None."""
        if when is None or (self._timer is not None and self._timer_at <= when + CLOCK_SLACK):
            return
        if self._timer is not None:
            self._timer.cancel()
        # Set the timer at least CLOCK_SLACK ahead, because a loop may run a nearer timer immediately.
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
