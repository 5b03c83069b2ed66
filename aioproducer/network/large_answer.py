"""Decodes large responses in slices, so that the event loop can run other tasks in between.

RequestStream creates a LargeAnswer and continues with the next frame. The task that waits for the response decodes it
later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from aioproducer.errors import KafkaError, ProtocolError

LARGE = 256 * 1024
"""The largest frame, in bytes, that is decoded at once. This takes a few milliseconds at most, whatever the content."""


class LargeAnswer:
    """A response whose frame has not been decoded yet."""

    __slots__ = ("_close_as_malformed", "_steps")

    def __init__(
        self, steps: Generator[None, None, Any], close_as_malformed: Callable[[ProtocolError], KafkaError]
    ) -> None:
        """Store the decoder without running it.

        Args:
            steps: a generator that decodes one slice per step, and returns the message.
            close_as_malformed: closes the connection because of an error, and returns the exception to raise.
        """
        self._steps = steps
        self._close_as_malformed = close_as_malformed

    async def decoded(self) -> Any:
        """Decode and return the message. Can be called only once.

        Raises:
            ProtocolError: the frame is malformed; its connection is closed.
        """
        try:
            while True:
                next(self._steps)
                await asyncio.sleep(0)
        except StopIteration as end:
            return end.value
        except ProtocolError as error:
            raise self._close_as_malformed(error) from None
