"""RecordingProducer: a Producer without a cluster, for unit tests.

Everything up to the buffer works as in the real producer: checks, interceptors, serializers, partitioner and
deliveries. Instead of being sent, each record is stored and acknowledged immediately, or fails as specified by the
test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

from aioproducer.cluster import PartitionInfo, TopicInfo, check_topic_name
from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.core import Core
from aioproducer.errors import DeliveryError, MetadataTimeoutError, counted
from aioproducer.network.brokers import Brokers
from aioproducer.network.metadata import Metadata
from aioproducer.observe.snapshots import MetricsSnapshot
from aioproducer.observe.tracing import tracer_of
from aioproducer.observe.vital_signs import Ping
from aioproducer.producer import Producer
from aioproducer.protocol.messages import InitProducerIdResponse
from aioproducer.protocol.recordbatch import read_header, read_records
from aioproducer.protocol.schema import Message
from aioproducer.records._record_path import BatchState, Delivery, Topic
from aioproducer.records.arguments import check_timeout
from aioproducer.records.batch import BatchBuilder, ProducerBatch
from aioproducer.records.idempotence import Idempotence
from aioproducer.sending.lifecycle import ProducerState
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.offsets import group_metadata, offsets_to_commit
from aioproducer.transactions.state import abortable
from aioproducer.types import (
    ConsumerGroupMetadata,
    Headers,
    K,
    Node,
    OffsetAndMetadata,
    OffsetsToCommit,
    Outcome,
    TopicPartition,
    V,
)

_PRODUCER_ID = 1000
_NODE = 0
"""The node id of the leader of all partitions. No connection to this node is ever opened."""


class SentRecord(NamedTuple):
    """A record as it would be in the log, with the serialized key and value."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    """Milliseconds since 1970."""


class RecordingProducer(Producer[K, V]):
    """A `Producer` for tests, without a broker: it stores the records and acknowledges them immediately.

        async with RecordingProducer() as producer:
            await place_order(producer, 7)

        assert [record.value for record in producer.sent] == [b"7"]

    It is a subclass of `Producer` with the same settings. It never waits: it has no linger, no back-pressure and no
    retries, and a delivery already has its result when `send` returns it. The first record for a topic creates the
    topic, with `default_partitions` partitions unless `set_partitions` was called for it. With
    `allow_auto_create_topics=False`, only topics that were passed to `set_partitions` exist. The records in a
    transaction appear in `sent` when it is committed. Use the embedded cluster for tests that depend on time or on
    brokers.
    """

    default_partitions = 1
    """The number of partitions in a topic for which `set_partitions` was not called."""

    @cached_property
    def sent(self) -> list[SentRecord]:
        """All acknowledged records, in the order in which they were sent. A test may clear the list."""
        return []

    @cached_property
    def uncommitted(self) -> list[SentRecord]:
        """The records in the open transaction. A commit moves them to `sent`; an abort removes them.

        If the producer was attached to a transaction, they stay here, because another producer ends the transaction."""
        return []

    @cached_property
    def committed_offsets(self) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The offsets that transactions have committed, by consumer group."""
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

    # Instructions from the test

    def set_partitions(self, topic: str, count: int) -> None:
        """Set the number of partitions in a topic, before or after the producer starts.

        Raises:
            InvalidTopicError: the topic name is invalid.
            ValueError: the topic would lose partitions, or have no partitions.
        """
        check_topic_name(topic)
        known = self._topics.topic(topic) if self._state is ProducerState.RUNNING else None
        least = self._script.partitions.get(topic, 1 if known is None else len(known.partitions))
        if count < least:
            raise ValueError(
                f"topic {topic} can't have {counted(count, 'partition')}; the minimum is {least}"
            )
        self._script.partitions[topic] = count
        if self._state is ProducerState.RUNNING:
            self._topics.learn(topic)

    def fail_next(
        self,
        error: BaseException | None = None,
        *,
        outcome: Outcome = Outcome.NOT_PERSISTED,
        topic: str | None = None,
        count: int = 1,
    ) -> None:
        """Make the delivery of the next record fail: `send` succeeds, but the record is not added to `sent`.

        Args:
            error: the delivery's error; None creates a DeliveryError with all its fields set.
            outcome: the outcome of that DeliveryError, if `error` is None.
            topic: the topic whose records fail; by default, any topic.
            count: the number of records, or of manually built batches, that fail.
        """
        self._script.add(_Mishap(topic, count, error, outcome, False))

    def refuse_next(self, error: BaseException, *, topic: str | None = None, count: int = 1) -> None:
        """Make the next `send` itself raise an error, as when the buffer is full or metadata is missing. Nothing is
        sent.

        Args:
            error: the error that `send`, `send_and_wait`, `try_send` or `send_batch` raises.
            topic: the topic whose records are rejected; by default, any topic.
            count: the number of records, or of manually built batches, that are rejected.
        """
        self._script.add(_Mishap(topic, count, error, Outcome.NOT_PERSISTED, True))

    def _partition_count(self, topic: str) -> int | None:
        default = self.default_partitions if self._config.allow_auto_create_topics else None
        return self._script.partitions.get(topic, default)

    # Replacements for the parts behind the buffer

    def _make_parts(self) -> None:
        super()._make_parts()  # the sender and the brokers stay idle
        core = Core(self._config, self._loop, WakeUp(self._loop), self._metrics, self._random, self._hooks)
        self._metadata = self._topics = _Topics(core, self._brokers, self._partition_count)
        self._idempotence = Idempotence(core.config.enable_idempotence)
        self._coordinator = _Agreeing(
            core,
            self._transaction,
            self._idempotence,
            self._accumulator,
            self._brokers,
        )

    async def _open(self, *, wait: bool) -> None:
        config, memory = self._config, self._accumulator.memory
        self._tracer = tracer_of(config)
        # The last argument turns the fast path off: each record is passed to _append().
        self._bind(self._loop, self._accumulator, memory, config.batch_size, config.max_request_size, False)
        if self._handle is not None:
            self._coordinator.attach(self._handle)
        elif self._transaction.is_used:
            await self._coordinator.initialize()

    async def ping(self, timeout: float = 2.0) -> Ping:
        """Return at once, because there is no broker to ask."""
        check_timeout(timeout)
        self._check_usable()
        return Ping(Node(_NODE, "nowhere", 0), 0.0)

    async def client_instance_id(self, timeout: float = 10.0) -> UUID:
        """Raise KafkaTimeoutError at once, because there is no broker to assign an id."""
        check_timeout(timeout)
        self._check_usable()
        return await self._push.client_instance_id(0)

    def _why_unhealthy(self, measured: MetricsSnapshot, connected: int, max_unacked_seconds: float) -> str:
        return super()._why_unhealthy(measured, 1, max_unacked_seconds)

    def _append(
        self,
        topic: Topic,
        value: Any,
        key: Any,
        partition: int,
        timestamp_ms: int | None,
        headers: Headers | None,
        is_first_waiter: bool,
    ) -> Delivery | None:
        self._script.refuse(topic.name)
        delivery = super()._append(topic, value, key, partition, timestamp_ms, headers, is_first_waiter)
        assert delivery is not None, (
            "the buffer is empty, so it has room for every record that was not rejected as too large"
        )
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
        """Simulate a broker's response: remove the batch from its queue, and resolve its deliveries."""
        accumulator = self._accumulator
        accumulator.forget(batch)
        accumulator.ready(self._loop.time())  # stops tracking the linger of batches that no longer exist
        if batch.state is BatchState.OPEN:
            accumulator.memory.give(batch.close())
            batch.complete_records()
        self._count(batch)
        mishap = self._script.failure(batch.queue.topic)
        if mishap is None:
            self._record(batch)
        else:
            self._fail(batch, mishap)
        accumulator.release(batch)

    def _count(self, batch: ProducerBatch) -> None:
        """Count a request with this batch, as the sender would."""
        metrics = self._metrics
        metrics.produce_requests += 1
        metrics.batches += 1
        metrics.records_sent += batch.record_count
        metrics.record_bytes += batch.size
        metrics.batch_bytes += batch.wire_size
        metrics.batch_size.add(batch.wire_size)
        metrics.records_per_request.add(batch.record_count)
        metrics.queue_time.add(self._loop.time() - batch.created)
        metrics.topic(batch.queue.topic).batch_bytes += batch.wire_size
        batch.is_counted = True  # its outcome is counted next, in _record or _fail

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
        metrics, now = self._metrics, self._loop.time()
        metrics.records_acked += batch.record_count
        metrics.time_to_ack.add(now - batch.created, batch.record_count)
        metrics.topic(topic).records_acked += batch.record_count
        metrics.topic(topic).last_ack = now
        batch.succeed(-1 if self._config.acks == 0 else base, -1, 0)
        self._tell(batch, batch.base_offset, None)

    def _tell(self, batch: ProducerBatch, base_offset: int, error: BaseException | None) -> None:
        if self._hooks.on_batch:
            self._hooks.batch_ended(batch, batch.record_count, self._loop.time(), base_offset, error)

    def _fail(self, batch: ProducerBatch, mishap: _Mishap) -> None:
        error = mishap.error or _delivery_error(batch, mishap.outcome)
        topic = self._metrics.topic(batch.queue.topic)
        self._metrics.time_to_failure.add(self._loop.time() - batch.created, batch.record_count)
        if getattr(error, "outcome", Outcome.UNKNOWN) is Outcome.UNKNOWN:
            self._metrics.records_unknown += batch.record_count
            topic.records_unknown += batch.record_count
        else:
            self._metrics.records_failed += batch.record_count
            topic.records_failed += batch.record_count
        batch.give_up(error)
        self._tell(batch, -1, error)
        if self._transaction.is_used:
            self._transaction.require_abort(abortable(self._transaction, error))


