"""Closes a producer: gracefully, or immediately after the second Ctrl-C."""

from __future__ import annotations

import asyncio

from aioproducer import CloseReport, Producer


class Closing:
    """Closes one producer. `at_once()` and `wait()` may be called in any order."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._task: asyncio.Task[CloseReport] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether closing the producer has begun."""
        return self._task is not None

    def at_once(self, timeout: float = 0.0) -> None:
        """Fail the records that have no result after `timeout` seconds, or immediately if closing has already begun."""
        if self._task is None:
            self._begin(timeout)
        else:
            self._task.cancel()

    async def wait(self) -> CloseReport:
        """Close the producer gracefully, or wait if closing has already begun; return the report."""
        task = self._task or self._begin(None)
        try:
            return await task
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # the caller was cancelled
            return await self._producer.close()  # already closed: this call only returns the report

    def _begin(self, timeout: float | None) -> asyncio.Task[CloseReport]:
        self._task = asyncio.create_task(self._producer.close(timeout), name="aioproducer close")
        return self._task
