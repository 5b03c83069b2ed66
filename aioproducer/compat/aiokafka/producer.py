"""AIOKafkaProducer: the calls, results and errors of aiokafka's producer, based on an aioproducer.Producer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from aioproducer import BatchBuilder as Batch
from aioproducer import CloseReport, ConsumerGroupMetadata, Headers, Producer, ProducerConfig
from aioproducer.compat.aiokafka.batch import BatchBuilder, Serializer
from aioproducer.compat.aiokafka.client import Client
from aioproducer.compat.aiokafka.future import Future
from aioproducer.compat.aiokafka.settings import translated_settings
from aioproducer.compat.aiokafka.structs import RecordMetadata
from aioproducer.compat.aiokafka.translation import aiokafka_errors


class AIOKafkaProducer:
    """A replacement for aiokafka's producer: in existing code, only the imports have to change.

        from aioproducer.compat.aiokafka import AIOKafkaProducer
        from aioproducer.compat.aiokafka.errors import KafkaConnectionError, KafkaTimeoutError

    It takes aiokafka's settings, and the settings of `aioproducer.Producer`. A setting that is left out has
    aioproducer's default. The producer raises aioproducer's errors, which are also instances of the classes that
    aiokafka would have raised. docs/from-aiokafka.md lists the differences.

    `producer` is the underlying `aioproducer.Producer`, with `health()`, `metrics()`, `send_many()` and the rest.
    """

    _make_producer = Producer
    """The class of `producer`. Tests may replace it with a test double, such as RecordingProducer."""

    def __init__(self, **settings: Any) -> None:
        try:
            with aiokafka_errors:
                ours = translated_settings(settings)
                # aioproducer does not call serializers for None, and treats objects with `serialize` differently.
                self._key_serializer = _taken_function(ours, "key_serializer")
                self._value_serializer = _taken_function(ours, "value_serializer")
                self.producer = self._make_producer(**ours)
        finally:
            settings.clear()  # a traceback that shows locals must not show passwords
            ours = {}
        self._is_acknowledged = self.producer.config.acks != 0
        self.client = Client(self.producer)

    @property
    def config(self) -> ProducerConfig:
        """The effective settings. `print(producer.config)` shows each with its origin and hides secrets."""
        return self.producer.config

    @property
    def _closed(self) -> bool:
        return self.producer.metrics().state in ("closing", "closed")

    def __repr__(self) -> str:
        return f"<AIOKafkaProducer of {getattr(self, 'producer', 'rejected settings')!r}>"

    # ---------------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Connect to the cluster.

        Raises:
            KafkaConnectionError: no broker answered within max_block_ms, or authentication failed.
        """
        with aiokafka_errors:
            await self.producer.start()

    async def stop(self) -> CloseReport:
        """Send the buffered records, then close all connections. Further calls do nothing."""
        with aiokafka_errors:
            return await self.producer.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # As in aiokafka, the buffered records are sent even if an exception leaves the block.
        with aiokafka_errors:
            await self.producer.__aexit__(None, None, None)

    async def flush(self) -> None:
        """Wait until the results of all records are known."""
        with aiokafka_errors:
            await self.producer.flush()

    # ----------------------------------------------------------------------------------------------- records

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Future:
        """Put a record into the buffer, and return the future of its RecordMetadata.

        Raises:
            KafkaTimeoutError: the buffer stayed full for max_block_ms. The record was not sent.
            UnknownTopicOrPartitionError: the topic or the partition did not appear within max_block_ms.
            MessageSizeTooLargeError, TypeError: the record is not valid.
            ProducerClosed: the producer has been stopped.
            IllegalOperation: the producer was not started, or it is transactional and no transaction is open.
            Others: any exception that a serializer raises.
        """
        key, value = await self._serialized(key, value)
        with aiokafka_errors:
            delivery = await self.producer.send(topic, value, key, partition, timestamp_ms, headers)
        return Future(delivery, self._is_acknowledged)

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record without lingering. Return its metadata when it is acknowledged, or None with acks=0.

        Raises:
            KafkaError: as in `send`, or the record failed, for example with NotEnoughReplicasError. In the latter case,
                the error is also an `aioproducer.DeliveryError`, whose `outcome` says whether the record may be in the
                log.
        """
        key, value = await self._serialized(key, value)
        with aiokafka_errors:
            record = await self.producer.send_and_wait(topic, value, key, partition, timestamp_ms, headers)
        return RecordMetadata.of(record) if self._is_acknowledged else None  # type: ignore[return-value]  # as aiokafka

    async def _serialized(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Call the serializers, which also receive None, as in aiokafka. Unlike aiokafka's, they may be async."""
        if self._key_serializer is not None:
            key = self._key_serializer(key)
            if inspect.isawaitable(key):
                key = await key
        if self._value_serializer is not None:
            value = self._value_serializer(value)
            if inspect.isawaitable(value):
                value = await value
        return key, value

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch, to be filled by hand and passed to `send_batch`."""
        with aiokafka_errors:
            return BatchBuilder(self.producer.create_batch(), self._key_serializer, self._value_serializer)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> Future:
        """Send a batch from `create_batch`. The result of the future is the metadata of the first record.

        Raises:
            KafkaError: as in `send`.
        """
        inner: Batch = batch._batch if isinstance(batch, BatchBuilder) else batch
        with aiokafka_errors:
            delivery = await self.producer.send_batch(inner, topic, partition=partition)
        return Future(delivery, self._is_acknowledged)

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of the topic's partitions.

        Raises:
            UnknownTopicOrPartitionError: the topic did not appear within max_block_ms.
        """
        with aiokafka_errors:
            return await self.producer.partitions_for(topic)

    # ------------------------------------------------------------------------------------------ transactions

    def transaction(self) -> TransactionContext:
        """Return a transaction for `async with`: committed when the block ends, or aborted if the block raises."""
        return TransactionContext(self.producer)

    async def begin_transaction(self) -> None:
        """Begin a transaction.

        Raises:
            IllegalOperation: there is no transactional_id, or a transaction is already open.
        """
        with aiokafka_errors:
            await self.producer.begin_transaction()

    async def commit_transaction(self) -> None:
        """Send the buffered records, then commit the transaction.

        Raises:
            ProducerFenced: another producer uses the transactional id.
            IllegalOperation: no transaction is open.
            KafkaError: a record failed; this error is also an instance of the record's error class. Call
                abort_transaction().
        """
        with aiokafka_errors:
            await self.producer.commit_transaction()

    async def abort_transaction(self) -> None:
        """Drop the buffered records, and abort the transaction.

        Raises:
            ProducerFenced: another producer uses the transactional id.
            IllegalOperation: no transaction is open.
        """
        with aiokafka_errors:
            await self.producer.abort_transaction()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group_id: ConsumerGroupMetadata | str
    ) -> None:
        """Commit a consumer's offsets with the transaction.

        Args:
            offsets: {TopicPartition: offset}; the classes may also be aiokafka's.
            group_id: the group's id, or its ConsumerGroupMetadata.

        Raises:
            IllegalOperation: no transaction is open.
            ValueError: the offsets or the group are malformed.
        """
        with aiokafka_errors:
            await self.producer.send_offsets_to_transaction(offsets, group_id)


class TransactionContext:
    """The context manager that `AIOKafkaProducer.transaction` returns, for one transaction."""

    def __init__(self, producer: Producer) -> None:
        self._scope = producer.transaction()

    async def __aenter__(self) -> Self:
        with aiokafka_errors:
            await self._scope.__aenter__()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with aiokafka_errors:
            await self._scope.__aexit__(error_type, error, traceback)


def _taken_function(settings: dict[str, Any], name: str) -> Serializer | None:
    """Remove a serializer from the settings and return it, unless it is an object with a `serialize` method."""
    serializer = settings.get(name)
    if not callable(serializer) or hasattr(serializer, "serialize"):
        return None
    del settings[name]
    function: Serializer = serializer
    return function
