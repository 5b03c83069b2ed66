"""The thread whose event loop all blocking producers of a process share, and how a call waits for it.

It starts with the first producer, ends with the last one, does not exist in a forked child, and at the end of the
interpreter closes what nobody has closed."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import importlib
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from aioproducer.errors import IllegalStateError, ProducerClosed, WrongLoopError

logger = logging.getLogger(__name__)

T = TypeVar("T")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

SLICE = 0.1
"""Seconds of one wait. Ctrl-C interrupts a wait on POSIX at once, on Windows between two of them."""
EXIT_SECONDS = 10.0
"""How long producers that nobody closed may hold up the end of the interpreter, to deliver what is buffered."""
GRACE_SECONDS = 5.0
"""And how long what has been given up may take to end; more only if somebody's callback blocks the loop."""


class Closing(Protocol):
    """A producer, as far as the thread knows it."""

    def _close_at_exit(self, thread: LoopThread, seconds: float) -> Callable[[], None]:
        """Begin to close; returns what waits for the end of it."""


class Flag:
    """Set once, by the loop thread; others wait for it.

    threading.Event is Python code around a lock, and a Ctrl-C at the wrong place in it leaves that locked: `set` would
    then stop the loop for ever. Here the lock is held by nobody but while the flag is not set."""

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
        """Whether it is set, at the latest after so many seconds."""
        if not self._is_set and self._lock.acquire(timeout=seconds):
            self._lock.release()  # for the next one; were it not, that one would look after its seconds
        return self._is_set


class LoopThread:
    """A loop in a thread, and the producers that keep it alive."""

    def __init__(self, factory: LoopFactory | None) -> None:
        self.generation = generation()
        self.producers: dict[Closing, None] = {}
        """Those that are not closed; changed under the lock of this module."""
        self.loop: asyncio.AbstractEventLoop
        self._factory = factory
        self._began = Flag()
        self._ended = Flag()
        self._error: BaseException | None = None
        self._stop = asyncio.Event()
        # A daemon: the interpreter waits for other threads before it calls close_all(), so it would wait for ever.
        self._thread = threading.Thread(target=self._run, name="aioproducer-blocking", daemon=True)

    def start(self) -> None:
        """Returns when the loop is there; raises what the factory raises."""
        self._thread.start()
        try:
            wait_for(self._began)
        except BaseException:
            self._stop.set()  # it ends as soon as it looks
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
        """At the end of the interpreter Python 3.12 starts no thread, not even the one that asyncio's runner, just
        before it closes the loop, lets wait for those of the executor."""
        is_end = self._stop.is_set() and not threading.main_thread().is_alive()
        return is_end and isinstance(error, RuntimeError)

    async def _stopped(self) -> None:
        await self._stop.wait()

    @property
    def is_alive(self) -> bool:
        # Not Thread.is_alive: before Python 3.13 a Ctrl-C in there marks a thread as ended that runs.
        return not self._ended.is_set()

    def post(self, function: Callable[[], object]) -> bool:
        """Have the loop call it soon; False if the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False
        return True

    def stop(self) -> None:
        """End the loop and the thread."""
        self.post(self._stop.set)
        # The look-up of a host name may keep it from ending; nobody has to wait for that.
        if self._ended.wait(1):
            self._thread.join()


# Changed by enter(), leave() and in a forked child.
_lock = threading.Lock()
_current: LoopThread | None = None
_loop_factory: LoopFactory | None = None
_generation = 0


def generation() -> int:
    """Another number in a forked child, where the loop thread does not exist."""
    return _generation


def set_loop_factory(factory: LoopFactory | None) -> None:
    """Make the loop of all blocking producers by `factory`, such as `uvloop.new_event_loop`; None: asyncio's own.

    Raises:
        IllegalStateError: a blocking producer runs already, on a loop that another factory made.
    """
    global _loop_factory
    with _lock:
        if _current is not None and factory is not _loop_factory:
            raise IllegalStateError(
                "set_loop_factory(): blocking producers run already, and share a loop; call it before the first one "
                "starts, or when all are closed"
            )
        _loop_factory = factory


def enter(producer: Closing) -> LoopThread:
    """The loop thread, which lives until the producer leaves."""
    global _current
    with _lock:
        if _current is None:
            thread = LoopThread(_loop_factory)
            thread.start()
            _current = thread
            _close_all_in_multiprocessing()
        _current.producers[producer] = None
        return _current


def leave(producer: Closing, thread: LoopThread) -> None:
    """The producer is closed; the last one ends the thread."""
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
    _lock = threading.Lock()  # another thread of the parent may have held the old one


os.register_at_fork(after_in_child=_forked)


def close_all() -> None:
    """Close what nobody has closed. The interpreter calls it at its end, after all threads that are no daemons."""
    thread = _current
    if thread is None or not thread.is_alive:
        return
    closing = []
    for producer in list(thread.producers):
        logger.warning(
            "%r was not closed; use `with` or close(). It is closed now, within %g s", producer, EXIT_SECONDS
        )
        closing.append((producer, producer._close_at_exit(thread, EXIT_SECONDS)))
    for producer, closed in closing:
        closed()
        leave(producer, thread)


# atexit calls the function first that was registered last. The modules that close_all() still needs register theirs
# when they are imported, so they have to be imported before.
importlib.import_module("aioproducer.producer")
atexit.register(close_all)


def _close_all_in_multiprocessing() -> None:
    """A child of multiprocessing ends without atexit, but runs finalizers of its own."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close_all, exitpriority=0)


