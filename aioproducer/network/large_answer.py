"""An answer so large that it is decoded in slices, between which the loop has its turns.

Made by Connection, which goes on with the next frame meanwhile; decoded by the task that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from aioproducer.errors import KafkaError, ProtocolError

LARGE = 256 * 1024
"""Bytes; decoding fewer takes some milliseconds at most, whatever they are."""


class LargeAnswer:
    """A frame that is not decoded yet."""

    __slots__ = ("_refuse", "_steps")

    def __init__(
        self, steps: Generator[None, None, Any], refuse: Callable[[ProtocolError], KafkaError]
    ) -> None:
        """Nothing is decoded yet.

        Args:
            steps: decodes a slice at each step, and returns the message.
            refuse: closes the connection because of an error, and returns what to raise.
        """
        self._steps = steps
        self._refuse = refuse

    async def decoded(self) -> Any:
        """The message. Works once.

        Raises:
            ProtocolError: the frame makes no sense; its connection is closed.
        """
        try:
            while True:
                next(self._steps)
                await asyncio.sleep(0)
        except StopIteration as end:
            return end.value
        except ProtocolError as error:
            raise self._refuse(error) from None
