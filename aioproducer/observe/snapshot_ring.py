"""Takes a snapshot of the metrics every 10 s, so that `metrics(window=60)` can show what happened in the last minute.

A process may have hundreds of producers, so the snapshots are kept compressed: about 2 KB each instead of 40 KB."""

from __future__ import annotations

import pickle
import zlib
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable

from aioproducer.observe.snapshots import MetricsSnapshot

PERIOD = 10.0
"""Seconds between snapshots."""
LONGEST_WINDOW = 600.0
"""The longest window, in seconds."""


class SnapshotRing:
    """The snapshots of the last ten minutes."""

    def __init__(self, loop: AbstractEventLoop, take: Callable[[], MetricsSnapshot]) -> None:
        """
        Args:
            loop: the producer's event loop.
            take: returns a current snapshot. It must not keep the producer alive.
        """
        self._loop = loop
        self._take = take
        self._kept: deque[tuple[float, bytes]] = deque(maxlen=int(LONGEST_WINDOW / PERIOD) + 1)
        self._timer: TimerHandle | None = None
        self._keep()

    def before(self, window: float) -> MetricsSnapshot:
        """Return the newest snapshot that is at least `window` seconds old; if there is none, return the oldest one."""
        latest = self._loop.time() - window
        found = self._kept[0][1]
        for taken_at, snapshot in self._kept:
            if taken_at > latest:
                break
            found = snapshot
        return _unpacked(found)

    def _keep(self) -> None:
        self._kept.append((self._loop.time(), _packed(self._take())))
        self._timer = self._loop.call_later(PERIOD, self._keep)

    def close(self) -> None:
        """Stop the timer and keep a final snapshot, so that a window that begins after it shows no activity."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._kept.append((self._loop.time(), _packed(self._take())))


def _packed(snapshot: MetricsSnapshot) -> bytes:
    return zlib.compress(pickle.dumps(snapshot, pickle.HIGHEST_PROTOCOL), 1)


def _unpacked(packed: bytes) -> MetricsSnapshot:
    snapshot: MetricsSnapshot = pickle.loads(zlib.decompress(packed))
    return snapshot
