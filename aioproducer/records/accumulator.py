"""Keeps the batches that are waiting to be sent, in one queue per partition, and accounts for the memory that they
occupy.

The user's task appends records through the compiled path, which calls open_batch() for each new batch; the sender
drains the batches. This module does not touch sockets. No other task runs between two awaits. Callers waiting for
memory are served in order of arrival."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import TypeVar

from aioproducer.cluster import NO_LEADER, Cluster, TopicInfo
from aioproducer.core import Core
from aioproducer.observe.leader_changes import LeaderChanges
from aioproducer.partitioner import NodeAvailability, UniformSticky
from aioproducer.records._record_path import (
    HEADER_SIZE,
    LARGE_RECORD,
    BatchState,
    BufferMemory,
    Delivery,
    PartitionQueue,
    Topic,
)
from aioproducer.records.append_lock import AppendLock
from aioproducer.records.batch import BatchBuilder, FlushWait, ProducerBatch
from aioproducer.records.compressor import BatchCompressor
from aioproducer.records.linger import Lingers
from aioproducer.records.unretrieved import Unretrieved

T = TypeVar("T")

NO_NODE = NO_LEADER
SMALLEST_BATCH = 1024
"""The number of bytes that a batch initially reserves, unless its predecessor in the partition used more."""
PAUSE_OF_WEIGHING = 20e-6
"""The pause between two measurements of a topic's load, in seconds per partition; one measurement takes a twentieth
of that."""
MOST_ASSIGNED = 2000
"""The number of partitions that are assigned to leaders before other tasks can run; that takes about a millisecond."""
MOST_REBUILDS = 3
"""The maximum number of times that a batch is compressed again in a thread because some of its records timed out."""


class Accumulator:
    """All records between `send` and the sender."""

    def __init__(
        self, core: Core, make_compressor: Callable[[Callable[[ProducerBatch], None]], BatchCompressor]
    ) -> None:
        self._config = config = core.config
        self._loop = loop = core.loop
        self._wake = core.wake
        self._random = core.random
        self.compressor = make_compressor(self._compression_ended)
        # A batch must fit into a request; a single record that does not fit is rejected earlier.
        self.batch_limit = max(min(config.batch_size, config.max_request_size) - HEADER_SIZE, 0)
        # the compiled record path uses `topics` and `memory`
        self.topics: dict[str, Topic] = {}
        self.memory = BufferMemory(config.buffer_memory)
        self.lock = AppendLock(
            loop,
            self.memory,
            core.wake,
            config.log("aioproducer.records.append_lock"),
            core.metrics.buffer_wait,
        )
        self._closed = False
        self._queues: dict[str, list[PartitionQueue]] = {}
        """The queue of each partition of every topic ever written to, kept because sequence numbers must outlive the
        metadata."""
        self._applied_info: dict[str, TopicInfo] = {}
        """The metadata with which each topic's queues were last assigned to leaders; the same object until the topic
        changes."""
        self.outdated: dict[str, TopicInfo] = {}
        """The topics whose queues have yet to be assigned to leaders, with their new metadata."""
        self._dropped: set[str] = set()
        """Topics that left the metadata while there were batches for them."""
        self._orders = count()
        # batches to be sent
        self._filled: dict[PartitionQueue, None] = {}
        """Queues that have batches, in the order of their first batch."""
        self._waiting: dict[PartitionQueue, None] = {}
        """The queues in `_filled` that are not in `_ready`."""
        self._ready: dict[int, dict[PartitionQueue, None]] = {}
        """The queues whose first batch is due, or in back-off, by leader. Leaders, and the queues of each leader, are
        served in rotation."""
        self._lingers = Lingers(config)
        self._backing_off: list[tuple[float, tuple[int, int], PartitionQueue]] = []
        self.incomplete: OrderedDict[ProducerBatch, None] = OrderedDict()
        """All batches that have not ended, in order of their deadlines."""
        self._abandoned: set[ProducerBatch] = set()
        """Batches that have no live records but must stay complete: they were sent, or `keeps_records` is set."""
        self._flushing = 0
        # for choosing the partitions of records without a key
        self._available: dict[str, list[int]] = {}
        self._weighed: dict[str, float] = {}
        """The loop time until which the measured load of a topic is used."""
        self.availability = NodeAvailability(config.partitioner_availability_timeout)
        self._leaders = LeaderChanges(config.log(__name__))
        self.unretrieved = Unretrieved(loop, config.log("aioproducer.records.unretrieved"))

    # ------------------------------------------------------------------------------------------ the user's task

    def open_topic(self, info: TopicInfo) -> Topic:
        """Return the topic in the form that the record path needs, with a queue for each partition in the metadata."""
        topic = self.topics.get(info.name)
        if topic is None:
            sticky = UniformSticky(self._random, self._config.partitioner_adaptive)
            topic = Topic(info.name, partial(self._next_sticky, sticky))
            self.topics[info.name] = topic
        if self._applied_info.get(info.name) is not info:
            self._set_leaders(topic, info)
        return topic

    def open_batch(self, queue: PartitionQueue, size: int) -> ProducerBatch | None:
        """Open a batch with room for `size` bytes at the end of the queue. Return None if there is no memory.

        The compiled path calls this when the queue has no open batch, or its open batch is full.
        """
        tail = queue.tail
        if tail is not None and tail.size - HEADER_SIZE + size > self.batch_limit:
            self._close(tail)  # full; the unused part of its memory may be enough for the new batch
            queue.size_hint = self.batch_limit
            self._make_ready(queue)
            self._wake.set()
            tail = None
        capacity = queue.size_hint if queue.size_hint < self.batch_limit else self.batch_limit
        if capacity < size:
            capacity = size
        if not self.memory.take(capacity):
            if not self.memory.take(size):
                return None  # an open tail stays open and grows once there is memory, which avoids many small batches
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
                size if size >= LARGE_RECORD or size > self.batch_limit else self.batch_limit,
                (next(self._orders), 0),
                now,
                now + self._config.delivery_timeout,
            )
        except MemoryError:
            self.memory.give(capacity)
            raise
        batch.keeps_records = self._config.enable_gapless_order
        if queue.tail is not None:
            self._close(queue.tail)  # the garbage collector or a signal handler appended in the meantime
        queue.tail = batch
        self._enqueue(queue, batch)
        if self._config.linger > 0 and size < self.batch_limit and size < LARGE_RECORD:
            if self._lingers.add(queue, batch.order, now):
                self._wake.set()  # the sender's timer is not set for this batch yet
        else:
            batch.is_due = True
            self._make_ready(queue)
            self._wake.set()
        return batch

    def hurry(self, batch: ProducerBatch) -> None:
        """Make the sender's next pass send an open batch whose delivery is awaited. The caller has already set
        `is_due`."""
        if batch.state is BatchState.OPEN:
            self._make_ready(batch.queue)
            self._wake.set()

    def append_built(self, queue: PartitionQueue, builder: BatchBuilder) -> Delivery | None:
        """Append a user-built batch to the queue of its partition. Return None if there is no memory for it."""
        batch = builder.take()
        if not self.memory.take(batch.reserved):
            return None
        if queue.tail is not None:
            self._close(queue.tail)
        now = self._loop.time()
        batch.enter(queue, (next(self._orders), 0), now, now + self._config.delivery_timeout)
        batch.keeps_records = self._config.enable_gapless_order
        self._enqueue(queue, batch)
        self.compressor.compress(batch)
        self._make_ready(queue)
        self._wake.set()
        return batch.delivery()

    async def flush(self) -> None:
        """Wait until every current batch has ended. No batch lingers in the meantime."""
        waiting = FlushWait(self._loop, list(self.incomplete))
        self._flushing += 1
        self._wake.set()
        try:
            await waiting.future
        finally:
            self._flushing -= 1

    # ---------------------------------------------------------------------------------------- the sender's task

    def update_leaders(self, cluster: Cluster) -> None:
        """Apply a new metadata snapshot: assign the queues of changed topics to their leaders.

        If many topics have changed, some are left for assign_leaders()."""
        topics, applied = cluster.topics, self._applied_info
        self.outdated = {}
        changed = [
            name for name in self.topics if name not in topics or topics[name] is not applied.get(name)
        ]
        for name in changed:
            if (info := cluster.topic(name)) is None:
                self._lose_leaders(name, is_dropped=name not in topics)
            else:
                self.outdated[name] = info
        for name in list(self._dropped):
            queues = [queue for queue in self._queues[name] if queue.batches or queue.in_flight]
            if name in self.topics or not queues:
                self._dropped.discard(name)
                continue
            for queue in queues:
                partition = cluster.partition(name, queue.partition)
                self._set_leader(queue, NO_NODE if partition is None else partition.leader)
        self._ready = {node_id: group for node_id, group in self._ready.items() if group}
        self.assign_leaders()

    def assign_leaders(self) -> bool:
        """Assign queues that update_leaders() left over, about MOST_ASSIGNED at a time. Return True if none remain."""
        left = MOST_ASSIGNED
        for name, info in list(self.outdated.items()):
            if left <= 0:
                return False
            del self.outdated[name]
            if (topic := self.topics.get(name)) is not None:
                self._set_leaders(topic, info)
                left -= len(info.partitions)
        self._leaders.log_changes()
        return True

    def _lose_leaders(self, name: str, *, is_dropped: bool) -> None:
        """Leave the queues of a topic without a leader, because the topic has an error or left the metadata."""
        self._applied_info.pop(name, None)
        for queue in self.topics[name].queues:
            self._set_leader(queue, NO_NODE)
        if is_dropped:
            # The topic was dropped as idle, or deleted: its next record requests the metadata again.
            del self.topics[name]
            self._leaders.forget(name)
            self._dropped.add(name)

    def ready(self, now: float) -> tuple[list[int], float | None]:
        """Return the nodes that have a due batch (NO_NODE if its leader is unknown), and the loop time of the next
        check."""
        times = []
        if self._config.linger > 0:
            for queue in self._lingers.end(now):
                assert queue.tail is not None
                queue.tail.is_due = True
                self._make_ready(queue)
            if (next_due := self._lingers.next_due()) is not None:
                times.append(next_due)
        while self._backing_off and self._backing_off[0][0] <= now:
            queue = heapq.heappop(self._backing_off)[2]
            if queue.batches:
                self._make_ready(queue)
        if self._weighed:
            self._weighed = {name: until for name, until in self._weighed.items() if until > now}
        if self._everything_is_due():
            for queue in list(self._waiting):
                self._make_ready(queue)
        if self._backing_off:
            times.append(self._backing_off[0][0])
        if self.incomplete:
            times.append(next(iter(self.incomplete)).deadline)
        nodes = [node for node, group in self._ready.items() if group]
        if self.availability.is_watched:
            self.availability.only_for(nodes)
        return nodes, min(times, default=None)

    def topics_without_leader(self) -> set[str]:
        """Return the topics that have data for partitions without a known leader."""
        return {queue.topic for queue in self._ready.get(NO_NODE, ())} - self.outdated.keys()

    def log_missing_leaders(self, now: float) -> None:
        """Log the partitions that have data but no leader: once immediately, and then every 10 s."""
        waiting = [queue for queue in self._ready.get(NO_NODE, ()) if queue.topic not in self.outdated]
        self._leaders.note_waiting([(queue.topic, queue.partition) for queue in waiting], now)

    def due(self, node_id: int, now: float) -> Iterator[PartitionQueue]:
        """Yield the partitions whose first batch is due for this node, starting with the one that has waited longest.

        Partitions that assign_leaders() has yet to assign are left out: they may have another leader by now."""
        for queue in list(self._ready.get(node_id, ())):
            if queue.retry_at <= now and queue.topic not in self.outdated:
                yield queue

    def close_first(self, queue: PartitionQueue) -> ProducerBatch | None:
        """Return a partition's first batch, closed and ready to be sent; None while a thread is compressing it."""
        batch: ProducerBatch = queue.batches[0]
        if batch.state is BatchState.OPEN:
            self._close(batch)
        if batch.withdrawn and len(batch.withdrawn) != len(batch.left_out) and not batch.is_being_compressed:
            self._drop_withdrawn(batch)  # this may pass the batch to a thread
        return None if batch.is_being_compressed else batch

    def take(self, queue: PartitionQueue) -> bool:
        """Remove the first batch for a partition, to be sent now. Return whether the batch behind it is also due.

        If so, move the partition behind the node's other partitions.
        """
        group = self._ready[queue.node_id]
        _remove(queue, queue.batches[0])
        del group[queue]
        if not queue.batches:
            del self._filled[queue]
        elif self._is_due(queue):
            group[queue] = None
            return True
        else:
            self._waiting[queue] = None
        return False

    def serve_last(self, nodes: Iterable[int]) -> None:
        """Move these nodes to the end, so that the next pass begins with the others."""
        for node_id in nodes:
            if node_id in self._ready:
                self._ready[node_id] = self._ready.pop(node_id)

    def _drop_withdrawn(self, batch: ProducerBatch) -> None:
        """Leave out the records whose own timeouts have passed, and compress the remaining ones again.

        More records may time out while a thread is compressing the batch. Therefore, after MOST_REBUILDS attempts, a
        large batch is sent uncompressed.
        """
        batch.drop_withdrawn()
        if batch.rebuilds <= MOST_REBUILDS:
            self.compressor.compress(batch)
        else:
            self.compressor.compress_if_quick(batch)

    def end_record(self, delivery: Delivery, error: BaseException) -> None:
        """End one record in a batch that was sent. If it was the last live record, the batch is not sent again."""
        batch: ProducerBatch = delivery.batch
        batch.end_record(delivery, error, False)
        self._abandon_if_empty(batch)

    def withdraw(self, delivery: Delivery, error: BaseException) -> None:
        """End a record that was never sent. If it was the last live record in its batch, the batch ends as well.

        If an empty batch did not end, it would occupy memory until a broker could be reached, and flush() and close()
        would wait for it.
        """
        batch: ProducerBatch = delivery.batch
        batch.end_record(delivery, error, True)
        self._drop_if_empty(batch)

    def end_records(self, batch: ProducerBatch, first: int, end: int, error: BaseException) -> int:
        """End a batch's records from index `first` up to, but not including, `end`, except those that have ended.

        The records are withdrawn if the batch was never sent. Returns the number of records that this call ended.
        """
        withdraw = batch.may_withdraw
        count = batch.end_records(first, end, error, withdraw)
        if withdraw:
            self._drop_if_empty(batch)
        else:
            self._abandon_if_empty(batch)
        return count

    def _abandon_if_empty(self, batch: ProducerBatch) -> None:
        if not batch.has_live_records:
            self._abandoned.add(batch)
            self._wake.set()

    def _drop_if_empty(self, batch: ProducerBatch) -> None:
        if batch.live_count == 0:
            self.forget(batch)
            batch.succeed(-1, -1, -1)  # each record has its own error
            self.release(batch)
            self._wake.set()  # the batches behind it may be due now

    def requeue(self, batch: ProducerBatch, retry_at: float) -> None:
        """Put a batch back in its place in the queue. The batch is not sent again before `retry_at`."""
        queue = batch.queue
        place = 0
        while place < len(queue.batches) and queue.batches[place].order < batch.order:
            place += 1
        self._put(queue, place, batch)
        queue.retry_at = max(queue.retry_at, retry_at)
        if retry_at > self._loop.time():
            heapq.heappush(self._backing_off, (retry_at, batch.order, queue))
        else:
            self._make_ready(queue)
            self._wake.set()

    def replace(self, batch: ProducerBatch, parts: list[tuple[int, ProducerBatch]], retry_at: float) -> None:
        """Replace a batch with its parts, each given as (first index, batch). The parts take over its memory."""
        reserved = batch.take_reserved()
        for _, part in parts:
            part.reserved = min(part.size - HEADER_SIZE, reserved)
            reserved -= part.reserved
        self.memory.give(reserved)
        batch.replace_with(parts)
        # The parts have the batch's deadline, so they take its place in the order.
        ended, self.incomplete = self.incomplete, OrderedDict()
        for other in ended:
            if other is batch:
                self.incomplete.update((part, None) for _, part in parts)
            else:
                self.incomplete[other] = None
        self._abandoned.discard(batch)
        for _, part in reversed(parts):
            self.requeue(part, retry_at)
            self.compressor.compress(part)
            self._abandon_if_empty(part)

    def holds(self, topic: str, partition: int) -> bool:
        """Return whether records for this partition are buffered or in flight."""
        queues = self._queues.get(topic, ())
        return partition < len(queues) and bool(queues[partition].batches or queues[partition].in_flight)

    def hurry_node(self, node_id: int) -> None:
        """For each partition of this node, make the first buffered batch due."""
        for queue in self._filled:
            if queue.node_id == node_id:
                queue.batches[0].is_due = True
                self._make_ready(queue)

    def touch(self, queue: PartitionQueue) -> None:
        """Mark a partition as ready if its next batch is due. Call this after a response."""
        if queue.batches and self._is_due(queue):
            self._make_ready(queue)

    def release(self, batch: ProducerBatch) -> None:
        """Return an ended batch's memory, and serve waiting callers. If none are waiting, the sender is not woken."""
        del self.incomplete[batch]
        self._abandoned.discard(batch)
        self.memory.give(batch.take_reserved())
        for waiting in batch.flushes:
            waiting.one_ended()
        if self.memory.waiters:
            self.lock.release()

    def behind(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Return the batches behind this one in its partition, in order, including those in flight."""
        queue = batch.queue
        others: list[ProducerBatch] = [*queue.in_flight, *queue.batches]
        return [other for other in others if other.order > batch.order]

    def postpone(self, batch: ProducerBatch, deadline: float) -> None:
        """Set a new deadline for a batch. The new deadline must be later than any other batch's."""
        batch.deadline = deadline
        self.incomplete.move_to_end(batch)

    def forget(self, batch: ProducerBatch) -> None:
        """Remove a batch from its queue, because it will not be sent."""
        queue = batch.queue
        if batch is queue.tail:
            queue.tail = None
        if batch in queue.batches:
            _remove(queue, batch)
        if not queue.batches:
            self._filled.pop(queue, None)
            self._waiting.pop(queue, None)
            self._ready.get(queue.node_id, {}).pop(queue, None)

    def expired(self, now: float) -> list[ProducerBatch]:
        """Return the batches whose delivery timeout has passed, and those that have no live records and can no longer
        receive a response."""
        found: list[ProducerBatch] = []
        if self._abandoned:  # an open one may have received another record since
            self._abandoned = {batch for batch in self._abandoned if not batch.has_live_records}
            found = [batch for batch in self._abandoned if batch.state is not BatchState.IN_FLIGHT]
        for batch in self.incomplete:
            if batch.deadline > now:
                break
            if batch not in found:
                found.append(batch)
        return found

    def close(self) -> None:
        """Fail the callers that are waiting for memory, and make everything in the buffer due."""
        self._closed = True
        self.lock.close()
        self._wake.set()

    # ------------------------------------------------------------------------------------------------- inside

    def _set_leaders(self, topic: Topic, info: TopicInfo) -> None:
        self._applied_info[info.name] = info
        self.outdated.pop(info.name, None)
        for queue in topic.queues[len(info.partitions) :]:
            self._set_leader(queue, NO_NODE)  # the topic was re-created with fewer partitions
        del topic.queues[len(info.partitions) :]
        queues = self._queues.setdefault(info.name, [])
        for number in range(len(queues), len(info.partitions)):
            queues.append(PartitionQueue(info.name, number, self.unretrieved))
        topic.queues.extend(queues[len(topic.queues) : len(info.partitions)])
        for queue, partition in zip(topic.queues, info.partitions, strict=True):
            self._set_leader(queue, partition.leader)
        available = info.available or list(range(len(info.partitions)))
        if self._available.get(info.name) != available:
            self._available[info.name] = available
            if topic.sticky_partition not in available:
                topic.sticky_partition = -1

    def _set_leader(self, queue: PartitionQueue, node_id: int) -> None:
        if queue.node_id != node_id:
            if (group := self._ready.get(queue.node_id)) is not None and queue in group:
                del group[queue]
                self._ready.setdefault(node_id, {})[queue] = None
            self._leaders.note(queue.topic, queue.partition, queue.node_id, node_id)
            queue.node_id = node_id

    def _enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self._put(queue, len(queue.batches), batch)
        self.incomplete[batch] = None

    def _put(self, queue: PartitionQueue, place: int, batch: ProducerBatch) -> None:
        if not queue.batches:
            queue.batches = (batch,)
            self._filled[queue] = self._waiting[queue] = None
            return
        if isinstance(queue.batches, tuple):
            queue.batches = deque(queue.batches)
        queue.batches.insert(place, batch)

    def _everything_is_due(self) -> bool:
        return bool(self.memory.waiters or self._flushing or self._closed)

    def _is_due(self, queue: PartitionQueue) -> bool:
        """Return whether the first batch need not wait for more records. The batch may be in back-off: see due().

        The batch is due if it is closed (full, built by the user, or sent before) or marked as due (`is_due`), or if
        all batches are due because a caller is waiting for memory or in flush(), or because the producer is closing.
        Code that makes a batch due also calls _make_ready(), or wakes the sender, which calls it in ready().
        """
        first = queue.batches[0]
        return first.state is BatchState.CLOSED or first.is_due or self._everything_is_due()

    def _make_ready(self, queue: PartitionQueue) -> None:
        group = self._ready.get(queue.node_id)
        if group is None:
            group = self._ready[queue.node_id] = {}
        if queue not in group:
            group[queue] = None
            self._waiting.pop(queue, None)

    def _close(self, batch: ProducerBatch) -> None:
        queue = batch.queue
        if batch is queue.tail:
            queue.tail = None
        surplus = batch.close()
        if batch.withdrawn:
            batch.drop_withdrawn()
        used = batch.size - HEADER_SIZE
        queue.size_hint = used if used > SMALLEST_BATCH else SMALLEST_BATCH
        if surplus:
            self.memory.give(surplus)
            if self.memory.waiters:
                self.lock.release()
        if self.compressor.is_needed or not batch.is_whole:
            self.compressor.compress(batch)

    def _compression_ended(self, batch: ProducerBatch) -> None:
        """Make a batch due once a thread has compressed it."""
        self._make_ready(batch.queue)
        self._wake.set()

    def _next_sticky(self, sticky: UniformSticky, topic: Topic) -> int:
        name, queues = topic.name, topic.queues
        available = self._available[name]
        if len(available) == 1:
            return available[0]
        if self._config.partitioner_adaptive and name not in self._weighed:
            self._weighed[name] = self._loop.time() + len(available) * PAUSE_OF_WEIGHING
            chosen = [
                number for number in available if self.availability.is_available(queues[number].node_id)
            ]
            sticky.update_load(
                [len(queues[number].batches) for number in chosen], chosen, total=len(available)
            )
        return sticky.choose(available) if topic.sticky_bytes else sticky.current(available)

    def note_unsent(self, topic: str, errors: Iterable[BaseException]) -> None:
        """Count rejected records whose errors no caller has retrieved. Can be called from any thread."""
        for error in errors:
            self.unretrieved.add(topic, error, 1)


def _remove(queue: PartitionQueue, batch: ProducerBatch) -> None:
    if isinstance(queue.batches, tuple) or len(queue.batches) == 1:
        queue.batches = ()
    else:
        queue.batches.remove(batch)
