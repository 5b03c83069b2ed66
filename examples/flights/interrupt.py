"""Ctrl-C, SIGTERM and SIGHUP as events to wait for, so that the demo always ends in an orderly way."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Windows has no SIGHUP."""


class Interrupted(Exception):
    """The user interrupted the demo before the work was done."""


class Interrupt:
    """Handles signals: the first requests a clean end, the second an immediate end, and the third kills the process.

    An Interrupt belongs to the event loop in which it catches signals; any thread can read `is_asked`.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._asked = asyncio.Event()
        self._insisted = asyncio.Event()
        self._replaced: dict[int, Any] = {}
        """The handlers to restore if the loop cannot handle signals."""

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Handle the signals within a block; afterwards, they have their default effect again."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            try:
                loop.add_signal_handler(number, self._signalled)
            except NotImplementedError:  # Windows
                handler = signal.signal(number, lambda *_: loop.call_soon_threadsafe(self._signalled))
                self._replaced[number] = handler
        try:
            yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if number in self._replaced:
                signal.signal(number, self._replaced.pop(number))
            else:
                with suppress(NotImplementedError):  # Windows
                    loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if not self.is_asked:
            self.is_asked = True
            self._asked.set()
            print("\nstopping; press Ctrl-C again to stop immediately", file=sys.stderr, flush=True)
        elif not self._insisted.is_set():
            self._insisted.set()
            self._let_go()

    def check(self) -> None:
        """Raise Interrupted if the user interrupted the demo. Called by threads."""
        if self.is_asked:
            raise Interrupted

    async def allow(self, work: Coroutine[Any, Any, object], *, grace: float) -> bool:
        """Wait for `work`. After a signal, wait at most `grace` seconds more, and then cancel it.

        Returns:
            True if `work` ended by itself; its exceptions are raised here.
        """
        task = asyncio.ensure_future(work)
        try:
            await _first(task, self._asked.wait())
            if not task.done() and grace > 0:
                await _first(task, self._insisted.wait(), timeout=grace)
            if task.done():
                await task
                return True
            return False
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which a signal cancels.

        Raises:
            Interrupted: the user interrupted the demo.
        """
        results: list[T] = []

        async def keep() -> None:
            results.append(await work)

        if self.is_asked:
            work.close()
            raise Interrupted
        if not await self.allow(keep(), grace=0):
            raise Interrupted
        return results[0]


async def _first(
    task: asyncio.Future[Any], signalled: Awaitable[Any], *, timeout: float | None = None
) -> None:
    """Wait until `task` or `signalled` is done. `signalled` is then cancelled, and `task` continues."""
    other = asyncio.ensure_future(signalled)
    try:
        await asyncio.wait({task, other}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        other.cancel()
