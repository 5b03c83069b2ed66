"""Connects to one broker, and opens a second connection in parallel if the first one gets no response.

Brokers runs this race for each attempt to connect. A connection may be accepted and yet carry no data (because it is
half-open, or because a firewall has lost its state), while a connection that is opened later works. The race ends
before authentication, so only the winner sends credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from aioproducer.concurrency.tasks import all_ended, new_task
from aioproducer.concurrency.wakeup import CLOCK_SLACK
from aioproducer.network.connection import Connection
from aioproducer.network.request_stream import LATE_TIMER

HEAD_START = 1.0
"""How many seconds to wait for a response to ApiVersions before opening a second connection in parallel."""

Make: TypeAlias = Callable[[int], Connection]
"""A function that creates a connection, given its number: 0 for the first one, and 1, 2, ... for the parallel ones."""


class _Attempt:
    """One connection, and the task that connects it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.task = new_task(
            asyncio.get_running_loop(), connection.reach(), f"aioproducer connection to {connection.node}"
        )

    @property
    def has_answer(self) -> bool:
        """True if the broker has answered ApiVersions."""
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None

    async def stop(self) -> None:
        """Cancel the attempt and close its connection."""
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()  # marks the exception as retrieved, so that asyncio does not log it
        await self.connection.close()


async def first_to_answer(first: Connection, make: Make, pause: float) -> Connection:
    """Return the first connection to receive an ApiVersions response, for the caller to authenticate. Close the others.

    The first connection gets its full set-up time. If it fails, the race ends with its error. The second one is
    opened after HEAD_START and replaced by a new one every `pause` seconds, so there are never more than two.

    If the call is cancelled, nothing is left open.

    Raises:
        KafkaError: the same errors as `Connection.reach`.
    """
    begun = _Attempt(first)
    attempts = [begun]
    number = 0
    try:
        while True:
            is_silent = await _stay_silent(attempts, pause if number else HEAD_START - first.unanswered_for)
            winner = next((attempt for attempt in attempts if attempt.has_answer), None)
            if winner is not None:
                await _stop([attempt for attempt in attempts if attempt is not winner])
                return winner.connection
            if begun.task.done():
                begun.task.result()  # raises
            if is_silent and first.unanswered_for >= HEAD_START - CLOCK_SLACK:
                await _stop(attempts[1:])
                number += 1
                attempts[1:] = [_Attempt(make(number))]
    except GeneratorExit:
        raise  # the coroutine is discarded with its loop: nothing can be awaited
    except BaseException:
        await _stop(attempts)
        raise


async def _stop(attempts: list[_Attempt]) -> None:
    """Stop these attempts, even if the caller is cancelled one or more times in the meantime."""

    async def stop_all() -> None:
        for attempt in attempts:
            await attempt.stop()

    if not attempts:
        return
    stopping = new_task(
        asyncio.get_running_loop(), stop_all(), f"aioproducer stop of {attempts[0].task.get_name()}"
    )
    await all_ended([stopping])
    stopping.result()


async def _stay_silent(attempts: list[_Attempt], seconds: float) -> bool:
    """Wait until an attempt ends, for at most `seconds`. Return True if no attempt has ended.

    If the timer fires late, the event loop was blocked and a response may be waiting in the socket; the wait is then
    repeated once.
    """
    loop = asyncio.get_running_loop()
    running = [attempt.task for attempt in attempts if not attempt.task.done()]
    due = loop.time() + seconds
    done, _ = await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if not done and loop.time() > due + LATE_TIMER:
        more = max(seconds, LATE_TIMER)
        done, _ = await asyncio.wait(running, timeout=more, return_when=asyncio.FIRST_COMPLETED)
    return not done
