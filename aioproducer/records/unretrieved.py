"""Counts and logs failed records whose results were never retrieved, by topic and error.

A batch reports its failed records when it is deleted, in any thread, possibly during a garbage collection."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, TimerHandle

from aioproducer.errors import counted
from aioproducer.observe.client_log import ClientLog

GATHERING = 1.0
"""The log line is delayed by this many seconds, so that it covers all batches that failed together."""


class Unretrieved:
    """Counts one producer's failed records whose errors were not retrieved."""

    def __init__(self, loop: AbstractEventLoop, log: ClientLog) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        """Counts since the start, by (topic, name of the error)."""
        self._loop = loop
        self._log = log
        self._unlogged: dict[tuple[str, str], tuple[int, BaseException]] = {}
        """The counts that have not been logged yet, each with its first error."""
        self._timer: TimerHandle | None = None
        self._will_log = False
        self._is_closed = False
        self._logged_late: set[tuple[str, str]] = set()
        """The (topic, error name) pairs that were logged after the loop had stopped. Later failures with the same
        pair are only counted."""
        # The lock is reentrant, since a garbage collection may call add() while the lock is held.
        self._lock = threading.RLock()

    def add(self, topic: str, error: BaseException, count: int) -> None:
        """Count records that failed with this error. May be called from any thread."""
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
        except RuntimeError:  # the loop was closed in the meantime
            self.log()

    def _log_later(self) -> None:
        """Start the timer for the log line, or log immediately after close(), when no timer may be started. Runs in
        the loop."""
        if self._is_closed:
            self.log()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHERING, self.log)

    def log(self) -> None:
        """Write a log line for each topic and error with unlogged counts."""
        with self._lock:
            unlogged, self._unlogged = self._unlogged, {}
            self._will_log = False
            self._timer = None
        for (topic, _), (count, error) in unlogged.items():
            what = counted(count, f"record for topic {topic} was", f"records for topic {topic} were")
            self._log.error("%s not delivered, and no caller has looked at the result: %s", what, error)

    def close(self) -> None:
        """Log the remaining counts. After this, each failure is logged immediately."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.log()
