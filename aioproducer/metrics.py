"""Counters and histograms, which their owners update in place. `metrics()` returns them as frozen snapshots.

To keep the cost low, most counters are updated per batch or request rather than per record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aioproducer.observe.snapshots import (
    MOST_TOPICS,
    OTHER_TOPICS,
    PAST,
    Counts,
    Distribution,
    MetricsSnapshot,
    NodeSnapshot,
    TopicSnapshot,
    TransactionCallSnapshot,
)
from aioproducer.protocol._request_path import Buckets

__all__ = [
    "Distribution",
    "Histogram",
    "Metrics",
    "MetricsSnapshot",
    "NodeMetrics",
    "NodeSnapshot",
    "TopicMetrics",
    "TopicSnapshot",
    "TransactionCallMetrics",
    "TransactionCallSnapshot",
]

MOST_NODES = 1_000
"""The maximum number of brokers that have their own counters. Beyond that, a new broker replaces one that was never
connected to, or else the oldest one."""


class Histogram(Buckets):
    """A histogram of durations or sizes in constant memory. Its buckets grow by a factor of 2**(1/4), so a quantile is
    at most 19% off."""

    __slots__ = ()

    def snapshot(self) -> Distribution:
        return Distribution(self.count, self.total, self.maximum, self.filled())


@dataclass(slots=True)
class NodeMetrics:
    """The counters of one broker, written by the connections to it."""

    node_id: int
    bytes_sent: int = 0
    bytes_received: int = 0
    requests: int = 0
    responses: int = 0
    connects: int = 0
    connect_failures: int = 0
    disconnects: int = 0
    throttles: Histogram = field(default_factory=Histogram)
    """The throttle times that the broker requested, in seconds."""
    latency: Histogram = field(default_factory=Histogram)
    """The times from writing a request to receiving its response, in seconds."""


@dataclass(slots=True)
class TopicMetrics:
    """The counters of one topic, written by the sender."""

    name: str
    records_acked: int = 0
    records_failed: int = 0
    records_unknown: int = 0
    retries: int = 0
    records_retried: int = 0
    batch_bytes: int = 0
    last_ack: float | None = None
    """The event loop's time at the last acknowledgement; None before the first one."""


@dataclass(slots=True)
class TransactionCallMetrics:
    """The counters of one kind of transactional call, written by the coordinator's watch."""

    call: str
    count: int = 0
    failures: int = 0
    time: Histogram = field(default_factory=Histogram)

    def add(self, seconds: float, *, is_failure: bool) -> None:
        """Count a call that has ended."""
        self.count += 1
        self.failures += is_failure
        self.time.add(seconds)

    def snapshot(self) -> TransactionCallSnapshot:
        return TransactionCallSnapshot(self.call, self.count, self.failures, self.time.snapshot())


