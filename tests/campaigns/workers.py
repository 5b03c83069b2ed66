"""Runs the shares of a campaign in several processes, until all are done or Ctrl-C or SIGTERM stops them.

A signal only sets a flag. A KeyboardInterrupt could be raised just after the main thread has taken a future's lock. The
lock would stay taken, and the pool's thread would wait for it forever."""

from __future__ import annotations

import itertools
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """Processes that work on shares of a campaign, until a signal stops them."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self.pool = ProcessPoolExecutor(processes, initializer=_leave_signals_to_parent)
        self.is_stopping = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Begin no more shares. This is a signal handler."""
        if not self.is_stopping:
            self.is_stopping = True
            sys.stderr.write("\nstopping once the current shares are finished\n")

    def results(self, function: Callable[..., T], shares: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """Yield the function's result for each share, in order. At most two shares per process are taken in advance."""
        left = iter(shares)
        running = deque(
            self.pool.submit(function, *share) for share in itertools.islice(left, 2 * self._processes)
        )
        while running and not self.is_stopping:
            yield running.popleft().result()
            running.extend(self.pool.submit(function, *share) for share in itertools.islice(left, 1))


@contextmanager
def started_workers(processes: int) -> Iterator[Workers]:
    """Run workers during the block, which must be in the main thread. Shares that have begun are always finished."""
    workers = Workers(processes)
    before = {number: signal.signal(number, workers.stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield workers
    finally:
        workers.pool.shutdown(cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_signals_to_parent() -> None:
    """Ignore Ctrl-C: the parent stops the run, and this process finishes the share that it has begun."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler
