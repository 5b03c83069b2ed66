"""Log lines about calls to `send` that wait a long time because the buffer is full."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from typing import Protocol

from aioproducer.concurrency.wakeup import CLOCK_SLACK
from aioproducer.errors import counted
from aioproducer.observe.client_log import ClientLog

LONG = 1.0
"""The first line is logged when a caller has waited for this many seconds."""
PERIOD = 10.0
"""Seconds between log lines."""


class Memory(Protocol):
    total: int
    waiters: int


class BufferWatch:
    """A timer that runs while callers are waiting. There is one timer for all callers: while any caller is waiting, it
    fires about once a second."""

    def __init__(self, loop: AbstractEventLoop, log: ClientLog, memory: Memory) -> None:
        self._loop = loop
        self._log = log
        self._memory = memory
        self._began: dict[object, float] = {}
        """When each waiting caller began to wait, oldest first."""
        self._timer: TimerHandle | None = None
        self._is_closed = False
        self._logged_since: float | None = None
        """The start time of the wait that the last log line reported; None once that wait has ended."""
        self._logged_at = -PERIOD

    def began(self, waiter: object) -> None:
        """Note that a caller has begun to wait."""
        self._began[waiter] = self._loop.time()
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(LONG, self._look)

    def ended(self, waiter: object) -> None:
        """Note that a caller is no longer waiting."""
        del self._began[waiter]

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        oldest = next(iter(self._began.values()), now)
        if oldest + LONG > now + CLOCK_SLACK:
            if self._logged_since is not None:
                self._log.info(
                    "the buffer has room again: calls to send waited for up to %.1f s",
                    oldest - self._logged_since,
                )
                self._logged_since = None
            if self._began:
                self._timer = self._loop.call_at(oldest + LONG, self._look)
            return
        self._timer = self._loop.call_later(LONG, self._look)
        if self._logged_since is None:
            self._logged_since = oldest
        elif now - self._logged_at < PERIOD:
            return
        self._logged_at = now
        self._log.warning(
            "the buffer is full (%d bytes, buffer_memory): send has been waiting for %.1f s; %s. The brokers accept "
            "records more slowly than they are sent, or cannot be reached",
            self._memory.total,
            now - oldest,
            counted(self._memory.waiters, "caller is waiting", "callers are waiting"),
        )

    def close(self) -> None:
        """Stop the timer permanently."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
