"""Batches waiting to be sent, one deque per partition, and the memory that they may hold.

The user's task appends (by the compiled path, which asks here for each new batch), the sender drains. Nothing here
touches a socket. Between two awaits everything is atomic; who waits for memory stands in line, and nobody overtakes."""

from __future__ import annotations

import asyncio
import heapq
import logging
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from random import Random
from typing import Any, TypeVar

from aioproducer._record_path import (
    HEADER_SIZE,
    LARGE_RECORD,
    BufferMemory,
    Delivery,
    PartitionQueue,
    Topic,
)
from aioproducer.batch import BatchBuilder, BatchState, FlushWait, ProducerBatch
from aioproducer.cluster import NO_LEADER, Cluster, TopicInfo
from aioproducer.config import ProducerConfig
from aioproducer.errors import BufferTimeoutError, ProducerClosed
from aioproducer.packing import Packing
from aioproducer.partitioner import NodeAvailability, UniformSticky
from aioproducer.wakeup import WakeUp

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_NODE = NO_LEADER
SMALLEST_BATCH = 1024
"""Bytes that a partition's first batch reserves; later ones start with what their predecessor used."""
PACE = 50e-6
"""Seconds for each batch whose linger is over: some three times what it costs to open, send and end a small one."""
LONGEST_REST = 0.5
"""Seconds; how much longer than `linger_ms` a batch may linger because too many do."""

MayDrain = Callable[[PartitionQueue, ProducerBatch], bool]


