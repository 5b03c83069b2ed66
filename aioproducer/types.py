"""Immutable values: the name of a partition, the address of a broker, headers, a secret."""

from __future__ import annotations

import hmac
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

Data: TypeAlias = bytes | bytearray | memoryview
"""A key or a value that does not need a serializer."""

if TYPE_CHECKING:  # TypeVar has defaults from Python 3.13 on, but type checkers know them in every version
    from typing_extensions import TypeVar

    K = TypeVar("K", contravariant=True, default=Data)
    V = TypeVar("V", contravariant=True, default=Data)
else:
    from typing import TypeVar

    K = TypeVar("K")  # the type of the keys that a producer accepts
    V = TypeVar("V")  # the type of the values that a producer accepts

AcksName: TypeAlias = Literal["all", 0, 1, -1]
CompressionName: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
PartitionerName: TypeAlias = Literal[
    "murmur2",
    "murmur2_random",
    "default",
    "consistent_random",
    "round_robin",
    "consistent",
    "fnv1a",
    "fnv1a_random",
    "random",
]
RecoveryName: TypeAlias = Literal["rebootstrap", "none"]
ProtocolName: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
MechanismName: TypeAlias = Literal[
    "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"
]
StoreName: TypeAlias = Literal["PEM", "PKCS12"]

ENDS_OF_THE_PROGRAM = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions from the user's code that are passed on. All others count as a failure of that code, even a
CancelledError: the code is called without await, so the error cannot come from a cancellation of our task."""


def qualified_name(code: object) -> str:
    """Return the name of a user's function or of an object's class, for errors and logs."""
    name = getattr(code, "__qualname__", None)
    return name if isinstance(name, str) else type(code).__qualname__


def takes_second(function: Callable[..., object], *names: str, or_any: bool = False) -> bool:
    """Return whether a function has a second positional parameter that is required or has one of the given names.

    With `or_any`, also return True for a function with `*args`.
    """
    try:
        parameters = _parameters_of(function)
    except (TypeError, ValueError):
        return False  # a function without a signature, such as list.append
    if or_any and any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return True
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (
        positional[1].default is inspect.Parameter.empty or positional[1].name in names
    )


def _parameters_of(function: Callable[..., object]) -> list[inspect.Parameter]:
    if sys.version_info >= (3, 14):
        # By default, signature() evaluates the annotations, which may use names that only type checkers import.
        from annotationlib import Format

        return list(inspect.signature(function, annotation_format=Format.FORWARDREF).parameters.values())
    return list(inspect.signature(function).parameters.values())


def is_buffer(data: object) -> bool:
    """Return whether an object supports the buffer protocol, as bytes, bytearray and memoryview do."""
    try:
        memoryview(data).release()  # type: ignore[arg-type]  # any object may be passed
    except TypeError:
        return False
    except (BufferError, ValueError):  # a buffer that is not contiguous, or a released memoryview
        return True
    return True


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Node(NamedTuple):
    """A broker as listed in the cluster's metadata. Bootstrap addresses have negative ids."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return (
            f"broker {self.node_id} ({self.host}:{self.port})"
            if self.node_id >= 0
            else f"{self.host}:{self.port}"
        )


class Outcome(Enum):
    """Whether a record whose delivery failed may be in the log.

    NOT_PERSISTED means that the record is certainly not in the log: it was never written to a socket, or the broker
    rejected it before the append. Otherwise, the outcome is UNKNOWN: the record may be in the log.
    """

    NOT_PERSISTED = "not persisted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CloseReport:
    """The results of all of a producer's records, returned by `close()`."""

    delivered: int
    failed: int
    """The number of records that are certainly not in the log."""
    unknown: int
    """The number of failed records that may be in the log."""
    unretrieved: dict[tuple[str, str], int]
    """The number of failed records whose result was not retrieved, by (topic, error name)."""


Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""Record headers in order. A name may occur more than once; a value may be None."""


class ProducerRecord(NamedTuple):
    """A record; its fields are the arguments to `send`. Interceptors may replace it (`record._replace(...)`)."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    """Milliseconds since 1970; None for the current time."""
    headers: Headers | None = None
    context: Any = None
    """Any object that an interceptor needs again when the result is known; never sent to a broker."""

    def __repr__(self) -> str:
        # Key, value and headers are left out, because records end up in logs.
        return f"ProducerRecord(topic={self.topic!r}, partition={self.partition}, timestamp_ms={self.timestamp_ms})"


class Secret:
    """A password or key that never appears in repr(), str() or format(), nor in logs, tracebacks or pickles.

    Only `reveal()` returns its text. A copy is the same object; a pickle does not contain the text.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | None) -> None:
        """`text` is None for a secret that was unpickled, because a pickle does not contain the text."""
        if text is not None and not isinstance(text, str):
            type_name = type(text).__name__
            del text  # a traceback that shows locals must not show the secret
            raise TypeError(f"a secret must be a str, not {type_name}")
        self._text = text

    @property
    def is_lost(self) -> bool:
        """True if this secret was unpickled: a pickle does not contain the text."""
        return self._text is None

    def reveal(self) -> str:
        """Return the text.

        Raises:
            ValueError: the secret was unpickled, and a pickle does not contain the text.
        """
        if self._text is None:
            raise ValueError(
                "the secret was unpickled, but a pickle does not contain its text; set it again in this process"
            )
        return self._text

    def __repr__(self) -> str:
        return "<hidden>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        if self._text is None or other._text is None:
            return self is other
        return hmac.compare_digest(
            self._text.encode("utf-8", "surrogatepass"), other._text.encode("utf-8", "surrogatepass")
        )

    def __hash__(self) -> int:
        return hash(self._text)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __getstate__(self) -> None:
        return None

    def __reduce__(self) -> tuple[type[Secret], tuple[None]]:
        return Secret, (None,)


class OffsetAndMetadata(NamedTuple):
    """A consumer's position: the offset of the next record that it will read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    """The leader epoch of the previous record; -1 if unknown."""


class PartitionOffset(Protocol):
    """A partition with an offset, such as confluent_kafka.TopicPartition."""

    @property
    def topic(self) -> str:
        """The name of the topic."""

    @property
    def partition(self) -> int:
        """The number of the partition."""

    @property
    def offset(self) -> int:
        """The offset of the next record to read. A negative value means that there is none."""


OffsetsToCommit = Mapping[Any, int | tuple[int, str] | OffsetAndMetadata] | Iterable[PartitionOffset]
"""The offsets that a transaction commits: a mapping as in aiokafka, or a list as in confluent-kafka.

A key of the mapping is a (topic, partition) tuple, a TopicPartition or aiokafka's TopicPartition. Type checkers do not
check the keys, because the type of a mapping's keys must match exactly."""


class TransactionHandle(NamedTuple):
    """A handle to an open transaction, for producers in other processes that write to it (`Producer.attach`). It can
    be pickled."""

    transactional_id: str
    producer_id: int
    epoch: int
    is_v2: bool
    """Whether the transaction uses transactions v2 (KIP-890)."""
    has_begun: bool = True
    """Whether the coordinator may know of the transaction, because a request was sent or a participant may send one."""
    doubtful_offsets: tuple[tuple[str, TopicPartition, OffsetAndMetadata], ...] = ()
    """Offsets (group id, partition, offset) that were sent more than once because an answer was lost. A delayed attempt
    could replace offsets that are sent later, so the resumed producer can't send other offsets for these partitions."""


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's membership in its group. Without a generation, its offsets are not fenced (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
