"""Sends the same request to one broker after another until a broker responds, and uses the first response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

HEDGE_AFTER = 1.0
"""How many seconds to wait for a response before also asking another broker. A healthy one responds in milliseconds."""

LOOK_AGAIN = 0.1
"""Seconds between attempts to ask another broker while no other broker is connected."""

T = TypeVar("T")


async def first_answer(ask_another: Callable[[], asyncio.Future[T] | None]) -> asyncio.Future[T]:
    """Return the first future that has a result, or the first one created if all of them failed.

    Cancelling `first_answer` cancels all of the futures.

    Args:
        ask_another: sends the request to a broker that has not been asked yet and returns the future, or None if no
            such broker is available. The first call must return a future.
    """
    asked: list[asyncio.Future[T]] = []
    pause = 0.0
    try:
        while True:
            for future in asked:
                if future.done() and not future.cancelled() and future.exception() is None:
                    return future
            waiting = {future for future in asked if not future.done()}
            if asked and not waiting:
                return asked[0]
            done = (
                (await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED))[0]
                if waiting
                else ()
            )
            if not done:
                another = ask_another()
                if another is not None:
                    asked.append(another)
                pause = LOOK_AGAIN if another is None else HEDGE_AFTER
    finally:
        for future in asked:
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()  # marks the exception as retrieved, so that asyncio does not log it