class Ended(NamedTuple):
    """The numbers of records whose result is known, by outcome."""

    acked: int
    failed: int
    unknown: int


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
    records_retried: int = 0
    """Records in batches that were sent again, counted at each retry."""
    splits: int = 0
    """Batches that were too large for a broker and were split in two."""
    data_losses: int = 0
    """Events that lost, or may have lost, acknowledged records."""
    errors: dict[str, int] = field(default_factory=dict)
    """How often each error has occurred in responses and on connections, by error name."""
    batch_size: Histogram = field(default_factory=Histogram)
    records_per_request: Histogram = field(default_factory=Histogram)
    queue_time: Histogram = field(default_factory=Histogram)
    """Seconds from opening a batch to first sending it."""
    time_to_ack: Histogram = field(default_factory=Histogram)
    """Seconds from opening a batch to its acknowledgement, weighted by the number of its records."""
    time_to_failure: Histogram = field(default_factory=Histogram)
    """Seconds from opening a batch to its failure, weighted by the number of records that failed with it."""
    topics: dict[str, TopicMetrics] = field(default_factory=dict)
    # written by the accumulator's AppendLock
    buffer_wait: Histogram = field(default_factory=Histogram)
    """Seconds that calls to `send` waited for room in the buffer; calls that did not wait are not included."""
    # written by send
    rejected: dict[str, int] = field(default_factory=dict)
    """Records that `send` rejected, by error class."""
    # written by the coordinator's watch
    transaction_calls: dict[str, TransactionCallMetrics] = field(default_factory=dict)
    # written by metadata
    metadata_updates: int = 0
    metadata_failures: int = 0
    # written by connections
    nodes: dict[int, NodeMetrics] = field(default_factory=dict)
    forgotten: NodeMetrics = field(default_factory=lambda: NodeMetrics(-1))
    """The total counts for brokers that no longer have their own counters."""
    # written by snapshot
    most_accepted: int = 0
    """The highest `records_accepted` of any snapshot so far."""

    def node(self, node_id: int) -> NodeMetrics:
        """Return the counters of one broker, which are created on first use."""
        found = self.nodes.get(node_id)
        if found is None:
            if len(self.nodes) >= MOST_NODES:
                self._forget_one()
            found = self.nodes[node_id] = NodeMetrics(node_id)
        return found

    def topic(self, name: str) -> TopicMetrics:
        """Return the counters of one topic, which are created on first use."""
        found = self.topics.get(name)
        if found is None:
            if len(self.topics) >= MOST_TOPICS:
                name = OTHER_TOPICS
            found = self.topics.setdefault(name, TopicMetrics(name))
        return found

    def transaction_call(self, call: str) -> TransactionCallMetrics:
        """Return the counters of one kind of transactional call, which are created on first use."""
        return self.transaction_calls.setdefault(call, TransactionCallMetrics(call))

    def count_rejected(self, error: BaseException, records: int = 1) -> None:
        name = type(error).__name__
        self.rejected[name] = self.rejected.get(name, 0) + records

    def _forget_one(self) -> None:
        """Remove the counters of a broker that was never connected to, or else the oldest broker's counters.

        Otherwise, responses with many different node ids could exhaust the memory.
        """
        oldest = next(iter(self.nodes))
        gone = self.nodes.pop(next((id for id, node in self.nodes.items() if not node.connects), oldest))
        for name in ("requests", "connects", "disconnects", "bytes_sent", "bytes_received"):
            setattr(self.forgotten, name, getattr(self.forgotten, name) + getattr(gone, name))

    def count_error(self, name: str) -> None:
        self.errors[name] = self.errors.get(name, 0) + 1

    @property
    def ended(self) -> Ended:
        return Ended(self.records_acked, self.records_failed, self.records_unknown)

    def snapshot(
        self,
        ended: Ended | None = None,
        *,
        describe_node: Callable[[int], dict[str, Any] | None],
        wall_time: Callable[[float], float],
        **gauges: Any,
    ) -> MetricsSnapshot:
        """Return a snapshot of all counters and gauges.

        Args:
            ended: the numbers of records whose result is known, read before `records_buffered`; None to read them now.
                A record whose result arrives between the two reads, in another thread, is missing from both numbers.
                Therefore `records_accepted`, the sum of the two, is never reported lower than before.
            describe_node: returns the gauges of a broker, or None for a bootstrap address that is no longer used.
            wall_time: converts the event loop's time to wall-clock time.
            gauges: the current values that other objects provide.
        """
        described = ((node, describe_node(node.node_id)) for node in list(self.nodes.values()))
        nodes = tuple(_node(node, state) for node, state in described if state is not None)
        ended = ended or self.ended
        accepted = max(sum(ended) + gauges.get("records_buffered", 0), self.most_accepted)
        self.most_accepted = accepted
        all_nodes = [self.forgotten, *list(self.nodes.values())]
        return MetricsSnapshot(
            **gauges,
            records_accepted=accepted,
            records_sent=self.records_sent,
            records_acked=ended.acked,
            records_failed=ended.failed,
            records_unknown=ended.unknown,
            record_bytes=self.record_bytes,
            batches=self.batches,
            batch_bytes=self.batch_bytes,
            produce_requests=self.produce_requests,
            requests=sum(node.requests for node in all_nodes),
            connects=sum(node.connects for node in all_nodes),
            disconnects=sum(node.disconnects for node in all_nodes),
            bytes_sent=sum(node.bytes_sent for node in all_nodes),
            bytes_received=sum(node.bytes_received for node in all_nodes),
            retries=self.retries,
            records_retried=self.records_retried,
            splits=self.splits,
            data_losses=self.data_losses,
            errors=Counts(self.errors),
            rejected=Counts(self.rejected),
            batch_size=self.batch_size.snapshot(),
            records_per_request=self.records_per_request.snapshot(),
            queue_time=self.queue_time.snapshot(),
            time_to_ack=self.time_to_ack.snapshot(),
            time_to_result=self.time_to_ack.snapshot() + self.time_to_failure.snapshot(),
            buffer_wait=self.buffer_wait.snapshot(),
            in_flight=sum(node.in_flight for node in nodes),
            metadata_updates=self.metadata_updates,
            metadata_failures=self.metadata_failures,
            topics=tuple(_topic(topic, wall_time) for topic in list(self.topics.values())),
            nodes=nodes,
            transactions=tuple(call.snapshot() for call in list(self.transaction_calls.values())),
        )

    def past(self, client_id: str) -> MetricsSnapshot:
        """Return the counters of a past producer, without the counters for bootstrap addresses. All gauges are
        empty."""
        return self.snapshot(
            describe_node=lambda node_id: {} if node_id >= 0 else None,
            wall_time=float,
            client_id=client_id,
            state=PAST,
        )


def _node(node: NodeMetrics, gauges: dict[str, Any]) -> NodeSnapshot:
    return NodeSnapshot(
        node_id=node.node_id,
        **gauges,
        bytes_sent=node.bytes_sent,
        bytes_received=node.bytes_received,
        requests=node.requests,
        connects=node.connects,
        connect_failures=node.connect_failures,
        disconnects=node.disconnects,
        throttle_time=node.throttles.total,
        throttles=node.throttles.snapshot(),
        latency=node.latency.snapshot(),
    )


def _topic(topic: TopicMetrics, wall_time: Callable[[float], float]) -> TopicSnapshot:
    return TopicSnapshot(
        name=topic.name,
        last_ack_time=None if topic.last_ack is None else wall_time(topic.last_ack),
        records_acked=topic.records_acked,
        records_failed=topic.records_failed,
        records_unknown=topic.records_unknown,
        retries=topic.retries,
        records_retried=topic.records_retried,
        batch_bytes=topic.batch_bytes,
    )
