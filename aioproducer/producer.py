"""class Producer: the public coroutines. Connects the parts, starts and stops them, and has the slow paths of `send`.

The fast path, for a record of a known topic with room in the buffer, is in the compiled base class."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import math
import os
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from aioproducer.cluster import PartitionInfo, TopicInfo
from aioproducer.concurrency.tasks import ended, new_task
from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.config import AddressFilter, Connector
from aioproducer.core import Core
from aioproducer.errors import (
    BufferFullError,
    BufferTimeoutError,
    ForkedError,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    ProducerClosed,
    ProducerNotStartedError,
    RecordTooLargeError,
    UnknownPartitionError,
    WrongLoopError,
    without_tracebacks,
)
from aioproducer.from_config import FromConfig, remembers_arguments
from aioproducer.metrics import Metrics, MetricsSnapshot
from aioproducer.network.brokers import Brokers
from aioproducer.network.metadata import Metadata
from aioproducer.records._record_path import (
    NO_ROOM,
    OTHERS_TURN,
    Delivery,
    PartitionQueue,
    RecordMetadata,
    Rows,
    Span,
    Topic,
    murmur2,
)
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.arguments import check_is_bytes, check_target, check_timeout
from aioproducer.records.batch import BatchBuilder, BatchState
from aioproducer.records.compressor import BatchCompressor
from aioproducer.records.idempotence import Idempotence
from aioproducer.records.interceptors import Interceptors
from aioproducer.records.partition_choice import PartitionChoice
from aioproducer.records.receipt import Receipt
from aioproducer.records.serializers import Serializer, serialized, serialized_now
from aioproducer.security.addresses import ResolvedAddressFilter
from aioproducer.sending.own_timeouts import OwnTimeouts
from aioproducer.sending.sender import Sender
from aioproducer.settings.table import SecuritySettings
from aioproducer.transactions.calls import Transactional
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.offsets import partitions_of_handoff
from aioproducer.transactions.state import Transaction
from aioproducer.types import Headers, ProducerRecord, TopicPartition, TransactionHandle

logger = logging.getLogger(__name__)


TASKS_CANCELLED = "its tasks were cancelled, as when an event loop ends,"
MOST_TOPICS_NAMED = 10
"""In one log line."""


class ProducerState(Enum):
    NEW = "new"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


TRANSITIONS: dict[ProducerState, frozenset[ProducerState]] = {
    ProducerState.NEW: frozenset({ProducerState.RUNNING, ProducerState.CLOSED}),
    ProducerState.RUNNING: frozenset({ProducerState.CLOSING}),
    ProducerState.CLOSING: frozenset({ProducerState.CLOSED}),
    ProducerState.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class CloseReport:
    """The results of all records of a producer, returned by `close()`."""

    delivered: int
    failed: int
    """Certainly not in the log."""
    unknown: int
    """May be in the log."""
    unretrieved: dict[tuple[str, str], int]
    """Failed records whose result was not retrieved, by (topic, error)."""


class Producer(Transactional, FromConfig):
    """An asyncio Kafka producer.

        async with Producer("localhost:9092", compression_type="zstd") as producer:
            delivery = await producer.send("orders", b"...", key=b"42")   # in the buffer
            metadata = await delivery                                      # on the broker

    It can be built anywhere, even without a running loop, and belongs to the loop in which it is started.

    Args:
        bootstrap_servers: "host:port,host:port" or a list of them; the port is 9092 if left out.
        client_id: the name of this client in the brokers' logs and quotas.
        acks: "all" (all in-sync replicas have the record), 1 (the leader has it), or 0 (no acknowledgement).
        enable_idempotence: retries create no duplicates and keep the order with several requests in flight (KIP-98,
            KIP-360). On by default if `acks` is "all".
        enable_gapless_order: a failed record fails the records that are buffered behind it in its partition.
        enable_endless_retries: records that may be in the log are sent again until a broker answers, or `close`.
        max_in_flight_requests_per_connection: at most 5 with idempotence.
        linger_ms: how long a batch waits for more records. `send_and_wait` does not linger.
        batch_size: the size of a full batch in bytes; a larger record gets its own batch.
        buffer_memory: bytes of records that may wait in the buffer. If it is full, `send` waits.
        max_request_size: the maximum size in bytes of a record, and of a request with more than one batch.
        max_block_ms: how long `send` may wait in total for metadata and for room in the buffer. With 0 it never
            waits, and `start` may take request_timeout_ms.
        delivery_timeout_ms: the time within which a record is delivered or fails (KIP-91). Default: 120000, or
            linger_ms + request_timeout_ms if that is longer; with a transactional_id at most transaction_timeout_ms.
        close_timeout_ms: how long the end of `async with` waits for records that are buffered or in flight, at most
            delivery_timeout_ms. `close()` has its own timeout.
        request_timeout_ms: how long to wait for a broker's answer before its connection is closed.
        retry_backoff_ms, retry_backoff_max_ms: the pause before a retry, doubled each time, 20 % jitter (KIP-580).
        compression_type: "none", "gzip", "snappy", "lz4" or "zstd".
        compression_level: the level on the codec's own scale (KIP-390), or None for its default. Java's
            compression_gzip_level, compression_lz4_level and compression_zstd_level apply to one codec only.
        partitioner: "murmur2" (Java's: keys hashed, records without a key uniformly sticky, KIP-794),
            "consistent_random" (librdkafka's), "round_robin", "random", or a callable
            (key, all partitions, available partitions) -> partition.
        partitioner_ignore_keys: the same as partitioner="random".
        partitioner_adaptive_partitioning_enable: send fewer records without a key to partitions whose batches queue up.
        partitioner_availability_timeout_ms: skip partitions whose broker accepted nothing for this long; 0: never.
        key_serializer, value_serializer: f(value) -> bytes, or an object with serialize(topic, value, headers);
            either may be async.
        metadata_max_age_ms, metadata_max_idle_ms: the longest time between refreshes, and the time after which an
            unused topic is forgotten (KIP-526).
        metadata_recovery_strategy: "rebootstrap" returns to the bootstrap addresses when no known broker is
            left (KIP-899), or after `metadata_recovery_rebootstrap_trigger_ms` without an update (KIP-1102).
        allow_auto_create_topics: let brokers create topics that do not exist.
        reconnect_backoff_ms, reconnect_backoff_max_ms: the pause between attempts to connect to a broker.
        socket_connection_setup_timeout_ms, socket_connection_setup_timeout_max_ms: the time limit of one attempt.
        connections_max_idle_ms: close connections that were unused for this long; 0 or None: never.
        transactional_id: identifies this producer's transactions across restarts; needs idempotence and acks="all".
        transaction_timeout_ms: the time after which the broker aborts an open transaction. The producer itself aborts
            it after 80 % of this time, unless a commit is in progress.
        interceptors: objects with on_send(record) -> record or on_acknowledgement(metadata or error), called in order.
            They do not see batches that were built by hand (`send_batch`).
        connector: async f(host, port) -> a connected socket, for example through a proxy.
        address_filter: f(host, port, node id) for each broker of the cluster -> the address to connect to instead, or
            None to reject the broker.
        resolved_address_filter: f(host, IP address, port) for each address that a broker's name resolves to -> whether
            to connect to it. By default link-local addresses (169.254.0.0/16, fe80::/10) are rejected.
        max_batch_size: aiokafka's name for `batch_size`.
        security: the `security_protocol`, `ssl_...` and `sasl_...` settings listed in docs/configuration.md.

    Raises:
        ConfigError: a setting is unknown, malformed or contradicts another one.
    """

    @remembers_arguments
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        *,
        client_id: str | None = "aioproducer",
        acks: int | str = "all",
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
        compression_type: str | None = "none",
        compression_level: int | None = None,
        compression_gzip_level: int | None = None,
        compression_lz4_level: int | None = None,
        compression_zstd_level: int | None = None,
        partitioner: str | Callable[..., int] = "murmur2",
        partitioner_ignore_keys: bool = False,
        partitioner_adaptive_partitioning_enable: bool = True,
        partitioner_availability_timeout_ms: float = 0,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        metadata_max_age_ms: float = 300000,
        metadata_max_idle_ms: float = 300000,
        metadata_recovery_strategy: str = "rebootstrap",
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
        connector: Connector | None = None,
        address_filter: AddressFilter | None = None,
        resolved_address_filter: ResolvedAddressFilter | None = None,
        max_batch_size: int | None = None,
        **security: Unpack[SecuritySettings],
    ) -> None:
        self._config = self._configure()
        self._state = ProducerState.NEW
        self._metrics = Metrics()
        self._random = Random()
        self._choice = PartitionChoice(self._config, self._random)
        self._interceptors = Interceptors(self._config.interceptors)
        self._transaction = Transaction(self._config.transactional_id, self._gate)
        self._handle: TransactionHandle | None = None
        """The handle of another producer's transaction that this one takes part in or has taken over."""
        self._is_owner = False
        self._shares_the_loop = True
        """False if no user code runs in the loop, so that compression need not give way to it."""
        # start() creates the rest, once the loop is known.
        self._loop: asyncio.AbstractEventLoop
        self._process: int
        """The process id. A forked child inherits the producer, but must not touch its loop."""
        self._accumulator: Accumulator
        self._brokers: Brokers
        self._metadata: Metadata
        self._coordinator: Coordinator
        self._sender: Sender
        self._own_timeouts: OwnTimeouts
        self._tasks: list[asyncio.Task[None]] = []
        self._compressor: BatchCompressor
        self._closing: asyncio.Future[CloseReport] | None = None
        self._is_reported = False
        self._logs_given_up = False
        self._give_up_flush = asyncio.Event()
        self._takes_columns = False
        """No user code has to see each record, so rows of send_many are appended to the batches directly."""

    def _move(self, to: ProducerState) -> None:
        assert to in TRANSITIONS[self._state], f"a producer can't go from {self._state.value} to {to.value}"
        self._state = to

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
        """Return a producer that takes part in a transaction of another producer, perhaps in another process.

        It may only send to these partitions and flush. The producer that began the transaction ends it, after this one
        has delivered all its records and is closed. Records need `partition=`, or a key (murmur2).

        If another producer has written to a partition in the same transaction, the first delivery there fails, and the
        transaction must be aborted: the broker takes the batch for a repetition of the other producer's, appends
        nothing and answers success, but with the time of the other batch (kafka.storage.UnifiedLog). A participant's
        own batch, repeated because the first answer was lost, gets the same answer. Therefore one lost answer to the
        first batch of a partition also ends the transaction; later batches are repeated as usual.

        Args:
            handle: from `export_transaction`. It may be used once for each partition.
            partitions: the partitions that this producer, and no other one, writes to.
            log_append_time: the topics' message.timestamp.type is LogAppendTime. Every answer has a time then, so
                another writer is noticed only if its batches had other sizes.
            config: settings under any client's names, as for `from_config`.
            settings: as `Producer`, without transactional_id.
        """
        try:
            producer = cls.from_config(config or {}, **settings, transactional_id=handle.transactional_id)
        finally:
            del config, settings  # a traceback that shows locals must not show passwords
        producer._handle = handle
        producer._transaction.attach(
            handle, partitions_of_handoff(partitions), tells_repetitions=not log_append_time
        )
        return producer

    @classmethod
    def resume(
        cls, handle: TransactionHandle, *, config: Mapping[str, Any] | None = None, **settings: Any
    ) -> Self:
        """Return a producer that owns a transaction which another producer, perhaps in another process, has released.

        It may send offsets, and commit, abort or fence the transaction, but not send records. If it is closed before,
        it aborts the transaction. After the end of the transaction, `init_transactions()` takes over the transactional
        id for good.

        Args:
            handle: from `release_transaction`. It may be resumed once.
            config: settings under any client's names, as for `from_config`.
            settings: as `Producer`, without transactional_id.
        """
        try:
            producer = cls.from_config(config or {}, **settings, transactional_id=handle.transactional_id)
        finally:
            del config, settings  # as in attach()
        producer._handle = handle
        producer._is_owner = True
        return producer

    # ---------------------------------------------------------------------------------------- start and close

    async def start(self) -> None:
        """Connect to the cluster and begin to send. `async with` calls it.

        Raises:
            BootstrapError: no bootstrap address answered within max_block_ms (if that is 0, request_timeout_ms). The
                error names the reason for each address.
            AuthenticationError: a broker rejects our credentials, or we reject its certificate. Raised immediately.
            ConfigError: certificates cannot be read.
            IllegalStateError: the producer was started before.
            WrongLoopError: no asyncio event loop is running.

        Cancelling it leaves the producer closed.
        """
        if self._state is not ProducerState.NEW:
            raise IllegalStateError(
                f"the producer is {self._state.value}; start() works once, build a new one"
            )
        self._loop = _running_loop()
        self._move(ProducerState.RUNNING)
        self._process = os.getpid()
        _started.add(self)
        self._make_parts()
        try:
            await self._open()
        except GeneratorExit:
            raise  # the loop is gone: nothing can be awaited
        except BaseException:
            await self.close(timeout=0)
            raise

    def _make_parts(self) -> None:
        """Create the parts behind the buffer. None of them is active yet."""
        core = Core(self._config, self._loop, WakeUp(self._loop), self._metrics, self._random)
        self._wake = core.wake
        self._compressor = BatchCompressor(core.config, core.loop, gives_way=self._shares_the_loop)
        self._brokers = brokers = Brokers(core)
        self._metadata = metadata = Metadata(core, brokers)
        self._accumulator = accumulator = Accumulator(core, self._compressor)
        transaction = self._transaction
        self._own_timeouts = OwnTimeouts(core, accumulator, transaction)
        idempotence = Idempotence(core.config.enable_idempotence)
        self._coordinator = Coordinator(core, transaction, idempotence, accumulator, brokers)
        self._sender = Sender(
            core, accumulator, brokers, metadata, idempotence, transaction, self._coordinator
        )

    async def _open(self) -> None:
        """Get the metadata of the cluster, and start the parts."""
        config = self._config
        self._spawn(self._metadata.run(), "aioproducer-metadata")
        # With 0 `send` never waits, but connecting takes time all the same.
        await self._metadata.first_update(self._loop.time() + (config.max_block or config.request_timeout))
        self._spawn(self._sender.run(), "aioproducer-sender")
        self._takes_columns = (
            config.key_serializer is None
            and config.value_serializer is None
            and not config.interceptors
            and self._choice.is_compiled
        )
        takes_fast_path = self._takes_columns and self._handle is None
        self._bind(
            self._loop,
            self._accumulator,
            self._accumulator.memory,
            config.batch_size,
            config.max_request_size,
            takes_fast_path,
        )
        if self._handle is not None and self._is_owner:
            self._coordinator.resume(self._handle)
        elif self._handle is not None:
            self._coordinator.attach(self._handle)
        elif self._transaction.is_used:
            await self._coordinator.initialize()

    def _spawn(self, coroutine: Any, name: str) -> None:
        task = new_task(self._loop, coroutine, name)
        # Weak, like every reference from the loop to a producer, so that a dropped producer is garbage-collected.
        task.add_done_callback(partial(_task_ended, weakref.ref(self)))
        self._tasks.append(task)

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Send the buffered records and stop.

        Afterwards no task or socket is left. A thread that is still compressing a batch ends with the batch, and does
        not keep the interpreter alive.

        Args:
            timeout: seconds to wait for records that are buffered or in flight; 0 fails them immediately. Default:
                delivery_timeout_ms, after which every record has its result anyway.

        Returns:
            The number of records that were delivered, failed, or have an unknown outcome, since the start.

        Cancelling it fails the remaining records immediately. A second call waits for the first and returns its report.
        """
        check_timeout(timeout)
        if self._state is ProducerState.NEW:
            self._move(ProducerState.CLOSED)
            self._unbind()
            return CloseReport(0, 0, 0, {})
        if self._state is not ProducerState.CLOSED:
            self._check_place()
        if self._closing is None:
            seconds = self._config.delivery_timeout + 1 if timeout is None else timeout
            self._closing = asyncio.ensure_future(self._close(seconds, "the producer was closed"))
        try:
            return await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            self._give_up_flush.set()
            await ended(self._closing)
            raise

    stop = close
    """aiokafka's name for `close`."""

    async def _close(self, timeout: float, reason: str) -> CloseReport:
        self._move(ProducerState.CLOSING)
        self._unbind()
        self._accumulator.close()
        self._metadata.close_waiters(
            ProducerClosed("the producer was closed while the record waited for metadata")
        )
        began = self._loop.time()
        if timeout > 0 and (self._accumulator.incomplete or self._transaction.is_used):
            finish = asyncio.ensure_future(self._finish())
            given_up = asyncio.ensure_future(self._give_up_flush.wait())
            await asyncio.wait({finish, given_up}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finish.cancel()
            given_up.cancel()
            await asyncio.wait({finish, given_up})
            if not finish.cancelled() and (error := finish.exception()) is not None:
                logger.error("close() failed; the remaining records are failed as well", exc_info=error)
            if self._logs_given_up:
                self._report_given_up(self._loop.time() - began)
        self._sender.abort(f"{reason} before the records were acknowledged")
        await self._coordinator.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._brokers.close()
        await self._compressor.close()
        self._accumulator.unretrieved.close()
        self._move(ProducerState.CLOSED)
        metrics = self._metrics
        return CloseReport(
            metrics.records_acked,
            metrics.records_failed,
            metrics.records_unknown,
            dict(self._accumulator.unretrieved.counts),
        )

    def _report_given_up(self, waited: float) -> None:
        """Log the records that the end of a block did not wait for, since the report of close() is dropped there."""
        counts: Counter[str] = Counter()
        for batch in self._accumulator.incomplete:
            counts[batch.queue.topic] += batch.live_count
        if not counts:
            return
        topics = [f"{count} for topic {topic}" for topic, count in counts.most_common(MOST_TOPICS_NAMED)]
        if len(counts) > MOST_TOPICS_NAMED:
            topics.append(f"the others for {len(counts) - MOST_TOPICS_NAMED} more topics")
        logger.error(
            "%r is closed before %s acknowledged, after %.3g s: %s. Each delivery says whether its record may "
            "be in the log. To wait longer, raise close_timeout_ms (%g) or call close(timeout=seconds)",
            self,
            "1 record was" if counts.total() == 1 else f"{counts.total()} records were",
            waited,
            ", ".join(topics),
            self._config.close_timeout * 1000,
        )

    async def _finish(self) -> None:
        """End the transaction and flush: the part of close() that may take long."""
        await self._end_transaction()
        await self._accumulator.flush()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an exception, including a cancellation, there is no wait for the remaining records.
        await self.close(timeout=self._seconds_to_leave() if error_type is None else 0)

    def _seconds_to_leave(self) -> float:
        """Return how long the end of a block may wait. Makes close() log the records that it fails."""
        self._logs_given_up = True
        return min(self._config.close_timeout, self._config.delivery_timeout + 1)

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "a Producer needs `async with`, in a coroutine; code without asyncio uses aioproducer.blocking.Producer"
        )

    def __exit__(self, *error: object) -> None:
        """Needed because Python looks it up before it calls __enter__."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Producer can't be pickled or copied, since it belongs to a process and an event loop; send the settings "
            "and build one in each process"
        )

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_state", ProducerState.NEW) in (ProducerState.RUNNING, ProducerState.CLOSING):
            is_closing = self._close_dropped()
            warn(f"{self!r} was not closed; use `async with` or await close()", ResourceWarning, source=self)
            if not is_closing:
                self._report_unclosed("it was garbage-collected")

    def _report_unclosed(self, why: str) -> None:
        """Log, once, how many accepted records are lost because the producer was not closed."""
        batches = list(self._accumulator.incomplete) if hasattr(self, "_accumulator") else []
        if not batches or self._is_reported:
            return
        try:
            self._check_place()
        except ForkedError:
            return  # the records belong to the parent process
        except WrongLoopError:
            pass  # the loop has ended
        self._is_reported = True
        count = sum(batch.live_count for batch in batches)
        unknown = sum(
            batch.live_count
            for batch in batches
            if batch.maybe_persisted or batch.state is BatchState.IN_FLIGHT
        )
        logger.error(
            "Unclosed producer %r: %s before %d accepted records had a result: %d were not sent and are lost, %d may "
            "be in the log. Use `async with Producer(...)`, or await producer.close() before the event loop ends",
            self,
            why,
            count,
            count - unknown,
            unknown,
        )

    def _close_dropped(self) -> bool:
        """Close a running producer that is no longer referred to. Return False if its loop cannot do that any more.

        The task of close() refers to the producer, which lives until the task ends; its __del__ is not called again.
        The garbage collector may call this in any thread.
        """
        if self._state is not ProducerState.RUNNING or self._process != os.getpid() or self._loop.is_closed():
            return False
        try:
            self._loop.call_soon_threadsafe(_close_in_background, self)
        except RuntimeError:
            return False  # another thread has closed the loop in the meantime
        return True

    def __repr__(self) -> str:
        if not hasattr(self, "_state"):
            return "<Producer with rejected settings>"
        servers = ",".join(f"{host}:{port}" for host, port in self._config.bootstrap_servers)
        return f"<Producer {self._state.value} {servers}>"

    # ------------------------------------------------------------------------------------------- sending

    if TYPE_CHECKING:  # inherited: compiled in records/_record_path.pyx, as far as they need not wait

        async def send(
            self,
            topic: str,
            value: Any = None,
            key: Any = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
        ) -> Delivery:
            """Put a record into the buffer and return its delivery. Waits for metadata and for room in the buffer.

            Args:
                topic: the name of the topic, str.
                value, key: bytes, bytearray, memoryview or None, or what the serializers accept.
                partition: a number, or None for the partitioner's choice.
                timestamp_ms: milliseconds since 1970; now if None.
                headers: a list of (str, bytes or None).
                timeout: seconds for this record, including the wait for room; None for delivery_timeout_ms.

            Returns:
                The Delivery, a future of the RecordMetadata.

            Raises:
                InvalidRecordError, InvalidTopicError, RecordTooLargeError, SerializationError: it is not valid.
                MetadataTimeoutError, UnknownPartitionError, BufferTimeoutError: the wait exceeded max_block_ms.
                TopicAuthorizationError: the cluster does not allow this client to write.
                ProducerNotStartedError, ProducerClosed, WrongLoopError, ForkedError: it cannot be used here.
                If send() raises, the record is not sent.

            If send() is cancelled while it waits, the record is not sent. A record that is already in the buffer is
            sent, even if its delivery, or a task that awaits it, is cancelled.
            """

        async def send_and_wait(
            self,
            topic: str,
            value: Any = None,
            key: Any = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
        ) -> RecordMetadata:
            """Send a record and wait for its acknowledgement. Its batch does not linger.

            Takes the arguments of `send`.

            Raises:
                DeliveryError: the record failed; `outcome` says whether it may be in the log.
                Others as `send`.

            Cancelling it once the record is in the buffer ends only the wait.
            """

        def try_send(
            self,
            topic: str,
            value: Any = None,
            key: Any = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
        ) -> Delivery:
            """Put a record into the buffer and return its delivery, without waiting.

            Takes the arguments of `send`.

            Raises:
                BufferFullError: the buffer is full, or the topic's metadata is not known yet (it is requested).
                Others as `send`.
            """

    async def _send_slowly(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        timeout: float | None,
    ) -> Delivery:
        """Send a record that has to wait or needs user code: interceptors, metadata, serializers, partitioner."""
        self._check_may_append()
        check_timeout(timeout, InvalidRecordError)
        began = self._loop.time()
        record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
        appended: list[Delivery] = []
        try:
            return await self._send_before(_end_of(timeout, began), record, appended)
        finally:
            if timeout is not None:
                for delivery in appended:
                    self._own_timeouts.end_delivery_after(delivery, timeout, began)

    async def _send_before(
        self, deadline: float, record: ProducerRecord, appended: list[Delivery]
    ) -> Delivery:
        """Send a record that must be in the buffer at the loop time `deadline`. Adds its delivery to `appended` at the
        moment of the append, even if the caller is then cancelled."""
        transaction = self._transaction.number
        record = self._interceptors.on_send(record)
        try:
            return await self._send_record(deadline, record, transaction, appended)
        except BaseException as error:
            if not appended:  # else the record is in the buffer, and its caller was cancelled
                self._interceptors.on_acknowledgement(error)
            raise
        finally:
            for delivery in appended:
                self._interceptors.watch(delivery)

    async def _send_record(
        self, deadline: float, record: ProducerRecord, transaction: int, appended: list[Delivery]
    ) -> Delivery:
        topic, value, key, partition, timestamp_ms, headers = record
        partition = check_target(topic, partition)
        end, bound = self._end_of_wait(deadline)
        info = await self._metadata.wait_for_topic(topic, end, partition)
        known = self._accumulator.open_topic(info)
        value = await serialized(self._config.value_serializer, value, topic, headers, "value")
        key = await serialized(self._config.key_serializer, key, topic, headers, "key")
        self._check_usable()
        self._transaction.check_is_still(transaction)
        number = self._partition_of(info, key, partition)
        delivery = self._append(known, value, key, number, timestamp_ms, headers, False)
        if delivery is None:
            append = partial(
                self._append_waiting, transaction, appended, known, value, key, number, timestamp_ms, headers
            )
            return await self._accumulator.lock.append(append, end, bound)
        appended.append(delivery)
        return delivery

    def _end_of_wait(self, deadline: float) -> tuple[float, str]:
        """Return the loop time until which a call that begins now may wait, and the name of the bound: max_block_ms,
        unless the deadline of the caller's timeout is earlier."""
        end = self._loop.time() + self._config.max_block
        return (deadline, "the timeout of the call") if deadline < end else (end, "max_block_ms")

    def _partition_of(self, info: TopicInfo, key: bytes | None, partition: int | None) -> int:
        """Return the given partition or the partitioner's choice; COMPILED_PATH_CHOOSES leaves it to the append."""
        if self._handle is not None and partition is None:
            # A participant may write to some partitions only: the partition must be known before the append.
            if key is None or not self._choice.is_compiled:
                raise InvalidRecordError(
                    "a producer that takes part in another producer's transaction needs partition= or, with the "
                    "partitioner murmur2, a key",
                    argument="partition",
                )
            if type(key) is not bytes:
                check_is_bytes(key, "key")
            partition = (murmur2(key) & 0x7FFFFFFF) % len(info.partitions)
        number = self._choice.partition_for(info, key) if partition is None else partition
        self._transaction.check_is_own(info.name, number)
        return number

    def _append_waiting(
        self,
        transaction: int,
        appended: list[Delivery],
        topic: Topic,
        value: Any,
        key: Any,
        partition: int,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Delivery | None:
        """Append a record that waited for memory, unless its transaction has ended in the meantime."""
        self._transaction.check_is_still(transaction)
        delivery = self._append(topic, value, key, partition, timestamp_ms, headers, True)
        if delivery is not None:
            appended.append(delivery)
        return delivery

    def _check_may_append(self) -> None:
        self._check_usable()
        self._transaction.check_may_send()

    def _try_send_slowly(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        timeout: float | None,
    ) -> Delivery:
        self._check_may_append()
        record = self._interceptors.on_send(
            ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
        )
        try:
            delivery = self._try_send_record(record, timeout)
        except BaseException as error:
            self._interceptors.on_acknowledgement(error)
            raise
        self._interceptors.watch(delivery)
        return delivery

    def _try_send_record(self, record: ProducerRecord, timeout: float | None) -> Delivery:
        topic, value, key, partition, timestamp_ms, headers = record
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
        value = serialized_now(self._config.value_serializer, value, topic, headers, "value")
        key = serialized_now(self._config.key_serializer, key, topic, headers, "key")
        known = self._accumulator.open_topic(info)
        number = self._partition_of(info, key, partition)
        delivery = self._append(known, value, key, number, timestamp_ms, headers, False)
        if delivery is None:
            raise BufferFullError(
                f"the buffer of {self._config.buffer_memory} bytes (buffer_memory) is full; use send, which waits"
            )
        if timeout is not None:
            self._own_timeouts.end_delivery_after(delivery, timeout, began)
        return delivery

    # ----------------------------------------------------------------------------------- other public calls

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far has its result. None of them lingers.

        Args:
            timeout: in seconds; None for no limit other than delivery_timeout_ms.

        Raises:
            TimeoutError: some records have no result yet. They are still being sent.

        Cancelling it has no effect on the records.
        """
        self._check_usable()
        check_timeout(timeout)
        async with asyncio.timeout(timeout):
            await self._accumulator.flush()

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of the topic's partitions. Waits for metadata, at most max_block_ms."""
        return {partition.partition for partition in await self.partition_info(topic)}

    async def partition_info(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Return leader, leader epoch, replicas and ISR of each partition. Waits for metadata, at most max_block_ms."""
        self._check_usable()
        check_target(topic, None)
        info = await self._metadata.wait_for_topic(topic, self._loop.time() + self._config.max_block)
        return info.partitions

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch of up to batch_size bytes, to be filled by hand and passed to `send_batch`."""
        self._check_usable()
        queue = PartitionQueue("", -1)
        return BatchBuilder(queue, self._loop, self._accumulator.batch_limit, self._batch_serializer())

    def _batch_serializer(self) -> Callable[[Any, Any], tuple[Any, Any]] | None:
        """Return the serializer of (key, value) for batches that are built by hand: without a topic, and not async."""
        of_key, of_value = self._config.key_serializer, self._config.value_serializer
        if of_key is None and of_value is None:
            return None
        for serializer in (of_key, of_value):
            if hasattr(serializer, "serialize"):
                raise IllegalStateError(
                    f"a batch that is built by hand has no topic to pass to the serializer "
                    f"{type(serializer).__qualname__}; use send(), or a function as serializer"
                )
        return lambda key, value: (
            serialized_now(of_key, key, "", None, "key"),
            serialized_now(of_value, value, "", None, "value"),
        )

    async def send_batch(
        self, batch: BatchBuilder, topic: str, *, partition: int, timeout: float | None = None
    ) -> Delivery:
        """Send a batch that was built by hand. Return the delivery of its first record.

        The records were encoded when they were appended to the batch, so interceptors do not see them.

        Args:
            batch: from `create_batch`. It can be sent once.
            topic: the name of the topic.
            partition: the number of the partition.
            timeout: seconds for all records of the batch, including the wait for room; None for delivery_timeout_ms.

        Raises:
            IllegalStateError: the batch is empty or was sent before.
            Others as `send`.

        Cancelling it while it waits leaves the batch unsent; a batch that is in the buffer is sent.
        """
        self._check_may_append()
        transaction = self._transaction.number
        number = check_target(topic, partition)
        if number is None:
            raise InvalidRecordError(
                "send_batch: the partition must be a whole number, 0 or more, not None", argument="partition"
            )
        if not isinstance(batch, BatchBuilder):
            raise InvalidRecordError(
                f"the batch must be one that create_batch() returned, not {type(batch).__name__}",
                argument="batch",
            )
        size = batch.size()
        if size > min(self._config.max_request_size, self._config.buffer_memory):
            limit = min(self._config.max_request_size, self._config.buffer_memory)
            raise RecordTooLargeError(
                f"a batch of {size} bytes exceeds max_request_size of {limit} bytes", size=size, limit=limit
            )
        check_timeout(timeout, InvalidRecordError)
        began = self._loop.time()
        end, bound = self._end_of_wait(_end_of(timeout, began))
        info = await self._metadata.wait_for_topic(topic, end, number)
        queue = self._accumulator.open_topic(info).queues[number]
        self._check_usable()
        self._transaction.check_is_still(transaction)
        self._transaction.check_is_own(topic, number)
        appended: list[Delivery] = []
        append = partial(self._append_built, transaction, queue, batch, appended)
        try:
            return await self._accumulator.lock.append(append, end, bound)
        finally:
            if timeout is not None:
                spans = [Span(one.batch, 0, one.batch.record_count) for one in appended]
                self._own_timeouts.end_rows_after(spans, timeout, began)

    def _append_built(
        self, transaction: int, queue: PartitionQueue, batch: BatchBuilder, appended: list[Delivery]
    ) -> Delivery | None:
        self._transaction.check_is_still(transaction)
        delivery = self._accumulator.append_built(queue, batch)
        if delivery is not None:
            appended.append(delivery)
        return delivery

    async def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Any = None,
        timestamps: Any = None,
        partitions: Any = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Put many records into the buffer, in order. Waits for metadata, and for room whenever the buffer is full.

        Each column is a list, or Arrow data of any library (an object with `__arrow_c_array__` or
        `__arrow_c_stream__`), which is encoded without a Python object per row. All columns have the same length.

        Args:
            topic: the name of the topic, str.
            values, keys: bytes or None; in Arrow binary, string or fixed-size binary, large, view or dictionary.
                `values` may be a whole record batch or table, with columns named value, key, headers, timestamp and
                partition in place of the other arguments.
            headers: for each row a list of (str, bytes or None), or None; in Arrow list<struct<string, binary>> or map.
            timestamps: milliseconds since 1970, None for now; in Arrow integers or timestamps.
            partitions: a number for all rows, or for each row a number, or None for the partitioner's choice.
            timeout: seconds for all rows, including the wait for room; None for max_block_ms and delivery_timeout_ms.

        Returns:
            The Receipt: await it for the acknowledgements. It has the errors of rows that cannot be sent, and of rows
            for which there was no room within max_block_ms or `timeout`. The other rows are sent.

        Raises:
            InvalidRecordError: the columns are malformed, or differ in length.
            Others as `send`. If send_many() raises, no row is sent.

        If it is cancelled, the rows that are already in the buffer, the first ones, are sent.
        """
        self._check_may_append()
        transaction = self._transaction.number
        check_target(topic, None)
        check_timeout(timeout, InvalidRecordError)
        began = self._loop.time()
        deadline = _end_of(timeout, began)
        rows = Rows(values, keys, headers, timestamps, partitions)
        receipt = Receipt(topic, rows, self._loop, self._accumulator.note_unsent)
        append_some = self._append_columns if self._takes_columns else self._append_one
        try:
            if self._takes_columns:
                await self._learn_partitions(topic, rows.largest_partition, deadline)
            while not rows.is_complete:
                self._check_usable()
                self._transaction.check_is_still(transaction)
                if self._loop.time() >= deadline:
                    raise BufferTimeoutError(
                        f"{rows.count - rows.next} of {rows.count} rows for topic {topic} were not in the buffer "
                        f"within the timeout of {timeout:g} s"
                    )
                await append_some(topic, rows, deadline)
        except KafkaError as error:
            if rows.next == 0:
                raise
            rows.refuse_rest(without_tracebacks(error))
        finally:
            if timeout is not None:
                self._own_timeouts.end_rows_after(rows.spans, timeout, began, receipt.waits)
        if rows.errors:
            self._note_rejected(transaction, next(iter(rows.errors.values())))
        return receipt

    def _note_rejected(self, transaction: int, error: BaseException) -> None:
        """Note that a record was rejected without an exception: its transaction cannot be committed without it."""
        self._transaction.note_rejected(transaction, error)
        self._wake.set()

    async def _learn_partitions(self, topic: str, largest: int, deadline: float) -> None:
        """Wait for a partition that is not in the metadata yet. If it does not appear, its rows get that error."""
        end, _ = self._end_of_wait(deadline)
        info = await self._metadata.wait_for_topic(topic, end)
        if largest >= len(info.partitions):
            with contextlib.suppress(UnknownPartitionError):
                await self._metadata.wait_for_topic(topic, end, largest)

    async def _append_columns(self, topic: str, rows: Rows, deadline: float) -> None:
        """Append rows until there is no room or other tasks should run."""
        info = self._metadata.topic(topic)
        end, bound = self._end_of_wait(deadline)
        if info is None:
            await self._metadata.wait_for_topic(topic, end)
            return  # the earlier checks may be out of date
        known = self._accumulator.open_topic(info)
        refusals = self._transaction.refusals(topic, len(known.queues))
        pause = self._append_rows(known, rows, refusals, False)
        if pause == NO_ROOM:
            append = partial(self._append_waiting_rows, self._transaction.number, known, rows)
            await self._accumulator.lock.append(append, end, bound)
        elif pause == OTHERS_TURN:
            await asyncio.sleep(0)

    def _append_waiting_rows(self, transaction: int, topic: Topic, rows: Rows) -> int | None:
        """Append rows that waited for room. Return their number, or None if there is no room for one."""
        self._transaction.check_is_still(transaction)
        refusals = self._transaction.refusals(
            topic.name, len(topic.queues)
        )  # the topic may have grown in the meantime
        before = rows.next
        self._append_rows(topic, rows, refusals, True)
        return rows.next - before or None

    async def _append_one(self, topic: str, rows: Rows, deadline: float) -> None:
        """Append the next row like `send`, because user code has to see each record."""
        try:
            value, key, partition, timestamp_ms, headers = rows.record()
            if (
                rows.has_waited_in_vain and not self._config.interceptors
            ):  # an interceptor may send it elsewhere
                self._check_has_partition(topic, partition)
            record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
            appended: list[Delivery] = []
            try:
                await self._send_before(deadline, record, appended)
            finally:
                for delivery in appended:  # also if the caller was cancelled after the append
                    rows.mark_sent(delivery)
            await self._give_way()
        except (InvalidRecordError, UnknownPartitionError) as error:
            rows.has_waited_in_vain |= isinstance(error, UnknownPartitionError)
            rows.refuse(without_tracebacks(error))
            await asyncio.sleep(0)  # _give_way() counts the bytes of records, and a rejected row has none

    def _check_has_partition(self, topic: str, partition: object) -> None:
        """Raise, without waiting, if a partition is not in the metadata."""
        info = self._metadata.topic(topic)
        if info is not None and isinstance(partition, int) and partition >= len(info.partitions):
            raise UnknownPartitionError(
                f"topic {topic} has {len(info.partitions)} partitions; partition {partition} does not exist",
                topic=topic,
                partition=partition,
                partitions=len(info.partitions),
            )

    def metrics(self) -> MetricsSnapshot:
        """Return a snapshot of all counters."""
        if not hasattr(self, "_accumulator"):
            raise ProducerNotStartedError("metrics() needs a started producer")
        memory = self._accumulator.memory
        return self._metrics.snapshot(
            records_buffered=sum(batch.live_count for batch in self._accumulator.incomplete),
            records_unretrieved=sum(self._accumulator.unretrieved.counts.copy().values()),
            buffer_total=memory.total,
            buffer_available=memory.available,
            buffer_waiters=memory.waiters,
            in_flight=self._brokers.in_flight,
        )


def _end_of(timeout: float | None, began: float) -> float:
    """Return the loop time at which a timeout in seconds ends; infinite for None."""
    return math.inf if timeout is None else began + timeout


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WrongLoopError(
            "start() needs a running asyncio event loop. Use asyncio.run(); with anyio, its asyncio backend, "
            'anyio.run(main, backend="asyncio"); with trio, or without an event loop, '
            "aioproducer.blocking.Producer in a thread"
        ) from None


_dropped: set[asyncio.Task[CloseReport]] = set()
"""Tasks that close dropped producers. The loop has only weak references to its tasks."""
_started: weakref.WeakSet[Producer] = weakref.WeakSet()
"""Producers that may lose records when the interpreter exits."""


def _close_in_background(producer: Producer) -> None:
    def ended(task: asyncio.Task[CloseReport]) -> None:
        _dropped.discard(task)
        if task.cancelled():
            producer._report_unclosed(TASKS_CANCELLED)

    task = new_task(producer._loop, producer.close(), "aioproducer close of a dropped producer")
    _dropped.add(task)
    _started.add(producer)  # the garbage collector has cleared the weak references to it
    task.add_done_callback(ended)


def _task_ended(reference: weakref.ref[Producer], task: asyncio.Task[None]) -> None:
    """Close the producer after one of its tasks ended unexpectedly, which is a bug in aioproducer."""
    producer = reference()
    if producer is not None and producer._closing is not None:
        return
    if task.cancelled():
        if producer is not None:
            producer._report_unclosed(TASKS_CANCELLED)
        return
    if task.exception() is None:
        return
    logger.error("%s ended unexpectedly; the producer closes", task.get_name(), exc_info=task.exception())
    if producer is not None:
        reason = f"{task.get_name()} ended unexpectedly"
        producer._closing = new_task(producer._loop, producer._close(0, reason))


def _report_all_unclosed() -> None:
    """Report the producers whose loop was closed before them and that are still referred to."""
    for producer in list(_started):
        producer._report_unclosed("the interpreter ended")


atexit.register(_report_all_unclosed)
