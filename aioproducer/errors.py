"""Every error that aioproducer raises, as one tree.

    KafkaError                          retriable, requires_abort, requires_reinit, fatal
    ├─ ConfigError (ValueError)         setting, value
    ├─ IllegalStateError (RuntimeError)
    │  ├─ ProducerNotStartedError, ProducerClosed
    │  └─ WrongLoopError, ForkedError
    ├─ InvalidArgumentError (ValueError)   argument
    │  └─ InvalidRecordError            what the user handed over can't be sent
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
    ├─ AuthenticationError              broker and client do not believe who the other one is
    │  ├─ UnsupportedSaslMechanismError mechanism, offered
    │  └─ TlsError
    ├─ ProtocolError                    the peer's bytes make no sense
    │  ├─ CorrelationError, MissingPartitionError, ForeignPartitionError
    │  └─ NotKafkaError                 peer
    ├─ UnsupportedVersionError
    └─ BrokerError                      code, name

Each carries its facts as fields and a sentence that a user can act on. No text ever shows a key, a value or a
password. All of them can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from aioproducer.types import Outcome

E = TypeVar("E", bound=BaseException)


def escaped(text: str | None, limit: int = 1024) -> str:
    """A peer's text made safe for logs and terminals, at most `limit` characters.

    Characters that Unicode calls not printable are escaped: control characters, line and paragraph separators, changes
    of the direction of writing, lone halves of surrogate pairs, and blanks other than the usual one.
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
    """The error, to be kept: neither it nor its causes hold frames, nor what their callers had in hand.

    From Python 3.12 on the frame of a coroutine that has ended holds the one that awaited it, up to the user's own:
    with a single traceback, be it of a cause, what the error belongs to stays until a collector runs. A context may be
    what the user's own code is handling just now: it is let go and not changed.
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
    """The same call may succeed later. Says nothing about whether a record was persisted."""
    requires_abort: ClassVar[bool] = False
    requires_reinit: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    """This producer can't go on; build a new one."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        if not message.isascii():
            # Halves of surrogate pairs in a user's name of something: such a text could not be printed.
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
    """A setting is unknown, malformed or contradicts another one."""

    setting: str
    value: object


class IllegalStateError(KafkaError, RuntimeError):
    """The call does not fit the state that the producer is in."""


class ProducerNotStartedError(IllegalStateError):
    """`send` before `start()` or outside `async with`."""


class ProducerClosed(IllegalStateError):  # aiokafka's name
    """The producer is closed or closing."""

    outcome = Outcome.NOT_PERSISTED


class WrongLoopError(IllegalStateError):
    """The producer belongs to another event loop or another thread."""


class ForkedError(IllegalStateError):
    """The process was forked after start(): sockets and the loop belong to the parent."""


class InvalidArgumentError(KafkaError, ValueError):
    """A call was given what it can't take, and did nothing. `argument` is the name of the culprit."""

    argument: str = ""


class InvalidRecordError(InvalidArgumentError):
    """The record can't be sent as it is; nothing was buffered."""

    outcome = Outcome.NOT_PERSISTED


class RecordTooLargeError(InvalidRecordError):
    """The record alone is larger than max_request_size or buffer_memory."""

    size: int
    limit: int


class InvalidTopicError(InvalidRecordError):
    """Kafka refuses this topic name. `topic` is empty if it was no text at all."""

    argument = "topic"
    topic: str


class SerializationError(InvalidRecordError):
    """A serializer raised, and its error is the cause; or it returned something that can't be sent."""


class BufferFullError(KafkaError):
    """`try_send` found no room in the buffer."""

    retriable = True
    outcome = Outcome.NOT_PERSISTED


class KafkaTimeoutError(KafkaError, TimeoutError):
    """Something took longer than its setting allows."""

    retriable = True


class BufferTimeoutError(KafkaTimeoutError):
    """The buffer stayed full for max_block_ms; the record was not buffered."""

    outcome = Outcome.NOT_PERSISTED


class MetadataTimeoutError(KafkaTimeoutError):
    """The cluster did not tell about the topic within max_block_ms; the record was not buffered."""

    outcome = Outcome.NOT_PERSISTED
    topic: str


class UnknownPartitionError(KafkaTimeoutError):
    """The topic has no such partition, also not after max_block_ms. `partitions`: how many it has."""

    outcome = Outcome.NOT_PERSISTED
    topic: str
    partition: int
    partitions: int


