"""The calls that send one record: `send`, `send_and_wait` and `try_send`. Base of the blocking Producer.

`send` puts a plain record for a known topic and partition into a queue. For other records, it waits for the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aioproducer import BufferFullError, CloseReport, Headers, RecordMetadata
from aioproducer import Delivery as AsyncDelivery
from aioproducer import Producer as AsyncProducer
from aioproducer.blocking.loop_thread import LoopThread, generation, running_loop
from aioproducer.blocking.send_queue import Delivery, SendQueue

T = TypeVar("T")


class Sends:
    """The calls that send one record. Producer sets the fields."""

    _inner: AsyncProducer[Any, Any]
    _sends: SendQueue
    _report: CloseReport | None
    _is_attached: bool
    _may_queue: bool
    """Whether `send` may queue records. A transactional producer queues records only within a transaction. Outside a
    transaction, `send` itself has to raise the error."""
    _largest: int
    """The maximum number of bytes in a queued key or value."""
    _most: int
    """The maximum number of records in the queue."""

    if TYPE_CHECKING:

        def _check_usable(self) -> LoopThread: ...

        def _call(self, function: Callable[[], Awaitable[T]]) -> T: ...

        def _call_settled(self, function: Callable[[], Awaitable[T]], topic: str | None = None) -> T: ...

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Any = None,
        value_serializer: Any = None,
    ) -> Delivery:
        """Put a record into the buffer and return its delivery; arguments as in `aioproducer.Producer.send`.

        `send` waits for the metadata of a new topic, for room in the buffer (max_block_ms), for serializers and
        interceptors, and for the loop to buffer a large record. Otherwise it returns immediately.

        Raises:
            KafkaError: the same errors as `aioproducer.Producer.send`; the record was not sent. An error that occurs
                after `send` has returned (for example, because the buffer has just become full) is raised by the
                delivery.

        If Ctrl-C interrupts the wait, the record is either in the buffer or will not be sent.
        """
        thread = self._sends.thread
        if (
            running_loop() is not None
            or self._report is not None
            or thread is None
            or thread.generation != generation()
        ):
            self._check_usable()
        has_own = key_serializer is not None or value_serializer is not None
        if not has_own and self._is_queueable(topic, value, key, partition, timestamp_ms, headers, timeout):
            kept = None if headers is None else tuple(headers)  # the caller may change the list later
            return self._sends.put((topic, value, key, partition, timestamp_ms, kept))
        send = partial(
            self._inner.send,
            topic,
            value,
            key,
            partition,
            timestamp_ms,
            headers,
            timeout=timeout,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        appended = self._call_settled(send, topic)
        if partition is not None or not self._is_attached:
            self._sends.places.add((topic, partition))
        return Delivery(self._sends, topic, appended)

    def _is_queueable(
        self,
        topic: object,
        value: object,
        key: object,
        partition: object,
        timestamp_ms: object,
        headers: Any,
        timeout: object,
    ) -> bool:
        """Return True if the record is certainly valid, can no longer change, and need not wait."""
        return (
            self._may_queue
            and self._inner._tracer is None  # the span needs the caller's context
            and timeout is None
            and type(topic) is str
            and (partition is None or type(partition) is int)
            and (topic, partition) in self._sends.places
            and topic not in self._sends.lanes
            and len(self._sends) < self._most
            and (value is None or (type(value) is bytes and len(value) <= self._largest))
            and (key is None or (type(key) is bytes and len(key) <= self._largest))
            and (timestamp_ms is None or (type(timestamp_ms) is int and 0 <= timestamp_ms < 2**63))
            and (headers is None or self._are_plain(headers))
        )

    def _are_plain(self, headers: Any) -> bool:
        if type(headers) not in (list, tuple):
            return False
        size = 0
        for header in headers:
            if type(header) is not tuple or len(header) != 2:
                return False
            name, value = header
            if type(name) is not str or not name.isascii() or not (value is None or type(value) is bytes):
                return False
            size += len(name) + len(value or b"") + 10
        return size <= self._largest

    def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Any = None,
        value_serializer: Any = None,
    ) -> RecordMetadata:
        """Send a record, and wait for its acknowledgement; see `aioproducer.Producer.send_and_wait`."""
        send = partial(
            self._inner.send_and_wait,
            topic,
            value,
            key,
            partition,
            timestamp_ms,
            headers,
            timeout=timeout,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        return self._call_settled(send, topic)

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
        key_serializer: Any = None,
        value_serializer: Any = None,
    ) -> Delivery:
        """Put a record into the buffer, or raise an error instead of waiting for room; see
        `aioproducer.Producer.try_send`."""

        async def append() -> AsyncDelivery:
            if isinstance(topic, str) and topic in self._sends.lanes:
                raise BufferFullError(
                    "try_send: other records are already waiting for room; use send, which waits"
                )
            return self._inner.try_send(
                topic,
                value,
                key,
                partition,
                timestamp_ms,
                headers,
                timeout=timeout,
                key_serializer=key_serializer,
                value_serializer=value_serializer,
            )

        return Delivery(self._sends, topic, self._call(append))
