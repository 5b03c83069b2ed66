"""The types of the calls that send one record. Only type checkers and editors read them: the calls of Producer are
declared in producer.py and compiled (_record_path.pyx), and those of the blocking producer are in blocking/sends.py.

`Producer[K, V]` accepts keys of type K and values of type V: what its serializers take, or bytes. A serializer that is
passed to a call applies to that record only, so it determines the type of that record's key or value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from aioproducer.types import K, V

if TYPE_CHECKING:
    from aioproducer.records.serializers import Serializer
    from aioproducer.types import Headers

Call = TypeVar("Call", bound=Callable[..., Any])
Result = TypeVar("Result")
OwnK = TypeVar("OwnK")  # the K and V of the producer that is called
OwnV = TypeVar("OwnV")
AnyK = TypeVar("AnyK")
AnyV = TypeVar("AnyV")
Sent = TypeVar("Sent", covariant=True)
Acknowledged = TypeVar("Acknowledged", covariant=True)
Tried = TypeVar("Tried", covariant=True)

if TYPE_CHECKING:

    def with_types_of(call: Call) -> Callable[[Callable[..., Any]], Call]:
        """Return a decorator that gives a method's declaration the types of `call`.

        The declaration must annotate `self`. Otherwise, mypy 2.4 does not infer the types of the producer once it has
        read the declaration from its cache, because the cache does not contain the decorator.
        """
        ...

    # These are functions, not methods of SendCalls: for a method that is accessed on a generic class, pyright
    # uses the default types of K and V. They have Producer's docstrings because pyright shows the docstring that comes
    # with the types.

    @overload
    def send(
        self: SendCalls[Result, Any, Any, OwnK, OwnV],
        topic: str,
        value: OwnV | None = None,
        key: OwnK | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: None = None,
        value_serializer: None = None,
    ) -> Result: ...

    @overload
    def send(
        self: SendCalls[Result, Any, Any, OwnK, OwnV],
        topic: str,
        value: AnyV | None = None,
        key: OwnK | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: None = None,
        value_serializer: Serializer[AnyV],
    ) -> Result: ...

    @overload
    def send(
        self: SendCalls[Result, Any, Any, OwnK, OwnV],
        topic: str,
        value: OwnV | None = None,
        key: AnyK | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer[AnyK],
        value_serializer: None = None,
    ) -> Result: ...

    @overload
    def send(
        self: SendCalls[Result, Any, Any, OwnK, OwnV],
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
    ) -> Result: ...

    def send(*record: Any, **options: Any) -> Any:
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

    @overload
    def send_and_wait(
        self: SendCalls[Any, Result, Any, OwnK, OwnV],
        topic: str,
        value: OwnV | None = None,
        key: OwnK | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: None = None,
        value_serializer: None = None,
    ) -> Result: ...

    @overload
    def send_and_wait(
        self: SendCalls[Any, Result, Any, OwnK, OwnV],
        topic: str,
        value: AnyV | None = None,
        key: OwnK | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: None = None,
        value_serializer: Serializer[AnyV],
    ) -> Result: ...

    @overload
    def send_and_wait(
        self: SendCalls[Any, Result, Any, OwnK, OwnV],
        topic: str,
        value: OwnV | None = None,
        key: AnyK | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer[AnyK],
        value_serializer: None = None,
    ) -> Result: ...

    @overload
    def send_and_wait(
        self: SendCalls[Any, Result, Any, OwnK, OwnV],
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
    ) -> Result: ...

    def send_and_wait(*record: Any, **options: Any) -> Any:
        """Send a record and wait for its acknowledgement. The record's batch does not linger.

        Takes the same arguments as `send`.

        Raises:
            DeliveryError: the record failed; `outcome` says whether it may be in the log.
            Others: see `send`.

        If the call is cancelled once the record is in the buffer, only the wait ends; the record is still sent.
        """

    @overload
    def try_send(
        self: SendCalls[Any, Any, Result, OwnK, OwnV],
        topic: str,
        value: OwnV | None = None,
        key: OwnK | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: None = None,
        value_serializer: None = None,
    ) -> Result: ...

    @overload
    def try_send(
        self: SendCalls[Any, Any, Result, OwnK, OwnV],
        topic: str,
        value: AnyV | None = None,
        key: OwnK | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: None = None,
        value_serializer: Serializer[AnyV],
    ) -> Result: ...

    @overload
    def try_send(
        self: SendCalls[Any, Any, Result, OwnK, OwnV],
        topic: str,
        value: OwnV | None = None,
        key: AnyK | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer[AnyK],
        value_serializer: None = None,
    ) -> Result: ...

    @overload
    def try_send(
        self: SendCalls[Any, Any, Result, OwnK, OwnV],
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
    ) -> Result: ...

    def try_send(*record: Any, **options: Any) -> Any:
        """Put a record into the buffer and return its delivery, without waiting.

        Takes the same arguments as `send`.

        Raises:
            BufferFullError: the buffer is full, or the topic's metadata is not known yet (it has been requested).
            Others: see `send`.
        """


class SendCalls(Generic[Sent, Acknowledged, Tried, K, V]):
    """Base class of both producers, with the types of `send`, `send_and_wait` and `try_send`.

    The first three parameters are the types that the calls return, since the calls of the asyncio producer return
    coroutines. At runtime, the class only makes a producer generic. The docstrings of its methods are those of the
    blocking producer; Producer declares the methods again, with its own docstrings.
    """

    if TYPE_CHECKING:

        @with_types_of(send)
        def send(self: Self, *record: Any, **options: Any) -> Sent:
            """Put a record into the buffer and return its delivery; arguments as in `aioproducer.Producer.send`.

            `send` waits for the metadata of a new topic, for room in the buffer (max_block_ms), for serializers and
            interceptors, and for the loop to buffer a large record. Otherwise it returns immediately.

            Raises:
                KafkaError: the same errors as `aioproducer.Producer.send`; the record was not sent. An error that
                    occurs after `send` has returned (for example, because the buffer has just become full) is raised by
                    the delivery.

            If Ctrl-C interrupts the wait, the record is either in the buffer or will not be sent.
            """
            ...

        @with_types_of(send_and_wait)
        def send_and_wait(self: Self, *record: Any, **options: Any) -> Acknowledged:
            """Send a record, and wait for its acknowledgement; see `aioproducer.Producer.send_and_wait`."""
            ...

        @with_types_of(try_send)
        def try_send(self: Self, *record: Any, **options: Any) -> Tried:
            """Put a record into the buffer, or raise an error instead of waiting for room; see
            `aioproducer.Producer.try_send`."""
            ...
