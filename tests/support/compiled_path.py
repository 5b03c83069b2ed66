"""The compiled record path without a producer: a few lines of Python open the batches."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import SimpleNamespace

from aioproducer.records._record_path import Batch, BufferMemory, Delivery, PartitionQueue, RecordPath, Topic
from aioproducer.records.batch import ProducerBatch


class TrackedBatch(ProducerBatch):
    """A batch that can be referenced weakly."""


class Failures:
    """Replaces unretrieved.Unretrieved: collects the counts."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def add(self, topic: str, error: BaseException, count: int) -> None:
        self.counts.append(count)


def new_batch(
    loop: asyncio.AbstractEventLoop | None = None,
    *,
    queue: PartitionQueue | None = None,
    capacity: int = 64,
    limit: int = 1 << 24,
    noted: list[int] | None = None,
) -> TrackedBatch:
    """Return an open batch. The counts of failed deliveries that were not retrieved are appended to `noted`."""
    failures = None if noted is None else Failures(noted)
    return TrackedBatch(
        queue or PartitionQueue("orders", 0, failures),
        loop,
        capacity,
        limit,
        order=(0, 0),
        created=0,
        deadline=0,
    )


def sealed(batch: ProducerBatch) -> bytes:
    """Close the batch and return its bytes as they are sent."""
    batch.close()
    return b"".join(batch.seal())


class NoLoop:
    """A loop for tests that only encode."""

    def is_running(self) -> bool:
        return False


class OpensBatches:
    """The part of an accumulator that the compiled path needs, for one topic "orders".

    `when_opening` is called after a record is checked and before it is written.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop | NoLoop, *, limit: int = 1 << 24, partitions: int = 1
    ) -> None:
        self.loop = loop
        self.limit = limit
        self.memory = BufferMemory(1 << 26)
        topic = Topic("orders", self.next_partition)
        topic.queues.extend(PartitionQueue("orders", number) for number in range(partitions))
        self.topics = {"orders": topic}
        self.hurried: list[Batch] = []
        self.switches: list[int] = []
        self.when_opening = lambda: None
        self.is_full = False
        self.compressor = SimpleNamespace(turn_is_full=False)

    def open_batch(self, queue: PartitionQueue, size: int) -> ProducerBatch | None:
        self.when_opening()
        if self.is_full:
            return None
        batch = new_batch(self.loop, queue=queue, capacity=size, limit=max(size, self.limit))
        queue.tail = batch
        queue.batches = deque([*queue.batches, batch])
        return batch

    def next_partition(self, topic: Topic) -> int:
        self.switches.append(topic.sticky_bytes)
        return len(self.switches) % len(self.topics["orders"].queues)

    def hurry(self, batch: Batch) -> None:
        self.hurried.append(batch)

    @property
    def tail(self) -> ProducerBatch:
        return self.topics["orders"].queues[0].tail


class Path(RecordPath):
    """A record path without the slow paths: a call that would have to wait raises NotImplementedError."""

    async def _send_slowly(self, *arguments: object) -> Delivery:
        self._check_usable()
        raise NotImplementedError

    def _try_send_slowly(self, *arguments: object) -> Delivery:
        self._check_usable()
        raise NotImplementedError


def now_ms() -> int:
    """The wall clock as the record path reads it, in ms."""
    return time.time_ns() // 1_000_000


def bound(
    accumulator: OpensBatches,
    *,
    max_request_size: int = 1 << 20,
    batch_size: int = 1 << 16,
) -> Path:
    """A path that appends to `accumulator`."""
    path = Path()
    path._bind(accumulator.loop, accumulator, accumulator.memory, batch_size, max_request_size, True)
    return path
