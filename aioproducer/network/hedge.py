"""One question for whichever broker answers first: the next broker is asked beside one that stays silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

HEDGE_AFTER = 1.0
"""Seconds without an answer until another broker is asked as well. A healthy broker answers in milliseconds."""

LOOK_AGAIN = 0.1
"""Seconds until the next attempt to ask another broker while none is connected."""

T = TypeVar("T")


async def first_answer(ask_another: Callable[[], asyncio.Future[T] | None]) -> asyncio.Future[T]:
    """Return the first future that has a result; if all of them failed, the first one.

    Cancelling it cancels all of them.

    Args:
        ask_another: asks one more broker, each time another one; None while there is no other. The first call
            gives a future.
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
                future.exception()  # is seen, so that asyncio does not log it
