"""Keeps a snapshot of the metrics every 10 s, so that `metrics(window=60)` can show what the last minute brought."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable

from aioproducer.observe.snapshots import MetricsSnapshot

PERIOD = 10.0
"""Seconds between two snapshots."""
LONGEST_WINDOW = 600.0
"""Seconds."""


class SnapshotRing:
    """The snapshots of the last ten minutes."""

    def __init__(self, loop: AbstractEventLoop, take: Callable[[], MetricsSnapshot]) -> None:
        """
        Args:
            loop: the producer's event loop.
            take: returns a snapshot of this moment. Must not keep the producer alive.
        """
        self._loop = loop
        self._take = take
        self._kept: deque[tuple[float, MetricsSnapshot]] = deque(maxlen=int(LONGEST_WINDOW / PERIOD) + 1)
        self._timer: TimerHandle | None = None
        self._keep()

    def before(self, window: float) -> MetricsSnapshot:
        """Return the newest snapshot that is at least `window` seconds old, or else the oldest one."""
        latest = self._loop.time() - window
        found = self._kept[0][1]
        for taken_at, snapshot in self._kept:
            if taken_at > latest:
                break
            found = snapshot
        return found

    def _keep(self) -> None:
        self._kept.append((self._loop.time(), self._take()))
        self._timer = self._loop.call_later(PERIOD, self._keep)

    def close(self) -> None:
        """Stop the timer; the snapshots stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
