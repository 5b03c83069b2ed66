"""class Producer: the public coroutines. Wires the parts, starts and ends them, and has every slow path of `send`.

The fast path, a record of a known topic with room in the buffer, is in the compiled base class."""

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
from typing import Any, NoReturn, Self, Unpack

from aioproducer.cluster import PartitionInfo, TopicInfo
from aioproducer.concurrency.tasks import ended, new_task
from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.config import AddressFilter, Connector
from aioproducer.configured import Configured, keeps_what_was_given
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
from aioproducer.metrics import Metrics, MetricsSnapshot
from aioproducer.network.brokers import Brokers
from aioproducer.network.metadata import Metadata
from aioproducer.records._record_path import (
    NO_ROOM,
    OTHERS_TURN,
    Delivery,
    PartitionQueue,
    Rows,
    Span,
    Topic,
    murmur2,
)
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.batch import BatchBuilder, BatchState
from aioproducer.records.compressor import Packing
from aioproducer.records.idempotence import Idempotence
from aioproducer.records.interceptors import Interceptors
from aioproducer.records.partition_choice import PartitionChoice, check_is_bytes, check_target, check_timeout
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
"""In a line of the log."""


class State(Enum):
    NEW = "new"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.NEW: frozenset({State.RUNNING, State.CLOSED}),
    State.RUNNING: frozenset({State.CLOSING}),
    State.CLOSING: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class CloseReport:
    """What became of all records of a producer, as `close()` returns it."""

    delivered: int
    failed: int
    """Not in the log, provably."""
    unknown: int
    """May be in the log."""
    unretrieved: dict[tuple[str, str], int]
    """Failed records whose result no caller has looked at, by (topic, error)."""


