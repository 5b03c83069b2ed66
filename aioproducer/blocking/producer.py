"""The blocking Producer: each call runs the asyncio producer's call in the loop thread, and waits for its result.

`send` (in sends.py) usually does not wait: it puts a plain record for a known topic and partition into a queue. A
single wake-up of the loop handles all records queued by then."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, Unpack

from aioproducer import (
    BatchBuilder,
    CloseReport,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerClosed,
    ProducerConfig,
    RecordMetadata,
    TopicPartition,
    TransactionHandle,
)
from aioproducer import Producer as AsyncProducer
from aioproducer.blocking.loop_thread import (
    GRACE_SECONDS,
    LoopThread,
    check_may_block,
    enter,
    leave,
)
from aioproducer.blocking.receipt import Receipt
from aioproducer.blocking.send_queue import Delivery, SendQueue
from aioproducer.blocking.sends import Sends
from aioproducer.errors import IllegalStateError, ProducerNotStartedError, WrongLoopError, counted
from aioproducer.records.send_calls import SendCalls
from aioproducer.types import K, V

if TYPE_CHECKING:
    from uuid import UUID

    from aioproducer.cluster import PartitionInfo
    from aioproducer.config import ProducerSettings
    from aioproducer.observe.description import Description
    from aioproducer.observe.snapshots import MetricsSnapshot
    from aioproducer.observe.vital_signs import Health, Ping
    from aioproducer.records.serializers import Serializer
    from aioproducer.transactions.calls import TransactionScope as AsyncTransactionScope
    from aioproducer.types import OffsetsToCommit

T = TypeVar("T")

MOST_QUEUED = 1000
"""The maximum number of records in the queue. When it is full, `send` waits for the loop."""
LARGEST_QUEUED = 16384
"""The maximum number of bytes in a queued key or value. For a larger one, `send` waits for the loop."""
QUEUED_PART = 4
"""Values in the queue occupy at most buffer_memory / QUEUED_PART bytes, which are not counted as part of
buffer_memory."""


class Producer(SendCalls[Delivery, RecordMetadata, Delivery, K, V], Sends):
    """`aioproducer.Producer` for code without an event loop: the same settings, calls and errors, without `await`.

        with Producer("localhost:9092") as producer:
            delivery = producer.send("orders", b"...", key=b"42")    # on its way
            metadata = delivery.result()                             # on the broker

    Any number of threads can use it, and all producers share one loop thread. `send` waits while the buffer is full
    (max_block_ms); records from one thread stay in order. Ctrl-C interrupts a waiting call, with the same effect as
    cancelling the asyncio producer's call.

    Serializers, interceptors and delivery callbacks run in the loop thread, and must not block it.

    A producer that is still open at interpreter exit is closed within 10 seconds, and a warning is logged.

    Raises, from every call:
        WrongLoopError: an event loop is running in this thread; use `aioproducer.Producer` there.
        ForkedError: the process was forked after start(); build a producer in the child.
    """

    _asyncio_class: ClassVar[type[AsyncProducer[Any, Any]]] = AsyncProducer
    """The class of the asyncio producer that does the work."""

    if TYPE_CHECKING:

        def __init__(
            self,
            bootstrap_servers: str | Sequence[str] = "localhost:9092",
            *,
            key_serializer: Serializer[K] | None = None,
            value_serializer: Serializer[V] | None = None,
            **settings: Unpack[ProducerSettings],
        ) -> None: ...

    else:  # only the given settings are passed on, without the defaults

        @functools.wraps(AsyncProducer.__init__)
        def __init__(self, *args: Any, **settings: Any) -> None:
            try:
                inner = self._asyncio_class(*args, **settings)
            finally:
                del args, settings  # a traceback that shows locals must not show passwords
            self._wrap(inner)

    def _wrap(self, inner: AsyncProducer[Any, Any], *, is_attached: bool = False) -> None:
        config = inner.config
        self._inner = inner
        # Compression threads with a lower priority would make no progress while other processes are busy.
        inner._shares_the_loop = False
        self._is_attached = is_attached
        self._is_plain = (
            config.key_serializer is None
            and config.value_serializer is None
            and not config.interceptors
            and not callable(config.partitioner)
        )
        """True if records are handled without user code (a serializer, interceptor or partitioner)."""
        self._may_queue = self._is_plain and (config.transactional_id is None or is_attached)
        room = config.buffer_memory // QUEUED_PART
        self._largest = min(LARGEST_QUEUED, config.max_request_size // QUEUED_PART, room)
        self._most = max(1, min(MOST_QUEUED, room // max(1, self._largest)))
        self._sends = SendQueue(inner)
        self._log = inner._config.log(__name__)
        self._report: CloseReport | None = None
        self._closes_at_exit = False
        """Whether the producer is meant to stay open until the interpreter exits; if so, no warning is logged."""

    @classmethod
    def _around(cls, inner: AsyncProducer[Any, Any], *, is_attached: bool = False) -> Self:
        producer = cls.__new__(cls)
        producer._wrap(inner, is_attached=is_attached)
        return producer

    @property
    def config(self) -> ProducerConfig:
        """The effective settings. `print(producer.config)` shows each with its origin, and hides secrets."""
        return self._inner.config

    @classmethod
    def from_config(cls, mapping: Mapping[str, Any], **overrides: Any) -> Self:
        """Build a producer from the configuration of this or another client; see `aioproducer.Producer.from_config`."""
        try:
            return cls._around(cls._asyncio_class.from_config(mapping, **overrides))
        finally:
            del mapping, overrides  # as in __init__

    @classmethod
    def from_env(
        cls, prefix: str = "AIOPRODUCER_", environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> Self:
        """Build a producer from environment variables; see `aioproducer.Producer.from_env`."""
        try:
            return cls._around(cls._asyncio_class.from_env(prefix, environ, **overrides))
        finally:
            del environ, overrides

    @classmethod
    def from_properties(cls, file: str | os.PathLike[str], **overrides: Any) -> Self:
        """Build a producer from a properties file; see `aioproducer.Producer.from_properties`."""
        try:
            return cls._around(cls._asyncio_class.from_properties(file, **overrides))
        finally:
            del overrides

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
        """Take part in a transaction that another producer has begun; see `aioproducer.Producer.attach`."""
        try:
            inner = cls._asyncio_class.attach(
                handle, partitions=partitions, log_append_time=log_append_time, config=config, **settings
            )
        finally:
            del config, settings
        return cls._around(inner, is_attached=True)

    @classmethod
    def resume(
        cls, handle: TransactionHandle, *, config: Mapping[str, Any] | None = None, **settings: Any
    ) -> Self:
        """Take over a transaction that another producer has released; see `aioproducer.Producer.resume`."""
        try:
            return cls._around(cls._asyncio_class.resume(handle, config=config, **settings))
        finally:
            del config, settings

    # ---------------------------------------------------------------------------------------- start and close

    def start(self, *, wait: bool = True) -> None:
        """Connect to the cluster and start sending; see `aioproducer.Producer.start`. `with` calls this method.

        Ctrl-C closes the producer.
        """
        check_may_block()
        if self._sends.thread is not None or self._report is not None:
            raise IllegalStateError(
                "the producer has already been started or closed, and can be started only once; create a new one"
            )
        thread = self._sends.thread = enter(self)
        try:
            self._call(partial(self._inner.start, wait=wait))
        except BaseException:
            self._close_quickly(thread)
            raise

    def close(self, timeout: float | None = None) -> CloseReport:
        """Send the buffered records, close all connections, and return a report; see `aioproducer.Producer.close`.

        Closing the last blocking producer in the process ends the loop thread. Ctrl-C drops the remaining records
        immediately.
        """
        if self._report is not None:
            return self._report
        if self._sends.thread is None:
            self._report = _without_a_loop(self._inner.close(timeout))
            return self._report
        check_may_block()
        thread = self._sends.own_thread()
        try:
            report = self._sends.call(partial(self._close, timeout)).wait(thread)
        except Exception:  # the timeout is not a number, or another thread has closed the producer
            if self._report is None:
                raise
            report = self._report
        except BaseException:
            self._close_quickly(thread)
            raise
        leave(self, thread)
        return report

    stop = close
    """aiokafka's name."""

    async def _close(self, timeout: float | None) -> CloseReport:
        try:
            timeout = await self._sends.settled_within(timeout)
        except TimeoutError:
            timeout = 0
        report = await self._inner.close(timeout)
        await self._sends.ended()
        if self._report is None:
            self._report = dataclasses.replace(
                report,
                failed=report.failed + self._sends.refused,
                unretrieved=dict(self._inner._accumulator.unretrieved.counts),
            )
        return self._report

    def _close_quickly(self, thread: LoopThread) -> None:
        """Close the producer and drop the remaining records, after an error or a Ctrl-C."""
        try:
            self._sends.call(partial(self._close, 0)).wait(thread, GRACE_SECONDS)
        except TimeoutError:
            self._log.error(
                "%r did not close within %g s; a callback, serializer or interceptor is blocking its event loop",
                self,
                GRACE_SECONDS,
            )
        leave(self, thread)

    def _close_at_exit(self, thread: LoopThread, seconds: float) -> Callable[[], None]:
        """Start closing at interpreter exit. The returned function waits for the close to finish, and logs errors
        instead of raising them."""
        if not self._closes_at_exit:
            self._log.warning(
                "%r was not closed; use `with` or close(). Closing it now, within %g s", self, seconds
            )
        call = self._sends.call(partial(self._close, seconds))

        def closed() -> None:
            try:
                report = call.wait(thread, seconds + GRACE_SECONDS)
            except Exception as error:
                self._log.error("%r could not be closed: %s", self, error)
                return
            if report.failed or report.unknown:
                self._log.error(
                    "%r: %s delivered, %s not, and the outcome of %d is unknown",
                    self,
                    counted(report.delivered, "record was", "records were"),
                    counted(report.failed, "was", "were"),
                    report.unknown,
                )

        return closed

    async def __aenter__(self) -> NoReturn:
        raise TypeError("a blocking Producer requires `with`; `async with` is for aioproducer.Producer")

    async def __aexit__(self, *error: object) -> None:
        """Do nothing; Python looks this method up before it calls __aenter__."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Producer can't be pickled or copied, since it belongs to a process and its threads; send the settings "
            "and create one in each process"
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # As in the asyncio producer, an exception that leaves the block drops the buffered records.
        self.close(self._inner._seconds_to_leave() if error_type is None else 0)

    def __repr__(self) -> str:
        return (
            f"<blocking {self._inner!r}>"
            if hasattr(self, "_inner")
            else repr(AsyncProducer.__new__(AsyncProducer))
        )

    def _check_usable(self) -> LoopThread:
        check_may_block()
        if self._report is not None:
            raise ProducerClosed("the producer is closed; create a new one")
        if self._sends.thread is None:
            raise ProducerNotStartedError(
                "the producer is not started; use `with Producer(...)` or producer.start()"
            )
        return self._sends.own_thread()

    def _call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function()` in the loop, and return its result."""
        thread = self._check_usable()
        return self._sends.call(function).wait(thread)

    def _call_settled(self, function: Callable[[], Awaitable[T]], topic: str | None = None) -> T:
        """Like `_call`, but first wait until no earlier record for `topic` (or for any topic) is waiting for room."""

        async def settled() -> T:
            if self._sends.lanes:
                await self._sends.settled(topic)
            return await function()

        return self._call(settled)

    # ---------------------------------------------------------------------------------------------- records

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch, to be filled in one thread; see `aioproducer.Producer.create_batch`."""

        async def create() -> BatchBuilder:
            return self._inner.create_batch()

        return self._call(create)

    def send_batch(
        self, batch: BatchBuilder, topic: str, *, partition: int, timeout: float | None = None
    ) -> Delivery:
        """Send a batch, and return the delivery of its first record; see `aioproducer.Producer.send_batch`."""
        send = partial(self._inner.send_batch, batch, topic, partition=partition, timeout=timeout)
        return Delivery(self._sends, topic, self._call_settled(send, topic))

    def send_many(
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
        """Send many records in one call, from lists or Arrow data; see `aioproducer.Producer.send_many`.

        If Ctrl-C interrupts the call, the rows that are already in the buffer (the first ones) stay there.
        """
        send_many = partial(
            self._inner.send_many,
            topic,
            values,
            keys=keys,
            headers=headers,
            timestamps=timestamps,
            partitions=partitions,
            timeout=timeout,
        )
        return Receipt(self._sends, self._call_settled(send_many, topic))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far, by any thread, has its result; see `aioproducer.Producer.flush`."""

        async def flush() -> None:
            await self._inner.flush(await self._sends.settled_within(timeout))

        self._call(flush)

    def partitions_for(self, topic: str, *, timeout: float | None = None) -> set[int]:
        """Return the numbers of the topic's partitions; see `aioproducer.Producer.partitions_for`."""
        return self._call(partial(self._inner.partitions_for, topic, timeout=timeout))

    def partition_info(self, topic: str, *, timeout: float | None = None) -> tuple[PartitionInfo, ...]:
        """Return each partition's leader, epoch, replicas and ISR; see `aioproducer.Producer.partition_info`."""
        return self._call(partial(self._inner.partition_info, topic, timeout=timeout))

    def metrics(self, *, window: float | None = None) -> MetricsSnapshot:
        """Return all counters and gauges. Works in every state; see `aioproducer.Producer.metrics`."""
        return self._look(partial(self._inner.metrics, window=window))

    def health(self, *, max_unacked_seconds: float = 30.0) -> Health:
        """Return whether the producer can be expected to deliver records now; see `aioproducer.Producer.health`."""
        return self._look(partial(self._inner.health, max_unacked_seconds=max_unacked_seconds))

    def describe(self) -> Description:
        """Return a description for a bug report. Works in every state; see `aioproducer.Producer.describe`."""
        return self._look(self._inner.describe)

    def ping(self, timeout: float = 2.0) -> Ping:
        """Send a request to a broker, and return which broker answered and how quickly; see
        `aioproducer.Producer.ping`."""
        return self._call(partial(self._inner.ping, timeout))

    def client_instance_id(self, timeout: float = 10.0) -> UUID:
        """Return the id that the brokers assigned to this client; see `aioproducer.Producer.client_instance_id`."""
        return self._call(partial(self._inner.client_instance_id, timeout))

    def register_metric(self, name: str, read: Callable[[], float]) -> None:
        """Register a metric of your own, to be pushed to brokers that request it; see
        `aioproducer.Producer.register_metric`."""
        self._check_usable()
        self._look(partial(self._inner.register_metric, name, read))

    def unregister_metric(self, name: str) -> None:
        """Undo `register_metric`."""
        self._check_usable()
        self._look(partial(self._inner.unregister_metric, name))

    def _look(self, function: Callable[[], T]) -> T:
        """Call a function that works in every state, in the loop thread if there is one.

        If waiting for that thread would block another event loop, the function is called in this thread.
        """
        if self._report is not None or self._sends.thread is None:
            return function()
        try:
            check_may_block()
        except WrongLoopError:
            return function()

        async def look() -> T:
            return function()

        return self._call(look)

    # ----------------------------------------------------------------------------------------- transactions

    def transaction(self) -> TransactionScope:
        """Return a transaction for a `with` block. An exception aborts it; otherwise, the end of the block commits it.

            with producer.transaction() as transaction:
                producer.send("orders", b"...")
                transaction.send_offsets({TopicPartition("in", 0): 17}, "my-group")

        Ctrl-C also aborts the transaction, which includes records from all threads. The errors are the same as
        for `aioproducer.Producer.transaction`.
        """
        return TransactionScope(self, self._inner.transaction())

    def init_transactions(self) -> None:
        """Claim the transactional id, or take it over; see `aioproducer.Producer.init_transactions`."""
        self._call_settled(self._inner.init_transactions)

    def begin_transaction(self) -> None:
        """Begin a transaction, to which all following records belong; see `aioproducer.Producer.begin_transaction`."""
        self._begin_by(self._inner.begin_transaction)

    def commit_transaction(self) -> None:
        """Send the buffered records and commit the transaction; see `aioproducer.Producer.commit_transaction`."""
        self._end_by(self._inner.commit_transaction)

    def abort_transaction(self) -> None:
        """Drop the buffered records and abort the transaction; see `aioproducer.Producer.abort_transaction`."""
        self._end_by(self._inner.abort_transaction)

    def fence_transaction(self) -> None:
        """Abort the transaction by taking a new producer epoch; see `aioproducer.Producer.fence_transaction`."""
        self._end_by(self._inner.fence_transaction)

    def _begin_by(self, begin: Callable[[], Awaitable[object]]) -> None:
        self._call_settled(begin)
        self._may_queue = self._is_plain

    def _end_by(self, end: Callable[[], Awaitable[object]]) -> None:
        self._may_queue = False
        self._call_settled(end)

    def export_transaction(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> TransactionHandle:
        """Return a handle for `attach`, in this class or in the asyncio producer.

        See `aioproducer.Producer.export_transaction`."""
        return self._call_settled(partial(self._inner.export_transaction, partitions))

    def release_transaction(self) -> TransactionHandle:
        """Release the transaction. Return a handle for `resume`, in this class or in the asyncio producer.

        See `aioproducer.Producer.release_transaction`."""
        self._may_queue = False
        return self._call_settled(self._inner.release_transaction)

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of a consumer group; see `aioproducer.Producer.committed`."""
        return self._call(partial(self._inner.committed, group_id, partitions))

    def send_offsets_to_transaction(
        self,
        offsets: OffsetsToCommit,
        group_id: ConsumerGroupMetadata | str | bytes,
    ) -> None:
        """Commit a consumer's offsets with the transaction; see `aioproducer.Producer.send_offsets_to_transaction`."""
        self._call_settled(partial(self._inner.send_offsets_to_transaction, offsets, group_id))


class TransactionScope:
    """One transaction, created by `Producer.transaction()`, for use in one `with` statement."""

    def __init__(self, producer: Producer[Any, Any], scope: AsyncTransactionScope) -> None:
        self._producer = producer
        self._scope = scope

    def send_offsets(self, offsets: OffsetsToCommit, group_id: ConsumerGroupMetadata | str | bytes) -> None:
        """Commit a consumer's offsets with the transaction; see `Producer.send_offsets_to_transaction`."""
        self._producer.send_offsets_to_transaction(offsets, group_id)

    def export(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> TransactionHandle:
        """Return a handle with which other producers can take part; see `Producer.export_transaction`."""
        return self._producer.export_transaction(partitions)

    def __enter__(self) -> Self:
        self._producer._begin_by(self._scope.__aenter__)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async def end() -> None:
            try:
                await self._producer._sends.settled()
            except asyncio.CancelledError as cancelled:  # Ctrl-C while records are waiting for room
                await self._scope.__aexit__(type(cancelled), cancelled, None)
                raise
            await self._scope.__aexit__(error_type, error, traceback)

        self._producer._may_queue = False
        self._producer._call(end)


def _without_a_loop(coroutine: Any) -> Any:
    """Return the result of a coroutine that does not wait for anything."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("close() had to wait, although the producer was never started")
