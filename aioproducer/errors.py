"""Every error that aioproducer raises, as one tree.

    KafkaError                          retriable, requires_abort, requires_reinit, fatal
    ├─ ConfigError (ValueError)         setting, value
    ├─ IllegalStateError (RuntimeError)
    │  ├─ ProducerNotStartedError, ProducerClosed
    │  └─ WrongLoopError, ForkedError
    ├─ InvalidRecordError (ValueError)  what the user handed over can't be sent
    │  ├─ RecordTooLargeError           size, limit
    │  ├─ InvalidTopicError             topic
    │  └─ SerializationError
    ├─ BufferFullError                  try_send only
    ├─ KafkaTimeoutError (TimeoutError)
    │  ├─ BufferTimeoutError, MetadataTimeoutError, UnknownPartitionError, BootstrapError
    │  └─ RequestTimedOutError          also a BrokerConnectionError
    ├─ TopicAuthorizationError
    ├─ DeliveryError                    outcome, topic, partition, broker, attempts, elapsed, last_error
    │  └─ DeliveryTimeoutError          also a KafkaTimeoutError
    ├─ BrokerConnectionError            written
    ├─ ProtocolError                    the peer's bytes make no sense
    │  └─ CorrelationError
    ├─ UnsupportedVersionError
    └─ BrokerError                      code, name

Each carries its facts as fields and a sentence that a user can act on. No text ever shows a key, a value or a
password. All of them can be pickled.
"""

from __future__ import annotations

from typing import Any, ClassVar

from aioproducer.types import Outcome

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def escaped(text: str | None, limit: int = 1024) -> str:
    """A peer's text made safe for logs and terminals: control characters escaped, at most `limit` characters."""
    if not text:
        return ""
    safe = text[:limit].translate(_CONTROL)
    return safe if len(text) <= limit and len(safe) <= limit else safe[: limit - 1] + "…"


class KafkaError(Exception):
    """Base of all errors of this package."""

    retriable: ClassVar[bool] = False
    """The same call may succeed later. Says nothing about whether a record was persisted."""
    requires_abort: ClassVar[bool] = False
    requires_reinit: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    """This producer can't go on; build a new one."""

    def __init__(self, message: str = "", **facts: Any) -> None:
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


class InvalidRecordError(KafkaError, ValueError):
    """The record can't be sent as it is; nothing was buffered."""

    outcome = Outcome.NOT_PERSISTED


class RecordTooLargeError(InvalidRecordError):
    """The record alone is larger than max_request_size or buffer_memory."""

    size: int
    limit: int


class InvalidTopicError(InvalidRecordError):
    """Kafka refuses this topic name."""

    topic: str


class SerializationError(InvalidRecordError):
    """A serializer raised; its error is the cause."""


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
    """The topic has no such partition, also not after max_block_ms."""

    outcome = Outcome.NOT_PERSISTED
    topic: str
    partition: int


class TopicAuthorizationError(KafkaError):
    """The cluster does not let this client write to the topic."""

    outcome = Outcome.NOT_PERSISTED
    topic: str


class BootstrapError(KafkaTimeoutError):
    """No bootstrap address answered; the text says of each address why."""


class DeliveryError(KafkaError):
    """A buffered record was given up. `outcome` says whether it may be in the log all the same.

    Fields: outcome, topic, partition, broker (node id or None), attempts, elapsed (seconds since send),
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


class BrokerConnectionError(KafkaError):
    """A connection could not be made, or broke. `written`: bytes of the request may have left."""

    retriable = True
    written: bool = False


class RequestTimedOutError(BrokerConnectionError, KafkaTimeoutError):
    """A broker did not answer within request_timeout_ms; its connection was closed."""


class ProtocolError(KafkaError):
    """The peer sent bytes that Kafka's protocol does not allow."""

    written: bool = True


class CorrelationError(ProtocolError):
    """An answer does not belong to the oldest request of its connection."""


class UnsupportedVersionError(KafkaError):
    """No version of a request is spoken by both sides; nothing was written."""

    outcome = Outcome.NOT_PERSISTED
    written: bool = False


class BrokerError(KafkaError):
    """A broker answered with an error code. Fields: code, name (Kafka's name of it)."""

    code: int
    name: str
