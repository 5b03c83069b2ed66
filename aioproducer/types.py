"""Values that are passed around unchanged: a partition's name, a broker's address, headers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Node(NamedTuple):
    """A broker as the cluster's metadata names it. Bootstrap addresses have negative ids."""

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
    """What is known about a record whose delivery failed.

    NOT_PERSISTED is claimed only where it is provable: the record was never written to a socket, or the broker
    refused it before its append. Everything else is UNKNOWN: it may be in the log.
    """

    NOT_PERSISTED = "not persisted"
    UNKNOWN = "unknown"


Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""Record headers in order; a name may stand more than once, a value may be None."""


class ProducerRecord(NamedTuple):
    """A record as `send` takes it; what interceptors see and may replace (`record._replace(...)`)."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    """Milliseconds since 1970; None for now."""
    headers: Headers | None = None

    def __repr__(self) -> str:
        # Never the key, the value or a header: records end up in logs.
        return f"ProducerRecord(topic={self.topic!r}, partition={self.partition}, timestamp_ms={self.timestamp_ms})"
