"""Counters and histograms, written in place by their owners, read as frozen snapshots.

Everything here is a plain number: nothing is recorded per record, at most once a batch or a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aioproducer.protocol._request_path import Buckets

MOST_NODES = 1_000
"""Brokers that are counted each on its own; the oldest makes room for a new one."""


class Histogram(Buckets):
    """A histogram of durations or sizes in constant memory. Its buckets grow by a factor of 2**(1/4), so a quantile is
    at most 19 % off."""

    __slots__ = ()

    def snapshot(self) -> Distribution:
        mean = self.total / self.count if self.count else 0.0
        return Distribution(self.count, mean, self.quantile(0.5), self.quantile(0.99), self.maximum)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float


@dataclass(slots=True)
class NodeMetrics:
    """One broker, over all connections to it. Written by the connection."""

    node_id: int
    bytes_sent: int = 0
    bytes_received: int = 0
    requests: int = 0
    responses: int = 0
    connects: int = 0
    connect_failures: int = 0
    disconnects: int = 0
    throttle_time: float = 0.0
    """Seconds that the broker asked us to wait, summed."""
    latency: Histogram = field(default_factory=Histogram)
    """Seconds from the write of a request to its answer."""


@dataclass(slots=True)
class Metrics:
    """All counters of one producer; each has one writer."""

    # written by the sender
    records_sent: int = 0
    records_acked: int = 0
    records_failed: int = 0
    records_unknown: int = 0
    record_bytes: int = 0
    batches: int = 0
    batch_bytes: int = 0
    produce_requests: int = 0
    retries: int = 0
    splits: int = 0
    """Batches that were too large for a broker and went on in two halves."""
    data_losses: int = 0
    """Events after which acknowledged records are gone, or may be."""
    errors: dict[str, int] = field(default_factory=dict)
    """How often each error was seen in an answer or on a connection, by name."""
    batch_size: Histogram = field(default_factory=Histogram)
    records_per_request: Histogram = field(default_factory=Histogram)
    time_to_ack: Histogram = field(default_factory=Histogram)
    """Seconds from the opening of a batch to its acknowledgement, weighted by its records."""
    # written by metadata
    metadata_updates: int = 0
    metadata_failures: int = 0
    # written by connections
    nodes: dict[int, NodeMetrics] = field(default_factory=dict)
    requests_of_forgotten: int = 0
    """Requests to brokers that have no counters of their own any more."""

    def node(self, node_id: int) -> NodeMetrics:
        """The counters of one broker, made at first use."""
        found = self.nodes.get(node_id)
        if found is None:
            if len(self.nodes) >= MOST_NODES:
                self._forget_one()
            found = self.nodes[node_id] = NodeMetrics(node_id)
        return found

    def _forget_one(self) -> None:
        """Make room: a broker that was never connected to, else the oldest. An answer may invent ids without end."""
        oldest = next(iter(self.nodes))
        gone = self.nodes.pop(next((id for id, node in self.nodes.items() if not node.connects), oldest))
        self.requests_of_forgotten += gone.requests

    def count_error(self, name: str) -> None:
        self.errors[name] = self.errors.get(name, 0) + 1

    def snapshot(
        self,
        *,
        records_buffered: int,
        records_unretrieved: int,
        buffer_total: int,
        buffer_available: int,
        buffer_waiters: int,
        in_flight: Callable[[int], int],
    ) -> MetricsSnapshot:
        """Return all numbers. The caller passes those of other objects; `in_flight` maps a node id to a number."""
        nodes = tuple(
            NodeSnapshot(
                node.node_id,
                node.bytes_sent,
                node.bytes_received,
                node.requests,
                in_flight(node.node_id),
                node.connects,
                node.disconnects,
                node.throttle_time,
                node.latency.snapshot(),
            )
            for node in self.nodes.values()
        )
        return MetricsSnapshot(
            records_buffered=records_buffered,
            records_acked=self.records_acked,
            records_failed=self.records_failed,
            records_unknown=self.records_unknown,
            records_unretrieved=records_unretrieved,
            record_bytes=self.record_bytes,
            batches=self.batches,
            batch_bytes=self.batch_bytes,
            produce_requests=self.produce_requests,
            requests=self.requests_of_forgotten + sum(node.requests for node in nodes),
            retries=self.retries,
            splits=self.splits,
            data_losses=self.data_losses,
            errors=dict(self.errors),
            batch_size=self.batch_size.snapshot(),
            records_per_request=self.records_per_request.snapshot(),
            time_to_ack=self.time_to_ack.snapshot(),
            buffer_total=buffer_total,
            buffer_available=buffer_available,
            buffer_waiters=buffer_waiters,
            in_flight=sum(node.in_flight for node in nodes),
            metadata_updates=self.metadata_updates,
            nodes=nodes,
        )


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    node_id: int
    bytes_sent: int
    bytes_received: int
    requests: int
    in_flight: int
    connects: int
    disconnects: int
    throttle_time: float
    latency: Distribution


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The result of `Producer.metrics()`: a snapshot of all numbers, times in seconds, sizes in bytes."""

    records_buffered: int
    records_acked: int
    records_failed: int
    records_unknown: int
    records_unretrieved: int
    """Failed records whose result no caller has looked at."""
    record_bytes: int
    batches: int
    batch_bytes: int
    produce_requests: int
    requests: int
    retries: int
    splits: int
    data_losses: int
    errors: dict[str, int]
    batch_size: Distribution
    records_per_request: Distribution
    time_to_ack: Distribution
    buffer_total: int
    buffer_available: int
    buffer_waiters: int
    in_flight: int
    metadata_updates: int
    nodes: tuple[NodeSnapshot, ...]
