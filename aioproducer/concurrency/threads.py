"""An executor whose threads do not delay interpreter exit; a job that is still running ends with the process.

concurrent.futures joins its threads when the interpreter exits, and a running codec cannot be interrupted."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias
from weakref import WeakSet

_Job: TypeAlias = tuple[Future[Any], Callable[[], object]]

LAST_WAIT = 0.1
"""Seconds to wait at interpreter exit for jobs that are nearly done."""


class DaemonThreads(Executor):
    """An executor with up to `most` daemon threads, each started when it is needed."""

    def __init__(self, most: int, name: str, initializer: Callable[[], None] | None = None) -> None:
        self.most = most
        self._name = name
        self._initializer = initializer
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_shut_down = False
        # Reentrant: a garbage collection or a signal handler that runs while the lock is held may call submit().
        self._lock = threading.RLock()
        _living.add(self)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Call the function in a thread.

        Raises:
            RuntimeError: the executor was shut down, or no thread can be started.
        """
        done: Future[Any] = Future()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError(f"cannot submit work to {self._name!r} after shutdown()")
            if self._idle:
                self._idle -= 1  # an idle thread will take the job
            elif len(self._threads) < self.most:
                thread = threading.Thread(
                    target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True
                )
                thread.start()
                self._threads.add(thread)
            self._jobs.put((done, lambda: function(*arguments, **named)))
        return done

    def _work(self) -> None:
        if self._initializer is not None:
            self._initializer()
        while (job := self._jobs.get()) is not None:
            done, call = job
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(call())
                except BaseException as error:
                    done.set_exception(error)
            del job, done, call
            with self._lock:
                if self._jobs.empty():
                    self._idle += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work. The threads end after the queued jobs; with `cancel_futures`, after the running ones."""
        with self._lock:
            self._is_shut_down = True
            if cancel_futures:
                self._cancel_all()
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _cancel_all(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None:
                job[0].cancel()

    def ended(self, seconds: float) -> bool:
        """Wait up to `seconds` for the threads to end after shutdown(). Return whether they have ended."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


_living: WeakSet[DaemonThreads] = WeakSet()


def _end_all() -> None:
    for threads in list(_living):
        threads.shutdown(wait=False, cancel_futures=True)
        threads.ended(LAST_WAIT)


atexit.register(_end_all)