def _delivery_error(batch: ProducerBatch, outcome: Outcome) -> DeliveryError:
    topic, partition = batch.queue.topic, batch.queue.partition
    return DeliveryError(
        f"{counted(batch.record_count, 'record')} for {topic}-{partition} failed because the test called fail_next() "
        f"({outcome.value})",
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
    """A failure that the test requested for the next `count` records for one topic, or for any topic."""

    topic: str | None
    count: int
    error: BaseException | None
    outcome: Outcome
    is_refusal: bool


class _Script:
    """The instructions from the test, and the next offset of each partition."""

    def __init__(self) -> None:
        self.partitions: dict[str, int] = {}
        """The number of partitions that the test has set, by topic."""
        self.offsets: dict[tuple[str, int], int] = {}
        """The next offset of each partition."""
        self.offsets_to_commit: list[tuple[str, Mapping[TopicPartition, OffsetAndMetadata]]] = []
        """The offsets that the open transaction will commit, each mapping with its consumer group."""
        self._mishaps: list[_Mishap] = []

    def add(self, mishap: _Mishap) -> None:
        if mishap.count < 1:
            raise ValueError(f"count={mishap.count} must be 1 or more")
        if not isinstance(mishap.error, BaseException) and (mishap.is_refusal or mishap.error is not None):
            raise TypeError(f"the error must be an exception, not {mishap.error!r}")
        self._mishaps.append(mishap)

    def refuse(self, topic: str) -> None:
        """Raise the error that the test has set for the next `send` to this topic, if any."""
        mishap = self._take(topic, True)
        if mishap is not None and mishap.error is not None:
            raise mishap.error

    def failure(self, topic: str) -> _Mishap | None:
        """Return the failure that the test has set for the next delivery to this topic; None if there is none."""
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
    """Grants every transactional request without asking a broker."""

    async def _ask(self, request: Message, code_of: Callable[[Any], int], **options: Any) -> Any:
        # This response serves for all requests, because the fields of the other responses are not read.
        return InitProducerIdResponse(producer_id=_PRODUCER_ID, producer_epoch=0)


class _Topics(Metadata):
    """Metadata for each topic that the test allows, created without asking a broker."""

    def __init__(self, core: Core, brokers: Brokers, count_of: Callable[[str], int | None]) -> None:
        super().__init__(core, brokers)
        self._count_of = count_of
        self.last_error = MetadataTimeoutError(
            "allow_auto_create_topics=False, and set_partitions() was not called for this topic"
        )

    def age(self, now: float) -> float:
        return 0.0

    def learn(self, name: str) -> None:
        """Add the topic, or update its number of partitions. Do nothing if the topic is not allowed to exist."""
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
