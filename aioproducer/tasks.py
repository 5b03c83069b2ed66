"""How this package begins its own tasks, and what threads do for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str | None = None
) -> asyncio.Task[T]:
    """A task that begins in the next turn of the loop, whatever tasks its factory makes.

    An eager one (Python 3.12) runs, and may end, before whoever made it has noted that it is there.
    """
    return asyncio.Task(coroutine, loop=loop, name=name)


async def in_a_thread(function: Callable[..., T], *arguments: object) -> T:
    """The result of a function that takes long. At the interpreter's end no thread takes work any more, but records may
    still be on their way: it is called here then."""
    try:
        done = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    except RuntimeError:
        return function(*arguments)
    return await done
