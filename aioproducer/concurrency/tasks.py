"""Starts this package's own tasks, and uses threads for calls that may hang."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def new_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str | None = None
) -> asyncio.Task[T]:
    """Create a task that begins in the next iteration of the loop, regardless of the loop's task factory.

    A factory for eager tasks (Python 3.12) would run the task, perhaps to completion, before its creator has stored a
    reference to it.
    """
    return asyncio.Task(coroutine, loop=loop, name=name)


async def ended(task: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait for a task to end, no matter how often the caller is cancelled; return the last cancellation.

    anyio repeats a cancellation in each iteration of the loop until the caller has left the cancelled scope.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def all_ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Wait for these tasks to end, no matter how often the caller is cancelled; then raise the last cancellation."""
    cancelled: asyncio.CancelledError | None = None
    for task in tasks:
        cancelled = await ended(task) or cancelled
    if cancelled is not None:
        raise cancelled


class Threads:
    """Threads for calls that may hang: file access, the user's functions, Kerberos.

    The loop's default executor is not used, because the application needs it for its own calls. At most `most` calls
    run at the same time. A call that hangs still counts towards this limit after its caller has been cancelled, so
    further calls may have to wait for it. No thread delays interpreter exit. An instance belongs to the loop on which
    it is first used.
    """

    def __init__(self, most: int = 1) -> None:
        """Initialize without starting a thread."""
        self._places = asyncio.Semaphore(most)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call the function in a thread and return its result. Cancelling the call leaves the function running.

        The result may be a password, so the future contains a function that returns the result. A task's repr, which
        asyncio's debug mode logs, shows the result of the future that the task awaits.
        """
        await self._places.acquire()
        loop = asyncio.get_running_loop()

        def work() -> Callable[[], T]:
            try:
                result = function(*arguments)
            except StopIteration as error:
                # A future does not accept a StopIteration.
                raise RuntimeError("the function raised StopIteration") from error
            finally:
                with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
                    loop.call_soon_threadsafe(self._places.release)
            return lambda: result

        try:
            done = loop.run_in_executor(_DAEMONS, work)
        except RuntimeError:
            # No thread can be started while the interpreter is exiting, but a record in flight may still need the call.
            return work()()
        return (await done)()


class _Daemons(Executor):
    """Starts a daemon thread for each call, because the interpreter waits for concurrent.futures' threads at exit."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from now on, cancel() has no effect

        def run() -> None:
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="aioproducer call", daemon=True).start()
        return future


_DAEMONS = _Daemons()
