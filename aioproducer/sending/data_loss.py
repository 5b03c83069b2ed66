"""Detects the loss of acknowledged records: a log became shorter, or a topic was re-created.

The sender reports acknowledgements, rejected sequences and new metadata; each event is logged and counted once, in
`_report`. The start offset of a log is ignored: retention moves it, and it can differ between replicas."""

from __future__ import annotations

import logging
import math
from typing import NamedTuple
from uuid import UUID

from aioproducer.cluster import Cluster, TopicInfo
from aioproducer.config import ProducerConfig
from aioproducer.errors import counted
from aioproducer.metrics import Metrics
from aioproducer.observe.hooks import NO_HOOKS, DataLossEvent, Hooks
from aioproducer.records._record_path import NO_ORDER, PartitionQueue
from aioproducer.records.batch import ProducerBatch

MOST_NAMED = 10
"""The maximum number of partitions whose offsets appear in a log line."""


class DataLoss(NamedTuple):
    """A certain or possible loss of acknowledged records."""

    topic: str
    partitions: dict[int, int]
    """The last acknowledged offset of each affected partition, by partition number."""
    is_certain: bool
    reason: str


class LossWatch:
    """Remembers the last acknowledgement of each partition. Used only by the sender task."""

    def __init__(self, config: ProducerConfig, metrics: Metrics, hooks: Hooks = NO_HOOKS) -> None:
        self._metrics = metrics
        self._hooks = hooks
        self._log = config.log(__name__)
        self._metadata_max_age = config.metadata_max_age
        self._is_ordered = config.enable_idempotence or config.max_in_flight_per_partition == 1
        """If False, responses from two leaders may be in flight, and the later response may have the lower offset."""
        self._acknowledged: dict[str, list[PartitionQueue]] = {}
        """The partitions with acknowledged records, by topic. Their `acknowledged_end` is not -1."""
        self._infos: dict[str, TopicInfo] = {}
        self._former_ids: set[UUID] = set()
        """Former ids of topics that were re-created. Outdated metadata may still contain them."""
        # While `_suspects` and `_of_former_topic` are empty, as in normal operation, only an acknowledgement with a
        # lower offset than the last one is examined.
        self._suspects: dict[PartitionQueue, str] = {}
        """Partitions whose leader did not know this producer's last batch, with the leader's response as text."""
        self._of_former_topic: dict[PartitionQueue, tuple[int, int]] = {}
        """The `order` of the last batch in flight when the partition's topic was re-created."""
        self._reported: dict[PartitionQueue, tuple[int, float]] = {}
        """The former end of each log that became shorter, and the loop time at which this was noticed. Such a log is
        not reported again until it has grown to its former end."""

    def note_acknowledged(self, batch: ProducerBatch, base_offset: int, now: float) -> None:
        """Note that a batch was acknowledged and that its first record has this offset."""
        queue = batch.queue
        if base_offset < queue.acknowledged_end or self._suspects or self._of_former_topic:
            self._look_closer(batch, base_offset, now)
        else:
            self._set_end(batch, base_offset)

    def _look_closer(self, batch: ProducerBatch, base_offset: int, now: float) -> None:
        queue = batch.queue
        before = queue.acknowledged_end
        last = self._of_former_topic.get(queue)
        if last is not None:
            if batch.order <= last:
                return  # the batch was acknowledged for the former topic
            del self._of_former_topic[queue]
        if batch.order < queue.acknowledged_order:
            return  # the batch is older than the last acknowledged one
        suspicion = self._suspects.pop(queue, None)
        if base_offset >= before:
            self._set_end(batch, base_offset)
            if suspicion is not None:
                self._report(_possible_loss(queue, before, suspicion))
        elif self._is_ordered:
            self._set_end(batch, base_offset)
            if before > self._reported.get(queue, (-1, now))[0]:
                self._reported[queue] = before, now
                self._report(_shorter_log(queue, batch.broker, base_offset, before))

    def _set_end(self, batch: ProducerBatch, base_offset: int) -> None:
        queue = batch.queue
        if queue.acknowledged_end < 0:
            self._acknowledged.setdefault(queue.topic, []).append(queue)
        queue.acknowledged_end = base_offset + batch.record_count
        queue.acknowledged_order = batch.order

    def lost_track(self, batch: ProducerBatch, refusal: str) -> None:
        """Note that a broker no longer knows the batch before this one, even though it had acknowledged that batch."""
        sequence = batch.queue.sequence
        if (
            sequence is not None
            and not sequence.has_gap
            and sequence.confirmed_on is not None
            and sequence.confirmed_on[0] == batch.identity
            and batch.queue.acknowledged_end >= 0
        ):
            # The next acknowledgement shows whether the log became shorter.
            self._suspects[batch.queue] = refusal

    def look_at(self, cluster: Cluster, now: float) -> None:
        """Compare the topic ids in new metadata with the known ones."""
        infos = self._infos
        for name, info in [item for item in cluster.topics.items() if infos.get(item[0]) is not item[1]]:
            known = infos.get(name)
            if not info.topic_id.int or info.topic_id in self._former_ids:
                continue
            infos[name] = info
            if known is not None and known.topic_id != info.topic_id:
                self._former_ids.add(known.topic_id)
                self._recreated(info, known.topic_id, now)

    def _recreated(self, info: TopicInfo, former_id: UUID, now: float) -> None:
        last_offsets = {}
        for queue in self._acknowledged.pop(info.name, []):
            end, queue.acknowledged_end, queue.acknowledged_order = queue.acknowledged_end, -1, NO_ORDER
            self._suspects.pop(queue, None)
            if queue.in_flight:
                self._of_former_topic[queue] = max(batch.order for batch in queue.in_flight)
            _, reported_at = self._reported.pop(queue, (-1, -math.inf))
            # Skip partitions that were reported recently. New metadata can take this long to arrive, and until it
            # arrives, the log of the new topic looks like a log that has become shorter.
            if now - reported_at > 2 * self._metadata_max_age:
                last_offsets[queue.partition] = end - 1
        if last_offsets:
            reason = f"the topic was re-created: its id is now {info.topic_id} instead of {former_id}"
            self._report(DataLoss(info.name, last_offsets, True, reason))

    def _report(self, loss: DataLoss) -> None:
        """Log and count an event, and call the hooks."""
        self._metrics.data_losses += 1
        named = sorted(loss.partitions.items())
        where = ", ".join(
            f"{loss.topic}-{partition} up to offset {last}" for partition, last in named[:MOST_NAMED]
        )
        others = len(named) - MOST_NAMED
        more = f", and {counted(others, 'other partition')}" if others > 0 else ""
        level = logging.ERROR if loss.is_certain else logging.WARNING
        may = "were lost" if loss.is_certain else "may have been lost"
        self._log.log(level, "acknowledged records %s (%s%s): %s", may, where, more, loss.reason)
        if self._hooks.on_data_loss:
            self._hooks.tell(self._hooks.on_data_loss, DataLossEvent(self._hooks.client_id, *loss))


def _shorter_log(queue: PartitionQueue, broker: int | None, base_offset: int, before: int) -> DataLoss:
    reason = (
        f"broker {broker} assigned offset {base_offset} to new records, so offsets {base_offset} to {before - 1} "
        "were truncated (an unclean leader election, a failed leader with acks=1, or a re-created topic)"
    )
    return DataLoss(queue.topic, {queue.partition: before - 1}, True, reason)


def _possible_loss(queue: PartitionQueue, before: int, refusal: str) -> DataLoss:
    reason = (
        f"{refusal}: the broker no longer knew the last batch that it had acknowledged to this producer (an unclean "
        "leader election, or producer.id.expiration.ms has passed)"
    )
    return DataLoss(queue.topic, {queue.partition: before - 1}, False, reason)