class Call(Generic[T]):
    """A coroutine that runs in the loop thread while its caller waits in another one."""

    __slots__ = ("_context", "_ended", "_function", "_is_given_up", "_task")

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._context = contextvars.copy_context()  # serializers and interceptors see the caller's
        self._ended = Flag()
        self._task: asyncio.Task[T] | None = None
        self._is_given_up = False

    def start(self) -> None:
        """Called in the loop."""
        if not self._is_given_up:
            self._task = asyncio.get_running_loop().create_task(self._run(), context=self._context)
            self._task.add_done_callback(self._end)

    async def _run(self) -> T:
        return await self._function()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # whose caller was interrupted is not asked for it
        self._ended.set()

    def _cancel(self) -> None:
        self._is_given_up = True
        if self._task is not None:  # it has its first step before, and so its clean-up after
            self._task.get_loop().call_soon(self._task.cancel)

    def wait(self, thread: LoopThread, seconds: float | None = None) -> T:
        """The result, or the error with its traceback. Ctrl-C cancels the coroutine, and does not wait for its end.

        Raises:
            TimeoutError: not within `seconds`; it goes on.
        """
        try:
            has_ended = wait_for(self._ended, seconds, thread)
        except BaseException:
            thread.post(self._cancel)
            raise
        if not has_ended and thread.is_alive:
            raise TimeoutError(f"not ended after {seconds:g} s")
        task, self._task = (
            self._task,
            None,
        )  # the error's traceback holds this frame, and must not so hold itself
        if task is None or not task.done() or task.cancelled():
            raise ProducerClosed("the producer was closed meanwhile")
        try:
            return task.result()
        finally:
            del task


def wait_for(ended: Flag, seconds: float | None = None, thread: LoopThread | None = None) -> bool:
    """Wait until it is set; False if it is not after `seconds`, or if the loop thread has ended without it."""
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
"""The loop that runs in this thread, or None; asyncio's documented one would raise, and each `send` asks."""


def check_may_block() -> None:
    """Raise WrongLoopError where a blocking call would stop an event loop."""
    if running_loop() is not None and not _is_notebook():
        raise WrongLoopError(
            "an event loop runs in this thread, and a blocking call would stop it; use `async with "
            "aioproducer.Producer(...)` here, or make the call by asyncio.to_thread"
        )


def _is_notebook() -> bool:
    """Whether the loop is that of a notebook's kernel: it waits while a cell runs, whatever the cell does."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    is_kernel = getattr(shell, "kernel", None) is not None
    return is_kernel and threading.current_thread() is threading.main_thread()
