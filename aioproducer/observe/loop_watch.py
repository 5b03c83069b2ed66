"""Detects when other code has blocked the event loop while records were waiting for their results."""

from __future__ import annotations

import math
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from aioproducer.observe.client_log import ClientLog

BLOCKED = 1.0
"""A line is logged if the loop was blocked for at least this many seconds."""
BEAT = 0.2
"""Seconds between checks of the clock."""
PERIOD = 60.0
"""Seconds between log lines."""


class LoopWatch:
    """A timer that runs while records are waiting for their results; it is late if the loop was blocked."""

    def __init__(self, loop: AbstractEventLoop, log: ClientLog, records_wait: Callable[[], object]) -> None:
        """
        Args:
            loop: the producer's event loop.
            log: the log.
            records_wait: returns whether some records have no result yet.
        """
        self._loop = loop
        self._log = log
        self._records_wait = records_wait
        self.is_running = False
        self._timer: TimerHandle | None = None
        self._logged_at = -math.inf

    def start(self) -> None:
        """Watch until no records are waiting. Call this only while the watch is not running."""
        self.is_running = True
        self._timer = self._loop.call_later(BEAT, self._beat, self._loop.time())

    def _beat(self, last: float) -> None:
        now = self._loop.time()
        # The block may have begun at any point in the beat, on average in the middle, so half a beat is subtracted.
        blocked = now - last - BEAT / 2
        if blocked >= BLOCKED and now - self._logged_at >= PERIOD:
            self._logged_at = now
            self._log.warning(
                "the event loop was blocked for %.1f s while records were waiting: no request was written and no "
                "response was read. Move code that blocks or computes for a long time to a thread (asyncio.to_thread)",
                blocked,
            )
        self.is_running = bool(self._records_wait())
        self._timer = self._loop.call_later(BEAT, self._beat, now) if self.is_running else None

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