class TopicAuthorizationError(KafkaError):
    """The cluster does not let this client write to the topic."""

    outcome = Outcome.NOT_PERSISTED
    topic: str


class BootstrapError(KafkaTimeoutError):
    """No bootstrap address answered; the text says of each address why, and so does `reasons`."""

    reasons: Mapping[str, KafkaError] = MappingProxyType({})
    """By "host:port": NotKafkaError if waiting won't help, BrokerConnectionError if it might."""


class DeliveryError(KafkaError):
    """A buffered record was given up. `outcome` says whether it may be in the log all the same.

    Fields: outcome, topic, partition, broker (node id or None), attempts, elapsed (seconds since its batch was
    opened; with a timeout of its own since `send`),
    last_error (the error of the last attempt, or None).
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
    """The record belongs to a transaction that was aborted: whether it is in the log or not, nobody who reads committed
    records will see it."""


class SendManyError(KafkaError):
    """Some rows of a `send_many` failed; all others are in the log.

    `errors` says of each failed row why. `outcome` is UNKNOWN if it is so for one of them; `retriable` and the other
    flags are set if they are for one.
    """

    outcome: Outcome = Outcome.UNKNOWN
    errors: Mapping[int, BaseException]


class TransactionError(KafkaError):
    """A transaction can't go on. The three kinds below are those of KIP-1050."""

    outcome = Outcome.NOT_PERSISTED
    transactional_id: str


class TransactionAbortableError(TransactionError):
    """This transaction can only be aborted; the next one may succeed. `last_error` is the cause."""

    requires_abort = True
    last_error: BaseException | None = None


class TransactionReinitError(TransactionError):
    """Nothing more can be done under this producer epoch. `init_transactions()` takes a new one, and with it fences
    whoever else uses this transactional id by now; without it, close the producer."""

    requires_reinit = True


class ProducerFencedError(TransactionReinitError):
    """Another producer has begun to use the same transactional id, or (transactions v1) the transaction timed out;
    the transaction is not committed. With v1 also if the answer to a request for the next epoch was lost and the
    coordinator moved to another broker, which takes the repetition for a fenced producer's."""


class CommitOutcomeUnknownError(TransactionReinitError):
    """The commit was sent and never answered: the transaction is committed as a whole, or aborted as a whole.

    `commit_transaction()` may be called again: the same request is sent again, and its answer settles the matter."""

    outcome = Outcome.UNKNOWN


class TransactionTimeoutError(TransactionError, KafkaTimeoutError):
    """A transactional call took longer than max_block_ms. Make the same call again to wait on."""


class BrokerConnectionError(KafkaError):
    """A connection could not be made, or broke. `written`: bytes of the request may have left."""

    retriable = True
    written: bool = False


class RequestTimedOutError(BrokerConnectionError, KafkaTimeoutError):
    """A broker did not answer within request_timeout_ms; its connection was closed."""


class AuthenticationError(KafkaError):
    """A broker and this client could not prove to each other who they are.

    It ends `start()` at once. A running producer goes on trying, more and more slowly, until the delivery timeout
    of its records: credentials and certificates are rotated.
    """

    outcome = Outcome.NOT_PERSISTED
    written: bool = False


class UnsupportedSaslMechanismError(AuthenticationError):
    """The broker does not take this SASL mechanism. `offered` are those that it takes."""

    mechanism: str
    offered: tuple[str, ...]


class TlsError(AuthenticationError):
    """The TLS handshake failed: a certificate is refused by one side, or the peer does not speak TLS."""


class ProtocolError(KafkaError):
    """The peer sent bytes that Kafka's protocol does not allow."""

    written: bool = True


class CorrelationError(ProtocolError):
    """An answer does not belong to the oldest request of its connection."""


class MissingPartitionError(ProtocolError):
    """An answer leaves out a partition that was asked."""


class ForeignPartitionError(ProtocolError):
    """An answer names a partition that was not asked."""


class NotKafkaError(ProtocolError):
    """The peer does not speak Kafka, or not without TLS. `peer` is what it seems to be: "HTTP", "TLS", or ""."""

    peer: str = ""


class UnsupportedVersionError(KafkaError):
    """No version of a request is spoken by both sides; nothing was written."""

    outcome = Outcome.NOT_PERSISTED
    written: bool = False


class BrokerError(KafkaError):
    """A broker answered with an error code. Fields: code, name (Kafka's name of it)."""

    code: int
    name: str
