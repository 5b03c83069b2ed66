"""Ctrl-C, SIGTERM and SIGHUP as something to wait for: nothing is torn down half-way."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The user asked for the end before this was done."""


class Interrupt:
    """The first signal asks for a clean end, the second one for an immediate end, the third kills.

    Belongs to the loop of the block in which it catches them; `is_asked` may be read by any thread.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._asked = asyncio.Event()
        self._insisted = asyncio.Event()

    @contextmanager
    def catching(self) -> Iterator[None]:
        """A block in which the signals come here; behind it they do what they always do."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if not self.is_asked:
            self.is_asked = True
            self._asked.set()
            print("\nstopping; once more stops at once", file=sys.stderr, flush=True)
        elif not self._insisted.is_set():
            self._insisted.set()
            self._let_go()

    def check(self) -> None:
        """Raise Interrupted if the user asked for the end; for threads."""
        if self.is_asked:
            raise Interrupted

    async def allow(self, work: Coroutine[Any, Any, object], *, grace: float) -> bool:
        """Wait for `work`, once the user has asked for the end only `grace` seconds more; then cancel it.

        Returns:
            Whether it ended by itself. Its exceptions are raised here.
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
        """The result of `work`, which is cancelled when the user asks for the end.

        Raises:
            Interrupted: the user did.
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
    """Wait for whichever comes first; `task` goes on, the other one is cancelled."""
    other = asyncio.ensure_future(signalled)
    try:
        await asyncio.wait({task, other}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        other.cancel()
