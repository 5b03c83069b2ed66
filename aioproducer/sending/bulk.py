"""Sends many records at once, as columns (`send_many`) or in batches built by hand (`send_batch`)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.config import ProducerConfig
from aioproducer.errors import (
    BufferTimeoutError,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    RecordTooLargeError,
    UnknownPartitionError,
    counted,
    without_tracebacks,
)
from aioproducer.network.metadata import Metadata
from aioproducer.records._record_path import (
    NO_ROOM,
    OTHERS_TURN,
    Delivery,
    PartitionQueue,
    RecordPath,
    Rows,
    Span,
    Topic,
)
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.arguments import check_target, check_timeout
from aioproducer.records.batch import BatchBuilder, Row
from aioproducer.records.interceptors import Interceptors
from aioproducer.records.pending_record import PendingRecord
from aioproducer.records.receipt import Receipt
from aioproducer.records.serializers import Serializers, finish_now
from aioproducer.sending.own_timeouts import OwnTimeouts
from aioproducer.sending.rejections import Rejections
from aioproducer.transactions.state import Transaction
from aioproducer.types import ProducerRecord


class Bulk(RecordPath):
    """The methods that send many records. A base class of Producer; Producer and its other base classes set the
    fields."""

    _config: ProducerConfig
    _loop: asyncio.AbstractEventLoop
    _wake: WakeUp
    _accumulator: Accumulator
    _metadata: Metadata
    _transaction: Transaction
    _own_timeouts: OwnTimeouts
    _interceptors: Interceptors
    _rejections: Rejections
    _takes_columns: bool
    _serializers: Serializers

    if TYPE_CHECKING:

        async def _send_pending(self, pending: PendingRecord) -> Delivery: ...

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch of up to batch_size bytes, to be filled by hand and passed to `send_batch`."""
        self._check_usable()
        queue = PartitionQueue("", -1)
        return BatchBuilder(
            queue,
            self._loop,
            self._accumulator.batch_limit,
            self._batch_serializer(),
            keeps_rows=not self._interceptors.is_empty,
        )

    def _batch_serializer(self) -> Callable[[Any, Any], tuple[Any, Any]] | None:
        """Return the function that serializes (key, value) for batches built by hand, or None if there are no
        serializers. Serializers that need a topic are rejected, and async ones must return without waiting."""
        of_value, of_key = self._serializers.of_value, self._serializers.of_key
        if of_key is None and of_value is None:
            return None
        for serializer in (of_key, of_value):
            if serializer is not None and serializer.needs_topic:
                raise IllegalStateError(
                    f"a batch that is built by hand has no topic to pass to the {serializer}; use send(), or a "
                    "serializer that takes only the value"
                )

        def serialize(key: Any, value: Any) -> tuple[Any, Any]:
            serialization = self._serialization(of_value, of_key, "", value, key, None)
            finish_now(serialization, "a batch built by hand")
            return serialization.key, serialization.value

        return serialize

    async def send_batch(
        self, batch: BatchBuilder, topic: str, *, partition: int, timeout: float | None = None
    ) -> Delivery:
        """Send a batch that was built by hand. Return the delivery of its first record.

        The records were encoded when they were appended to the batch. Interceptors receive the records only when the
        batch is sent, and the batch is encoded again with the records that they return. Interceptors cannot change
        the topic or the partition.

        Args:
            batch: a batch from `create_batch`. A batch can be sent only once.
            topic: the name of the topic.
            partition: the partition number.
            timeout: seconds for all records in the batch, including the wait for room; None for delivery_timeout_ms.

        Raises:
            IllegalStateError: the batch is empty or has already been sent.
            Others: see `send`.

        If the call is cancelled while it waits, the batch is not sent. A batch that is already in the buffer is sent.
        """
        with self._rejections.of(topic):
            if self._tracer is None:
                return await self._send_batch(batch, topic, partition, timeout)
            count = batch.record_count() if isinstance(batch, BatchBuilder) else 0
            span = self._tracer.begin_many(topic, count)
            try:
                delivery = await self._send_batch(batch, topic, partition, timeout)
            except BaseException as error:
                if span is not None:
                    span.fail(error)
                raise
            if span is not None:
                span.watch(delivery)
            return delivery

    async def _send_batch(
        self, batch: BatchBuilder, topic: str, partition: int, timeout: float | None
    ) -> Delivery:
        self._check_may_append()
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
        check_timeout(timeout, InvalidRecordError)
        records = [] if batch.rows is None else self._intercepted(batch.rows, topic, number)
        appended: list[Delivery] = []
        try:
            if batch.rows is not None:
                self._replace_rows(batch, records, topic, number)
            return await self._append_batch(batch, topic, number, timeout, appended)
        except BaseException as error:
            if not appended:
                for record in records:
                    self._interceptors.on_acknowledgement(error, record)
            raise
        finally:
            for delivery in appended:
                for index, record in enumerate(records):
                    self._interceptors.watch(delivery.batch.delivery(index), record)

    def _intercepted(self, rows: list[Row], topic: str, partition: int) -> list[ProducerRecord]:
        """Pass the rows of a batch through the interceptors, and return the resulting records."""
        return [
            self._interceptors.on_send(ProducerRecord(topic, value, key, partition, timestamp_ms, headers))
            for value, key, timestamp_ms, headers in rows
        ]

    def _replace_rows(
        self, batch: BatchBuilder, records: list[ProducerRecord], topic: str, partition: int
    ) -> None:
        for record in records:
            if record.topic != topic or record.partition not in (None, partition):
                raise InvalidRecordError(
                    f"an interceptor returned a record for {record.topic}-{record.partition}; the records in a batch "
                    f"that was built by hand must stay together in {topic}-{partition}",
                    argument="interceptors",
                )
        batch.replace_rows(
            [(record.value, record.key, record.timestamp_ms, record.headers) for record in records],
            min(self._config.max_request_size, self._config.buffer_memory),
        )

    async def _append_batch(
        self,
        batch: BatchBuilder,
        topic: str,
        number: int,
        timeout: float | None,
        appended: list[Delivery],
    ) -> Delivery:
        """Append a batch once its topic is known and there is room."""
        transaction = self._transaction.number
        size = batch.size()
        if size > min(self._config.max_request_size, self._config.buffer_memory):
            limit = min(self._config.max_request_size, self._config.buffer_memory)
            raise RecordTooLargeError(
                f"a batch of {size} bytes exceeds the limit of {limit} bytes (max_request_size, or buffer_memory if "
                "that is smaller)",
                size=size,
                limit=limit,
            )
        began = self._loop.time()
        end, bound = self._end_of_wait(end_of(timeout, began))
        info = await self._metadata.wait_for_topic(topic, end, number)
        queue = self._accumulator.open_topic(info).queues[number]
        self._check_usable()
        self._transaction.check_is_still(transaction)
        self._transaction.role.check_is_own(topic, number)
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
        """Put many records into the buffer, in order. Wait for metadata, and for room whenever the buffer is full.

        Each column is a list, or Arrow data from any library (an object with `__arrow_c_array__` or
        `__arrow_c_stream__`), which is encoded without creating a Python object per row. All columns have the same
        length.

        Args:
            topic: the name of the topic, str.
            values, keys: bytes or None; in Arrow data, binary, string or fixed-size binary, including the large, view
                and dictionary types. `values` may be a whole record batch or table, with columns named value, key,
                headers, timestamp and partition in place of the other arguments.
            headers: for each row a list of (str, bytes or None), or None; in Arrow data, a list<struct<string, binary>>
                or map.
            timestamps: milliseconds since 1970, or None for now; in Arrow data, integers or timestamps.
            partitions: one number for all rows, or one for each row; None leaves the choice to the partitioner.
            timeout: seconds for all rows, including the wait for room; None for max_block_ms and delivery_timeout_ms.

        Returns:
            The Receipt: await it for the acknowledgements. The receipt contains an error for each row that
            cannot be sent or for which there was no room within max_block_ms or `timeout`. The other rows are sent.

        Raises:
            InvalidRecordError: the columns are malformed, or differ in length.
            Others: see `send`. If send_many() raises, no row is sent.

        If the call is cancelled, only the rows that are already in the buffer (the first ones) are sent.
        """
        with self._rejections.of(topic):
            return await self._send_many(topic, values, keys, headers, timestamps, partitions, timeout)

    async def _send_many(
        self,
        topic: str,
        values: Any,
        keys: Any,
        headers: Any,
        timestamps: Any,
        partitions: Any,
        timeout: float | None,
    ) -> Receipt:
        self._check_may_append()
        transaction = self._transaction.number
        check_target(topic, None)
        check_timeout(timeout, InvalidRecordError)
        began = self._loop.time()
        deadline = end_of(timeout, began)
        rows = Rows(values, keys, headers, timestamps, partitions)
        receipt = Receipt(topic, rows, self._loop, self._accumulator.note_unsent)
        span = None if self._tracer is None else self._tracer.begin_many(topic, rows.count)
        try:
            await self._append_all(topic, rows, transaction, timeout, deadline)
        except BaseException as error:
            if rows.next == 0 or not isinstance(error, KafkaError):
                if span is not None:
                    span.fail(error)
                raise
            rows.reject_rest(without_tracebacks(error))
        finally:
            if timeout is not None:
                self._own_timeouts.end_rows_after(rows.spans, timeout, began, receipt.waits)
        if span is not None:
            span.watch_rows(receipt)
        if rows.errors:
            self._rejections.note_rows(topic, rows.errors.values())
            self._note_rejected(transaction, next(iter(rows.errors.values())))
        return receipt

    async def _append_all(
        self, topic: str, rows: Rows, transaction: int, timeout: float | None, deadline: float
    ) -> None:
        """Append all rows, waiting for room until the deadline that the call's timeout sets."""
        append_some = self._append_columns if self._takes_columns else self._append_one
        if self._takes_columns:
            await self._learn_partitions(topic, rows.largest_partition, deadline)
        while not rows.is_complete:
            self._check_usable()
            self._transaction.check_is_still(transaction)
            if self._loop.time() >= deadline:
                raise BufferTimeoutError(
                    f"{rows.count - rows.next} of {counted(rows.count, 'row')} for topic {topic} could not be "
                    f"added to the buffer within the timeout of {timeout:g} s"
                )
            await append_some(topic, rows, deadline)

    def _note_rejected(self, transaction: int, error: BaseException) -> None:
        """Note that a record was rejected without an exception, so its transaction can no longer be committed."""
        self._transaction.note_rejected(transaction, error)
        self._wake.set()

    async def _learn_partitions(self, topic: str, largest: int, deadline: float) -> None:
        """Wait for a partition that is not in the metadata yet. If the partition does not appear, the append rejects
        its rows."""
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
        refusals = self._transaction.role.refusals(topic, len(known.queues))
        pause = self._append_rows(known, rows, refusals, False)
        if pause == NO_ROOM:
            append = partial(self._append_waiting_rows, self._transaction.number, known, rows)
            await self._accumulator.lock.append(append, end, bound)
        elif pause == OTHERS_TURN:
            await asyncio.sleep(0)

    def _append_waiting_rows(self, transaction: int, topic: Topic, rows: Rows) -> int | None:
        """Append rows that have waited for room. Return how many were appended, or None if there was still no room."""
        self._transaction.check_is_still(transaction)
        refusals = self._transaction.role.refusals(
            topic.name, len(topic.queues)
        )  # the topic may have grown in the meantime
        before = rows.next
        self._append_rows(topic, rows, refusals, True)
        return rows.next - before or None

    async def _append_one(self, topic: str, rows: Rows, deadline: float) -> None:
        """Append the next row in the same way as `send`, because user code has to see each record."""
        try:
            value, key, partition, timestamp_ms, headers = rows.record()
            if (
                rows.has_waited_in_vain and not self._config.interceptors
            ):  # an interceptor may choose another partition
                self._check_has_partition(topic, partition)
            record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
            pending = PendingRecord(record, self._serializers.of_value, self._serializers.of_key)
            pending.transaction = self._transaction.number
            pending.deadline = deadline
            try:
                await self._send_pending(pending)
            finally:
                if pending.delivery is not None:  # the row is in the buffer, even if the caller was cancelled
                    rows.mark_sent(pending.delivery)
            await self._give_way()
        except (InvalidRecordError, UnknownPartitionError) as error:
            rows.has_waited_in_vain |= isinstance(error, UnknownPartitionError)
            rows.reject(without_tracebacks(error))
            await asyncio.sleep(0)  # _give_way() does not count rejected rows

    def _check_has_partition(self, topic: str, partition: object) -> None:
        """Raise UnknownPartitionError, without waiting, if a partition is not in the metadata."""
        info = self._metadata.topic(topic)
        if info is not None and isinstance(partition, int) and partition >= len(info.partitions):
            raise UnknownPartitionError(
                f"topic {topic} has {counted(len(info.partitions), 'partition')}; partition {partition} does not exist",
                topic=topic,
                partition=partition,
                partitions=len(info.partitions),
            )

    def _end_of_wait(self, deadline: float) -> tuple[float, str]:
        """Return the loop time at which a call that begins now must stop waiting, and the limit that applies, as text:
        max_block_ms, or the call's timeout if its `deadline` is earlier."""
        end = self._loop.time() + self._config.max_block
        return (deadline, "the call's timeout") if deadline < end else (end, "max_block_ms")


def end_of(timeout: float | None, began: float) -> float:
    """Return the loop time at which a timeout (in seconds) expires; infinity if it is None."""
    return math.inf if timeout is None else began + timeout
