"""The calls that send one record, as type checkers, editors and readers see them. They are implemented in compiled code
(_record_path.pyx) and, for threads, in blocking/sends.py.

`Producer[K, V]` accepts keys of type K and values of type V: what its serializers take, or bytes. A serializer that is
passed to a call applies to that record only, so it determines the type of that record's key or value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from aioproducer.types import K, V

if TYPE_CHECKING:
    from aioproducer.records.serializers import Serializer
    from aioproducer.types import Headers

AnyK = TypeVar("AnyK")
AnyV = TypeVar("AnyV")
Sent = TypeVar("Sent", covariant=True)
Acknowledged = TypeVar("Acknowledged", covariant=True)
Tried = TypeVar("Tried", covariant=True)


class SendCalls(Generic[Sent, Acknowledged, Tried, K, V]):
    """Base of the producers: the types of `send`, `send_and_wait` and `try_send`.

    The first three parameters are the types that the calls return, since the calls of the asyncio producer return
    coroutines. At runtime, the class only makes a producer generic.
    """

    if TYPE_CHECKING:

        @overload
        def send(
            self,
            topic: str,
            value: V | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: None = None,
            value_serializer: None = None,
        ) -> Sent: ...

        @overload
        def send(
            self,
            topic: str,
            value: AnyV | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: None = None,
            value_serializer: Serializer[AnyV],
        ) -> Sent: ...

        @overload
        def send(
            self,
            topic: str,
            value: V | None = None,
            key: AnyK | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: Serializer[AnyK],
            value_serializer: None = None,
        ) -> Sent: ...

        @overload
        def send(
            self,
            topic: str,
            value: AnyV | None = None,
            key: AnyK | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: Serializer[AnyK],
            value_serializer: Serializer[AnyV],
        ) -> Sent: ...

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
            key_serializer: Serializer[Any] | None = None,
            value_serializer: Serializer[Any] | None = None,
        ) -> Sent:
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
                The Delivery, a future of the RecordMetadata.

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

        @overload
        def send_and_wait(
            self,
            topic: str,
            value: V | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: None = None,
            value_serializer: None = None,
        ) -> Acknowledged: ...

        @overload
        def send_and_wait(
            self,
            topic: str,
            value: AnyV | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: None = None,
            value_serializer: Serializer[AnyV],
        ) -> Acknowledged: ...

        @overload
        def send_and_wait(
            self,
            topic: str,
            value: V | None = None,
            key: AnyK | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: Serializer[AnyK],
            value_serializer: None = None,
        ) -> Acknowledged: ...

        @overload
        def send_and_wait(
            self,
            topic: str,
            value: AnyV | None = None,
            key: AnyK | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: Serializer[AnyK],
            value_serializer: Serializer[AnyV],
        ) -> Acknowledged: ...

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
            key_serializer: Serializer[Any] | None = None,
            value_serializer: Serializer[Any] | None = None,
        ) -> Acknowledged:
            """Send a record and wait for its acknowledgement. The record's batch does not linger.

            Takes the same arguments as `send`.

            Raises:
                DeliveryError: the record failed; `outcome` says whether it may be in the log.
                Others: see `send`.

            If the call is cancelled once the record is in the buffer, only the wait ends; the record is still sent.
            """

        @overload
        def try_send(
            self,
            topic: str,
            value: V | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: None = None,
            value_serializer: None = None,
        ) -> Tried: ...

        @overload
        def try_send(
            self,
            topic: str,
            value: AnyV | None = None,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: None = None,
            value_serializer: Serializer[AnyV],
        ) -> Tried: ...

        @overload
        def try_send(
            self,
            topic: str,
            value: V | None = None,
            key: AnyK | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: Serializer[AnyK],
            value_serializer: None = None,
        ) -> Tried: ...

        @overload
        def try_send(
            self,
            topic: str,
            value: AnyV | None = None,
            key: AnyK | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Headers | None = None,
            *,
            timeout: float | None = None,
            key_serializer: Serializer[AnyK],
            value_serializer: Serializer[AnyV],
        ) -> Tried: ...

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
            key_serializer: Serializer[Any] | None = None,
            value_serializer: Serializer[Any] | None = None,
        ) -> Tried:
            """Put a record into the buffer and return its delivery, without waiting.

            Takes the same arguments as `send`.

            Raises:
                BufferFullError: the buffer is full, or the topic's metadata is not known yet (it has been requested).
                Others: see `send`.
            """
