"""Connects to one broker: a first connection, and a second one beside it while the first gets no answer.

Brokers calls it for each attempt to connect. A path through the network may accept a connection and carry nothing (a
half-open broker, a firewall that has lost its state), while a connection that is opened later works. The race ends
before authentication, so only the winner sends credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from aioproducer.concurrency.tasks import new_task
from aioproducer.concurrency.wakeup import CLOCK_SLACK
from aioproducer.network.connection import LATE_TIMER, Connection

HEAD_START = 1.0
"""Seconds that the first connection has for its answer to ApiVersions until a second one is opened beside it."""

Make: TypeAlias = Callable[[int], Connection]
"""Builds the connection of this number. The first one has number 0, second ones are counted from 1."""


class _Attempt:
    """One connection, and the task that connects it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.task = new_task(
            asyncio.get_running_loop(), connection.reach(), f"aioproducer connection to {connection.node}"
        )

    @property
    def has_answer(self) -> bool:
        """The broker has answered ApiVersions."""
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None

    async def stop(self) -> None:
        """Leave nothing open."""
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()  # counts as looked at
        await self.connection.close()


async def first_to_answer(first: Connection, make: Make, pause: float) -> Connection:
    """Return the connection whose ApiVersions answer comes first; it has to authenticate next. Others are closed.

    The first connection has its whole set-up time. If it fails, the attempt fails with its error. The second one is
    opened after HEAD_START and replaced by a fresh one every `pause` seconds, so there are never more than two.

    Cancelling it leaves nothing open.

    Raises:
        KafkaError: as `Connection.reach`.
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
        raise  # thrown away with its loop: nothing can be awaited
    except BaseException:
        await _stop(attempts)
        raise


async def _stop(attempts: list[_Attempt]) -> None:
    for attempt in attempts:
        await attempt.stop()


async def _stay_silent(attempts: list[_Attempt], seconds: float) -> bool:
    """Wait until an attempt ends, or for `seconds`; True if none has ended.

    After a timer that fires late the wait is repeated once: the event loop stood still, and the answer may be waiting
    in the socket.
    """
    loop = asyncio.get_running_loop()
    running = [attempt.task for attempt in attempts if not attempt.task.done()]
    due = loop.time() + seconds
    done, _ = await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if not done and loop.time() > due + LATE_TIMER:
        more = max(seconds, LATE_TIMER)
        done, _ = await asyncio.wait(running, timeout=more, return_when=asyncio.FIRST_COMPLETED)
    return not done
