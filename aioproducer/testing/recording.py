"""RecordingProducer: a Producer without a cluster, for unit tests.

It is the product up to the buffer: the same checks, interceptors, serializers, partitioner, states and deliveries.
What the sender would send is recorded instead and acknowledged at once, or fails as the test has said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from aioproducer.cluster import PartitionInfo, TopicInfo, check_topic_name
from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.config import ProducerConfig
from aioproducer.errors import DeliveryError, MetadataTimeoutError
from aioproducer.metrics import Metrics
from aioproducer.network.brokers import Brokers
from aioproducer.network.metadata import Metadata
from aioproducer.producer import Producer, State
from aioproducer.protocol.messages import InitProducerIdResponse
from aioproducer.protocol.recordbatch import read_header, read_records
from aioproducer.protocol.schema import Message
from aioproducer.records._record_path import Delivery, Topic
from aioproducer.records.batch import BatchBuilder, BatchState, ProducerBatch
from aioproducer.records.idempotence import Idempotence
from aioproducer.transactions.calls import OffsetsToCommit
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.offsets import group_metadata, offsets_to_commit
from aioproducer.transactions.state import abortable
from aioproducer.types import ConsumerGroupMetadata, Headers, OffsetAndMetadata, Outcome, TopicPartition

_PRODUCER_ID = 1000
_NODE = 0
"""The broker that all partitions claim to have; nobody ever connects to it."""


class SentRecord(NamedTuple):
    """A record as it would stand in the log: key and value as the serializers made them."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    """Milliseconds since 1970."""


class RecordingProducer(Producer):
    """A double of `Producer` that needs no broker: it records what is sent and acknowledges it at once.

        async with RecordingProducer() as producer:
            await place_order(producer, 7)

        assert [record.value for record in producer.sent] == [b"7"]

    It takes the settings of `Producer`, and it is one. Nothing in it takes time: no linger, no back-pressure, no
    retries; a delivery has its result when `send` returns it. A topic exists as soon as somebody sends to it, with
    `default_partitions` partitions unless `set_partitions` said how many; with `allow_auto_create_topics=False` only
    those of `set_partitions` exist. Records of a transaction are in `sent` once it is committed. What depends on time
    or on brokers is to be tested on the embedded cluster.
    """

    default_partitions = 1
    """Partitions of topics for which `set_partitions` was not called."""

    @cached_property
    def sent(self) -> list[SentRecord]:
        """All records that were acknowledged, in the order of their `send`; a list that may be cleared."""
        return []

    @cached_property
    def uncommitted(self) -> list[SentRecord]:
        """The records of the transaction that is open: its commit moves them to `sent`, its abort forgets them.

        Those of a producer that was attached to a transaction stay here: another one commits it."""
        return []

    @cached_property
    def committed_offsets(self) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The positions that transactions have committed, by consumer group."""
        return {}

    @cached_property
    def _script(self) -> _Script:
        return _Script()

    # Transactions

    async def commit_transaction(self) -> None:
        await super().commit_transaction()
        self.sent.extend(self.uncommitted)
        for group, offsets in self._script.offsets_to_commit:
            self.committed_offsets.setdefault(group, {}).update(offsets)
        self._forget_transaction()

    async def abort_transaction(self) -> None:
        await super().abort_transaction()
        self._forget_transaction()

    async def fence_transaction(self) -> None:
        await super().fence_transaction()
        self._forget_transaction()

    async def send_offsets_to_transaction(
        self, offsets: OffsetsToCommit, group_id: ConsumerGroupMetadata | str | bytes
    ) -> None:
        await super().send_offsets_to_transaction(offsets, group_id)
        self._script.offsets_to_commit.append((group_metadata(group_id).group_id, offsets_to_commit(offsets)))

    commit_transaction.__doc__ = Producer.commit_transaction.__doc__
    abort_transaction.__doc__ = Producer.abort_transaction.__doc__
    fence_transaction.__doc__ = Producer.fence_transaction.__doc__
    send_offsets_to_transaction.__doc__ = Producer.send_offsets_to_transaction.__doc__

    def _forget_transaction(self) -> None:
        self.uncommitted.clear()
        self._script.offsets_to_commit.clear()

    # What the test says

    def set_partitions(self, topic: str, count: int) -> None:
        """Let a topic have `count` partitions; before or after the start.

        Raises:
            InvalidTopicError: Kafka refuses this name.
            ValueError: the topic would lose partitions, or have none.
        """
        check_topic_name(topic)
        known = self._topics.topic(topic) if self._state is State.RUNNING else None
        least = self._script.partitions.get(topic, 1 if known is None else len(known.partitions))
        if count < least:
            raise ValueError(f"topic {topic} can't have {count} partitions; {least} is the least")
        self._script.partitions[topic] = count
        if self._state is State.RUNNING:
            self._topics.learn(topic)

    def fail_next(
        self,
        error: BaseException | None = None,
        *,
        outcome: Outcome = Outcome.NOT_PERSISTED,
        topic: str | None = None,
        count: int = 1,
    ) -> None:
        """Let the delivery of the next record fail: `send` succeeds, and `sent` does not get the record.

        Args:
            error: what awaiting the delivery raises; None for a DeliveryError with all its fields.
            outcome: of that DeliveryError.
            topic: only records for this topic.
            count: how many records, or batches that were built by hand.
        """
        self._script.add(_Mishap(topic, count, error, outcome, False))

    def refuse_next(self, error: BaseException, *, topic: str | None = None, count: int = 1) -> None:
        """Let the next `send` itself raise, as it does without room or metadata: nothing is sent.

        Args:
            error: what `send`, `send_and_wait`, `try_send` or `send_batch` raises.
            topic: only records for this topic.
            count: how many records, or batches that were built by hand.
        """
        self._script.add(_Mishap(topic, count, error, Outcome.NOT_PERSISTED, True))

    def _partition_count(self, topic: str) -> int | None:
        default = self.default_partitions if self._config.allow_auto_create_topics else None
        return self._script.partitions.get(topic, default)

    # What stands behind the producer's buffer

    def _make_parts(self) -> None:
        super()._make_parts()  # of these, the sender and the brokers never do anything
        config, wake = self._config, WakeUp(self._loop)
        self._metadata = self._topics = _Topics(
            config, self._brokers, wake, self._metrics, self._random, self._partition_count
        )
        self._coordinator = _Agreeing(
            config,
            self._transaction,
            Idempotence(config.enable_idempotence),
            self._accumulator,
            self._brokers,
            wake,
            self._metrics,
            self._random,
        )

    async def _open(self) -> None:
        config, memory = self._config, self._accumulator.memory
        # Not plain: so each record comes by _append().
        self._bind(
            self._loop, self._accumulator, memory, config.batch_size, config.max_request_size, False, None
        )
        if self._handle is not None:
            self._coordinator.attach(self._handle)
        elif self._transaction.is_used:
            await self._coordinator.initialize()

    def _append(
        self,
        topic: Topic,
        value: Any,
        key: Any,
        partition: int,
        timestamp_ms: int | None,
        headers: Headers | None,
        has_turn: bool,
    ) -> Delivery | None:
        self._script.refuse(topic.name)
        delivery = super()._append(topic, value, key, partition, timestamp_ms, headers, has_turn)
        assert delivery is not None, "the buffer is empty, and a record that it can't hold is refused"
        self._end(delivery.batch)
        return delivery

    async def send_batch(
        self, batch: BatchBuilder, topic: str, *, partition: int, timeout: float | None = None
    ) -> Delivery:
        self._check_usable()
        self._script.refuse(topic)
        delivery = await super().send_batch(batch, topic, partition=partition, timeout=timeout)
        self._end(delivery.batch)
        return delivery

    send_batch.__doc__ = Producer.send_batch.__doc__

    def _end(self, batch: ProducerBatch) -> None:
        """What a broker's answer does: the batch leaves its queue, and its deliveries have their result."""
        accumulator = self._accumulator
        accumulator.forget(batch)
        accumulator.ready(self._loop.time())  # forgets the linger of batches that are gone
        if batch.state is BatchState.OPEN:
            accumulator.memory.give(batch.close())
            batch.complete_records()
        self._metrics.records_sent += batch.record_count
        mishap = self._script.failure(batch.queue.topic)
        if mishap is None:
            self._record(batch)
        else:
            self._fail(batch, mishap)
        accumulator.release(batch)

    def _record(self, batch: ProducerBatch) -> None:
        topic, partition = batch.queue.topic, batch.queue.partition
        base = self._script.offsets.get((topic, partition), 0)
        self._script.offsets[topic, partition] = base + batch.record_count
        header = read_header(bytes(batch.seal()[0]))
        records = self.uncommitted if self._transaction.is_used else self.sent
        for record in read_records(batch.records, header):
            offset = base + record.offset
            records.append(
                SentRecord(
                    topic, partition, offset, record.key, record.value, record.headers, record.timestamp
                )
            )
        self._metrics.records_acked += batch.record_count
        batch.succeed(-1 if self._config.acks == 0 else base, -1, 0)

    def _fail(self, batch: ProducerBatch, mishap: _Mishap) -> None:
        error = mishap.error or _delivery_error(batch, mishap.outcome)
        if getattr(error, "outcome", Outcome.UNKNOWN) is Outcome.UNKNOWN:
            self._metrics.records_unknown += batch.record_count
        else:
            self._metrics.records_failed += batch.record_count
        batch.give_up(error)
        if self._transaction.is_used:
            self._transaction.must_abort(abortable(self._transaction, error))


