"""The Producer class: its public coroutines, and the slow paths of `send`.

The compiled base class contains the fast path, which applies if the topic is known and the buffer has room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from aioproducer.cluster import PartitionInfo, TopicInfo
from aioproducer.config import AddressFilter, Connector
from aioproducer.errors import (
    BufferFullError,
    InvalidRecordError,
)
from aioproducer.from_config import remembers_arguments
from aioproducer.records._record_path import (
    Delivery,
    RecordMetadata,
    Serialization,
    Topic,
    murmur2,
)
from aioproducer.records.arguments import check_is_bytes, check_target, check_timeout
from aioproducer.records.pending_record import PendingRecord
from aioproducer.records.send_calls import SendCalls
from aioproducer.records.serializers import BoundSerializer, Serializer, finish, finish_now
from aioproducer.security.addresses import ResolvedAddressFilter
from aioproducer.sending.bulk import Bulk, end_of
from aioproducer.sending.lifecycle import Lifecycle
from aioproducer.settings.table import SecuritySettings
from aioproducer.transactions.offsets import partitions_of_handoff
from aioproducer.types import (
    AcksName,
    CompressionName,
    Headers,
    K,
    PartitionerName,
    ProducerRecord,
    RecoveryName,
    TopicPartition,
    TransactionHandle,
    V,
)

if TYPE_CHECKING:
    from aioproducer.records import send_calls
    from aioproducer.records.send_calls import with_types_of


class Producer(
    SendCalls[Coroutine[Any, Any, Delivery], Coroutine[Any, Any, RecordMetadata], Delivery, K, V],
    Lifecycle,
    Bulk,
):
    """An asyncio Kafka producer.

        async with Producer("localhost:9092", compression_type="zstd") as producer:
            delivery = await producer.send("orders", b"...", key=b"42")   # in the buffer
            metadata = await delivery                                      # on the broker

    A producer can be created anywhere, even without a running loop, and belongs to the loop in which it is started.

    For type checkers, a Producer[K, V] accepts keys of the type K and values of the type V, or None. Both are inferred
    from the serializers; without a serializer, they are bytes, bytearray and memoryview.

    Args:
        bootstrap_servers: "host:port,host:port" or a list of them; the port is 9092 if left out.
        client_id: the name of this client in the brokers' logs and quotas.
        acks: "all" (all in-sync replicas have the record), 1 (the leader has it), or 0 (no acknowledgement).
        enable_idempotence: retries create no duplicates, and keep the order even with several requests in flight
            (KIP-98, KIP-360). On by default if `acks` is "all".
        enable_gapless_order: if a record fails, the records buffered behind it in its partition fail, too.
        enable_endless_retries: records that may be in the log are sent again until a broker answers or `close` is
            called.
        max_in_flight_requests_per_connection: the maximum number of unanswered requests; at most 5 with idempotence.
        linger_ms: how long a batch waits for more records. `send_and_wait` does not linger.
        batch_size: the size of a full batch in bytes; a larger record gets its own batch.
        buffer_memory: the size of the buffer for records in bytes. If it is full, `send` waits.
        max_request_size: the maximum size in bytes of a record, and of a request with more than one batch.
        max_block_ms: how long `send` may wait in total for metadata and for room in the buffer. With 0, `send`
            never waits, but `start` may still take up to request_timeout_ms.
        delivery_timeout_ms: the time within which a record is delivered or fails (KIP-91). Default: 120000, or
            linger_ms + request_timeout_ms if that is longer; with a transactional_id at most transaction_timeout_ms.
        close_timeout_ms: how long `async with` waits on exit for records that are buffered or in flight; at most
            delivery_timeout_ms. `close()` has its own timeout.
        request_timeout_ms: how long to wait for a broker's response before its connection is closed.
        retry_backoff_ms, retry_backoff_max_ms: the pause before a retry, doubled each time, with 20% jitter (KIP-580).
        compression_type: "none", "gzip", "snappy", "lz4" or "zstd".
        compression_level: the level on the codec's own scale (KIP-390), or None for its default. Java's
            compression_gzip_level, compression_lz4_level and compression_zstd_level each apply to only one codec.
        partitioner: "murmur2" (Java's: keys hashed, records without a key uniformly sticky, KIP-794),
            "consistent_random" (librdkafka's), "round_robin", "random", or a callable
            (key, all partitions, available partitions) -> partition.
        partitioner_ignore_keys: the same as partitioner="random".
        partitioner_adaptive_partitioning_enable: send fewer of the records without a key to partitions whose batches
            queue up.
        partitioner_availability_timeout_ms: avoid partitions whose broker has accepted nothing for this long; 0: never.
        key_serializer, value_serializer: f(value) or f(value, context) -> bytes, or an object with
            serialize(topic, value, headers); each may be async. A key or value of None is not serialized.
        metadata_max_age_ms, metadata_max_idle_ms: the longest time between refreshes, and the time after which an
            unused topic is forgotten (KIP-526).
        metadata_recovery_strategy: "rebootstrap" returns to the bootstrap addresses when no known broker is
            left (KIP-899), or after `metadata_recovery_rebootstrap_trigger_ms` without an update (KIP-1102).
        allow_auto_create_topics: let brokers create topics that do not exist.
        reconnect_backoff_ms, reconnect_backoff_max_ms: the pause between attempts to connect to a broker.
        socket_connection_setup_timeout_ms, socket_connection_setup_timeout_max_ms: the time limit for one attempt.
        connections_max_idle_ms: close connections that have been unused for this long; 0 or None: never.
        transactional_id: identifies this producer's transactions across restarts; needs idempotence and acks="all".
        transaction_timeout_ms: the time after which the broker aborts an open transaction. The producer itself aborts
            it after 80% of this time, unless a commit is in progress.
        interceptors: objects with on_send(record) -> record, or on_acknowledgement(metadata or error) or
            on_acknowledgement(metadata or error, record), called in order.
        hooks: objects with some of the methods of `aioproducer.hooks`, such as on_batch(event), which are called for
            batches, requests and connections.
        enable_metrics_push: push metrics to brokers that ask for them (KIP-714).
        connector: async f(host, port) -> a connected socket, for example through a proxy.
        address_filter: f(host, port, node id), called for each broker in the cluster; returns the (host, port) to
            connect to instead, or None to reject the broker.
        resolved_address_filter: f(host, IP address, port), called for each address that a broker's name resolves to;
            returns whether to connect to it. By default, link-local addresses (169.254.0.0/16, fe80::/10) are rejected.
        max_batch_size: aiokafka's name for `batch_size`.
        security: the `security_protocol`, `ssl_...` and `sasl_...` settings listed in docs/configuration.md.

    Raises:
        ConfigError: a setting is unknown or malformed, or contradicts another one.
    """

    @remembers_arguments
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        *,
        client_id: str | None = "aioproducer",
        acks: AcksName = "all",
        enable_idempotence: bool | None = None,
        enable_gapless_order: bool = False,
        enable_endless_retries: bool = False,
        max_in_flight_requests_per_connection: int = 5,
        linger_ms: float = 5,
        batch_size: int = 262144,
        buffer_memory: int = 67108864,
        max_request_size: int = 1048576,
        max_block_ms: float = 60000,
        delivery_timeout_ms: float | None = None,
        close_timeout_ms: float = 25000,
        request_timeout_ms: float = 30000,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1000,
        compression_type: CompressionName | None = "none",
        compression_level: int | None = None,
        compression_gzip_level: int | None = None,
        compression_lz4_level: int | None = None,
        compression_zstd_level: int | None = None,
        partitioner: PartitionerName | Callable[..., int] | None = "murmur2",
        partitioner_ignore_keys: bool = False,
        partitioner_adaptive_partitioning_enable: bool = True,
        partitioner_availability_timeout_ms: float = 0,
        key_serializer: Serializer[K] | None = None,
        value_serializer: Serializer[V] | None = None,
        metadata_max_age_ms: float = 300000,
        metadata_max_idle_ms: float = 300000,
        metadata_recovery_strategy: RecoveryName = "rebootstrap",
        metadata_recovery_rebootstrap_trigger_ms: float = 300000,
        allow_auto_create_topics: bool = True,
        reconnect_backoff_ms: float = 50,
        reconnect_backoff_max_ms: float = 1000,
        socket_connection_setup_timeout_ms: float = 10000,
        socket_connection_setup_timeout_max_ms: float = 30000,
        connections_max_idle_ms: float | None = 540000,
        transactional_id: str | None = None,
        transaction_timeout_ms: float = 60000,
        interceptors: Sequence[Any] = (),
        hooks: Sequence[Any] = (),
        enable_metrics_push: bool = True,
        connector: Connector | None = None,
        address_filter: AddressFilter | None = None,
        resolved_address_filter: ResolvedAddressFilter | None = None,
        max_batch_size: int | None = None,
        **security: Unpack[SecuritySettings],
    ) -> None:
        self._config = self._configure()
        self._prepare()

    @classmethod
    def attach(
        cls,
        handle: TransactionHandle,
        *,
        partitions: Iterable[TopicPartition | tuple[str, int]],
        log_append_time: bool = False,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Self:
        """Return a producer that takes part in another producer's transaction, perhaps in another process.

        The new producer may only send to `partitions` and flush. The producer that began the transaction ends it,
        once this one has delivered all its records and been closed. Records need `partition=`, or a key and the
        murmur2 partitioner.

        If another producer has written to a partition in the same transaction, this producer's first delivery to that
        partition fails, and the transaction must be aborted. The broker mistakes the batch for a duplicate of the
        other producer's batch: it appends nothing and reports success, but with the other batch's time
        (kafka.storage.UnifiedLog). The broker responds in the same way if a participant retries its own batch because
        the first response was lost. Therefore, if the response to its first batch in a partition is lost even once,
        the transaction must also be aborted; later batches are retried as usual.

        Args:
            handle: from `export_transaction`. A handle may be used only once per partition.
            partitions: the partitions that only this producer writes to.
            log_append_time: whether the topics' message.timestamp.type is LogAppendTime. In that case, every response
                contains a time. Before its first record in a partition, the producer therefore asks the leader which
                producers have written to it in the transaction (Kafka 2.8). Another producer that begins to write at
                the same time is noticed only if its batches have different sizes.
            config: settings under any client's names, as for `from_config`.
            settings: the settings of `Producer`, except transactional_id.
        """
        try:
            producer = cls.from_config(config or {}, **settings, transactional_id=handle.transactional_id)
        finally:
            del config, settings  # a traceback that shows locals must not show passwords
        producer._handle = handle
        producer._transaction.attach(
            handle, partitions_of_handoff(partitions), detects_repetitions=not log_append_time
        )
        return producer

    @classmethod
    def resume(
        cls, handle: TransactionHandle, *, config: Mapping[str, Any] | None = None, **settings: Any
    ) -> Self:
        """Return a producer that owns a transaction released by another producer, perhaps in another process.

        The new producer may send offsets, and commit, abort or fence the transaction, but not send records. If it is
        closed before the transaction has ended, it aborts the transaction. Once the transaction has ended,
        `init_transactions()` takes over the transactional id permanently.

        Args:
            handle: from `release_transaction`. A handle may be resumed only once.
            config: settings under any client's names, as for `from_config`.
            settings: the settings of `Producer`, except transactional_id.
        """
        try:
            producer = cls.from_config(config or {}, **settings, transactional_id=handle.transactional_id)
        finally:
            del config, settings  # as in attach()
        producer._handle = handle
        producer._is_owner = True
        return producer

    # ------------------------------------------------------------------------------------------- sending

    # These stubs are for type checkers. The compiled methods are in RecordPath (records/_record_path.pyx). If a record
    # has to wait, they call _send_slowly() or _try_send_slowly(), below.

    if TYPE_CHECKING:

        @with_types_of(send_calls.send)
        async def send(
            self: Self,
            topic: str,
            value: V | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: Serializer[Any] | None = None,
            value_serializer: Serializer[Any] | None = None,
        ) -> Delivery:
            """Put a record into the buffer and return its delivery. Waits for metadata and for room in the buffer.

            Args:
                topic: the name of the topic, str.
                value, key: bytes, bytearray, memoryview or None, or what the serializers accept.
                partition: a number, or None for the partitioner's choice.
                timestamp_ms: milliseconds since 1970; now if None.
                headers: a list of (str, bytes or None).
                timeout: seconds for this record, including the wait for room; None for delivery_timeout_ms.
                key_serializer, value_serializer: the serializers for this record; None for the producer's.

            Returns:
                The Delivery, a future whose result is the RecordMetadata.

            Raises:
                InvalidRecordError, InvalidTopicError, RecordTooLargeError, SerializationError: the record is invalid.
                MetadataTimeoutError, UnknownPartitionError, BufferTimeoutError: the wait exceeded max_block_ms.
                TopicAuthorizationError: the cluster does not allow this client to write.
                ProducerNotStartedError, ProducerClosed, WrongLoopError, ForkedError: the producer is not started or is
                    closed, or it belongs to another event loop, thread or process.

            If send() raises, the record is not sent.

            If send() is cancelled while it waits, the record is not sent. A record that is already in the buffer is
            sent, even if its delivery, or a task that awaits it, is cancelled.
            """
            ...

        @with_types_of(send_calls.send_and_wait)
        async def send_and_wait(
            self: Self,
            topic: str,
            value: V | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: Serializer[Any] | None = None,
            value_serializer: Serializer[Any] | None = None,
        ) -> RecordMetadata:
            """Send a record and wait for its acknowledgement. The record's batch does not linger.

            Takes the same arguments as `send`.

            Raises:
                DeliveryError: the record failed; `outcome` says whether it may be in the log.
                Others: see `send`.

            If the call is cancelled once the record is in the buffer, only the wait ends; the record is still sent.
            """
            ...

        @with_types_of(send_calls.try_send)
        def try_send(
            self: Self,
            topic: str,
            value: V | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: Serializer[Any] | None = None,
            value_serializer: Serializer[Any] | None = None,
        ) -> Delivery:
            """Put a record into the buffer and return its delivery, without waiting.

            Takes the same arguments as `send`.

            Raises:
                BufferFullError: the buffer is full, or the topic's metadata is not known yet (it has been requested).
                Others: see `send`.
            """
            ...

    async def _send_slowly(self, pending: PendingRecord, timeout: float | None) -> Delivery:
        """Send a record that may have to wait for metadata, an async serializer, the user's partitioner, or room."""
        with self._rejections.of(pending.topic):
            self._check_may_append()
            check_timeout(timeout, InvalidRecordError)
            began = self._loop.time()
            pending.transaction = self._transaction.number
            pending.deadline = end_of(timeout, began)
            try:
                return await self._send_pending(pending)
            finally:
                if timeout is not None and pending.delivery is not None:
                    self._own_timeouts.end_delivery_after(pending.delivery, timeout, began)

    async def _send_pending(self, pending: PendingRecord) -> Delivery:
        """Send a record, and call the user's interceptors before and after."""
        if not pending.is_intercepted:
            pending.record = pending.intercepted = self._interceptors.on_send(pending.record)
        try:
            return await self._append_pending(pending)
        except BaseException as error:
            if pending.delivery is None:  # otherwise, only the caller was cancelled
                self._interceptors.on_acknowledgement(error, pending.intercepted)
            raise
        finally:
            if pending.delivery is not None:
                self._interceptors.watch(pending.delivery, pending.intercepted)

    async def _append_pending(self, pending: PendingRecord) -> Delivery:
        """Serialize a record and append it, once its topic is known and there is room."""
        topic, _, _, partition, timestamp_ms, _, _ = pending.record
        partition = check_target(topic, partition)
        end, bound = self._end_of_wait(pending.deadline)
        info = await self._metadata.wait_for_topic(topic, end, partition)
        known = self._accumulator.open_topic(info)
        serialization = self._serialization_of(pending, info)
        await finish(serialization)
        self._check_usable()
        self._transaction.check_is_still(pending.transaction)
        key = serialization.key
        number = self._partition_of(info, key, partition)
        pending.record = ProducerRecord(
            topic, serialization.value, key, number, timestamp_ms, serialization.headers
        )
        delivery = self._append_now(pending, known, False)
        if delivery is not None:
            return delivery
        return await self._accumulator.lock.append(
            partial(self._append_now, pending, known, True), end, bound
        )

    def _serialization_of(self, pending: PendingRecord, info: TopicInfo) -> Serialization:
        """Return the record's Serialization; create it if none of its serializers has been called yet."""
        if pending.serialization is not None:
            return pending.serialization
        _, value, key, _, _, headers, _ = pending.record
        return self._serialization(pending.of_value, pending.of_key, info.name, value, key, headers)

    def _serializer_for(self, topic: object, serializer: Any, field: str) -> BoundSerializer:
        """Return the BoundSerializer for a serializer that was passed to `send`."""
        with self._rejections.of(topic):
            return self._serializers.given(serializer, field)

    def _append_now(self, pending: PendingRecord, topic: Topic, is_first_waiter: bool) -> Delivery | None:
        """Append a record, unless its transaction ended while it waited. Return None if there is no room."""
        self._transaction.check_is_still(pending.transaction)
        _, value, key, partition, timestamp_ms, headers, _ = pending.record
        assert partition is not None  # set by _append_pending()
        delivery: Delivery | None = self._append(
            topic, value, key, partition, timestamp_ms, headers, is_first_waiter
        )
        pending.delivery = delivery
        return delivery

    def _partition_of(self, info: TopicInfo, key: bytes | None, partition: int | None) -> int:
        """Return the given partition, the partitioner's choice, or COMPILED_PATH_CHOOSES to let the append choose."""
        if self._handle is not None and partition is None:
            # A participant may write only to some partitions, so the partition must be known before the append.
            if key is None or not self._choice.is_compiled:
                raise InvalidRecordError(
                    "a producer that takes part in another producer's transaction requires partition= or, with the "
                    "murmur2 partitioner, a key",
                    argument="partition",
                )
            if type(key) is not bytes:
                check_is_bytes(key, "key")
            partition = (murmur2(key) & 0x7FFFFFFF) % len(info.partitions)
        number = self._choice.partition_for(info, key) if partition is None else partition
        self._transaction.role.check_is_own(info.name, number)
        return number

    def _check_may_append(self) -> None:
        self._check_usable()
        self._transaction.check_may_send()

    def _try_send_slowly(self, pending: PendingRecord, timeout: float | None) -> Delivery:
        with self._rejections.of(pending.topic):
            self._check_may_append()
            if not pending.is_intercepted:
                pending.record = pending.intercepted = self._interceptors.on_send(pending.record)
            try:
                delivery = self._try_send_pending(pending, timeout)
            except BaseException as error:
                self._interceptors.on_acknowledgement(error, pending.intercepted)
                raise
            self._interceptors.watch(delivery, pending.intercepted)
            return delivery

    def _count_rejected(self, topic: object, error: BaseException) -> None:
        self._rejections.note(topic, error)

    def _try_send_pending(self, pending: PendingRecord, timeout: float | None) -> Delivery:
        topic, _, _, partition, timestamp_ms, _, _ = pending.record
        partition = check_target(topic, partition)
        check_timeout(timeout, InvalidRecordError)
        began = self._loop.time()
        info = self._metadata.topic(topic)
        if info is None or (partition is not None and partition >= len(info.partitions)):
            self._metadata.ask_for(topic)
            if info is not None:
                self._metadata.request_update()
            raise BufferFullError(
                f"try_send: the partitions of topic {topic} are not known yet; use send, which waits"
            )
        serialization = self._serialization_of(pending, info)
        finish_now(serialization, "try_send")
        known = self._accumulator.open_topic(info)
        key = serialization.key
        number = self._partition_of(info, key, partition)
        delivery = self._append(
            known, serialization.value, key, number, timestamp_ms, serialization.headers, False
        )
        if delivery is None:
            raise BufferFullError(
                f"the buffer of {self._config.buffer_memory} bytes (buffer_memory) is full; use send, which waits"
            )
        if timeout is not None:
            self._own_timeouts.end_delivery_after(delivery, timeout, began)
        return delivery

    # ----------------------------------------------------------------------------------- other public calls

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the result of every record sent so far is known. Batches with these records do not linger.

        Args:
            timeout: the maximum wait in seconds; None for no limit other than delivery_timeout_ms.

        Raises:
            TimeoutError: the results of some records are not known yet. These records are still being sent.

        Cancelling the call does not affect the records.
        """
        self._check_usable()
        check_timeout(timeout)
        async with asyncio.timeout(timeout):
            await self._accumulator.flush()

    async def partitions_for(self, topic: str, *, timeout: float | None = None) -> set[int]:
        """Return the numbers of the topic's partitions; see `partition_info`."""
        return {partition.partition for partition in await self.partition_info(topic, timeout=timeout)}

    async def partition_info(self, topic: str, *, timeout: float | None = None) -> tuple[PartitionInfo, ...]:
        """Return the leader, leader epoch, replicas and ISR of each partition.

        Args:
            topic: the name of the topic.
            timeout: seconds to wait for the topic's metadata; None for max_block_ms.

        Raises:
            MetadataTimeoutError: the topic's metadata did not arrive in time.
        """
        self._check_usable()
        check_target(topic, None)
        check_timeout(timeout)
        seconds = self._config.max_block if timeout is None else timeout
        info = await self._metadata.wait_for_topic(topic, self._loop.time() + seconds)
        return info.partitions
