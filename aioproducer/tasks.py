"""How this package begins its own tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str | None = None
) -> asyncio.Task[T]:
    """A task that begins in the next turn of the loop, whatever tasks its factory makes.

    An eager one (Python 3.12) runs, and may end, before whoever made it has noted that it is there.
    """
    return asyncio.Task(coroutine, loop=loop, name=name)