def _delivery_error(batch: ProducerBatch, outcome: Outcome) -> DeliveryError:
    topic, partition = batch.queue.topic, batch.queue.partition
    return DeliveryError(
        f"{batch.record_count} records for {topic}-{partition} failed because the test said so ({outcome.value})",
        outcome=outcome,
        topic=topic,
        partition=partition,
        broker=_NODE,
        attempts=1,
        elapsed=0.0,
        last_error=None,
    )


@dataclass(slots=True)
class _Mishap:
    """What befalls the next `count` records of one topic, or of any."""

    topic: str | None
    count: int
    error: BaseException | None
    outcome: Outcome
    is_refusal: bool


class _Script:
    """What the test has said, and how far each partition has got."""

    def __init__(self) -> None:
        self.partitions: dict[str, int] = {}
        """How many each topic has, where the test said so."""
        self.offsets: dict[tuple[str, int], int] = {}
        """The next offset of each partition."""
        self.offsets_to_commit: list[tuple[str, Mapping[TopicPartition, OffsetAndMetadata]]] = []
        """Of the open transaction, by consumer group."""
        self._mishaps: list[_Mishap] = []

    def add(self, mishap: _Mishap) -> None:
        if mishap.count < 1:
            raise ValueError(f"count={mishap.count} must be 1 or more")
        if not isinstance(mishap.error, BaseException) and (mishap.is_refusal or mishap.error is not None):
            raise TypeError(f"the error must be an exception, not {mishap.error!r}")
        self._mishaps.append(mishap)

    def refuse(self, topic: str) -> None:
        """Raise what the test said for the next `send` to this topic, if it did."""
        mishap = self._take(topic, True)
        if mishap is not None and mishap.error is not None:
            raise mishap.error

    def failure(self, topic: str) -> _Mishap | None:
        """What the test said for the next delivery of this topic."""
        return self._take(topic, False)

    def _take(self, topic: str, is_refusal: bool) -> _Mishap | None:
        for mishap in self._mishaps:
            if mishap.is_refusal is is_refusal and mishap.topic in (None, topic):
                mishap.count -= 1
                if mishap.count == 0:
                    self._mishaps.remove(mishap)
                return mishap
        return None