class Accumulator:
    """All records between `send` and the sender."""

    def __init__(
        self,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        wake: WakeUp,
        random: Random,
        packing: Packing,
    ) -> None:
        self._config = config
        self._loop = loop
        self._wake = wake
        self._random = random
        self.packing = packing
        packing.on_packed = self._packed
        # A batch has to fit into a request; a single record that does not is refused earlier.
        self.batch_limit = max(min(config.batch_size, config.max_request_size) - HEADER_SIZE, 0)
        # looked up by the record's path
        self.topics: dict[str, Topic] = {}
        self.memory = BufferMemory(config.buffer_memory)
        self._waiting: OrderedDict[asyncio.Future[Any], Callable[[], object | None]] = OrderedDict()
        """Who waits for memory, first come first served: the accumulator's lock. Nobody overtakes them."""
        self._is_serving = False
        self._closed = False
        # every partition of every topic that was ever written to: their numbers outlive metadata
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._filed: dict[str, TopicInfo] = {}
        """What each topic's queues were filed by; it stays the same object as long as nothing changes."""
        self._orders = count()
        # what has to be sent
        self._filled: dict[PartitionQueue, None] = {}
        """Queues with batches, in the order in which they got their first one."""
        self._ready: dict[int, dict[PartitionQueue, None]] = {}
        """Of these, by leader, the queues whose first batch is due, in rotation."""
        self._lingering: deque[tuple[float, tuple[int, int], PartitionQueue]] = deque()
        """When an open batch is due, its order and queue; one linger for all makes this the order of due times."""
        self._rests_until = 0.0
        """No linger ends before: the last time so many ended together that the next batches have to be fuller."""
        self._backing_off: list[tuple[float, tuple[int, int], PartitionQueue]] = []
        self.incomplete: OrderedDict[ProducerBatch, None] = OrderedDict()
        """Every batch that has not ended, oldest first: also the order of their deadlines."""
        self._flushing = 0
        # partitions of records without a key
        self._available: dict[str, list[int]] = {}
        self._weighed: set[str] = set()
        """Topics whose load was looked at since the last pass of the sender."""
        self.availability = NodeAvailability(config.partitioner_availability_timeout)
        # failed deliveries that nobody looked at
        self.unretrieved: dict[tuple[str, str], int] = {}
        # Any thread may throw them away; a collector that runs under it may find others to be counted.
        self._counting = threading.RLock()

    # ------------------------------------------------------------------------------------------ the user's task

    def open_topic(self, info: TopicInfo) -> Topic:
        """The topic for the record's path, with a queue for each partition that metadata knows of."""
        topic = self.topics.get(info.name)
        if topic is None:
            sticky = UniformSticky(self._config.batch_size, self._random, self._config.partitioner_adaptive)
            topic = Topic(info.name)
            topic.next_partition = partial(self._next_sticky, info.name, topic.queues, sticky)
            self.topics[info.name] = topic
        if self._filed.get(info.name) is not info:
            self._file(topic, info)
        return topic

    def open_batch(self, queue: PartitionQueue, size: int) -> ProducerBatch | None:
        """A new batch at the end of the queue, with room for `size` bytes of records; None without memory for it.

        Called by the compiled path, when the last batch is full or there is none.
        """
        tail = queue.tail
        if tail is not None and tail.size - HEADER_SIZE + size > self.batch_limit:
            self._close(tail)  # full; what it had reserved in vain may be what the new one needs
            self._make_ready(queue)
            self._wake.set()
            tail = None
        capacity = max(size, min(queue.size_hint, self.batch_limit))
        if not self.memory.take(capacity):
            if not self.memory.take(size):
                return (
                    None  # an open tail stays open: it grows once there is memory, instead of many small ones
                )
            capacity = size
        if queue.tail is not None:
            self._close(queue.tail)
            self._make_ready(queue)
            self._wake.set()
        now = self._loop.time()
        try:
            batch = ProducerBatch(
                queue,
                self._loop,
                capacity,
                size if size >= LARGE_RECORD else max(size, self.batch_limit),
                order=(next(self._orders), 0),
                created=now,
                deadline=now + self._config.delivery_timeout,
                unretrieved_errors=self._note_unretrieved,
            )
        except MemoryError:
            self.memory.give(capacity)
            raise
        if queue.tail is not None:
            self._close(queue.tail)  # a collector or signal handler has appended meanwhile
        queue.tail = batch
        self._enqueue(queue, batch)
        if self._config.linger > 0 and size < min(self.batch_limit, LARGE_RECORD):
            if not self._lingering:
                self._wake.set()  # the sender's timer is not set for it yet
            self._lingering.append((now + self._config.linger, batch.order, queue))
        else:
            batch.is_due = True
            self._make_ready(queue)
            self._wake.set()
        return batch

    def hurry(self, batch: ProducerBatch) -> None:
        """Somebody waits for this batch: it is due at the next pass of the sender."""
        if batch.state is BatchState.OPEN:
            self._make_ready(batch.queue)
            self._wake.set()

    def append_built(self, queue: PartitionQueue, builder: BatchBuilder) -> Delivery | None:
        """Put a batch that the user built behind all others of its partition; None without memory for it."""
        batch = builder.take()
        if not self.memory.take(batch.reserved):
            return None
        if queue.tail is not None:
            self._close(queue.tail)
        now = self._loop.time()
        batch.enter(
            queue, (next(self._orders), 0), now, now + self._config.delivery_timeout, self._note_unretrieved
        )
        self._enqueue(queue, batch)
        self.packing.pack(batch)
        self._make_ready(queue)
        self._wake.set()
        return batch.delivery()

    async def append_when_room(self, append: Callable[[], T | None], deadline: float) -> T:
        """Call `append` until it finds memory, after all those who wait already.

        Raises:
            BufferTimeoutError: there was none before `deadline`.
            ProducerClosed: the producer was closed meanwhile.
        """
        began = self._loop.time()
        waiter: asyncio.Future[T] = self._loop.create_future()
        self._waiting[waiter] = append
        self.memory.waiters += 1
        if len(self._waiting) == 1:
            self._serve_waiting()
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter
        except TimeoutError as error:
            if waiter.done() and not waiter.cancelled():
                return waiter.result()  # its turn came just in time
            raise BufferTimeoutError(
                f"the buffer of {self.memory.total} bytes (buffer_memory) stayed full for "
                f"{self._loop.time() - began:.3f} s (max_block_ms): the cluster takes records more slowly than "
                "they come"
            ) from error
        finally:
            self._leave(waiter)

    def _serve_waiting(self) -> None:
        """Append for those who wait, in their order and all in this turn of the loop, as long as there is memory.

        Were they woken to append by themselves, each would stand in line again with its next record before the last of
        them had its turn: once full for a moment, the buffer would be passed from hand to hand, a record a turn.
        """
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._waiting:
                waiter, append = next(iter(self._waiting.items()))
                if not waiter.done() and not self._served(waiter, append):
                    self._wake.set()  # everything that is buffered is due now
                    return
                self._leave(waiter)
        finally:
            self._is_serving = False

    def _served(self, waiter: asyncio.Future[Any], append: Callable[[], object | None]) -> bool:
        try:
            if self._closed:
                raise ProducerClosed("the producer was closed while the record waited for room in the buffer")
            appended = append()
        except Exception as error:
            waiter.set_exception(error)
            waiter.exception()  # whoever waited may be gone
            return True
        if appended is None:
            return False
        waiter.set_result(appended)
        return True

    def _leave(self, waiter: asyncio.Future[Any]) -> None:
        if self._waiting.pop(waiter, None) is not None:
            self.memory.waiters -= 1

    async def flush(self) -> None:
        """Wait until every batch that there is now has ended; none of them lingers any longer."""
        waiting = FlushWait(self._loop, list(self.incomplete))
        self._flushing += 1
        self._wake.set()
        try:
            await waiting.future
        finally:
            self._flushing -= 1

    # ---------------------------------------------------------------------------------------- the sender's task

    def file_queues(self, cluster: Cluster) -> None:
        """Take over a new snapshot: which node leads which queue."""
        for name, topic in list(self.topics.items()):
            info = cluster.topic(name)
            if info is not None:
                self._file(topic, info)
                continue
            self._filed.pop(name, None)
            for queue in topic.queues:
                self._lead(queue, NO_NODE)
            if name not in cluster.topics:
                # Forgotten as idle, or never to come back: the next record asks for it again.
                del self.topics[name]
        for queue in self._filled:
            if queue.topic in self.topics:
                continue  # it was filed with its topic
            partition = cluster.partition(queue.topic, queue.partition)
            self._lead(queue, NO_NODE if partition is None else partition.leader)
        due = [queue for group in self._ready.values() for queue in group]
        self._ready = {}
        for queue in due:
            self._make_ready(queue)

    def ready(self, now: float) -> tuple[list[int], float | None]:
        """The nodes for which something is due (NO_NODE: a leader is missing), and when to look again."""
        lingering = self._end_lingers(now)
        while self._backing_off and self._backing_off[0][0] <= now:
            queue = heapq.heappop(self._backing_off)[2]
            if queue.batches:
                self._make_ready(queue)
        self._weighed.clear()
        if self._everything_is_due():
            for queue in self._filled:
                self._make_ready(queue)
        times = [] if lingering is None else [lingering]
        if self._backing_off:
            times.append(self._backing_off[0][0])
        if self.incomplete:
            times.append(next(iter(self.incomplete)).deadline)
        return [node for node, group in self._ready.items() if group], min(times, default=None)

    def _end_lingers(self, now: float) -> float | None:
        """Make due what has lingered long enough; returns when the next batch will have.

        Thousands of partitions would fill as many batches with a record or two in each linger, and to send them would
        take the time in which others could have joined. So after many comes a rest.
        """
        again_at = None
        ended = 0
        while self._lingering:
            due, order, queue = self._lingering[0]
            tail = queue.tail
            if tail is not None and tail.order == order:
                again_at = max(due, self._rests_until)
                if again_at > now:
                    break
                tail.is_due = True
                self._make_ready(queue)
                ended += 1
            again_at = None
            self._lingering.popleft()
        if ended * PACE > self._config.linger:
            # What is left of the delivery timeout behind the linger is for the request.
            self._rests_until = now + min(ended * PACE, LONGEST_REST, self._config.request_timeout / 4)
        return again_at if again_at is None else max(again_at, self._rests_until)

    def topics_without_leader(self) -> set[str]:
        """Topics with data that can't be sent because the leader of its partition is not known."""
        return {queue.topic for queue in self._ready.get(NO_NODE, ())}

    def drain(
        self, node_id: int, now: float, may_drain: MayDrain, most: int = sys.maxsize
    ) -> list[ProducerBatch]:
        """Take at most one batch of each partition that is due for this node, up to max_request_size and `most`.

        Goes on where the last call stopped: a queue that gave a batch moves behind the others.
        """
        group = self._ready.get(node_id)
        drained: list[ProducerBatch] = []
        if not group:
            return drained
        size = 0
        for queue in list(group):
            if len(drained) == most:
                break
            batch: ProducerBatch = queue.batches[0]
            if queue.retry_at > now or not may_drain(queue, batch):
                continue
            if batch.state is BatchState.OPEN:
                self._close(batch)
            if batch.is_packing:
                continue
            size += batch.wire_size
            if drained and size > self._config.max_request_size:
                break
            self._take_first(queue, group)
            if batch.withdrawn and batch.attempts == 0:
                size -= batch.wire_size
                if not self._rebuilt(batch):
                    continue
                size += batch.wire_size
            drained.append(batch)
        return drained

    def serve_last(self, node_id: int) -> None:
        """This node has had its share: the next pass begins with the others."""
        if node_id in self._ready:
            self._ready[node_id] = self._ready.pop(node_id)

    def _take_first(self, queue: PartitionQueue, group: dict[PartitionQueue, None]) -> None:
        queue.batches.popleft()
        del group[queue]
        if not queue.batches:
            del self._filled[queue]
        elif self._is_due(queue):
            group[queue] = None  # behind the others

    def _rebuilt(self, batch: ProducerBatch) -> bool:
        """Leave out the records whose own timeout has passed; False if none is left to be sent."""
        batch.rebuild()
        self.packing.pack_now(batch)
        if batch.record_count > 0:
            return True
        batch.succeed(-1, -1, -1)
        self.release(batch)
        self._wake.set()  # for what stood behind it
        return False

    def requeue(self, batch: ProducerBatch, retry_at: float) -> None:
        """Put a batch back in its place, not to be sent before `retry_at`."""
        queue = batch.queue
        place = 0
        while place < len(queue.batches) and queue.batches[place].order < batch.order:
            place += 1
        queue.batches.insert(place, batch)
        self._filled[queue] = None
        queue.retry_at = max(queue.retry_at, retry_at)
        if retry_at > self._loop.time():
            heapq.heappush(self._backing_off, (retry_at, batch.order, queue))
        else:
            self._make_ready(queue)
            self._wake.set()

    def replace(self, batch: ProducerBatch, parts: list[tuple[int, ProducerBatch]], retry_at: float) -> None:
        """Put parts of a batch, (first index, batch), into its place; its memory is theirs now."""
        reserved = batch.take_reserved()
        for _, part in parts:
            part.reserved = min(part.size - HEADER_SIZE, reserved)
            reserved -= part.reserved
        self.memory.give(reserved)
        batch.become(parts)
        # Their deadline is the batch's, so they stand where it stood.
        ended, self.incomplete = self.incomplete, OrderedDict()
        for other in ended:
            if other is batch:
                self.incomplete.update((part, None) for _, part in parts)
            else:
                self.incomplete[other] = None
        for _, part in reversed(parts):
            self.requeue(part, retry_at)
            self.packing.pack(part)

    def holds(self, topic: str, partition: int) -> bool:
        """Records of this partition are buffered or in flight."""
        queue = self._queues.get((topic, partition))
        return queue is not None and bool(queue.batches or queue.in_flight)

    def hurry_node(self, node_id: int) -> None:
        """Whatever is buffered for this node is due."""
        for queue in self._filled:
            if queue.node_id == node_id:
                first: ProducerBatch = queue.batches[0]
                first.is_due = True
                self._make_ready(queue)

    def touch(self, queue: PartitionQueue) -> None:
        """An answer came for this partition: what it held back may be sent."""
        if queue.batches and self._is_due(queue):
            self._make_ready(queue)

    def release(self, batch: ProducerBatch) -> None:
        """A batch has ended: its memory goes back to whoever waits first. The sender is not woken."""
        del self.incomplete[batch]
        self.memory.give(batch.take_reserved())
        for waiting in batch.flushes:
            waiting.one_ended()
        if self._waiting:
            self._serve_waiting()

    def forget(self, batch: ProducerBatch) -> None:
        """Take a batch that will not be sent out of its queue."""
        queue = batch.queue
        if batch is queue.tail:
            queue.tail = None
        if batch in queue.batches:
            queue.batches.remove(batch)
        if not queue.batches:
            self._filled.pop(queue, None)
            for group in self._ready.values():
                group.pop(queue, None)

    def expired(self, now: float) -> list[ProducerBatch]:
        """The batches whose delivery timeout has passed."""
        found = []
        for batch in self.incomplete:
            if batch.deadline > now:
                break
            found.append(batch)
        return found

    def close(self) -> None:
        """Refuse those who wait for memory; what is buffered is due."""
        self._closed = True
        self._serve_waiting()
        self._wake.set()

    # ------------------------------------------------------------------------------------------------- inside

    def _file(self, topic: Topic, info: TopicInfo) -> None:
        self._filed[info.name] = info
        for queue in topic.queues[len(info.partitions) :]:
            self._lead(queue, NO_NODE)  # the topic was made anew with fewer partitions
        del topic.queues[len(info.partitions) :]
        for number in range(len(topic.queues), len(info.partitions)):
            if (info.name, number) not in self._queues:
                self._queues[info.name, number] = PartitionQueue(info.name, number)
            topic.queues.append(self._queues[info.name, number])
        for queue, partition in zip(topic.queues, info.partitions, strict=True):
            self._lead(queue, partition.leader)
        available = info.available or list(range(len(info.partitions)))
        if self._available.get(info.name) != available:
            self._available[info.name] = available
            if topic.sticky_partition not in available:
                topic.sticky_partition = -1

    def _lead(self, queue: PartitionQueue, node_id: int) -> None:
        if queue.node_id != node_id:
            group = self._ready.get(queue.node_id)
            if group is not None and queue in group:
                del group[queue]
                self._ready.setdefault(node_id, {})[queue] = None
            queue.node_id = node_id

    def _enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.batches.append(batch)
        self._filled[queue] = None
        self.incomplete[batch] = None

    def _everything_is_due(self) -> bool:
        return bool(self.memory.waiters or self._flushing or self._closed)

    def _is_due(self, queue: PartitionQueue) -> bool:
        first = queue.batches[0]
        return first.state is BatchState.CLOSED or first.is_due or self._everything_is_due()

    def _make_ready(self, queue: PartitionQueue) -> None:
        group = self._ready.get(queue.node_id)
        if group is None:
            group = self._ready[queue.node_id] = {}
        if queue not in group:
            group[queue] = None

    def _close(self, batch: ProducerBatch) -> None:
        queue = batch.queue
        if batch is queue.tail:
            queue.tail = None
        surplus = batch.close()
        queue.size_hint = max(batch.size - HEADER_SIZE, SMALLEST_BATCH)
        if surplus:
            self.memory.give(surplus)
            if self._waiting:
                self._serve_waiting()
        self.packing.pack(batch)

    def _packed(self, batch: ProducerBatch) -> None:
        """A thread is done with a batch that waits to be sent."""
        self._make_ready(batch.queue)
        self._wake.set()

    def _next_sticky(self, name: str, queues: list[PartitionQueue], sticky: UniformSticky, used: int) -> int:
        available = self._available[name]
        if len(available) == 1:
            return available[0]
        if self._config.partitioner_adaptive and len(available) > 1 and name not in self._weighed:
            self._weighed.add(name)
            chosen = [
                number for number in available if self.availability.is_available(queues[number].node_id)
            ]
            sticky.update_load(
                [len(queues[number].batches) for number in chosen], chosen, total=len(available)
            )
        if used:
            sticky.used(max(used, sticky.sticky_batch_size), available)
        return sticky.current(available)

    def note_unsent(self, topic: str, errors: Iterable[BaseException]) -> None:
        """Rows of a send_many were refused, and nobody looked at its receipt."""
        for error in errors:
            self._count_unretrieved(topic, error, 1)

    def _note_unretrieved(self, batch: ProducerBatch) -> None:
        topic = batch.queue.topic
        if batch.error is not None:
            self._count_unretrieved(topic, batch.error, batch.unretrieved)
            return
        for error in batch.unseen_errors[: batch.unretrieved]:  # the others of the batch are in the log
            self._count_unretrieved(topic, error, 1)

    def _count_unretrieved(self, topic: str, error: BaseException, count: int) -> None:
        key = (topic, type(error).__name__)
        with self._counting:
            known = self.unretrieved.get(key)
            self.unretrieved[key] = (known or 0) + count
        if known is None:
            logger.error(
                "%d records for topic %s were not delivered and nobody looked at their result: %s",
                count,
                topic,
                error,
            )
