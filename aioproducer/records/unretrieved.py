"""Failed records whose result was never looked at: counted by topic and error, and logged together.

Batches count them when they are thrown away, in any thread, also in the middle of a garbage collection."""

from __future__ import annotations

import logging
import threading
from asyncio import AbstractEventLoop, TimerHandle

logger = logging.getLogger(__name__)

GATHERING = 1.0
"""Seconds from the first of them to the line in the log, which so counts all batches that failed together."""


class Unretrieved:
    """The counts of one producer."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        """By (topic, name of the error), since the start."""
        self._loop = loop
        self._unlogged: dict[tuple[str, str], tuple[int, BaseException]] = {}
        """Of these, what no line in the log has counted so far, with the first error."""
        self._timer: TimerHandle | None = None
        self._will_log = False
        self._is_closed = False
        self._logged_late: set[tuple[str, str]] = set()
        """Logged when the loop had stopped. Nothing is gathered then, so of each kind only the first is logged."""
        # A collector that runs under it may find others to be counted.
        self._lock = threading.RLock()

    def add(self, topic: str, error: BaseException, count: int) -> None:
        """Count records that failed with this error. May be called in any thread."""
        key = (topic, type(error).__name__)
        with self._lock:
            self.counts[key] = self.counts.get(key, 0) + count
            unlogged, first = self._unlogged.get(key, (0, error))
            self._unlogged[key] = (unlogged + count, first)
            will_log, self._will_log = self._will_log, True
        if not self._loop.is_running():
            if key not in self._logged_late:
                self._logged_late.add(key)
                self.log()
        elif not will_log:
            self._ask_loop()

    def _ask_loop(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._log_later)
        except RuntimeError:  # it was closed meanwhile
            self.log()

    def _log_later(self) -> None:
        """In the loop. What comes after close() is logged in this turn, as no timer may be left."""
        if self._is_closed:
            self.log()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHERING, self.log)

    def log(self) -> None:
        """Log what was not logged so far: a line for each topic and error."""
        with self._lock:
            unlogged, self._unlogged = self._unlogged, {}
            self._will_log = False
            self._timer = None
        for (topic, _), (count, error) in unlogged.items():
            what = (
                f"1 record for topic {topic} was" if count == 1 else f"{count} records for topic {topic} were"
            )
            logger.error("%s not delivered, and no caller has looked at the result: %s", what, error)

    def close(self) -> None:
        """Log what was gathered; nothing is gathered any longer."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.log()
