"""An accumulator without a sender or a socket. Its executor runs jobs on request; its event counts
how often it is set."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from uuid import UUID

from aioproducer import Producer
from aioproducer.cluster import Cluster, PartitionInfo, TopicInfo
from aioproducer.core import Core
from aioproducer.errors import DeliveryError
from aioproducer.metrics import Metrics
from aioproducer.records._record_path import BatchState, Delivery, PartitionQueue, RecordPath
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.batch import ProducerBatch
from aioproducer.records.compressor import BatchCompressor
from aioproducer.records.pending_record import PendingRecord
from aioproducer.sending.sender import drain
from aioproducer.types import Node

NODES = {number: Node(number, f"broker-{number}", 9092) for number in range(3)}
LONG = 60_000
"""The linger, in ms, for batches that must not become due by themselves."""


def topic_info(leaders: Iterable[int], name: str = "orders", topic_id: int = 1) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(name, number, leader, 0, (leader,), (leader,), (), 0)
        for number, leader in enumerate(leaders)
    )
    return TopicInfo(name, UUID(int=topic_id), partitions, 0, False)


def cluster_of(*topics: TopicInfo) -> Cluster:
    return Cluster(NODES, 0, "cluster", {topic.name: topic for topic in topics})


class CountingEvent(asyncio.Event):
    """An event that counts how often it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.sets = 0

    def set(self) -> None:
        self.sets += 1
        super().set()

    def counted(self) -> int:
        """Return how often the event was set since the last call."""
        sets, self.sets = self.sets, 0
        return sets


class HeldExecutor(Executor):
    """An executor that runs its jobs when `work` is called."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Future, Callable[[], object]]] = []

    def submit(self, function: Callable[..., object], /, *arguments: object, **named: object) -> Future:
        done: Future = Future()
        self._jobs.append((done, partial(function, *arguments, **named)))
        return done

    def work(self) -> None:
        jobs, self._jobs = self._jobs, []
        for done, job in jobs:
            try:
                done.set_result(job())
            except Exception as error:
                done.set_exception(error)


class Path(RecordPath):
    """A record path whose `send` waits for room in the buffer as Producer's does."""

    def __init__(self, accumulator: Accumulator, max_block: float) -> None:
        self._accumulator = accumulator
        self._max_block = max_block

    async def _send_slowly(self, pending: PendingRecord, timeout: float | None) -> Delivery:
        topic, value, key, partition, *_ = pending.record
        append = partial(
            self._append,
            self._accumulator.topics[topic],
            value,
            key,
            -1 if partition is None else partition,
            None,
            None,
            True,
        )
        deadline = asyncio.get_running_loop().time() + self._max_block
        return await self._accumulator.lock.append(append, deadline)

    def _try_send_slowly(self, *arguments: object) -> None:
        return None


class Bench:
    """An accumulator with the topic "orders", and the objects that it works with."""

    def __init__(self, leaders: Iterable[int] = (0,), processors: int = 8, **settings: object) -> None:
        self.loop = asyncio.get_running_loop()
        self.config = Producer(**{"linger_ms": LONG, "acks": "all"} | settings).config
        self.wake = CountingEvent()
        self.executor = HeldExecutor()
        self.core = Core(self.config, self.loop, self.wake, Metrics(), Random(7))
        self.accumulator = Accumulator(
            self.core,
            lambda on_compressed: BatchCompressor(
                self.config, self.loop, on_compressed, processors, self.executor
            ),
        )
        self.memory = self.accumulator.memory
        self.topic = self.accumulator.open_topic(topic_info(leaders))
        self.path = Path(self.accumulator, self.config.max_block)
        self.path._bind(
            self.loop,
            self.accumulator,
            self.memory,
            self.config.batch_size,
            self.config.max_request_size,
            True,
        )

    def send(self, partition: int | None = 0, value: bytes = b"v", topic: str = "orders") -> Delivery:
        delivery = self.path.try_send(topic, value, partition=partition)
        assert delivery is not None, "no room"
        return delivery

    def fill(self, partition: int = 0, batches: int = 1) -> None:
        """Send until `batches` more batches are closed, with an open one behind them."""
        queue = self.topic.queues[partition]
        closed = sum(batch.state is BatchState.CLOSED for batch in queue.batches)
        while sum(batch.state is BatchState.CLOSED for batch in queue.batches) < closed + batches:
            self.send(partition, b"v" * (self.config.batch_size // 4))

    def ready(self, later: float = 0.0) -> list[int]:
        """The nodes for which a batch is due `later` seconds from now."""
        return self.accumulator.ready(self.loop.time() + later)[0]

    def drain(
        self,
        node: int = 0,
        later: float = 0.0,
        may_send: Callable[[PartitionQueue], bool] = lambda queue: True,
    ) -> list[ProducerBatch]:
        return self.drain_some(sys.maxsize, node, later, may_send)[0]

    def drain_some(
        self,
        most: int,
        node: int = 0,
        later: float = 0.0,
        may_send: Callable[[PartitionQueue], bool] = lambda queue: True,
    ) -> tuple[list[ProducerBatch], bool]:
        """Drain batches due for the node, at most one for each partition; also return whether more may be left."""
        return drain(
            self.accumulator,
            may_send,
            node,
            self.loop.time() + later,
            most=most,
            most_bytes=self.config.max_request_size,
        )

    def drain_all(self, node: int = 0) -> list[ProducerBatch]:
        """Drain all batches due for the node, including those that become due in the meantime."""
        found: list[ProducerBatch] = []
        while node in self.ready() and (batches := self.drain(node)):
            found += batches
        return found

    def succeed(self, *batches: ProducerBatch) -> None:
        for batch in batches:
            batch.mark_sent(0)
            batch.succeed(0, -1, -1)
            self.accumulator.release(batch)

    def give_up(self, *batches: ProducerBatch) -> None:
        for batch in batches:
            self.accumulator.forget(batch)
            batch.give_up(DeliveryError("given up"))
            self.accumulator.release(batch)

    @property
    def reserved(self) -> int:
        return sum(batch.reserved for batch in self.accumulator.incomplete)

    def check_memory(self) -> None:
        assert self.memory.available == self.memory.total - self.reserved


@asynccontextmanager
async def waiting_sends(bench: Bench, values: Iterable[bytes]) -> AsyncIterator[list[asyncio.Task[Delivery]]]:
    """Start tasks that wait for room, in order; those left at the end of the block are cancelled."""
    tasks = [asyncio.ensure_future(bench.path.send("orders", value, partition=0)) for value in values]
    await turns()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def turns(count: int = 10) -> None:
    """Yield to the event loop `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


def partitions_of(batches: Iterable[ProducerBatch]) -> list[int]:
    return [batch.queue.partition for batch in batches]


def small_bench(**settings: object) -> Bench:
    """A bench whose buffer has room for one batch of about 1000 bytes and contains one."""
    bench = Bench(**{"buffer_memory": 1100, "batch_size": 1000} | settings)
    bench.send(value=b"v" * 900)
    return bench


def note_answered(batch: ProducerBatch) -> None:
    """Remove a batch from its queue's in-flight batches, as the sender does when the response arrives."""
    queue = batch.queue
    queue.in_flight = tuple(other for other in queue.in_flight if other is not batch)
