"""The client metrics of a cluster (KIP-714): those that it requests, and those that it has received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

from aioproducer.protocol.compression import Codec

CLIENT_TELEMETRY_MAX_BYTES = 1_048_576
"""Kafka's default for telemetry.max.bytes."""
INTERVAL_MS = 300_000
"""Kafka's default for interval.ms."""
ACCEPTED = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""The accepted codecs, in Kafka's order."""


class Push(NamedTuple):
    """Metrics that a client has pushed."""

    client_id: str
    client_instance_id: UUID
    data: bytes
    """OTLP's MetricsData, decompressed."""
    codec: Codec
    is_last: bool
    """True if the client is closing."""
    at: float
    """The loop time at which the push arrived."""


class Telemetry:
    """The metrics that the cluster requests from all clients (none at first), and those that it has received."""

    def __init__(self) -> None:
        self.metrics: tuple[str, ...] = ()
        self.interval_ms = INTERVAL_MS
        self.most_bytes = CLIENT_TELEMETRY_MAX_BYTES
        self.is_delta = True
        self.accepted: tuple[Codec, ...] = ACCEPTED
        self.pushes: list[Push] = []
        """All pushes that were accepted."""
        self.instances: dict[UUID, Instance] = {}
        """The clients, by client instance id."""

    def subscribe(
        self,
        metrics: Sequence[str],
        *,
        interval_ms: int = INTERVAL_MS,
        most_bytes: int = CLIENT_TELEMETRY_MAX_BYTES,
        is_delta: bool = True,
        accepted: Sequence[Codec] = ACCEPTED,
    ) -> None:
        """Request metrics from all clients from now on, as `kafka-client-metrics.sh` does.

        Args:
            metrics: metric name prefixes; "" stands for all. An empty sequence requests no metrics.
            interval_ms: the time between pushes from a client.
            most_bytes: the maximum size of a push.
            is_delta: whether counters report the change since the last push. Kafka's brokers always request this.
            accepted: the accepted codecs, the preferred one first. If the sequence is empty, pushes are not compressed.
        """
        self.metrics = tuple(metrics)
        self.interval_ms = interval_ms
        self.most_bytes = most_bytes
        self.is_delta = is_delta
        self.accepted = tuple(accepted)

    @property
    def subscription_id(self) -> int:
        """The id of the current subscription. A push with any other id is rejected."""
        text = repr((self.metrics, self.interval_ms, self.most_bytes, self.is_delta, self.accepted))
        return crc32(text.encode()) & 0x7FFFFFFF


class Instance:
    """The state of one client instance."""

    def __init__(self) -> None:
        self.pushed_at = float("-inf")
        self.has_ended = False
        """True once the client's last push has arrived."""
