"""The thread whose event loop is shared by all blocking producers in a process, and the calls that wait for it.

The thread starts with the first producer and ends with the last one. It does not exist in a forked child.
Producers that are still open at interpreter exit are closed."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import importlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from aioproducer.errors import IllegalStateError, ProducerClosed, WrongLoopError

T = TypeVar("T")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

SLICE = 0.1
"""The longest single wait, in seconds. On POSIX, Ctrl-C interrupts a wait at once; on Windows, between two waits."""
EXIT_SECONDS = 10.0
"""The time limit, in seconds, for a producer that is still open at interpreter exit to deliver its records."""
GRACE_SECONDS = 5.0
"""Additional seconds for a producer to close after it has dropped its remaining records. If closing takes longer, a
callback is blocking the loop."""


class Closable(Protocol):
    """The part of a producer that the thread uses."""

    def _close_at_exit(self, thread: LoopThread, seconds: float) -> Callable[[], None]:
        """Start closing, log that the producer was left open, and return a function that waits until it has closed."""


class Flag:
    """A flag that the loop thread sets once, and that other threads wait for.

    threading.Event is Python code around a lock. A Ctrl-C at the wrong moment leaves that lock locked, and `set` would
    then block the loop forever. A Flag's lock is locked from the start, and `set` only releases it."""

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`, and return whether the flag is set."""
        if not self._is_set and self._lock.acquire(timeout=seconds):
            self._lock.release()  # wakes the next waiter, which would otherwise sleep until its timeout
        return self._is_set


class LoopThread:
    """An event loop in a thread, and the producers that keep it alive."""

    def __init__(self, factory: LoopFactory | None) -> None:
        self.generation = generation()
        self.producers: dict[Closable, None] = {}
        """The producers that are not closed. Changed only while this module's lock is held."""
        self.loop: asyncio.AbstractEventLoop
        self._factory = factory
        self._began = Flag()
        self._ended = Flag()
        self._error: BaseException | None = None
        self._stop = asyncio.Event()
        # This must be a daemon thread: it may run until close_all(), which the interpreter calls only after it has
        # joined all non-daemon threads.
        self._thread = threading.Thread(target=self._run, name="aioproducer-blocking", daemon=True)

    def start(self) -> None:
        """Start the thread, and return when its loop is running. Raise any error that the loop factory raised."""
        self._thread.start()
        try:
            wait_for(self._began)
        except BaseException:
            self._stop.set()  # the thread will end as soon as its loop runs
            raise
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._factory) as runner:
                self.loop = runner.get_loop()
                self._began.set()
                runner.run(self._stopped())
        except BaseException as error:
            if not self._began.is_set():
                self._error = error
                self._began.set()
            elif not self._is_for_want_of_a_thread(error):
                raise
        finally:
            self._ended.set()

    def _is_for_want_of_a_thread(self, error: BaseException) -> bool:
        """Return True if asyncio's runner failed because the interpreter is exiting.

        Since Python 3.12, no thread can be started while the interpreter exits. However, the runner starts a thread
        just before it closes the loop, to wait for the executor's threads."""
        is_end = self._stop.is_set() and not threading.main_thread().is_alive()
        return is_end and isinstance(error, RuntimeError)

    async def _stopped(self) -> None:
        await self._stop.wait()

    @property
    def is_alive(self) -> bool:
        # Not Thread.is_alive: before Python 3.13, a Ctrl-C during that call marks a running thread as ended.
        return not self._ended.is_set()

    def post(self, function: Callable[[], object]) -> bool:
        """Schedule a call to `function` in the loop. Return False if the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False
        return True

    def stop(self) -> None:
        """End the loop and the thread."""
        self.post(self._stop.set)
        # A host name lookup may keep the thread running; the caller does not wait for it to finish.
        if self._ended.wait(1):
            self._thread.join()


# Changed by enter(), leave() and set_loop_factory(), and in a forked child.
_lock = threading.Lock()
_current: LoopThread | None = None
_loop_factory: LoopFactory | None = None
_generation = 0


def generation() -> int:
    """Return a number that changes in a forked child, where the loop thread does not exist."""
    return _generation


def set_loop_factory(factory: LoopFactory | None) -> None:
    """Set the function that creates the event loop for all blocking producers, such as `uvloop.new_event_loop`.

    None restores asyncio's default.

    Raises:
        IllegalStateError: a blocking producer is already running, on a loop that another factory created.
    """
    global _loop_factory
    with _lock:
        if _current is not None and factory is not _loop_factory:
            raise IllegalStateError(
                "set_loop_factory() was called while blocking producers are running, which share a loop; call it "
                "before the first one starts, or after all of them are closed"
            )
        _loop_factory = factory


def enter(producer: Closable) -> LoopThread:
    """Register a producer, and return the loop thread, which runs at least until the producer leaves."""
    global _current
    with _lock:
        if _current is None:
            thread = LoopThread(_loop_factory)
            thread.start()
            _current = thread
            _close_all_in_multiprocessing()
        _current.producers[producer] = None
        return _current


def leave(producer: Closable, thread: LoopThread) -> None:
    """Unregister a closed producer. End the thread if no producers remain."""
    global _current
    with _lock:
        thread.producers.pop(producer, None)
        if thread.producers or _current is not thread:
            return
        _current = None
    thread.stop()


def _forked() -> None:
    global _current, _generation, _lock
    _generation += 1
    _current = None
    _lock = threading.Lock()  # another thread in the parent may have held the old lock


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)


def close_all() -> None:
    """Close the producers that are still open. Called at interpreter exit, when all non-daemon threads have ended."""
    thread = _current
    if thread is None or not thread.is_alive:
        return
    closing = []
    for producer in list(thread.producers):
        closing.append((producer, producer._close_at_exit(thread, EXIT_SECONDS)))
    for producer, closed in closing:
        closed()
        leave(producer, thread)


# atexit calls functions in reverse order of registration. The modules that close_all() needs register their own
# functions on import, so they must be imported first.
importlib.import_module("aioproducer.producer")
atexit.register(close_all)


def _close_all_in_multiprocessing() -> None:
    """Register close_all() in a multiprocessing child, which exits without atexit but runs its own finalizers."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close_all, exitpriority=0)


class Call(Generic[T]):
    """A coroutine that runs in the loop thread while its caller waits in another thread."""

    __slots__ = ("_context", "_ended", "_function", "_is_given_up", "_task")

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._context = contextvars.copy_context()  # serializers and interceptors see the caller's context
        self._ended = Flag()
        self._task: asyncio.Task[T] | None = None
        self._is_given_up = False

    def start(self) -> None:
        """Create the task. Called in the loop."""
        if not self._is_given_up:
            self._task = asyncio.get_running_loop().create_task(self._run(), context=self._context)
            self._task.add_done_callback(self._end)

    async def _run(self) -> T:
        return await self._function()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: an interrupted caller does not retrieve it
        self._ended.set()

    def _cancel(self) -> None:
        self._is_given_up = True
        if self._task is not None:  # call_soon, so that the task starts first and its cleanup runs
            self._task.get_loop().call_soon(self._task.cancel)

    def wait(self, thread: LoopThread, seconds: float | None = None) -> T:
        """Return the result, or raise the error with its traceback.

        On Ctrl-C, this cancels the coroutine, but does not wait for it to end.

        Raises:
            TimeoutError: there is no result after `seconds`; the coroutine continues.
        """
        try:
            has_ended = wait_for(self._ended, seconds, thread)
        except BaseException:
            thread.post(self._cancel)
            raise
        if not has_ended and thread.is_alive:
            raise TimeoutError(f"the call did not complete within {seconds:g} s")
        task, self._task = (
            self._task,
            None,
        )  # the error's traceback refers to this frame, which must not refer back to the error
        if task is None or not task.done() or task.cancelled():
            raise ProducerClosed("the producer was closed before the call completed")
        try:
            return task.result()
        finally:
            del task


def wait_for(ended: Flag, seconds: float | None = None, thread: LoopThread | None = None) -> bool:
    """Wait for the flag. Return False if `seconds` have passed or the loop thread has ended without setting it."""
    left = seconds
    while left is None or left > 0:
        if ended.wait(SLICE if left is None else min(SLICE, left)):
            return True
        if thread is not None and not thread.is_alive:
            break
        if left is not None:
            left -= SLICE
    return ended.is_set()


running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop
"""Returns the event loop that is running in this thread, or None.

Every `send` calls this function; asyncio.get_running_loop() would raise an exception each time."""


def check_may_block() -> None:
    """Raise WrongLoopError if a blocking call would stall an event loop."""
    if running_loop() is not None and not _is_notebook():
        raise WrongLoopError(
            "an event loop is running in this thread, and a blocking call would block it; use `async with "
            "aioproducer.Producer(...)` here, or make the call in asyncio.to_thread"
        )


def _is_notebook() -> bool:
    """Return True if the loop belongs to a notebook's kernel, which always waits while a cell runs."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    is_kernel = getattr(shell, "kernel", None) is not None
    return is_kernel and threading.current_thread() is threading.main_thread()
