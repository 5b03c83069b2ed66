"""How this package begins its own tasks, and calls that may block for ever."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def new_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str | None = None
) -> asyncio.Task[T]:
    """A task that begins in the next turn of the loop, whatever tasks its factory makes.

    An eager one (Python 3.12) runs, and may end, before whoever made it has noted that it is there.
    """
    return asyncio.Task(coroutine, loop=loop, name=name)


async def ended(task: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait for the end of a task, however often the caller is cancelled; returns the last cancellation.

    anyio repeats a cancellation in each turn of the loop until the caller has left the cancelled scope.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


class Threads:
    """Threads for calls that may hang: files, the user's functions, a key distribution centre.

    They are not those of the loop's default executor, which the application needs for its own calls. At most `most`
    calls are under way: a call that hangs keeps its place, also when its caller has given up, and the others wait for
    it. No thread holds up the end of the interpreter. Belongs to the loop that it is first used on.
    """

    def __init__(self, most: int = 1) -> None:
        """No thread is started yet."""
        self._places = asyncio.Semaphore(most)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """The function's result. Cancelling it leaves the function running."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()

        def work() -> T:
            try:
                return function(*arguments)
            except StopIteration as error:
                raise RuntimeError("the function raised StopIteration") from error  # no future takes that
            finally:
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    loop.call_soon_threadsafe(self._places.release)

        try:
            done = loop.run_in_executor(_DAEMONS, work)
        except RuntimeError:
            # At the interpreter's end no thread can be started, but records may still be on their way.
            return work()
        return await done


class _Daemons(Executor):
    """A daemon thread for each call. Those of concurrent.futures are waited for when the interpreter ends."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from here on it can't be cancelled any more

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
