"""Handles Ctrl-C and SIGTERM: the first signal asks a command to finish; the second stops it immediately."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aioproducer.cli.exits import Interrupted

T = TypeVar("T")


class Stop:
    """The signals that one command receives. They are handled only within `handled()`."""

    def __init__(self) -> None:
        self.count = 0
        """The number of signals since `calling()` was last entered."""
        self._steps: tuple[Callable[[], None], ...] = ()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in the running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._arrived)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    @contextmanager
    def calling(self, *steps: Callable[[], None]) -> Iterator[None]:
        """During the block, each signal calls the next function in turn; further signals call the last one again."""
        before, self._steps = self._steps, steps
        self.count = 0
        try:
            yield
        finally:
            self._steps = before

    def _arrived(self) -> None:
        self.count += 1
        if self._steps:
            self._steps[min(self.count, len(self._steps)) - 1]()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, and cancel it if a signal arrives.

        Raises:
            Interrupted: a signal has arrived.
        """
        task = asyncio.ensure_future(work)

        def cancel() -> None:
            task.cancel()

        with self.calling(cancel):
            try:
                return await task
            except asyncio.CancelledError:
                if self.count:
                    raise Interrupted from None
                raise
