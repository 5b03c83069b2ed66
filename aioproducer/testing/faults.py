"""Faults by script: which request is met by which mishap, and how often.

Tests add faults, each broker takes those that fit the request it has just read. Nothing here knows how a
fault is carried out; that is the business of Broker (the connection) and of the handlers (the answer).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode

Target: TypeAlias = tuple[str, int | None]
"""A topic and a partition that a request speaks of; None: of the topic as a whole."""


@dataclass(slots=True, eq=False)
class Fault:
    """A mishap for the next `count` requests that fit. `FaultScript.add` says what each field does."""

    api_key: ApiKey
    node: int | None
    topic: str | None
    partition: int | None
    count: int
    error: ErrorCode | None
    after_append: bool
    drop_before: bool
    drop_after_append: bool
    delay: float
    hold: asyncio.Event | None
    truncate: int | None
    wrong_correlation_id: bool
    omit_partitions: bool
    throttle_ms: int
    hits: int = 0
    """How many requests have met this fault so far."""
    _hit: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_used_up(self) -> bool:
        """No further request will meet it."""
        return self.hits >= self.count

    async def reached(self, hits: int = 1) -> None:
        """Wait until so many requests have met this fault. Put a time-out around it."""
        while self.hits < hits:
            await self._hit.wait()
            self._hit.clear()

    def concerns(self, topic: str | None, partition: int | None = None) -> bool:
        """The fault covers this partition; None asks for any."""
        return (self.topic is None or topic is None or self.topic == topic) and (
            self.partition is None or partition is None or self.partition == partition
        )

    def fits(self, api_key: ApiKey, node: int, targets: Sequence[Target]) -> bool:
        """The fault covers a request to `node`, or a part of it."""
        if self.api_key != api_key or (self.node is not None and self.node != node):
            return False
        if self.topic is None and self.partition is None:
            return True
        return any(self.concerns(topic, partition) for topic, partition in targets)

    def take(self) -> None:
        """Count one request that met this fault."""
        self.hits += 1
        self._hit.set()


class FaultScript:
    """The faults of a cluster, in the order in which they were added."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def __iter__(self) -> Iterator[Fault]:
        """The faults that are not used up."""
        return iter([fault for fault in self._faults if not fault.is_used_up])

    def add(
        self,
        api_key: ApiKey,
        *,
        error: int | None = None,
        after_append: bool = False,
        drop_before: bool = False,
        drop_after_append: bool = False,
        delay: float = 0.0,
        hold: asyncio.Event | None = None,
        truncate: int | None = None,
        wrong_correlation_id: bool = False,
        omit_partitions: bool = False,
        throttle_ms: int = 0,
        node: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        count: int = 1,
    ) -> Fault:
        """Let the next `count` fitting requests fail.

        Faults with the same target make a script: the second begins when the first is used up. Faults for
        different partitions meet the same request.

        Args:
            api_key: The requests that are meant.
            error: Answered for the partitions, topics or request meant, instead of doing what was asked.
            after_append: With `error`: do what was asked first.
            drop_before: Close the connection instead of serving the request.
            drop_after_append: Serve the request, then close the connection without an answer.
            delay: Seconds between serving the request and answering it. Nothing else is read meanwhile.
            hold: As `delay`, until this event is set.
            truncate: Send only so many bytes of the answer, then close the connection.
            wrong_correlation_id: Answer with the id of another request.
            omit_partitions: Leave the partitions or topics meant out of the answer.
            throttle_ms: Answer with this throttle time, then read nothing from the connection for that long.
            node: Only requests to this broker.
            topic: Only requests for this topic; other topics of the same request are served.
            partition: Only this partition; others of the same request are served.
            count: How many requests.

        Returns:
            The fault; its `hits` and `reached()` tell how far it is.

        Raises:
            ValueError: the fault does nothing, or `after_append` stands without `error`.
        """
        fault = Fault(
            api_key=ApiKey(api_key),
            node=node,
            topic=topic,
            partition=partition,
            count=count,
            error=None if error is None else ErrorCode(error),
            after_append=after_append,
            drop_before=drop_before,
            drop_after_append=drop_after_append,
            delay=delay,
            hold=hold,
            truncate=truncate,
            wrong_correlation_id=wrong_correlation_id,
            omit_partitions=omit_partitions,
            throttle_ms=throttle_ms,
        )
        flags = (drop_before, drop_after_append, delay, wrong_correlation_id, omit_partitions, throttle_ms)
        if not any(flags) and (error, hold, truncate) == (None, None, None):
            raise ValueError("this fault does nothing")
        if after_append and error is None:
            raise ValueError("after_append says when an error is answered; say which error")
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Forget all faults. Requests that have met one already still suffer it."""
        self._faults.clear()

    def take(self, api_key: ApiKey, node: int, targets: Sequence[Target]) -> list[Fault]:
        """The faults that a request meets: of several with an overlapping target only the first."""
        taken: list[Fault] = []
        for fault in self:
            if fault.fits(api_key, node, targets) and not any(
                fault.concerns(other.topic, other.partition) for other in taken
            ):
                fault.take()
                taken.append(fault)
        return taken