class _Agreeing(Coordinator):
    """Grants all that a transaction asks for, without a broker."""

    async def _ask(self, request: Message, code_of: Callable[[Any], int], **options: Any) -> Any:
        # Of the other answers, nothing is looked at.
        return InitProducerIdResponse(producer_id=_PRODUCER_ID, producer_epoch=0)


class _Topics(Metadata):
    """Knows every topic that the test allows as soon as somebody asks, and never asks a broker."""

    def __init__(
        self,
        config: ProducerConfig,
        brokers: Brokers,
        wake: WakeUp,
        metrics: Metrics,
        random: Random,
        count_of: Callable[[str], int | None],
    ) -> None:
        super().__init__(config, brokers, wake, metrics, random)
        self._count_of = count_of
        self.last_error = MetadataTimeoutError(
            "allow_auto_create_topics=False, and set_partitions() did not name it"
        )

    def learn(self, name: str) -> None:
        """Know the topic, with as many partitions as the test has said; not at all if it may not exist."""
        count = self._count_of(name)
        if count is None:
            return
        known = self.cluster.topics.get(name)
        topic_id = UUID(int=len(self.cluster.topics) + 1) if known is None else known.topic_id
        partitions = tuple(
            PartitionInfo(name, number, _NODE, 0, (_NODE,), (_NODE,), (), 0) for number in range(count)
        )
        topic = TopicInfo(name, topic_id, partitions, 0, False)
        self._publish(replace(self.cluster, topics={**self.cluster.topics, name: topic}))

    def ask_for(self, name: str) -> None:
        self.learn(name)

    async def wait_for_topic(self, name: str, deadline: float, partition: int | None = None) -> TopicInfo:
        check_topic_name(name)
        if self.topic(name) is None:
            self.learn(name)
        known = self._usable(name, partition)
        if known is None:
            raise self._too_late(name, partition, 0.0)
        return known
