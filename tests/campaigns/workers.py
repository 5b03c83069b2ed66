"""Processes that work on the shares of a campaign until all are done, or until Ctrl-C or SIGTERM.

A signal only sets a flag. If its handler raised KeyboardInterrupt, the exception could leave a lock of a future locked,
and the pool's thread, which needs this lock, would never end."""

from __future__ import annotations

import itertools
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Workers:
    """Use with `with`, in the main thread. At its end, the shares that have begun are finished, and no others begin."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._before: list[Any] = []
        self.is_stopping = False

    def __enter__(self) -> Self:
        self._before = [signal.signal(number, self._stop) for number in _SIGNALS]
        self._pool = ProcessPoolExecutor(self._processes, initializer=_leave_signals_to_parent)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self.is_stopping:
            self.is_stopping = True
            sys.stderr.write("\nstopping once the current shares are finished\n")

    def results(self, function: Callable[..., T], shares: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """Yield what the function returns for each share, in order. Few shares are taken before they can begin."""
        left = iter(shares)
        running = deque(
            self._pool.submit(function, *share) for share in itertools.islice(left, 2 * self._processes)
        )
        while running and not self.is_stopping:
            yield running.popleft().result()
            running.extend(self._pool.submit(function, *share) for share in itertools.islice(left, 1))


def _leave_signals_to_parent() -> None:
    """Ignore Ctrl-C: the parent stops the run, and this process finishes the share that it has begun."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler
