"""Every error that aioproducer raises, as one tree.

    KafkaError                          retriable, requires_abort, requires_reinit, fatal
    ├─ ConfigError (ValueError)         setting, value, errors
    ├─ IllegalStateError (RuntimeError)
    │  ├─ ProducerNotStartedError, ProducerClosed
    │  └─ WrongLoopError, ForkedError
    ├─ InvalidArgumentError (ValueError)   argument
    │  └─ InvalidRecordError            the record cannot be sent
    │     ├─ RecordTooLargeError        size, limit
    │     ├─ InvalidTopicError          topic
    │     └─ SerializationError
    ├─ BufferFullError                  try_send only
    ├─ KafkaTimeoutError (TimeoutError)
    │  ├─ BufferTimeoutError, MetadataTimeoutError, UnknownPartitionError, BootstrapError
    │  └─ RequestTimedOutError          also a BrokerConnectionError
    ├─ TopicAuthorizationError
    ├─ DeliveryError                    outcome, topic, partition, broker, attempts, elapsed, last_error
    │  ├─ DeliveryTimeoutError          also a KafkaTimeoutError
    │  └─ TransactionAbortedError
    ├─ SendManyError                    errors, outcome
    ├─ TransactionError                 transactional_id
    │  ├─ TransactionAbortableError     requires_abort
    │  ├─ TransactionReinitError        requires_reinit
    │  │  ├─ ProducerFencedError
    │  │  └─ CommitOutcomeUnknownError
    │  └─ TransactionTimeoutError       also a KafkaTimeoutError
    ├─ BrokerConnectionError            written
    ├─ AuthenticationError              credentials or a certificate were rejected
    │  ├─ UnsupportedSaslMechanismError mechanism, offered
    │  └─ TlsError
    ├─ ProtocolError                    malformed bytes from the peer
    │  ├─ CorrelationError, MissingPartitionError, ForeignPartitionError
    │  └─ NotKafkaError                 peer
    ├─ UnsupportedVersionError
    └─ BrokerError                      code, name

The fields of an error contain its details, and its text says what the user can do. Error texts contain no passwords and
no record keys or values, but a SerializationError quotes the serializer's exception. All errors can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from aioproducer.types import Outcome, TopicPartition

E = TypeVar("E", bound=BaseException)


def counted(count: int, one: str, several: str = "") -> str:
    """Return a number with its noun: `counted(1, "record")` is "1 record", `counted(2, "record")` is "2 records".

    Args:
        count: the number.
        one: the noun for a count of 1.
        several: the noun for any other count; by default, `one` with an s.
    """
    return f"{count} {one if count == 1 else several or one + 's'}"


def escaped(text: str | None, limit: int = 1024) -> str:
    """Return a peer's text in a form that is safe for logs and terminals, with at most `limit` characters.

    Characters that are not printable according to Unicode are escaped: control characters, line and paragraph
    separators, changes of the writing direction, unpaired surrogates, and spaces other than U+0020.
    """
    if not text:
        return ""
    safe = text[:limit]
    if not safe.isprintable():
        safe = "".join(one if one.isprintable() else _by_number(one) for one in safe)
    return safe if len(text) <= limit and len(safe) <= limit else safe[: limit - 1] + "…"


def _by_number(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def without_tracebacks(error: E) -> E:
    """Remove the tracebacks of an error and its causes, so that it can be stored. Return the error.

    From Python 3.12 on, the frame of a finished coroutine refers to the frame that awaited it, and so on up to the
    user's frame. A single traceback, even a cause's, would keep the objects in these frames alive until the next
    garbage collection.

    The `__context__` is removed as well. The exception that it referred to is not changed, because user code may be
    handling it.
    """
    found: list[BaseException] = [error]
    for one in found:
        one.__traceback__ = one.__context__ = None
        if one.__cause__ is not None and one.__cause__ not in found:
            found.append(one.__cause__)
    return error


class KafkaError(Exception):
    """Base of all errors of this package."""

    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later. The flag does not say whether a record was persisted."""
    requires_abort: ClassVar[bool] = False
    requires_reinit: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    """True if the producer cannot continue and must be replaced by a new one."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        if not message.isascii():
            # Escape unpaired surrogates, for example in a name from the user, because they cannot be printed.
            message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.message = message
        for name, value in facts.items():
            setattr(self, name, value)
        self._facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self._facts)


def _rebuild(error_type: type[KafkaError], message: str, facts: dict[str, Any]) -> KafkaError:
    return error_type(message, **facts)


class ConfigError(KafkaError, ValueError):
    """A setting is unknown or malformed, or contradicts another one.

    If there are several mistakes, the text has a line for each, and `errors` contains an error for each.
    """

    setting: str
    value: object
    errors: tuple[ConfigError, ...] = ()


class IllegalStateError(KafkaError, RuntimeError):
    """The call is not allowed in the current state of the producer."""


class ProducerNotStartedError(IllegalStateError):
    """The producer was used before `start()` or outside `async with`."""


class ProducerClosed(IllegalStateError):  # aiokafka's name
    """The producer is closed or closing."""

    outcome = Outcome.NOT_PERSISTED


class WrongLoopError(IllegalStateError):
    """The producer belongs to another event loop or another thread."""


class ForkedError(IllegalStateError):
    """The process was forked after start(): the sockets and the event loop belong to the parent."""


class InvalidArgumentError(KafkaError, ValueError):
    """An argument is invalid, and the call did nothing. `argument` is its name."""

    argument: str = ""


class InvalidRecordError(InvalidArgumentError):
    """The record is invalid; nothing was buffered."""

    outcome = Outcome.NOT_PERSISTED


class RecordTooLargeError(InvalidRecordError):
    """The record alone is larger than max_request_size or buffer_memory."""

    size: int
    limit: int


class InvalidTopicError(InvalidRecordError):
    """The topic name is invalid. `topic` is empty if the argument was not a str."""

    argument = "topic"
    topic: str


class SerializationError(InvalidRecordError):
    """A serializer raised an exception (the `__cause__`) or returned something other than bytes."""


class BufferFullError(KafkaError):
    """`try_send` would have had to wait, because the buffer is full or the topic's metadata is not known yet."""

    retriable = True
    outcome = Outcome.NOT_PERSISTED


class KafkaTimeoutError(KafkaError, TimeoutError):
    """An operation took longer than its setting allows."""

    retriable = True


class BufferTimeoutError(KafkaTimeoutError):
    """The buffer stayed full for max_block_ms; the record was not buffered."""

    outcome = Outcome.NOT_PERSISTED


class MetadataTimeoutError(KafkaTimeoutError):
    """No metadata for the topic arrived within max_block_ms; the record was not buffered.

    `reported` is the name of the error that the cluster reports for the topic; empty if the cluster has not answered.
    """

    outcome = Outcome.NOT_PERSISTED
    topic: str
    reported: str = ""


class UnknownPartitionError(KafkaTimeoutError):
    """The partition did not appear within max_block_ms. `partitions` is the number of partitions in the topic."""

    outcome = Outcome.NOT_PERSISTED
    topic: str
    partition: int
    partitions: int


class TopicAuthorizationError(KafkaError):
    """The cluster does not allow this client to write to the topic."""

    outcome = Outcome.NOT_PERSISTED
    topic: str


class BootstrapError(KafkaTimeoutError):
    """No bootstrap address answered. The text and `reasons` contain the reason for each address."""

    reasons: Mapping[str, KafkaError] = MappingProxyType({})
    """The error for each address, by "host:port": NotKafkaError if waiting does not help, BrokerConnectionError if it
    might."""


class DeliveryError(KafkaError):
    """The delivery of a buffered record failed. `outcome` says whether the record may nevertheless be in the log.

    Fields: outcome, topic, partition, broker (node id or None), attempts, elapsed (seconds since its batch was opened,
    or since `send` for a record with its own timeout), last_error (the error of the last attempt, or None).
    """

    outcome: Outcome = Outcome.UNKNOWN
    topic: str
    partition: int
    broker: int | None
    attempts: int
    elapsed: float
    last_error: BaseException | None


class DeliveryTimeoutError(DeliveryError, KafkaTimeoutError):
    """The record was not acknowledged within delivery_timeout_ms (or its own timeout)."""


class TransactionAbortedError(DeliveryError):
    """The record belongs to a transaction that was aborted. Even if it is in the log, consumers with
    isolation.level=read_committed do not see it."""


class SendManyError(KafkaError):
    """Some rows of a `send_many` call failed; all others are in the log.

    `errors` contains the error of each failed row. `outcome` is UNKNOWN if the outcome of any failed row is UNKNOWN;
    likewise, `retriable` and each of the other flags is set if any row's error sets it.
    """

    outcome: Outcome = Outcome.UNKNOWN
    errors: Mapping[int, BaseException]


class TransactionError(KafkaError):
    """A transaction, or a transactional call, failed. The subclasses follow the error categories of KIP-1050."""

    outcome = Outcome.NOT_PERSISTED
    transactional_id: str


class TransactionAbortableError(TransactionError):
    """This transaction can only be aborted; the next one may succeed. `last_error` is the cause."""

    requires_abort = True
    last_error: BaseException | None = None
    partitions: frozenset[TopicPartition] = frozenset()
    """The participant's partitions to which another producer has written in the same transaction."""


class TransactionReinitError(TransactionError):
    """This producer epoch can no longer be used. Close the producer, or call `init_transactions()` to get a new
    epoch; this fences any other producer with this transactional id."""

    requires_reinit = True


class ProducerFencedError(TransactionReinitError):
    """Another producer uses the same transactional id, or (transactions v1) the transaction timed out. The transaction
    is not committed. With v1, the error is also raised in a rare case: the response to a request for the next epoch is
    lost, the coordinator moves to another broker, and that broker mistakes the repeated request for one from a fenced
    producer."""


class CommitOutcomeUnknownError(TransactionReinitError):
    """The commit was sent but not answered: the transaction is either committed as a whole or aborted as a whole.

    `commit_transaction()` may be called again: it repeats the request, and the response shows the outcome."""

    outcome = Outcome.UNKNOWN


class TransactionTimeoutError(TransactionError, KafkaTimeoutError):
    """A transactional call took longer than max_block_ms. Repeat the call to continue waiting."""


class BrokerConnectionError(KafkaError):
    """A connection could not be established, or was lost. `written` is True if part of a request may have been
    sent."""

    retriable = True
    written: bool = False


class RequestTimedOutError(BrokerConnectionError, KafkaTimeoutError):
    """A broker did not answer within request_timeout_ms; its connection was closed."""


class AuthenticationError(KafkaError):
    """A broker rejected this client's credentials, or the client rejected the broker's certificate.

    `start()` fails immediately. A running producer retries at growing intervals until the delivery timeout of its
    records expires, because credentials and certificates may have been rotated.
    """

    outcome = Outcome.NOT_PERSISTED
    written: bool = False


class UnsupportedSaslMechanismError(AuthenticationError):
    """The broker does not accept this SASL mechanism. `offered` lists the mechanisms that it does accept."""

    mechanism: str
    offered: tuple[str, ...]


class TlsError(AuthenticationError):
    """The TLS handshake failed: one side rejected a certificate, or the peer does not use TLS."""


class ProtocolError(KafkaError):
    """The peer sent bytes that violate Kafka's protocol."""

    written: bool = True


class CorrelationError(ProtocolError):
    """A response does not belong to the oldest request on its connection."""


class MissingPartitionError(ProtocolError):
    """A response lacks a partition that was in the request."""


class ForeignPartitionError(ProtocolError):
    """A response names a partition that was not in the request."""


class NotKafkaError(ProtocolError):
    """The peer is not a Kafka broker, or expects TLS. `peer` is its apparent protocol: "HTTP", "TLS", or ""."""

    peer: str = ""


class UnsupportedVersionError(KafkaError):
    """The broker and this client have no request version in common; nothing was sent."""

    outcome = Outcome.NOT_PERSISTED
    written: bool = False


class BrokerError(KafkaError):
    """A broker answered with an error code. Fields: code, and name (Kafka's name for the code)."""

    code: int
    name: str
