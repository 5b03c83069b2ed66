"""The feed: a thread reads the input a few pieces ahead, and hands its rows to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from aioproducer.cli.rows import InputProblem, InputRows
from aioproducer.cli.source import Source

PIECES_AHEAD = 4

Reader = Callable[[Source, int], Iterator[InputRows]]
"""A function that yields the rows of a source. Its second argument is the number of rows in all earlier sources."""


class Feed:
    """The rows of all sources, one source after the other. A feed belongs to one event loop."""

    def __init__(self, sources: list[Source], reader_of: Callable[[Source], Reader], skip: int = 0) -> None:
        """Prepare the feed.

        Args:
            sources: the files, in order.
            reader_of: returns the reader for the format of a source.
            skip: the number of rows to skip at the beginning.
        """
        self._sources = sources
        self._reader_of = reader_of
        self._skip = skip
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[InputRows] = deque()
        self._news = asyncio.Event()
        self._room = threading.Semaphore(PIECES_AHEAD)
        self._is_complete = False
        self.is_stopped = False
        """True once `next()` returns no more rows, because of Ctrl-C or a failed record."""
        self.problem: str = ""
        """The reason why the input could not be read completely; empty if there was no problem."""
        self.rows_read: int | None = None
        """The number of rows that were read; None until reading has ended."""
        self.bytes_read = 0

    @property
    def size(self) -> int | None:
        """The size of all sources in bytes; None if one of them has no size."""
        sizes = [source.size for source in self._sources]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def start(self) -> None:
        """Start reading, in a thread that does not keep the process alive."""
        threading.Thread(target=self._read_all, name="aioproducer input", daemon=True).start()

    def stop(self) -> None:
        """End the feed: `next()` returns no more rows."""
        self.is_stopped = True
        self._news.set()

    async def next(self, timeout: float | None = None) -> InputRows | None:
        """Return the next rows; None at the end of the input and after `stop()`.

        Raises:
            TimeoutError: no rows arrived within `timeout` seconds.
        """
        while not self.is_stopped:
            if self._pieces:
                rows = self._pieces.popleft()
                self._room.release()
                self.bytes_read = rows.bytes_read
                return rows
            if self._is_complete:
                return None
            self._news.clear()
            async with asyncio.timeout(timeout):
                await self._news.wait()
        return None

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until `stop()` is called."""
        end = self._loop.time() + seconds
        while not self.is_stopped and (left := end - self._loop.time()) > 0:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                return

    # ------------------------------------------------------------------------------------------- in the thread

    def _read_all(self) -> None:
        problem = ""
        number, bytes_before = 0, 0
        for source in self._sources:
            try:
                for rows in self._reader_of(source)(source, number):
                    number = rows.last
                    self._hand_over(rows, bytes_before)
            except (InputProblem, OSError) as error:
                said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                problem = f"{source.name}: {said}"
                break
            bytes_before += source.bytes_read
        self._call(self._complete, problem, number)

    def _hand_over(self, rows: InputRows, bytes_before: int) -> None:
        if rows.last <= self._skip:
            return
        if len(rows) and rows.numbers[0] <= self._skip:
            rows = rows.without(self._skip)
        self._room.acquire()
        self._call(self._add, replace(rows, bytes_read=bytes_before + rows.bytes_read))

    def _call(self, method: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(method, *arguments)
        except RuntimeError:
            pass  # the loop is closed: the command has ended

    # --------------------------------------------------------------------------------------------- in the loop

    def _add(self, rows: InputRows) -> None:
        self._pieces.append(rows)
        self._news.set()

    def _complete(self, problem: str, rows: int) -> None:
        self.problem, self.rows_read = problem, rows
        self._is_complete = True
        self._news.set()