class Producer(Transactional, Configured):
    """An asyncio Kafka producer.

        async with Producer("localhost:9092", compression_type="zstd") as producer:
            delivery = await producer.send("orders", b"...", key=b"42")   # in the buffer
            metadata = await delivery                                      # on the broker

    It can be built anywhere, also without a running loop; it belongs to the loop in which it is started.

    Args:
        bootstrap_servers: "host:port,host:port" or a list of them; the port is 9092 if left out.
        client_id: the name that brokers see in their logs and quotas.
        acks: "all" (every in-sync replica has the record), 1 (the leader has it), 0 (nobody says).
        enable_idempotence: no duplicates by retries, order kept with several requests in flight (KIP-98, KIP-360).
            By default on where `acks` is "all".
        enable_gapless_order: a failed record fails those that are buffered behind it in its partition.
        enable_endless_retries: records that may be in the log are sent again until a broker answers, or `close`.
        max_in_flight_requests_per_connection: at most 5 with idempotence.
        linger_ms: how long a batch waits for more records. `send_and_wait` never lingers.
        batch_size: bytes after which a batch is full; a larger record has a batch of its own.
        buffer_memory: bytes of records that may wait; when they are used up, `send` waits.
        max_request_size: bytes of one record, and of one request unless it holds a single batch.
        max_block_ms: how long `send` may wait for metadata and for room in the buffer, together. With 0 it never
            waits, and `start` may take request_timeout_ms.
        delivery_timeout_ms: after this time each record is delivered or has failed (KIP-91); 120000, or linger_ms +
            request_timeout_ms if that is more. With a transactional_id at most transaction_timeout_ms if left out.
        close_timeout_ms: how long the end of `async with` waits for what is buffered and in flight, at most
            delivery_timeout_ms; `close()` itself takes a timeout.
        request_timeout_ms: how long to wait for a broker's answer before its connection is closed.
        retry_backoff_ms, retry_backoff_max_ms: pause before a retry, doubled each time, 20 % jitter (KIP-580).
        compression_type: "none", "gzip", "snappy", "lz4" or "zstd".
        compression_level: the codec's own scale (KIP-390); its default if None. Java's compression_gzip_level,
            compression_lz4_level and compression_zstd_level go for one codec only.
        partitioner: "murmur2" (Java's: keys hashed, records without a key uniformly sticky, KIP-794),
            "consistent_random" (librdkafka's), "round_robin", "random", or a callable
            (key, all partitions, available partitions) -> partition.
        partitioner_ignore_keys: the same as partitioner="random".
        partitioner_adaptive_partitioning_enable: fewer records without a key for partitions whose batches queue up.
        partitioner_availability_timeout_ms: leave out partitions whose broker took nothing for so long; 0: never.
        key_serializer, value_serializer: f(value) -> bytes, or an object with serialize(topic, value, headers);
            either may be async.
        metadata_max_age_ms, metadata_max_idle_ms: refresh at least so often; forget topics unused so long (KIP-526).
        metadata_recovery_strategy: "rebootstrap" goes back to the bootstrap addresses when no known broker is
            left (KIP-899), or when `metadata_recovery_rebootstrap_trigger_ms` pass without an update (KIP-1102).
        allow_auto_create_topics: let brokers create topics that are asked for.
        reconnect_backoff_ms, reconnect_backoff_max_ms: pause between attempts to connect to a broker.
        socket_connection_setup_timeout_ms, socket_connection_setup_timeout_max_ms: bound of one attempt.
        connections_max_idle_ms: close connections that were unused for so long; 0 or None: never.
        transactional_id: the name under which transactions go on after a restart; needs idempotence and acks="all".
        transaction_timeout_ms: after so long the broker aborts a transaction that was not ended; the producer itself
            does after 80 % of it, unless a commit is under way.
        interceptors: objects with on_send(record) -> record or on_acknowledgement(metadata or error), called in order;
            they do not see batches that were built by hand (`send_batch`).
        connector: async f(host, port) -> a connected socket, to go through a proxy.
        address_filter: f(host, port, node id) of each broker that the cluster names -> the address to connect to
            instead, or None to refuse it.
        resolved_address_filter: f(host, IP address, port) of each address that a broker's name resolves to -> whether
            to connect to it. By default link-local addresses (169.254.0.0/16, fe80::/10) are refused.
        max_batch_size: aiokafka's name of `batch_size`.
        security: `security_protocol`, `ssl_...` and `sasl_...` as docs/configuration.md lists them.

    Raises:
        ConfigError: a setting is unknown, malformed or contradicts another one.
    """

    @keeps_what_was_given
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
        self._state = State.NEW
        self._metrics = Metrics()
        self._random = Random()
        self._choice = PartitionChoice(self._config, self._random)
        self._interceptors = Interceptors(self._config.interceptors)
        self._transaction = Transaction(self._config.transactional_id, self._gate)
        self._handle: TransactionHandle | None = None
        """Of the transaction of another producer that this one takes part in, or has taken over."""
        self._is_owner = False
        self._shares_the_loop = True
        """False where nothing of the user's runs in the loop, so that compression need not wait for it."""
        # The rest is made by start(), which knows the loop.
        self._loop: asyncio.AbstractEventLoop
        self._process: int
        """A child that was forked inherits the producer, but must not touch its loop."""
        self._accumulator: Accumulator
        self._brokers: Brokers
        self._metadata: Metadata
        self._coordinator: Coordinator
        self._sender: Sender
        self._own_timeouts: OwnTimeouts
        self._tasks: list[asyncio.Task[None]] = []
        self._packing: Packing
        self._closing: asyncio.Future[CloseReport] | None = None
        self._is_reported = False
        self._logs_given_up = False
        self._give_up_flush = asyncio.Event()
        self._takes_columns = False
        """Nothing of the user's has to see each record: rows of send_many go into the batches as they are."""

    def _move(self, to: State) -> None:
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
        """A producer that takes part in a transaction which another one, perhaps in another process, has begun.

        It may send to these partitions and flush, nothing else; the transaction is ended by the producer that began it,
        when this one is closed and has delivered all. Records need `partition=`, or a key (murmur2).

        If another one has written to a partition in the same transaction, the first delivery there fails, and the
        transaction must be aborted: the broker takes the batch for a repetition of the other one's, appends nothing and
        answers success, but with the time of that one (kafka.storage.UnifiedLog). A participant's own batch, repeated
        because the first answer was lost, gets the same answer. So one lost answer to the first batch of a partition
        also ends the transaction; later batches are repeated as usual.

        Args:
            handle: from `export_transaction`; for each partition it may be used once.
            partitions: those that this producer writes to, and no other one.
            log_append_time: the topics' message.timestamp.type is LogAppendTime. Every answer has a time then, so that
                another writer is noticed only where its batches had other sizes.
            config: settings by anybody's names, as `from_config` takes them.
            settings: as `Producer`; not transactional_id.
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
        """A producer that owns a transaction which another one, perhaps in another process, has begun and released.

        It may send offsets to it, and commit, abort or fence it; it may not send records. Closed before that, it aborts
        the transaction. When it has ended the transaction, `init_transactions()` takes the transactional id for good.

        Args:
            handle: from `release_transaction`; to be resumed once.
            config: settings by anybody's names, as `from_config` takes them.
            settings: as `Producer`; not transactional_id.
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
        """Connect to the cluster and begin to send. `async with` does it.

        Raises:
            BootstrapError: no bootstrap address answered within max_block_ms (if that is 0, request_timeout_ms); it
                says of each address why.
            AuthenticationError: a broker refuses us, or we refuse its certificate; at once.
            ConfigError: certificates can't be read.
            IllegalStateError: the producer was started before.
            WrongLoopError: no asyncio event loop runs here.

        Cancelling it leaves the producer closed.
        """
        if self._state is not State.NEW:
            raise IllegalStateError(
                f"the producer is {self._state.value}; start() works once, build a new one"
            )
        self._loop = _running_loop()
        self._move(State.RUNNING)
        self._process = os.getpid()
        _started.add(self)
        self._make_parts()
        try:
            await self._open()
        except GeneratorExit:
            raise  # thrown away with its loop: nothing can be awaited
        except BaseException:
            await self.close(timeout=0)
            raise

    def _make_parts(self) -> None:
        """Everything behind the buffer; nothing of it does anything yet."""
        self._wake = wake = WakeUp(self._loop)
        config = self._config
        self._packing = Packing(config, self._loop, gives_way=self._shares_the_loop)
        self._brokers = Brokers(config, wake, self._metrics, self._random)
        self._metadata = Metadata(config, self._brokers, wake, self._metrics, self._random)
        self._accumulator = Accumulator(config, self._loop, wake, self._random, self._packing)
        self._own_timeouts = OwnTimeouts(
            self._loop, self._accumulator, self._transaction, self._metrics, wake
        )
        idempotence = Idempotence(config.enable_idempotence)
        self._coordinator = Coordinator(
            config,
            self._transaction,
            idempotence,
            self._accumulator,
            self._brokers,
            wake,
            self._metrics,
            self._random,
        )
        self._sender = Sender(
            config,
            self._loop,
            self._accumulator,
            self._brokers,
            self._metadata,
            idempotence,
            self._transaction,
            self._coordinator,
            wake,
            self._metrics,
            self._random,
        )

    async def _open(self) -> None:
        """Learn the cluster, and let the parts work."""
        config = self._config
        self._spawn(self._metadata.run(), "aioproducer-metadata")
        # 0 means that `send` never waits; a connection takes its time all the same.
        await self._metadata.first_update(self._loop.time() + (config.max_block or config.request_timeout))
        self._spawn(self._sender.run(), "aioproducer-sender")
        self._takes_columns = (
            config.key_serializer is None
            and config.value_serializer is None
            and not config.interceptors
            and self._choice.is_compiled
        )
        is_plain = self._takes_columns and self._handle is None
        self._bind(
            self._loop,
            self._accumulator,
            self._accumulator.memory,
            config.batch_size,
            config.max_request_size,
            is_plain,
            None,
        )
        if self._handle is not None and self._is_owner:
            self._coordinator.resume(self._handle)
        elif self._handle is not None:
            self._coordinator.attach(self._handle)
        elif self._transaction.is_used:
            await self._coordinator.initialize()

    def _spawn(self, coroutine: Any, name: str) -> None:
        task = new_task(self._loop, coroutine, name)
        # Weak, as is everything by which the loop refers to a producer: one that is dropped is collected.
        task.add_done_callback(partial(_task_ended, weakref.ref(self)))
        self._tasks.append(task)

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Send what is buffered and end everything. No task or socket is left afterwards, and no thread but one that
        compresses a batch for longer than a moment: it ends with the batch, and does not keep the interpreter.

        Args:
            timeout: seconds to wait for what is buffered and in flight; 0 gives it up at once. By default
                delivery_timeout_ms, after which every record has its result anyway.

        Returns:
            How many records were delivered, failed, or have an unknown outcome, since the start.

        Cancelling it gives up what is left at once. A second call waits for the first and returns its report.
        """
        check_timeout(timeout)
        if self._state is State.NEW:
            self._move(State.CLOSED)
            self._unbind()
            return CloseReport(0, 0, 0, {})
        if self._state is not State.CLOSED:
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
    """aiokafka's name."""

    async def _close(self, timeout: float, reason: str) -> CloseReport:
        self._move(State.CLOSING)
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
                logger.error("closing went wrong; what is left is given up", exc_info=error)
            if self._logs_given_up:
                self._report_given_up(self._loop.time() - began)
        self._sender.abort(f"{reason} before the records were acknowledged")
        await self._coordinator.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._brokers.close()
        await self._packing.close()
        self._accumulator.unretrieved.close()
        self._move(State.CLOSED)
        metrics = self._metrics
        return CloseReport(
            metrics.records_acked,
            metrics.records_failed,
            metrics.records_unknown,
            dict(self._accumulator.unretrieved.counts),
        )

    def _report_given_up(self, waited: float) -> None:
        """Log what the end of a block has waited for in vain: what close() returns is thrown away there."""
        counts: Counter[str] = Counter()
        for batch in self._accumulator.incomplete:
            counts[batch.queue.topic] += batch.live_count
        if not counts:
            return
        topics = [f"{count} for topic {topic}" for topic, count in counts.most_common(MOST_TOPICS_NAMED)]
        if len(counts) > MOST_TOPICS_NAMED:
            topics.append(f"the others for {len(counts) - MOST_TOPICS_NAMED} more topics")
        logger.error(
            "%r closes and gives up %s not acknowledged within %.3g s: %s. Each delivery says whether its record may "
            "be in the log. To wait longer, raise close_timeout_ms (%g) or call close(timeout=seconds)",
            self,
            "1 record" if counts.total() == 1 else f"{counts.total()} records",
            waited,
            ", ".join(topics),
            self._config.close_timeout * 1000,
        )

    async def _finish(self) -> None:
        """What close() waits for, as long as it may."""
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
        # Left by an exception (a cancellation included): nobody waits for the rest, so it is given up quickly.
        await self.close(timeout=self._seconds_to_leave() if error_type is None else 0)

    def _seconds_to_leave(self) -> float:
        """How long the end of a block may wait; it logs what it gives up."""
        self._logs_given_up = True
        return min(self._config.close_timeout, self._config.delivery_timeout + 1)

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "a Producer needs `async with`, in a coroutine; code without asyncio uses aioproducer.blocking.Producer"
        )

    def __exit__(self, *error: object) -> None:
        """Python wants it before it calls __enter__."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Producer can't be pickled or copied, since it belongs to a process and an event loop; send the settings "
            "and build one in each process"
        )

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_state", State.NEW) in (State.RUNNING, State.CLOSING):
            is_closing = self._close_dropped()
            warn(f"{self!r} was not closed; use `async with` or await close()", ResourceWarning, source=self)
            if not is_closing:
                self._report_unclosed("it was garbage-collected")

    def _report_unclosed(self, why: str) -> None:
        """Log, once, how many accepted records are lost with a producer that was not closed. After close() there are
        none."""
        batches = list(self._accumulator.incomplete) if hasattr(self, "_accumulator") else []
        if not batches or self._is_reported:
            return
        try:
            self._check_place()
        except ForkedError:
            return  # they are the parent's
        except WrongLoopError:
            pass  # it has ended
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
        """Close a running producer that nothing refers to any more, if its loop can still do that; False if not.

        The task of close() refers to the producer, which lives until that has ended; its __del__ is not called again.
        May be called in any thread, by the garbage collector.
        """
        if self._state is not State.RUNNING or self._process != os.getpid() or self._loop.is_closed():
            return False
        try:
            self._loop.call_soon_threadsafe(_close_in_background, self)
        except RuntimeError:
            return False  # another thread has closed the loop meanwhile
        return True

    def __repr__(self) -> str:
        if not hasattr(self, "_state"):
            return "<Producer that was refused its settings>"
        servers = ",".join(f"{host}:{port}" for host, port in self._config.bootstrap_servers)
        return f"<Producer {self._state.value} {servers}>"

    # ------------------------------------------------------------------------------------------- slow paths

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
        """What `send` does when it has to wait or to call the user's code: interceptors, metadata, serializers,
        partitioner."""
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
        """Send a record that has to be in the buffer at this loop time. The delivery is in `appended` from the moment
        of the append on."""
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
            return await self._accumulator.append_when_room(append, end, bound)
        appended.append(delivery)
        return delivery

    def _end_of_wait(self, deadline: float) -> tuple[float, str]:
        """The loop time until which a call that begins now may wait, and what bounds it: max_block_ms, unless the
        deadline of the caller's timeout is earlier."""
        end = self._loop.time() + self._config.max_block
        return (deadline, "the timeout of the call") if deadline < end else (end, "max_block_ms")

    def _partition_of(self, info: TopicInfo, key: bytes | None, partition: int | None) -> int:
        """The partition that was asked for, or the partitioner's; COMPILED_PATH_CHOOSES leaves it to the append."""
        if self._handle is not None and partition is None:
            # A participant has to know it before the append: not every partition is its own.
            if key is None or not self._choice.is_compiled:
                raise InvalidRecordError(
                    "a producer that takes part in another one's transaction needs partition=, or a key for murmur2",
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
        """Append a record that has waited for memory; meanwhile its transaction may have ended."""
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
        """Wait until every record sent so far has its result, and let none of them linger.

        Args:
            timeout: in seconds; None waits as long as the records may live (delivery_timeout_ms).

        Raises:
            TimeoutError: some have no result yet; they stay on their way.

        Cancelling it has no effect on the records.
        """
        self._check_usable()
        check_timeout(timeout)
        async with asyncio.timeout(timeout):
            await self._accumulator.flush()

    async def partitions_for(self, topic: str) -> set[int]:
        """The numbers of the topic's partitions; waits for metadata up to max_block_ms."""
        return {partition.partition for partition in await self.partition_info(topic)}

    async def partition_info(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Leader, leader epoch, replicas and ISR of each partition; waits for metadata up to max_block_ms."""
        self._check_usable()
        check_target(topic, None)
        info = await self._metadata.wait_for_topic(topic, self._loop.time() + self._config.max_block)
        return info.partitions

    def create_batch(self) -> BatchBuilder:
        """An empty batch to be filled by hand and given to `send_batch`; it holds up to batch_size bytes."""
        self._check_usable()
        queue = PartitionQueue("", -1)
        return BatchBuilder(queue, self._loop, self._accumulator.batch_limit, self._batch_serializer())

    def _batch_serializer(self) -> Callable[[Any, Any], tuple[Any, Any]] | None:
        """What a batch built by hand runs over (key, value); it does not know its topic and can't wait."""
        of_key, of_value = self._config.key_serializer, self._config.value_serializer
        if of_key is None and of_value is None:
            return None
        for serializer in (of_key, of_value):
            if hasattr(serializer, "serialize"):
                raise IllegalStateError(
                    f"a batch built by hand can't tell the serializer {type(serializer).__qualname__} its topic; "
                    "use send, or a function as serializer"
                )
        return lambda key, value: (
            serialized_now(of_key, key, "", None, "key"),
            serialized_now(of_value, value, "", None, "value"),
        )

    async def send_batch(
        self, batch: BatchBuilder, topic: str, *, partition: int, timeout: float | None = None
    ) -> Delivery:
        """Send a batch that was built by hand; the delivery is that of its first record.

        The records were encoded when they were appended to the batch, so interceptors do not see them.

        Args:
            batch: from `create_batch`; it can be sent once.
            topic: where to.
            partition: the number of the partition.
            timeout: seconds for all records of the batch, the waiting here included; None for delivery_timeout_ms.

        Raises:
            IllegalStateError: the batch is empty or was sent before.
            Others as `send`.

        Cancelling it: the batch is either in the buffer or it is not.
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
            return await self._accumulator.append_when_room(append, end, bound)
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
        """Put many records into the buffer, in their order; waits for metadata, and for room as often as it takes.

        Each argument is a list, or Arrow data of any library (what has `__arrow_c_array__` or `__arrow_c_stream__`),
        which is encoded without a Python object per row. All are of one length.

        Args:
            topic: the name of the topic, str.
            values, keys: bytes or None; in Arrow binary, string, fixed-size binary, also large, as view or dictionary.
                `values` may be a whole record batch or table, with columns named value, key, headers, timestamp and
                partition instead of the other arguments.
            headers: of each row a list of (str, bytes or None) or None; in Arrow list<struct<string, binary>> or a map.
            timestamps: milliseconds since 1970, None for now; in Arrow integers or timestamps.
            partitions: a number for all rows, or of each row a number, or None for the partitioner's choice.
            timeout: seconds for all rows, the waiting here included; None for max_block_ms and delivery_timeout_ms.

        Returns:
            The Receipt: await it for the acknowledgements. A row that can't be sent has its error there and keeps no
            other one from being sent; so have the rows for which there was no room within max_block_ms or `timeout`.

        Raises:
            InvalidRecordError: the columns make no sense, or differ in length.
            Others as `send`. After each of these there is no record.

        Cancelling it: the rows that are in the buffer by then, the first ones, are sent.
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
            self._refused_unseen(transaction, next(iter(rows.errors.values())))
        return receipt

    def _refused_unseen(self, transaction: int, error: BaseException) -> None:
        """A record was refused, and its caller has to look for the error: a transaction must not be without it."""
        self._transaction.misses_record(transaction, error)
        self._wake.set()

    async def _learn_partitions(self, topic: str, largest: int, deadline: float) -> None:
        """Wait for a partition that metadata does not know yet. If there is none, that is the error of its rows."""
        end, _ = self._end_of_wait(deadline)
        info = await self._metadata.wait_for_topic(topic, end)
        if largest >= len(info.partitions):
            with contextlib.suppress(UnknownPartitionError):
                await self._metadata.wait_for_topic(topic, end, largest)

    async def _append_columns(self, topic: str, rows: Rows, deadline: float) -> None:
        """Append rows until there is no room or others shall run."""
        info = self._metadata.topic(topic)
        end, bound = self._end_of_wait(deadline)
        if info is None:
            await self._metadata.wait_for_topic(topic, end)
            return  # what was checked before may not hold any more
        known = self._accumulator.open_topic(info)
        refusals = self._transaction.refusals(topic, len(known.queues))
        pause = self._append_rows(known, rows, refusals, False)
        if pause == NO_ROOM:
            append = partial(self._append_waiting_rows, self._transaction.number, known, rows)
            await self._accumulator.append_when_room(append, end, bound)
        elif pause == OTHERS_TURN:
            await asyncio.sleep(0)

    def _append_waiting_rows(self, transaction: int, topic: Topic, rows: Rows) -> int | None:
        """Append rows that have waited for room: as many as there is room for; None if not even one."""
        self._transaction.check_is_still(transaction)
        refusals = self._transaction.refusals(topic.name, len(topic.queues))  # it may have grown meanwhile
        before = rows.next
        self._append_rows(topic, rows, refusals, True)
        return rows.next - before or None

    async def _append_one(self, topic: str, rows: Rows, deadline: float) -> None:
        """Append the next row by way of `send`, where something of the user's has to see each record."""
        try:
            value, key, partition, timestamp_ms, headers = rows.record()
            if rows.has_waited_in_vain and not self._config.interceptors:  # which may send it elsewhere
                self._check_has_partition(topic, partition)
            record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
            rows.sent(await self._send_before(deadline, record, []))
            await self._give_way()
        except (InvalidRecordError, UnknownPartitionError) as error:
            rows.has_waited_in_vain |= isinstance(error, UnknownPartitionError)
            rows.refuse(without_tracebacks(error))
            await asyncio.sleep(0)  # _give_way() counts the bytes of records, and here was none

    def _check_has_partition(self, topic: str, partition: object) -> None:
        """Raise at once for a partition that metadata does not know."""
        info = self._metadata.topic(topic)
        if info is not None and isinstance(partition, int) and partition >= len(info.partitions):
            raise UnknownPartitionError(
                f"topic {topic} has {len(info.partitions)} partitions; partition {partition} does not exist",
                topic=topic,
                partition=partition,
                partitions=len(info.partitions),
            )

    def metrics(self) -> MetricsSnapshot:
        """All counters at this moment."""
        if not hasattr(self, "_accumulator"):
            raise ProducerNotStartedError("metrics() needs a producer that was started")
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
    """The loop time at which a timeout of so many seconds ends; infinite for None."""
    return math.inf if timeout is None else began + timeout


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WrongLoopError(
            "start() needs asyncio's event loop, and none runs here. Use asyncio.run(); with anyio its asyncio "
            'backend, anyio.run(main, backend="asyncio"); with trio, or without an event loop, '
            "aioproducer.blocking.Producer in a thread"
        ) from None


_dropped: set[asyncio.Task[CloseReport]] = set()
"""Tasks that close dropped producers; a loop refers to its tasks weakly."""
_started: weakref.WeakSet[Producer] = weakref.WeakSet()
"""Producers that may have records to lose when the interpreter ends."""


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
    """A task of a producer has ended. Unless it was cancelled that is a bug of ours: nothing may hang on it."""
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
    """For producers whose loop was closed under them, and which are still referred to."""
    for producer in list(_started):
        producer._report_unclosed("the interpreter ended")


atexit.register(_report_all_unclosed)
